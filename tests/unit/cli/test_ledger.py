"""ledger export and import: what comes back is what went out, and nothing that is there is lost by mistake."""

import base64
import fcntl
import hashlib
import json
import os
from pathlib import Path

import pytest

from sinkruntime.local.inspection import read_ledger
from sinkruntime.protocol.ledger import Payload
from tests.unit.cli.fabricate import MANIFEST, Fabricated, invoke

DATA = b"committables of a writer"


@pytest.fixture
def other(tmp_path_factory: pytest.TempPathFactory) -> Fabricated:
    """The same job on another machine."""
    made = Fabricated(tmp_path_factory.mktemp("other"))
    made.write()
    return made


@pytest.fixture
def exported(job: Fabricated) -> Path:
    """The ledger of a job with a settled checkpoint, and a pending one whose payload lies beside the ledger."""
    job.begin()
    job.settle(1)
    name = "1-abcdef"
    objects = job.workspace.store.folder / "objects"
    objects.mkdir()
    (objects / name).write_bytes(DATA)
    job.decide(2, Payload(hashlib.sha256(DATA).hexdigest(), len(DATA), pointer=name))
    path = job.folder / "ledger-export.json"
    result = invoke("ledger", "export", job.path, "--file", str(path))
    assert (result.exit_code, result.stdout) == (0, f"the ledger of tests/small is in {path}\n")
    return path


def test_an_import_brings_ledger_payloads_and_revisions_back(
    job: Fabricated, other: Fabricated, exported: Path
) -> None:
    result = invoke("ledger", "import", other.path, "--file", str(exported))
    assert (result.exit_code, result.stdout) == (0, "imported: tests/small, 2 checkpoints decided, 1 pending\n")
    assert read_ledger(other.workspace) == read_ledger(job.workspace)
    root = other.workspace.root
    assert (root / "ledger" / "objects" / "1-abcdef").read_bytes() == DATA
    kept = f"revisions/{job.workspace.revision}.json"
    assert json.loads((root / kept).read_text()) == json.loads((job.workspace.root / kept).read_text())


def test_export_without_a_file_goes_to_standard_output(job: Fabricated, exported: Path) -> None:
    result = invoke("ledger", "export", job.path)
    assert result.stdout == exported.read_text()
    assert base64.b64decode(json.loads(result.stdout)["objects"]["1-abcdef"]) == DATA


def test_an_export_never_overwrites_a_file(job: Fabricated, exported: Path) -> None:
    before = exported.read_text()
    result = invoke("ledger", "export", job.path, "--file", str(exported))
    assert (result.exit_code, result.stderr) == (1, f"CannotWrite: {exported} cannot be written: File exists\n")
    assert exported.read_text() == before


def test_a_ledger_that_is_there_is_replaced_only_when_asked_for_and_kept(
    job: Fabricated, other: Fabricated, exported: Path
) -> None:
    other.begin()
    path = other.workspace.root / "ledger" / "ledger.json"
    before = path.read_text()
    result = invoke("ledger", "import", other.path, "--file", str(exported))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"LedgerExists: tests/small has a ledger already: {path.resolve()}\n--replace puts this one in its place\n"
    )
    assert path.read_text() == before
    assert invoke("ledger", "import", other.path, "--file", str(exported), "--replace").exit_code == 0
    assert read_ledger(other.workspace) == read_ledger(job.workspace)
    assert path.with_suffix(".json.old").read_text() == before


def test_a_damaged_ledger_can_be_replaced(other: Fabricated, exported: Path) -> None:
    other.begin()
    path = other.workspace.root / "ledger" / "ledger.json"
    path.write_text("torn")
    assert invoke("ledger", "import", other.path, "--file", str(exported), "--replace").exit_code == 0
    assert path.with_suffix(".json.old").read_text() == "torn"


def test_the_ledger_of_another_job_is_refused(other: Fabricated, exported: Path) -> None:
    other.write(MANIFEST.replace("name: small", "name: large"))
    result = invoke("ledger", "import", other.path, "--file", str(exported))
    assert result.exit_code == 1
    assert f"OtherJob: {exported} is the ledger of tests/small, and this job is tests/large\n" in result.stderr
    assert read_ledger(other.workspace) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-30], "is not JSON, so it is torn or no export"),
        (lambda text: "[]", "is no exported ledger"),
        (lambda text: text.replace('"decided": 2', '"decided": 3'), "its checksum is wrong"),
        (lambda text: text.replace('"format": 1', '"format": 9', 1), "was written by a newer release"),
        (lambda text: text.replace(base64.b64encode(DATA).decode(), "AAAA"), "1-abcdef in the export is damaged"),
        (lambda text: text.replace("1-abcdef\": \"", "1-other\": \""), "the export lacks the payload object 1-abcdef"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_whole_export_is_refused(
    change: object, message: str, other: Fabricated, exported: Path
) -> None:
    changed = change(exported.read_text())  # type: ignore[operator]
    assert changed != exported.read_text()
    exported.write_text(changed)
    result = invoke("ledger", "import", other.path, "--file", str(exported))
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr
    assert read_ledger(other.workspace) is None


def test_an_import_writes_nowhere_but_into_the_ledgers_folder(job: Fabricated, other: Fabricated) -> None:
    name = f"../../../../../../{other.folder.name}-stray"
    job.begin()
    job.decide(1, Payload(hashlib.sha256(DATA).hexdigest(), len(DATA), pointer=name))
    objects, path = job.workspace.store.folder / "objects", job.folder / "export.json"
    objects.mkdir()
    stray = (objects / name).resolve()
    stray.write_bytes(DATA)
    assert invoke("ledger", "export", job.path, "--file", str(path)).exit_code == 0
    stray.unlink()
    result = invoke("ledger", "import", other.path, "--file", str(path))
    assert not stray.exists()
    assert result.stderr.startswith("LedgerCorrupt: the ledger in the export names the payload object '../..")
    assert (result.exit_code, read_ledger(other.workspace)) == (1, None)


def test_nothing_is_imported_while_the_job_runs(other: Fabricated, exported: Path) -> None:
    root = other.workspace.root
    root.mkdir(parents=True)
    with (root / "run.lock").open("w") as lock:
        lock.write(str(os.getpid()))
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = invoke("ledger", "import", other.path, "--file", str(exported))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"AlreadyRunning: job tests/small is being run by process {os.getpid()}\n")
    assert read_ledger(other.workspace) is None


def test_an_export_that_would_lack_a_pending_checkpoints_manifest_is_refused(job: Fabricated, exported: Path) -> None:
    (job.workspace.root / "revisions" / f"{job.workspace.revision}.json").unlink()
    result = invoke("ledger", "export", job.path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        "RevisionLost: the manifest that a pending checkpoint was made under cannot be read"
    )
