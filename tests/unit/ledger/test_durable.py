"""What `replace_file` leaves at a power cut: only what was synced is sure to be there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sinkruntime.ledger.durable import replace_file


def test_a_file_is_on_disk_before_it_gets_its_name_and_its_folders_are_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    path = tmp_path / "revisions" / "r1.json"
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    replace_file(path, b"{}")
    assert synced == [
        (str(tmp_path), False),
        (str(path.with_suffix(".tmp")), False),
        (str(path.parent), True),
    ]
    assert path.read_bytes() == b"{}"


def test_a_write_that_fails_leaves_the_former_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r1.json"
    replace_file(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
