"""Renders the chart with Helm, for the tests of what comes out."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sinkruntime.kube import Object
from tests.servers.programs import HELM, ProgramMissingError, locate

CHART = Path(__file__).resolve().parents[2] / "charts" / "sinkjob"
KUBE_VERSION = "1.31.0"
TIMEOUT_SECONDS = 30


class ChartError(Exception):
    """Helm turned the values down; the message is its own."""


def render(namespace: str, values: dict[str, Any] | None = None) -> list[Object]:
    """All objects of a release `test`, hooks too. Raises `ChartError`; skips the test where Helm is missing."""
    try:
        helm = locate(HELM)
    except ProgramMissingError as error:
        pytest.skip(f"missing program: {error}")
    done = subprocess.run(
        [helm, "template", "test", CHART, "--namespace", namespace, "--kube-version", KUBE_VERSION, "--values", "-"],
        input=json.dumps(values or {}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise ChartError(done.stderr)
    return [body for body in yaml.safe_load_all(done.stdout) if body]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """Those of one kind."""
    return [body for body in objects if body["kind"] == kind]
