"""The file store keeps the contract, and the ledger through kills, full disks, torn files and hand edits."""

import asyncio
import errno
import fcntl
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sinkruntime.errors import (
    AnswerLost,
    LedgerConflict,
    LedgerCorrupt,
    LedgerError,
    LedgerFormatTooNew,
    LedgerUnavailable,
)
from sinkruntime.ledger import durable
from sinkruntime.ledger import file as module
from sinkruntime.ledger.file import FileLedgerStore
from sinkruntime.ledger.store import LedgerStore, Stored
from tests.unit.ledger.contract import NEW, SharedStoreContract, at_epoch

KILLS = 30
ROOT = Path(__file__).resolve().parents[3]


class TestFileLedgerStore(SharedStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FileLedgerStore:
        return FileLedgerStore(tmp_path / "team" / "job")

    def other(self, store: LedgerStore) -> LedgerStore:
        assert isinstance(store, FileLedgerStore)
        return FileLedgerStore(store.folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a ledger at version 1."""
    asyncio.run(FileLedgerStore(tmp_path).create(NEW))
    return tmp_path


def load(folder: Path) -> Stored:
    found = asyncio.run(FileLedgerStore(folder).load())
    assert found is not None
    return found


def spawn(folder: Path, *writes: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.unit.ledger.writer", str(folder), *writes]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_writer_killed_at_any_instant_leaves_the_old_or_the_new_ledger(folder: Path) -> None:
    dice = random.Random(7)
    last = 1
    for _ in range(KILLS):
        with spawn(folder) as writer:
            assert writer.stdout is not None
            acknowledged = int(writer.stdout.readline())
            time.sleep(dice.random() * 0.03)
            writer.send_signal(signal.SIGKILL)
            told = [int(line) for line in writer.stdout.read().splitlines() if line.strip().isdigit()]
        found = load(folder)
        version = int(found.version)
        # The last line may be torn ("12" of "123"): a torn number is smaller, which the comparison allows.
        assert last < acknowledged
        assert version >= max([acknowledged, *told])
        assert version <= max([acknowledged, *told]) + 1, "at most one write was under way"
        assert found.ledger == at_epoch(version - 1)
        last = version
    assert asyncio.run(FileLedgerStore(folder).replace(at_epoch(0), str(last))).version == str(last + 1)


def test_two_processes_share_the_versions_between_them(folder: Path) -> None:
    writers = [spawn(folder, "40"), spawn(folder, "40")]
    told: list[int] = []
    for writer in writers:
        out, _ = writer.communicate(timeout=25)
        assert writer.returncode == 0
        told += [int(line) for line in out.splitlines()]
    assert sorted(told) == list(range(2, 82)), "each version was won exactly once, and none left out"
    assert load(folder) == Stored(at_epoch(80), "81")


@contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    before = (folder / "ledger.json").read_bytes()
    yield
    assert (folder / "ledger.json").read_bytes() == before


@pytest.mark.parametrize("length", [0, 1, 2, 40, -1])
def test_a_torn_file_is_corrupt_with_advice_and_stays_as_it_is(folder: Path, length: int) -> None:
    path = folder / "ledger.json"
    path.write_bytes(path.read_bytes()[:length])
    with unchanged(folder):
        with pytest.raises(LedgerCorrupt) as caught:
            load(folder)
        with pytest.raises(LedgerError):
            asyncio.run(FileLedgerStore(folder).create(NEW))
    assert "ledger.json" in caught.value.message
    assert "restore it from a backup" in caught.value.advice


@pytest.mark.parametrize("text", ["²\n{}", "x\n{}", "\n{}", "-1\n{}", "1\r{}", "1\nnull", "\ufeff1\n{}"])
def test_a_strange_file_is_corrupt(folder: Path, text: str) -> None:
    (folder / "ledger.json").write_text(text, encoding="utf-8")
    with unchanged(folder), pytest.raises(LedgerCorrupt):
        load(folder)


def test_bytes_that_are_no_text_are_corrupt(folder: Path) -> None:
    (folder / "ledger.json").write_bytes(b"\xff\xfe1\n{}")
    with unchanged(folder), pytest.raises(LedgerCorrupt):
        load(folder)
    with unchanged(folder), pytest.raises(LedgerCorrupt):
        asyncio.run(FileLedgerStore(folder).replace(NEW, "1"))


def test_an_edit_by_hand_is_found(folder: Path) -> None:
    path = folder / "ledger.json"
    path.write_text(path.read_text().replace("team/flights", "team/other"))
    with unchanged(folder), pytest.raises(LedgerCorrupt, match="edited by hand"):
        load(folder)


def test_a_newer_format_is_told_and_left_alone(folder: Path) -> None:
    path = folder / "ledger.json"
    path.write_text(path.read_text().replace('"format":1', '"format":2'))
    with unchanged(folder), pytest.raises(LedgerFormatTooNew) as caught:
        load(folder)
    assert "newer release" in caught.value.advice


def test_a_ledger_that_vanished_is_not_made_anew(folder: Path) -> None:
    (folder / "ledger.json").unlink()
    with pytest.raises(LedgerCorrupt, match="is gone"):
        asyncio.run(FileLedgerStore(folder).replace(at_epoch(1), "1"))
    assert not (folder / "ledger.json").exists()


def test_a_leftover_of_a_killed_writer_harms_nothing(folder: Path) -> None:
    (folder / "ledger.tmp").write_text("9\nhalf a led")
    assert load(folder) == Stored(NEW, "1")
    assert asyncio.run(FileLedgerStore(folder).replace(at_epoch(1), "1")) == load(folder)


def full_disk() -> None:
    """In the child: no file may grow beyond 100 bytes, and the attempt is an error instead of a signal."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))


FULL = """
import asyncio, sys
from pathlib import Path
from sinkruntime.errors import LedgerUnavailable
from sinkruntime.ledger.file import FileLedgerStore
store = FileLedgerStore(Path(sys.argv[1]))
present = asyncio.run(store.load())
for write in (store.replace(present.ledger, present.version), store.put_object("1-aa", b"x" * 1000)):
    try:
        asyncio.run(write)
    except LedgerUnavailable as error:
        print(error.message)
"""


def test_a_full_disk_is_unavailable_and_the_old_ledger_stays(folder: Path) -> None:
    with unchanged(folder):
        command = [sys.executable, "-c", FULL, str(folder)]
        ended = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, preexec_fn=full_disk)
    told = ended.stdout.splitlines()
    assert len(told) == 2
    assert all("cannot be written: File too large" in line for line in told)
    assert load(folder) == Stored(NEW, "1")
    assert asyncio.run(FileLedgerStore(folder).replace(at_epoch(1), "1")).version == "2", "when there is room again"
    assert all(name.startswith("1-aa.") for name in asyncio.run(FileLedgerStore(folder).list_objects()))


def test_a_place_that_is_no_folder_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = FileLedgerStore(tmp_path / "file" / "job")
    for call in (store.load, lambda: store.create(NEW), lambda: store.put_object("1-aa", b""), store.list_objects):
        with pytest.raises(LedgerUnavailable, match=r"Not a directory|File exists"):
            asyncio.run(call())
    with pytest.raises(LedgerUnavailable):
        asyncio.run(store.remove_object("1-aa"))


def test_a_folder_that_may_not_be_read_is_unavailable(folder: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("by design: nothing is unreadable to root")
    folder.chmod(0)
    try:
        with pytest.raises(LedgerUnavailable, match="Permission denied"):
            asyncio.run(FileLedgerStore(folder).load())
        with pytest.raises(LedgerUnavailable, match="Permission denied"):
            asyncio.run(FileLedgerStore(folder).replace(NEW, "1"))
    finally:
        folder.chmod(0o700)


def test_a_lock_that_is_never_given_back_ends_in_unavailable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.05)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with unchanged(folder), pytest.raises(LedgerUnavailable, match="locked by another process"):
            asyncio.run(FileLedgerStore(folder).replace(at_epoch(1), "1"))
    assert asyncio.run(FileLedgerStore(folder).replace(at_epoch(1), "1")).version == "2"


def broken_sync(folder: Path) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_after_the_rename_a_failure_is_an_answer_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileLedgerStore(folder)
    with monkeypatch.context() as patch:
        patch.setattr(module, "sync_folder", broken_sync)
        with pytest.raises(AnswerLost, match="may or may not"):
            asyncio.run(store.replace(at_epoch(1), "1"))
        with pytest.raises(LedgerUnavailable):
            asyncio.run(store.load())
    assert asyncio.run(store.load()) == Stored(at_epoch(1), "2"), "it is acted upon only once it is durable"
    with pytest.raises(LedgerConflict):
        asyncio.run(store.replace(at_epoch(9), "1"))


def watch_syncs(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    synced: list[Path] = []
    sync = durable.sync_folder

    def watched(folder: Path) -> None:
        synced.append(folder)
        sync(folder)

    for user in (module, durable):
        monkeypatch.setattr(user, "sync_folder", watched)
    return synced


def test_what_another_process_wrote_is_made_durable_before_it_is_acted_upon(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = watch_syncs(monkeypatch)
    store = FileLedgerStore(folder)
    asyncio.run(store.load())
    asyncio.run(store.load())
    assert synced == [folder], "once per version"
    asyncio.run(store.replace(at_epoch(1), "1"))
    asyncio.run(store.load())
    assert synced == [folder, folder], "one's own write is durable already"


def test_a_folder_made_for_the_ledger_is_durable_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = watch_syncs(monkeypatch)
    asyncio.run(FileLedgerStore(tmp_path / "team" / "job").create(NEW))
    assert synced == [tmp_path, tmp_path / "team", tmp_path / "team" / "job"]


def test_leftovers_of_payloads_are_listed_under_their_epoch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileLedgerStore(folder)

    def torn(path: Path, data: bytes) -> None:
        path.write_bytes(data[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_file", torn)
    with pytest.raises(LedgerUnavailable, match="No space left"):
        asyncio.run(store.put_object("7-aa", b"xyz"))
    (left,) = asyncio.run(store.list_objects())
    assert left.startswith("7-aa.")
    asyncio.run(store.remove_object(left))
    assert asyncio.run(store.list_objects()) == []
