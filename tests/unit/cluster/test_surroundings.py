"""What a pod's process is told by its environment."""

from pathlib import Path

import pytest

from sinkruntime.cluster.surroundings import Surroundings
from sinkruntime.errors import ConfigurationError

TOLD = {"SINKJOB_NAMESPACE": "data", "SINKJOB_JOB": "flights", "SINKJOB_EPOCH": "3", "SINKJOB_POD_NAME": "p"}


def test_variables_without_a_default_are_enough() -> None:
    told = Surroundings.read({**TOLD, "SINKJOB_POD_IP": "", "PATH": "/bin"})
    assert (told.name, told.epoch, told.pod_ip, told.master) == ("data/flights", 3, "127.0.0.1", "")
    assert told.places.secrets == Path("/etc/sinkjob/secrets")
    assert told.places.base is None, "a fileRef is refused on a cluster"


@pytest.mark.parametrize(
    ("change", "variable"),
    [({"SINKJOB_JOB": ""}, "SINKJOB_JOB"), ({"SINKJOB_EPOCH": "x"}, "SINKJOB_EPOCH"),
     ({"SINKJOB_GRACE_SECONDS": "0"}, "SINKJOB_GRACE_SECONDS")],
)  # fmt: skip
def test_what_is_wrong_is_told_by_the_variables_name(change: dict[str, str], variable: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Surroundings.read({**TOLD, **change})
    assert variable in caught.value.message


@pytest.mark.parametrize(
    ("host", "server"),
    [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443"),
     ("", "https://kubernetes.default.svc:443")],
)  # fmt: skip
def test_the_api_server_is_the_one_that_kubernetes_names(
    host: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if host:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    else:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert Surroundings.read(TOLD).driver_pod().api_server == server
