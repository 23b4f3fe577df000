"""Writes of objects that may be repeated at will: after a crash, after a lost answer, by another replica.

Called by `apply`. Names are deterministic, so "already exists" is met by a live look at whose it is: the SinkJob's own
is taken as done, another's is told and left alone. Nothing is overwritten that is not this SinkJob's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkoperator.observed import Trouble
from sinkoperator.reading import controller, label
from sinkruntime.kube import AlreadyExists, Api, Conflict, Kind, Object

#: How often a write is tried that finds an object which is going away, or one that has just gone.
TRIES_MAX = 3


class NameTaken(Exception):
    """An object of this name belongs to somebody else."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble


class Writes:
    """See the module. `job_uid` is the uid of the SinkJob that the objects are made for."""

    def __init__(self, api: Api, namespace: str, job_uid: str) -> None:
        self._api = api
        self._namespace = namespace
        self._job_uid = job_uid

    async def adopt(self, kind: Kind, body: Object, *, labels: tuple[str, ...] = ()) -> Object:
        """Create the object, or take the one that is there where this SinkJob owns it and these labels are equal.

        Raises `NameTaken` where it is another's, `Conflict` where it is going away.
        """
        name = body["metadata"]["name"]
        for _ in range(TRIES_MAX):
            try:
                return await self._api.create(kind, self._namespace, body)
            except AlreadyExists:
                present = await self._api.get(kind, self._namespace, name)
            if present is None:
                continue  # it went away between the two requests
            self.check_owner(kind, present)
            differing = [each for each in labels if label(present, each) != label(body, each)]
            if differing:
                raise NameTaken(_taken(kind, name, f"is of another {differing[0]}: {label(present, differing[0])}"))
            if "deletionTimestamp" in present["metadata"]:
                raise Conflict(f"{kind.name} {name} is being deleted")
            return present
        raise Conflict(f"{kind.name} {name} appears and goes")

    async def correct(self, kind: Kind, body: Object, *fields: str, replaceable: bool = True) -> Object:
        """Create the object, or make these fields of it as they should be; one that cannot be changed is made anew."""
        name = body["metadata"]["name"]
        present = await self._api.get(kind, self._namespace, name)
        if present is None:
            present = await self.adopt(kind, body)
        self.check_owner(kind, present)
        wrong = {field: body.get(field) for field in fields if present.get(field) != body.get(field)}
        if not wrong:
            return present
        version = present["metadata"]["resourceVersion"]
        if replaceable:
            return await self._api.patch(
                kind, self._namespace, name, {"metadata": {"resourceVersion": version}, **wrong}
            )
        await self._api.delete(kind, self._namespace, name, uid=present["metadata"]["uid"])
        return await self.adopt(kind, body)

    def check_owner(self, kind: Kind, present: Object) -> None:
        """Raise `NameTaken` where the object is not this SinkJob's."""
        if self._job_uid not in owners(present):
            owner = controller(present) or "nobody"
            raise NameTaken(_taken(kind, present["metadata"]["name"], f"belongs to {owner}, not to this SinkJob"))

    async def delete(self, kind: Kind, name: str, uid: str = "", grace_seconds: int | None = None) -> None:
        """Delete it; gone already, or another of its name, is as good."""
        await self._api.delete(kind, self._namespace, name, uid=uid, grace_seconds=grace_seconds)

    async def patch_metadata(self, kind: Kind, present: Object, change: Mapping[str, Any]) -> Object:
        """Change the metadata of the object as it was read: a compare-and-swap, for lists are replaced whole."""
        metadata = {"resourceVersion": present["metadata"]["resourceVersion"], **change}
        return await self._api.patch(kind, self._namespace, present["metadata"]["name"], {"metadata": metadata})


def owners(body: Object) -> set[str]:
    """The uids of all owners."""
    return {str(owner["uid"]) for owner in body["metadata"].get("ownerReferences") or []}


def _taken(kind: Kind, name: str, what: str) -> Trouble:
    message = f"{kind.name} {name} {what}"
    return Trouble("NameTaken", message, f"delete that {kind.name}, or give the SinkJob another name")
