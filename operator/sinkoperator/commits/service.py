"""One opened sink in a worker: what the operator's proxies ask of it, and the answers as plain data.

`worker` calls it, several calls at a time. Here manifests and committables are parsed and clients of targets work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sinkoperator.commits import frames
from sinkoperator.commits.frames import BadFrame, Json, Packed
from sinkruntime.api import (
    Answer,
    CommitRequest,
    CommitterBase,
    Lineage,
    Sink,
    SinkAggregatedCommitter,
    SinkIdentity,
)
from sinkruntime.errors import ConfigurationError, ManifestError, Problem
from sinkruntime.spec.load import parse_object
from sinkruntime.spec.models import SinkJob
from sinkruntime.spec.options_from import Places, read_options_from
from sinkruntime.spec.sink_options import load_sink_class, parse_options

#: The calls that take requests and answer them.
ASKED = frozenset({"commit", "probe", "fence", "abort", "restore_commit"})

Check = Callable[[Mapping[str, Any]], None]


class UnknownSink(ConfigurationError, ValueError):
    """The revision has no such sink: trying again is of no use."""


def open_sink(arguments: Mapping[str, Any], check: Check) -> Service:
    """Read the manifest, join it with the secrets, look at the hosts, connect. Raises `SinkjobError`."""
    service = Service(bind_sink(arguments, check))
    service.open()
    return service


def bind_sink(arguments: Mapping[str, Any], check: Check) -> Sink:
    """The sink, not connected. `check` is given its options with the secrets among them."""
    job = parse_object(arguments["manifest"])
    sink_class, options = bound_options(job, arguments, check)
    meta = job.metadata
    identity = SinkIdentity(arguments["ledger_id"], arguments["sink"], f"{meta.namespace}/{meta.name}")
    return sink_class(options, identity)


def bound_options(job: SinkJob, arguments: Mapping[str, Any], check: Check) -> tuple[type[Sink], Any]:
    """The class and the options of the sink that the arguments name."""
    name = arguments["sink"]
    index = next((at for at, sink in enumerate(job.spec.sinks) if sink.name == name), None)
    if index is None:
        raise UnknownSink("UnknownSink", f"this revision of the manifest has no sink {name}")
    spec, path = job.spec.sinks[index], ("spec", "sinks", index)
    if ":" in spec.type:
        message = f"the operator does not have the code of `{spec.type}`"
        expected = "set commit.runOn: Job, and a pod of the job's image commits"
        raise ManifestError([Problem(f"spec.sinks[{index}].type", None, message, expected)])
    places = Places(arguments["secrets"], arguments["configMaps"])
    secrets = read_options_from(spec.options_from, places, (*path, "optionsFrom"))
    sink_class = load_sink_class(spec.type, (*path, "type"))
    options = parse_options(sink_class, spec.options, (*path, "options"), secrets)
    check({**spec.options, **secrets})
    return sink_class, options


class Service:
    """A sink and its committers."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._reader = sink.committable_serializer
        self._tiers: dict[str, CommitterBase] = {}

    def open(self) -> None:
        """Connect each tier; on an error close those that are."""
        made = {
            "committer": self._sink.create_committer(),
            "aggregated": self._sink.create_aggregated_committer(),
        }
        for name, tier in made.items():
            if tier is not None:
                tier.open()
                self._tiers[name] = tier

    def facts(self) -> Json:
        """What the proxies must know."""
        return {
            "committer": "committer" in self._tiers,
            "aggregated": "aggregated" in self._tiers,
            "version": self._reader.version,
        }

    def close(self) -> None:
        """Close what is open; an error of one does not keep the other open."""
        errors = []
        for tier in self._tiers.values():
            try:
                tier.close()
            except Exception as error:  # noqa: BLE001  (told after the other tier is closed)
                errors.append(error)
        if errors:
            raise errors[0]

    def call(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """One call of a committer, or of the sink's own hooks."""
        if operation in ASKED:
            return self._ask(operation, self._tier(arguments), arguments["requests"])
        if operation == "combine":
            return frames.packed_to(self._packed(self._aggregated().combine(self._values(arguments["pairs"]))))
        if operation == "recover":
            return self._tier(arguments).recover(frames.garbage_from(arguments["garbage"]))
        if operation == "clean":
            return self._tier(arguments).clean(arguments["checkpoint"], arguments["epoch"])
        if operation == "pre_commit":
            merged = self._sink.pre_commit(self._values(arguments["pairs"]))
            return frames.pairs_to([(at, self._packed(value)) for at, value in merged])
        if operation == "post_commit":
            return self._sink.post_commit(arguments["checkpoint"], self._values(arguments["pairs"]))
        raise BadFrame(f"there is no call `{operation}`")

    def _tier(self, arguments: Mapping[str, Any]) -> CommitterBase:
        return self._tiers[arguments["tier"]]

    def _aggregated(self) -> SinkAggregatedCommitter:
        tier = self._tiers["aggregated"]
        assert isinstance(tier, SinkAggregatedCommitter), "made so"
        return tier

    def _values(self, pairs: Any) -> list[tuple[Lineage, Any]]:
        return [(at, self._value(packed)) for at, packed in frames.pairs_from(pairs)]

    def _value(self, packed: Packed) -> Any:
        """Raises ValueError for a version, or bytes, that this release cannot read."""
        return self._reader.deserialize(packed.version, packed.data)

    def _packed(self, value: Any) -> Packed:
        return Packed(self._reader.version, self._reader.serialize(value))

    def _ask(self, operation: str, tier: CommitterBase, asked: Sequence[Json]) -> list[Json]:
        requests = []
        for frame in asked:
            request = frames.request_from(frame)
            request.committable = self._value(request.committable)
            requests.append(request)
        getattr(tier, operation)(requests)
        return [self._answered(request) for request in requests]

    def _answered(self, request: CommitRequest) -> Json:
        updated = request.answer is Answer.UPDATE_AND_RETRY_LATER
        return {
            "answer": None if request.answer is None else str(request.answer),
            "reason": request.reason,
            "message": request.message,
            "evidence": request.evidence,
            "committable": frames.packed_to(self._packed(request.committable)) if updated else None,
        }
