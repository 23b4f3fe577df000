"""Every manifest in examples/ is a good one."""

from pathlib import Path

import pytest

from sinkruntime.spec.load import load_manifest

ROOT = Path(__file__).resolve().parents[3]
MANIFESTS = sorted((ROOT / "examples").glob("*/*.yaml"))


def test_there_are_examples() -> None:
    assert MANIFESTS


@pytest.mark.parametrize("manifest", [pytest.param(file, id=file.parent.name) for file in MANIFESTS])
def test_an_example_is_a_good_manifest(manifest: Path) -> None:
    assert load_manifest(manifest).job.spec.sinks
