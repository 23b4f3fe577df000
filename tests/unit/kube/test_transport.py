"""Through which proxy the API server is reached."""

from __future__ import annotations

import pytest

from sinkruntime.kube.transport import _set_proxy


@pytest.mark.parametrize(
    ("host", "own", "expected"),
    [
        ("https://10.96.0.1:443", None, "http://proxy:3128"),
        ("https://api.example.com", None, None),  # the environment says: without
        ("https://127.0.0.1:6443", None, None),
        ("https://localhost:6443", None, None),
        ("https://[::1]:6443", None, None),
        ("https://10.96.0.1:443", "http://named:1", "http://named:1"),
    ],
)
def test_the_environments_proxy_is_taken_but_never_for_this_machine(
    host: str, own: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubernetes.aio.client.configuration import Configuration

    for name in ("https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "example.com")
    configuration = Configuration(host=host, proxy=own)
    _set_proxy(configuration)
    assert configuration.proxy == expected
