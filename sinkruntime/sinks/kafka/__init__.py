"""`kafka`: records in Kafka topics, exactly once for consumers that read committed records only.

Here is the sink itself; `writer` stages in transactions that it leaves open, `committer` ends them from another
process, `evidence` says where the sink stands.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from sinkruntime.api import (
    Evidence,
    Guarantee,
    Offer,
    Sink,
    SinkAggregatedCommitter,
    SinkCommitter,
    SinkWriter,
    WriterContext,
)
from sinkruntime.errors import TargetError
from sinkruntime.sinks.kafka import target
from sinkruntime.sinks.kafka.broker import Cluster
from sinkruntime.sinks.kafka.clients import admin_of, connection_settings
from sinkruntime.sinks.kafka.committer import KafkaAggregatedCommitter, KafkaCommitter
from sinkruntime.sinks.kafka.encode import Encoder
from sinkruntime.sinks.kafka.evidence import EvidenceGroup, Marker
from sinkruntime.sinks.kafka.names import base_name, origin_of
from sinkruntime.sinks.kafka.options import Options
from sinkruntime.sinks.kafka.wire import WireError
from sinkruntime.sinks.kafka.writer import KafkaWriter


class KafkaSink(Sink):
    """Topics of one cluster."""

    Options = Options
    summary = "records in Kafka topics, in transactions that the operator ends"
    rejects_rows = True

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        if not options.transactions:
            return Offer(
                Guarantee.AT_LEAST_ONCE, "rows are visible before the decision; a batch that runs again repeats"
            )
        why = (
            "each writer's transaction is ended by its producer's id and epoch, and consumers with "
            f"isolation.level=read_committed see its rows then; the broker keeps it for {options.transaction_timeout}"
        )
        return Offer(Guarantee.EXACTLY_ONCE, why)

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return KafkaWriter(self.options, context)

    def create_committer(self) -> SinkCommitter | None:
        return KafkaCommitter(self.options, self.identity) if self.options.transactions else None

    def create_aggregated_committer(self) -> SinkAggregatedCommitter | None:
        return KafkaAggregatedCommitter(self.options, self.identity) if self.options.transactions else None

    def inspect(self) -> Mapping[str, Any]:
        """How long the brokers let a transaction live, and which of this sink's are open. Raises `TargetError` where
        `transactionTimeout` is longer."""
        limit_seconds = target.check_timeout(admin_of(self.options), self.options)
        return {"transactionMaxTimeoutSeconds": limit_seconds, "prepared": self._open_transactions()}

    def _open_transactions(self) -> list[str]:
        """For people: each with its age and owner."""
        if not self.options.transactions:
            return []
        base = base_name(self.options.transactional_id_prefix, self.identity)
        with self._asking() as cluster:
            found = cluster.ongoing(lambda name: origin_of(base, name) is not None)
        now_ms = time.time() * 1000
        return [
            f"{one.id} (producer {one.producer_id}, epoch {one.producer_epoch}): open for "
            f"{max(0.0, now_ms - one.started_ms) / 1000:.0f} s of {one.timeout_ms / 1000:.0f} s"
            for one in sorted(found, key=lambda one: one.started_ms)
        ]

    def evidence(self) -> Evidence | None:
        if not self.options.transactions:
            return None
        group, marker = self._marker()
        identity = target.identity_of(admin_of(self.options), self.options)
        return Evidence(marker.checkpoint, identity, f"group {group}")

    def prove(self, checkpoint: int, epoch: int) -> str | None:
        if not self.options.transactions:
            return None
        group, marker = self._marker()
        if marker.checkpoint < checkpoint:
            return None
        made_of = f": {marker.detail}" if marker.checkpoint == checkpoint and marker.detail else ""
        return f"the offset of group {group} stands at checkpoint {marker.checkpoint}{made_of}"

    def _marker(self) -> tuple[str, Marker]:
        with self._asking() as cluster:
            group = EvidenceGroup(self.options, self.identity, cluster)
            return group.group, group.read()

    @contextmanager
    def _asking(self) -> Iterator[Cluster]:
        """A client for one look."""
        cluster = Cluster(connection_settings(self.options))
        try:
            yield cluster
        except (OSError, WireError) as error:
            raise TargetError("BrokerUnreachable", str(error), path="options.bootstrapServers") from error
        finally:
            cluster.close()

    def prepare_target(self, schema: pa.Schema) -> None:
        """Check the columns against the formats, the timeout against the brokers; make the topic and register the
        schemas where it is asked."""
        encoder = Encoder(self.options, schema)
        admin = admin_of(self.options)
        if self.options.transactions:
            target.check_timeout(admin, self.options)
        target.prepare_topic(admin, self.options)
        encoder.register()

    def staged_life_seconds(self) -> float | None:
        return float(self.options.timeout_seconds) if self.options.transactions else None


SINK = KafkaSink
