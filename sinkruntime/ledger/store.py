"""The interface of a ledger store, shaped by what a Kubernetes ConfigMap gives.

Driver and coordinator call it; `memory`, `file` (and the operator's ConfigMap store) implement it. A store knows
bytes and versions, never a rule of the protocol. Errors are those of `sinkruntime.errors`: `LedgerConflict` (someone
was faster; nothing was written), `AnswerLost` (it may or may not have been written), `LedgerUnavailable` (it was not
written, try again), `LedgerCorrupt`, `LedgerFormatTooNew`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sinkruntime.protocol.ledger import Ledger

#: A payload object's name holds epoch and digest, so one name never stands for two contents.
ObjectName = str


@dataclass(frozen=True, slots=True)
class Stored:
    """A ledger as it was read, and the version (a ConfigMap's `resourceVersion`) that a replacement must name."""

    ledger: Ledger
    version: str


class LedgerStore(Protocol):
    """One job's ledger and the payload objects beside it."""

    async def load(self) -> Stored | None:
        """The present ledger; None where there is none."""

    async def create(self, ledger: Ledger) -> Stored:
        """Create it if there is none; raises `LedgerConflict` where there is one."""

    async def replace(self, ledger: Ledger, version: str) -> Stored:
        """Compare-and-swap: write `ledger` if `version` is still the present one, else raise `LedgerConflict`."""

    async def wait_changed(self, version: str, timeout_seconds: float) -> None:
        """Return when the ledger is no longer at `version`, or after the time. A hint: too early is allowed, and it
        never raises; what is wrong is for `load` to tell."""

    async def put_object(self, name: ObjectName, data: bytes) -> None:
        """Write a payload object; one of this name that is there already has the same content. Durable on return."""

    async def get_object(self, name: ObjectName) -> bytes:
        """Read one; raises `LedgerCorrupt` where it is missing."""

    async def remove_object(self, name: ObjectName) -> None:
        """Remove one; missing is no error."""

    async def list_objects(self) -> list[ObjectName]:
        """The names of all payload objects."""
