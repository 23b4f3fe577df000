"""What a worker is given: only the objects that the sink names, read by name, and the job's own identity or none."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from typing import Any, cast

import pytest

from sinkoperator.commits.frames import Json
from sinkoperator.commits.opening import NO_IDENTITY, Named, Resolver, life_seconds, references
from sinkoperator.commits.settings import WorkerSettings
from sinkruntime.errors import SinkjobError
from sinkruntime.kube import Api, Forbidden
from tests.unit.operator.commit_jobs import Cluster

SPEC: Json = {
    "source": {"format": "rate", "optionsFrom": [{"secretRef": {"name": "of-the-source"}}]},
    "sinks": [
        {"name": "a", "optionsFrom": [{"secretRef": {"name": "login"}}, {"configMapRef": {"name": "plain"}}]},
        {"name": "b", "optionsFrom": [{"secretRef": {"name": "other"}}]},
        {"name": "c"},
    ],
}
ROLE = {"metadata": {"annotations": {"eks.amazonaws.com/role-arn": "arn"}}}


class NoTokens(Cluster):
    """An operator without the right to ask for tokens."""

    async def token(self, namespace: str, service_account: str, *, audience: str, seconds: int) -> str:
        raise Forbidden("serviceaccounts/token is forbidden")


def made(cluster: Cluster, spec: Json = SPEC) -> Cluster:
    cluster.put("ControllerRevision", "flights-rev-1", {"data": {"spec": spec}})
    cluster.secret("login", password="open sesame")
    cluster.put(
        "ConfigMap", "plain", {"data": {"region": "eu"}, "binaryData": {"key": base64.b64encode(b"x").decode()}}
    )
    return cluster


def opening(cluster: Cluster, sink: str = "a", **settings: Any) -> Json:
    resolver = Resolver(cast(Api, cluster), Named("team", "flights", "ledger-1"), WorkerSettings(**settings))
    return asyncio.run(resolver.opening("rev-1", sink))


def test_only_what_the_sink_names_is_read() -> None:
    cluster = made(Cluster())
    found = opening(cluster)
    assert (found["secrets"], found["configMaps"]) == (
        {"login": {"password": "open sesame"}}, {"plain": {"region": "eu", "key": "x"}},
    )  # fmt: skip
    assert sorted(cluster.asked) == [
        ("ConfigMap", "plain"), ("ControllerRevision", "flights-rev-1"), ("Secret", "login"),
        ("ServiceAccount", "default"),
    ]  # fmt: skip
    assert found["identity"] == NO_IDENTITY
    assert found["manifest"]["metadata"] == {"name": "flights", "namespace": "team"}


@pytest.mark.parametrize(("kind", "reason"), [("Secret", "SecretNotFound"), ("ConfigMap", "ConfigMapNotFound")])
def test_an_object_that_is_missing_has_a_reason_of_its_own(kind: str, reason: str) -> None:
    cluster = made(Cluster())
    cluster.objects = {key: value for key, value in cluster.objects.items() if key[0] != kind}
    with pytest.raises(SinkjobError) as caught:
        opening(cluster)
    assert caught.value.reason == reason


def test_a_value_that_is_no_text_is_told_without_it() -> None:
    cluster = made(Cluster())
    cluster.put("Secret", "login", {"data": {"password": base64.b64encode(b"\xff\xfesecret").decode()}})
    with pytest.raises(SinkjobError, match="the key `password` of the Secret `login` is not UTF-8 text") as caught:
        opening(cluster)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "spec", [{}, {"sinks": 3}, {"sinks": [3, {"name": "a", "optionsFrom": [3, {"secretRef": {"name": 3}}]}]}]
)
def test_a_revision_that_was_edited_by_hand_harms_nobody_here(spec: Json) -> None:
    assert list(references(spec, "a")) == []


def test_the_service_account_of_the_job_is_asked_for_a_token() -> None:
    cluster = made(Cluster(), {**SPEC, "serviceAccountName": "own"})
    cluster.put("ServiceAccount", "own", ROLE)
    identity = opening(cluster, "c")["identity"]
    assert identity["files"] == {"token": "token of own for sts.amazonaws.com"}
    assert identity["environment"]["AWS_ROLE_ARN"] == "arn"
    assert identity["renew_seconds"] == 300


def test_a_job_without_a_service_account_has_the_one_that_was_made_for_it() -> None:
    cluster = made(Cluster())
    cluster.put("ServiceAccount", "flights-driver", ROLE)
    found = opening(cluster, "c", default_service_account="")
    assert found["identity"]["files"] == {"token": "token of flights-driver for sts.amazonaws.com"}


def test_an_identity_that_may_not_be_asked_for_is_told_unless_the_sink_has_keys(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = made(NoTokens())
    cluster.put("ServiceAccount", "default", ROLE)
    with pytest.raises(SinkjobError) as caught:
        opening(cluster, "c")
    assert caught.value.reason == "TokenRefused"
    assert "commit.runOn: Driver" in caught.value.advice
    with caplog.at_level(logging.WARNING):
        assert opening(cluster, "a")["identity"] == NO_IDENTITY
    assert "team/flights goes without its own identity" in caplog.text


def test_a_tokens_life_is_read_off_it() -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"iat": 100, "exp": 7300}).encode()).decode().rstrip("=")
    assert life_seconds(f"head.{claims}.sign") == 7200
    for nonsense in ("", "a.b.c", "a.e30.c"):
        assert life_seconds(nonsense) == 600
