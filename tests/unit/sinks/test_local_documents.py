"""Small documents in a local target: replaced in one step, and what a killed process left goes with the next one."""

from pathlib import Path

from sinkruntime.api import SinkIdentity
from sinkruntime.storage.local import LocalStorage
from sinkruntime.storage.marker import Marker, read_marker, write_marker

IDENTITY = SinkIdentity("ledger-1", "lake", "team/flights")


def test_the_temporary_file_of_a_killed_process_does_not_stay(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path), IDENTITY)
    assert _move(storage, 1)
    (final,) = _files(tmp_path, "ledger-1-lake.json")
    torn = final.with_name(f".{final.name}.tmp")
    torn.write_text("{")  # as a kill between its first byte and its rename leaves it
    assert _move(storage, 2)
    assert read_marker(storage, IDENTITY)[0] == Marker(2, 1)
    assert not torn.exists()
    assert _files(tmp_path, ".*") == []


def _move(storage: LocalStorage, checkpoint: int) -> bool:
    with storage.exclusive():
        _, document = read_marker(storage, IDENTITY)
        return write_marker(storage, IDENTITY, Marker(checkpoint, checkpoint - 1), document)


def _files(root: Path, pattern: str) -> list[Path]:
    return sorted(root.glob(f"_sinkjob/{pattern}"))
