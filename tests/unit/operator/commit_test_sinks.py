"""A sink for tests of the worker processes: its target is a folder, and a file there says how it misbehaves.

Installed in a worker's parent as another package's sink (see `commit_world`). It does what a client library may do:
hang, crash, take all memory, print secrets, look around in its environment.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import socket
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr

from sinkruntime.api import (
    Answer,
    CommitRequest,
    CommitterBase,
    Guarantee,
    Lineage,
    Offer,
    Sink,
    SinkAggregatedCommitter,
    SinkCommitter,
    SinkWriter,
    WriterContext,
)
from sinkruntime.errors import TargetError
from sinkruntime.protocol.garbage import Garbage
from sinkruntime.spec.base import OptionsModel


class Options(OptionsModel):
    folder: str = Field(description="Where everything is.")
    tiers: str = Field(default="committer", description="`committer`, `aggregated` or `both`.")
    url: str = Field(default="", description="Somewhere else.")
    password: SecretStr | None = Field(default=None, description="Is needed to commit, where the folder has one.")


def _hang(folder: Path) -> None:
    time.sleep(600)


def _crash(folder: Path) -> None:
    ctypes.string_at(0)


def _hog(folder: Path) -> None:
    hoard = []
    while True:
        hoard.append(bytearray(16 * 1024 * 1024))


def _garble(folder: Path) -> None:
    """Write to the socket that the answers go over."""
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(descriptor))) as connection:
                connection.send(b"\0\0\0\4nope")
        except OSError:
            continue


def _raise(folder: Path) -> None:
    raise ConnectionResetError("the target hung up")


def _look_around(folder: Path) -> None:
    (folder / "environment.json").write_text(json.dumps(dict(os.environ)))


def _open_token(folder: Path) -> None:
    path = Path(os.environ["AWS_WEB_IDENTITY_TOKEN_FILE"])
    found = {"token": path.read_text(), "mode": oct(path.stat().st_mode & 0o777)}
    (folder / "token.json").write_text(json.dumps(found))


def _reach_out(folder: Path) -> None:
    try:
        urllib.request.urlopen((folder / "where").read_text(), timeout=2).close()
        (folder / "reached").write_text("yes")
    except OSError as error:
        (folder / "reached").write_text(str(error))


def _pry(folder: Path) -> None:
    """Try the operator's own token, and a socket of this machine."""
    found = {}
    for path in ("/var/run/secrets/kubernetes.io/serviceaccount/token", "/run/../run/secrets/x"):
        try:
            Path(path).read_text()
        except OSError as error:
            found[path] = type(error).__name__
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect("/run/containerd.sock")
    except OSError as error:
        found["socket"] = type(error).__name__
    (folder / "pried.json").write_text(json.dumps(found))


def _litter(folder: Path) -> None:
    (folder / "litter").write_text(tempfile.mkstemp("of a library")[1])


BEHAVIOURS: dict[str, Callable[[Path], None]] = {
    "hang": _hang,
    "crash": _crash,
    "hog": _hog,
    "garble": _garble,
    "raise": _raise,
    "look around": _look_around,
    "open token": _open_token,
    "reach out": _reach_out,
    "pry": _pry,
    "litter": _litter,
}


class _Tier(CommitterBase):
    name = ""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.folder = Path(options.folder)

    def misbehave(self, operation: str) -> None:
        """As the file `<operation>.behaviour` says; a line with `once` first lets it do so one time only."""
        file = self.folder / f"{operation}.behaviour"
        if not file.exists():
            return
        what = file.read_text()
        if what.startswith("once "):
            file.unlink()
        BEHAVIOURS[what.removeprefix("once ")](self.folder)

    def note(self, operation: str, checkpoint: int) -> None:
        with (self.folder / "calls").open("a") as calls:
            calls.write(f"{operation} {self.name} {checkpoint} {os.getpid()}\n")

    def open(self) -> None:
        self.note("open", 0)
        self.misbehave("open")

    def place(self, request: CommitRequest) -> Path:
        at = request.lineage
        return self.folder / f"{self.name}-{at.checkpoint}-{at.subtask}"

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        self.note("commit", requests[0].lineage.checkpoint)
        self.misbehave("commit")
        wanted = self.folder / "password"
        given = self.options.password.get_secret_value() if self.options.password else ""
        if wanted.exists() and wanted.read_text() != given:
            print(f"the password {given} was turned down")
            logging.getLogger("client").warning("password %s", given)
            for request in requests:
                request.reply(Answer.RETRY_LATER, "PermissionDenied", f"{given} is not the password")
            return
        for request in requests:
            if request.committable == {"n": "update"}:
                request.update({"n": "updated"})
                continue
            if request.committable == {"n": "refuse"}:
                request.reply(Answer.REFUSED, "NameTaken", "another's file is there")
                continue
            try:
                with self.place(request).open("x") as file:
                    file.write(json.dumps(request.committable))
                request.reply(Answer.COMMITTED)
            except FileExistsError:
                request.reply(Answer.ALREADY_COMMITTED)
        self.misbehave("committed")

    def probe(self, requests: Sequence[CommitRequest]) -> None:
        self.note("probe", requests[0].lineage.checkpoint)
        for request in requests:
            request.reply(Answer.ALREADY_COMMITTED if self.place(request).exists() else Answer.ABSENT)

    def fence(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            request.reply(Answer.ALREADY_COMMITTED if self.place(request).exists() else Answer.FENCED)

    def recover(self, garbage: Garbage) -> None:
        self.note("recover", garbage.epoch)
        self.misbehave("recover")

    def clean(self, checkpoint: int, epoch: int) -> dict[str, float]:
        self.note("clean", checkpoint)
        return {"prepared_transactions": 2, "of_its_own": 1}

    def close(self) -> None:
        self.note("close", 0)


class Committer(_Tier, SinkCommitter):
    name = "committer"


class Aggregated(_Tier, SinkAggregatedCommitter):
    name = "aggregated"

    def combine(self, committables: Sequence[tuple[Lineage, Any]]) -> Any:
        return [value for _, value in committables]


class UnrulySink(Sink):
    Options = Options
    summary = "for tests"

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        return Offer(Guarantee.EXACTLY_ONCE, "")

    def create_writer(self, context: WriterContext) -> SinkWriter:
        raise NotImplementedError

    def create_committer(self) -> SinkCommitter | None:
        if self.options.tiers == "refused":
            raise TargetError("TableMissing", "there is no such table", path="options.folder")
        return Committer(self.options) if self.options.tiers in ("committer", "both") else None

    def create_aggregated_committer(self) -> SinkAggregatedCommitter | None:
        return Aggregated(self.options) if self.options.tiers in ("aggregated", "both") else None


SINK = UnrulySink
