"""The tail of a driver's log, which people are shown: bounded, without secrets, fetched once.

There is no kubelet that could give a log, so the API server is a dictionary here.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any, cast

from sinkoperator.job_logs import CHARS_MAX, NOT_SHOWN, JobLogs
from sinkoperator.manifests import read
from sinkruntime.kube import Api, Forbidden, Kind, NotFound
from sinkruntime.spec.models import SinkJobSpec

POD = {"metadata": {"name": "j-driver-1", "namespace": "n", "uid": "pod-uid"}}


class Server:
    """The two requests that are made."""

    def __init__(self, log: str | None, secrets: dict[str, dict[str, str]] | None) -> None:
        self.log = log
        self.secrets = secrets
        self.fetched = 0

    async def log_tail(self, namespace: str, pod: str, *, lines: int, container: str) -> str:
        self.fetched += 1
        if self.log is None:
            raise NotFound("the node is gone")
        return self.log

    async def get(self, kind: Kind, namespace: str, name: str) -> Any:
        if self.secrets is None:
            raise Forbidden("no right to get secrets")
        data = self.secrets.get(name)
        if data is None:
            return None
        return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}}


def spec() -> SinkJobSpec:
    """A job whose source needs a Secret."""
    source = {"format": "rate", "optionsFrom": [{"secretRef": {"name": "keys"}}]}
    sinks = [{"name": "a", "type": "console"}]
    body = {"source": source, "checkpoint": {"location": "s3a://b/c"}, "sinks": sinks}
    metadata = {"name": "j", "namespace": "n"}
    found = read({"apiVersion": "sinkjob.io/v1alpha1", "kind": "SinkJob", "metadata": metadata, "spec": body}).spec
    assert found is not None
    return found


def mounting(*secrets: str, optional: bool = False) -> dict[str, Any]:
    """The pod, with these Secrets mounted."""
    volumes = [{"name": name, "secret": {"secretName": name, "optional": optional}} for name in secrets]
    return {**POD, "spec": {"volumes": [{"name": "tmp", "emptyDir": {}}, *volumes]}}


def fetch(server: Server, given: SinkJobSpec | None, times: int = 1, pod: dict[str, Any] = POD) -> str:
    """The tail, as the last of so many looks gets it."""

    async def look() -> str:
        logs = JobLogs(cast(Api, server))
        return [await logs.fetch(pod, "driver", given) for _ in range(times)][-1]

    return asyncio.run(look())


def test_secrets_are_hidden_whole_and_line_by_line() -> None:
    key = "-----BEGIN KEY-----\nMIIEabcdef\n-----END KEY-----"
    server = Server("failed: password hunter22 refused\nMIIEabcdef\n", {"keys": {"password": "hunter22", "key": key}})

    text = fetch(server, spec())

    assert text == "failed: password *** refused\n***\n"


def test_a_log_is_not_shown_where_its_secrets_are_not_known() -> None:
    assert fetch(Server("hunter22", None), spec()) == NOT_SHOWN
    assert fetch(Server("hunter22", {}), None) == NOT_SHOWN


def test_secrets_that_an_older_manifest_named_are_hidden_too() -> None:
    server = Server("hunter22 refused, hunter33 not tried", {"keys": {"p": "hunter33"}, "old-keys": {"p": "hunter22"}})

    assert fetch(server, spec(), pod=mounting("old-keys")) == "*** refused, *** not tried"


def test_a_log_is_not_shown_where_a_secret_that_the_pod_has_read_is_gone() -> None:
    assert fetch(Server("hunter22", {}), spec(), pod=mounting("keys")) == NOT_SHOWN
    assert fetch(Server("failed", {}), spec(), pod=mounting("former", optional=True)) == "failed"


def test_a_log_is_bounded_and_asked_for_once() -> None:
    server = Server("x" * 100_000, {"keys": {}})

    assert len(fetch(server, spec(), times=3)) == CHARS_MAX
    assert server.fetched == 1


def test_a_log_that_is_gone_is_nothing() -> None:
    server = Server(None, {"keys": {}})

    assert fetch(server, spec(), times=2) == ""
    assert server.fetched == 1
