"""The example manifests for a cluster: the API server takes them by the CRD's schema and rules, and so do we."""

import re
from pathlib import Path

import pytest
import yaml

from sinkoperator.manifests import read
from sinkruntime.kube import SECRET, SINK_JOB, Api

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "kubernetes"
FILES = sorted(EXAMPLES.glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
async def test_an_example_is_taken(api: Api, namespace: str, file: Path) -> None:
    bodies = list(yaml.safe_load_all(file.read_text()))
    assert bodies
    for body in bodies:
        kind = {"SinkJob": SINK_JOB, "Secret": SECRET}[body["kind"]]
        taken = await api.create(kind, namespace, body, dry_run=True)
        if kind is SINK_JOB:
            assert read(taken).problems == ()


def test_the_secrets_that_examples_name_are_there() -> None:
    secrets = {body["metadata"]["name"] for body in yaml.safe_load_all((EXAMPLES / "secrets.yaml").read_text())}
    text = "".join(file.read_text() for file in FILES)
    named = set(re.findall(r"secretRef: \{name: ([\w-]+)\}", text))
    assert named == secrets
