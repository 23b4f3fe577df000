"""Each wrong manifest of `bad_manifests.txt` gets its exact message: line, field, what is wrong, what would be right.

There `= name` begins a case, `-` lines of good.yaml are replaced by the `+` lines that follow, `!` is the message.
"""

import re
from pathlib import Path

import pytest

from sinkruntime.errors import ExitCode, ManifestError
from sinkruntime.spec.load import parse_manifest

HERE = Path(__file__).parent
GOOD = (HERE / "good.yaml").read_text(encoding="utf-8")
CASES = (HERE / "bad_manifests.txt").read_text(encoding="utf-8").strip("\n").split("\n\n")


def read_case(case: str) -> tuple[str, str, str]:
    """Name, manifest, message."""
    lines = case.splitlines()
    changed = "\n".join(line for line in lines if line[0] in "-+")
    manifest = GOOD
    for change in re.finditer(r"((?:^-.*\n?)+)((?:^\+.*\n?)+)", changed, re.MULTILINE):
        old, new = ("\n".join(line[2:] for line in part.splitlines()) for part in change.groups())
        assert manifest.count(f"{old}\n") == 1, f"{old!r} must stand in good.yaml once"
        manifest = manifest.replace(f"{old}\n", f"{new}\n")
    return lines[0][2:], manifest, "\n".join(line[2:] for line in lines if line[0] == "!")


def test_the_manifest_that_the_cases_start_from_is_good() -> None:
    assert parse_manifest(GOOD).job.metadata.name == "flights"


def test_there_are_enough_cases_and_none_twice() -> None:
    names = [read_case(case)[0] for case in CASES]
    assert len(set(names)) == len(names) >= 40


@pytest.mark.parametrize("case", [pytest.param(case, id=read_case(case)[0]) for case in CASES])
def test_a_bad_manifest_is_refused_with_its_exact_message(case: str) -> None:
    _, manifest, message = read_case(case)
    with pytest.raises(ManifestError) as refused:
        parse_manifest(manifest)
    assert str(refused.value) == message
    assert refused.value.exit_code == ExitCode.INVALID_MANIFEST
    assert "hunter2" not in message
