"""What may be removed: staged data that no decision will ever need, by ranges and not by absent records.

`recover` of the sinks asks `Garbage` about every artefact that they find. It is made from a ledger that was read at
or after the version that holds the raised epoch. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from sinkruntime.protocol.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Garbage:
    """Which staged artefacts of a ledger's older epochs are garbage; a value that travels to the sinks.

    `firsts` as in `Ledger`, `epoch` the running one, `unsettled` the numbers whose records are still there.
    """

    ledger_id: str
    epoch: int
    firsts: tuple[int, ...]
    unsettled: frozenset[int]

    @classmethod
    def of(cls, ledger: Ledger) -> Garbage:
        """What is garbage by this ledger."""
        numbers = frozenset(record.number for record in ledger.records)
        return cls(ledger.ledger_id, ledger.epoch, ledger.firsts, numbers)

    def undecided(self, number: int, epoch: int) -> bool:
        """Whether an artefact (checkpoint, epoch) belongs to a checkpoint that this epoch never decided.

        True means that nothing will ever refer to it. An epoch without a range is not touched.
        """
        span = self._range(epoch)
        return span is not None and number not in span

    def settled(self, number: int, epoch: int) -> bool:
        """Whether (checkpoint, epoch) was decided by that epoch and is over: committed or aborted, and cleaned.

        What is *still staged* under it is a losing attempt that came late. It is no garbage where staged names are
        the final ones (a table's data files): use it only for staging places.
        """
        span = self._range(epoch)
        return span is not None and number in span and number not in self.unsettled

    def _range(self, epoch: int) -> range | None:
        if not 1 <= epoch < self.epoch or epoch >= len(self.firsts):
            return None
        return range(self.firsts[epoch - 1], self.firsts[epoch])
