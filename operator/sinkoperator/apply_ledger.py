"""The actions that concern a job's ledger: made, taken over, let go, its epoch raised. All by compare-and-swap.

`apply` calls them. The ledger alone says which epoch is the newest; raising it asks first, live, whether a driver of an
older one is still there. It touches no record: coordinators and drivers do.
"""

from __future__ import annotations

from sinkoperator import actions, names
from sinkoperator.observed import Observed
from sinkoperator.reading import driver_pod
from sinkoperator.world import Key
from sinkruntime.environment import Environment
from sinkruntime.errors import LedgerConflict
from sinkruntime.kube import CONFIG_MAP, POD, Api, Conflict, Object
from sinkruntime.ledger.change import change
from sinkruntime.ledger.configmap import ConfigMapLedgerStore, LedgerPlace
from sinkruntime.protocol.events import Event, RaiseEpoch
from sinkruntime.protocol.ledger import Ledger

#: A look is soon made again; it does not wait for a server that is away.
PATIENCE_SECONDS = 5.0


class LedgerActions:
    """See the module."""

    def __init__(self, api: Api, environment: Environment, key: Key, observed: Observed) -> None:
        self._api = api
        self._environment = environment
        self._namespace, self._job = key
        self._uid = observed.job.uid
        self._store = ConfigMapLedgerStore(api, LedgerPlace(self._namespace, self._job, self._uid))

    async def create(self, _: actions.CreateLedger) -> None:
        """A new one, if there is none."""
        ledger = Ledger(self._environment.identity(), f"{self._namespace}/{self._job}")
        try:
            await self._store.create(ledger)
        except LedgerConflict as conflict:
            raise Conflict(conflict.message) from conflict

    async def raise_epoch(self, action: actions.RaiseEpoch) -> None:
        """Raises `Conflict` where an older driver may live, or the ledger is not as the plan had it."""
        selector = f"{names.selector(self._job)},{names.COMPONENT_LABEL}={names.DRIVER}"
        pods, _ = await self._api.list(POD, self._namespace, labels=selector)
        for pod in (driver_pod(body, self._uid) for body in pods):
            if not pod.ended and pod.name not in action.fenced:
                raise Conflict(f"{pod.name} has not ended")

        def event(ledger: Ledger) -> Event | None:
            if ledger.epoch == action.epoch and not ledger.claim:
                return None  # raised before, and the answer or the rest of the plan was lost
            if ledger.epoch != action.epoch - 1:
                raise Conflict(f"the ledger is at epoch {ledger.epoch}, and {action.epoch} was planned")
            return RaiseEpoch(action.epoch)

        await change(self._store, event, self._environment, PATIENCE_SECONDS)

    async def adopt(self, action: actions.AdoptLedger) -> None:
        """Put owner and finalizer on it."""
        present = await self._present(action.uid)
        finalizers = [*_without(present, names.LEDGER_FINALIZER), names.LEDGER_FINALIZER]
        await self._patch(present, {"annotations": {names.OWNER_ANNOTATION: self._uid}, "finalizers": finalizers})

    async def orphan(self, action: actions.OrphanLedger) -> None:
        """Take owner and finalizer off: it stays, and anybody may delete it."""
        present = await self._present(action.uid)
        metadata: Object = {"annotations": {names.OWNER_ANNOTATION: None}}
        if not action.keep_finalizer:
            metadata["finalizers"] = _without(present, names.LEDGER_FINALIZER)
        await self._patch(present, metadata)

    async def release(self, action: actions.ReleaseLedger) -> None:
        """Delete it, then take the finalizer off: after a crash between the two it is still there to be found."""
        present = await self._present(action.uid)
        name, finalizers = present["metadata"]["name"], _without(present, names.LEDGER_FINALIZER)
        await self._api.delete(CONFIG_MAP, self._namespace, name, uid=action.uid)
        remaining = await self._api.get(CONFIG_MAP, self._namespace, name)
        if remaining is not None and remaining["metadata"]["uid"] == action.uid:
            await self._patch(remaining, {"finalizers": finalizers})

    async def _present(self, uid: str) -> Object:
        present = await self._api.get(CONFIG_MAP, self._namespace, names.ledger_name(self._job))
        if present is None or present["metadata"]["uid"] != uid:
            raise Conflict("the ledger is another one than the plan had")
        return present

    async def _patch(self, present: Object, metadata: Object) -> None:
        version = {"resourceVersion": present["metadata"]["resourceVersion"]}
        name = present["metadata"]["name"]
        await self._api.patch(CONFIG_MAP, self._namespace, name, {"metadata": {**version, **metadata}})


def _without(present: Object, finalizer: str) -> list[str]:
    return [each for each in present["metadata"].get("finalizers") or [] if each != finalizer]
