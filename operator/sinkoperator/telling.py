"""Passes on to metrics and events what the parts of the operator do, and joins both with the work. It decides nothing.

The application makes one; looks, coordinators and Leases tell it, in the event loop.
"""

from __future__ import annotations

from sinkoperator import names
from sinkoperator.actions import CreateDriver, Decision
from sinkoperator.events import Events
from sinkoperator.metrics import OperatorMetrics
from sinkoperator.observed import Observed
from sinkoperator.reading import label, seconds
from sinkoperator.world import Key, World
from sinkruntime.kube import Object
from sinkruntime.protocol.ledger import Ledger

#: Reason of the event of a driver that a newer one has overtaken.
FENCED = "Fenced"


class Telling:
    """See the module. `post` is what a plan's events go through."""

    def __init__(self, metrics: OperatorMetrics, events: Events, world: World) -> None:
        self._metrics = metrics
        self._events = events
        self._world = world
        self._decided: dict[Key, int] = {}  # the newest epoch that was seen to have decided something

    def post(self, job: Object, reason: str, message: str, *, warning: bool) -> None:
        """An event of a plan."""
        if reason == FENCED:
            self._metrics.fenced()
        self._events.post(job, reason, message, warning=warning)

    def looked(self, key: Key, observed: Observed, decision: Decision) -> None:
        """A look at a job is over, and what it planned is done."""
        self._metrics.phase(key, str(decision.status.get("phase", "")))
        created = [action for action in decision.actions if isinstance(action, CreateDriver)]
        if created and created[0].epoch == 1:  # of later ones nobody knows since when they were asked for
            self._metrics.driver_created(observed.now - observed.job.created)

    def observe(self, key: Key, ledger: Ledger) -> None:
        """A coordinator has seen this."""
        self._metrics.ledger(key, ledger)
        first = ledger.firsts[-1] if ledger.firsts else 0
        known = self._decided.get(key)
        if ledger.decided >= first > 0:
            if known is not None and known < ledger.epoch:
                self._tell_start(key, ledger, first)
            self._decided[key] = ledger.epoch
        elif known is None:
            self._decided[key] = 0

    def _tell_start(self, key: Key, ledger: Ledger, first: int) -> None:
        record = ledger.record(first)
        pod = self._world.pods.one(key, names.driver_name(key[1], ledger.epoch))
        if record is None or pod is None or label(pod, names.COMPONENT_LABEL) != names.DRIVER:
            return
        created = seconds(pod["metadata"].get("creationTimestamp"))
        if created is not None:
            self._metrics.first_decision(record.decided_ms / 1000 - created)

    def forget(self, key: Key) -> None:
        """The job is gone, or another replica's."""
        self._metrics.forget(key)
        self._decided.pop(key, None)
