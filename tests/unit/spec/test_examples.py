"""Every manifest in examples/ is a good one."""

from pathlib import Path

import pytest

from sinkruntime.spec.load import load_manifest

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "examples").glob("*/*.yaml"))
MANIFESTS = [file for file in FILES if "kind: SinkJob" in file.read_text()]


def test_there_are_examples() -> None:
    assert MANIFESTS


@pytest.mark.parametrize("manifest", [pytest.param(file, id=f"{file.parent.name}/{file.name}") for file in MANIFESTS])
def test_an_example_is_a_good_manifest(manifest: Path) -> None:
    assert load_manifest(manifest).job.spec.sinks
