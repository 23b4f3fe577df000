"""docs/operator.md says what the code says: its generated parts, its phases, reasons, annotations, status fields."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from sinkoperator.course import Phase
from sinkoperator.reference import PAGE, updated
from sinkruntime.kube.names import GROUP
from sinkruntime.spec.crd_status import STATUS_SCHEMA
from sinkruntime.spec.delivery import AcceptReason
from sinkruntime.spec.digest import NOT_OF_A_REVISION
from sinkruntime.spec.models import SinkJobSpec

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
#: Whose words reach conditions, events and `status.failure` on a cluster. What targets answer is in the sinks' pages.
CLOSELY_READ = ("operator/sinkoperator", "sinkruntime/cluster", "sinkruntime/coordinator")
SPEAKERS = (*CLOSELY_READ, "sinkruntime/job", "sinkruntime/spark", "sinkruntime/ledger/spill.py")
CALLS = frozenset({"Trouble", "Emit", "Ailment", "Ended", "SinkjobError", "ConfigurationError", "TargetError"})
TWO_HUMPS = re.compile(r"[A-Z][a-z]+([A-Z]+[a-z]+)+")
#: Names that look like reasons and are none.
OTHERS = {
    "ConfigMap", "SinkJob",  # kinds
    "AvailableNow", "ProcessingTime", "OnFailure", "LastCommit",  # values of the manifest
    "PodScheduled", "DisruptionTarget", "ContainerCreating", "PodInitializing", "RuntimeDefault",  # of Kubernetes
    "DeadlineExceeded", "OOMKilled",  # of Kubernetes; ours have `Driver` before them
    "GaveUp",  # a verdict, kept in `status.restarts`
    "NotFound",  # an ending
}  # fmt: skip


def modules(*places: str) -> Iterator[ast.Module]:
    for place in places:
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield parsed(file)


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def constants(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def first_words(tree: ast.AST) -> Iterator[str]:
    """The reasons that errors, events and conditions are made with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in CALLS and isinstance(node.args[0].value, str):
                yield node.args[0].value


def spoken() -> set[str]:
    found: set[str] = set()
    for tree in modules(*SPEAKERS):
        found |= {word for word in first_words(tree) if word}
    for tree in modules(*CLOSELY_READ):
        found |= {word for word in constants(tree) if TWO_HUMPS.fullmatch(word)}
    return found - OTHERS


def in_code() -> set[str]:
    return {word for tree in modules("operator/sinkoperator", "sinkruntime") for word in constants(tree)}


def first_column(heading: str) -> set[str]:
    """The names in the first column of the tables below a heading."""
    section = re.split(r"^#+ ", TEXT.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert cells, f"no table below {heading!r}"
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_the_generated_parts_are_what_the_code_makes() -> None:
    assert updated(TEXT) == TEXT, "make docs"


def test_a_page_without_its_markers_is_not_written() -> None:
    with pytest.raises(ValueError, match="generated: options"):
        updated(TEXT.replace("<!-- generated: options -->", ""))


def test_every_phase_is_explained() -> None:
    assert first_column("The life of a job") == {str(phase) for phase in Phase}


def test_every_reason_in_the_code_is_on_the_page() -> None:
    words = spoken()
    assert {"DriverOOMKilled", "CommitInDoubt", "NodeLost", "Orphaned", "ExecutorsRefused", "QueryFailed"} <= words
    assert {word for word in words if f"`{word}`" not in TEXT} == set()


@pytest.mark.parametrize("heading", ["Conditions", "Events"])
def test_what_the_page_explains_is_in_the_code(heading: str) -> None:
    assert first_column(heading) - in_code() == set()


def test_the_reasons_that_the_page_explains_are_in_the_code() -> None:
    made = {f"{kind}{end}" for kind in ("Secret", "ConfigMap") for end in ("NotFound", "Unreadable")}
    assert first_column("Reasons, and what to do") - in_code() - made == set()


def test_every_reason_that_can_be_accepted_is_explained() -> None:
    accepted = set(AcceptReason.__args__)  # type: ignore[attr-defined]
    assert {reason for reason in accepted if f"`{reason}`" not in TEXT} == set()


def test_what_restarts_nothing_is_named() -> None:
    fields = {SinkJobSpec.model_fields[name].alias for name in NOT_OF_A_REVISION}
    table = TEXT.partition("### What you can ask for")[2].partition("###")[0]
    assert {field for field in fields if str(field) not in table} == set()


def test_every_field_of_the_status_is_explained() -> None:
    assert first_column("Status") >= set(STATUS_SCHEMA["properties"])


def test_every_annotation_and_finalizer_of_ours_is_named() -> None:
    found: set[str] = set()
    for tree in modules("operator/sinkoperator", "sinkruntime"):
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr) and ast.unparse(node).startswith("f'{GROUP}/"):
                found.add(ast.unparse(node)[2:-1].replace("{GROUP}", GROUP))
        found |= {word for word in constants(tree) if re.fullmatch(rf"{re.escape(GROUP)}/[a-z-]+", word)}
    assert len(found) > 10
    assert {name for name in found if f"`{name}`" not in TEXT} == set()
