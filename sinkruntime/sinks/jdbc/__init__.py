"""`jdbc`: tables of SQL databases, exactly once: PostgreSQL, MySQL, MariaDB, SQLite, DuckDB.

Here is the sink itself; `staging` and `xa` are its two modes, the databases stand behind `database` and `stage`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pydantic import SecretStr

from sinkruntime.api import (
    Distribution,
    Guarantee,
    Offer,
    RunOn,
    Sink,
    SinkAggregatedCommitter,
    SinkCommitter,
    SinkWriter,
    WriterContext,
)
from sinkruntime.api import Evidence as Proof
from sinkruntime.errors import ConfigurationError, TargetError
from sinkruntime.sinks.jdbc.address import located
from sinkruntime.sinks.jdbc.database import Session, asked
from sinkruntime.sinks.jdbc.databases import stage_for
from sinkruntime.sinks.jdbc.evidence import Evidence, Standing
from sinkruntime.sinks.jdbc.options import Mode, Options
from sinkruntime.sinks.jdbc.prepared import check_limit, described, transactions_for, xid_prefix
from sinkruntime.sinks.jdbc.stage import Stage, TableStage
from sinkruntime.sinks.jdbc.staging import StagingCommitter, StagingWriter
from sinkruntime.sinks.jdbc.target import prepare
from sinkruntime.sinks.jdbc.xa import XaCommitter, XaEvidenceCommitter, XaWriter


class JdbcSink(Sink):
    """One table of a database."""

    Options = Options
    summary = "tables of PostgreSQL, MySQL, MariaDB, SQLite, DuckDB"
    rejects_rows = True

    @classmethod
    def located(cls, options: Any, base: str) -> Any:
        address = located(options.address, base)
        if not address.is_file:
            return options
        return options.model_copy(update={"url": SecretStr(f"{address.kind}:///{quote(address.path)}")})

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        if options.mode is Mode.XA:
            why = "each writer's prepared transaction holds its own proof; a checkpoint appears writer by writer"
            return Offer(Guarantee.EXACTLY_ONCE, why)
        why = "one transaction moves a checkpoint's rows and the evidence in the database"
        return Offer(Guarantee.EXACTLY_ONCE, why)

    @classmethod
    def default_run_on(cls, options: Any) -> RunOn:
        return RunOn.DRIVER if options.address.is_file else RunOn.OPERATOR

    def create_writer(self, context: WriterContext) -> SinkWriter:
        stage = self._stage()
        if self.options.mode is Mode.XA:
            assert isinstance(stage, TableStage)
            return XaWriter(stage, transactions_for(self.options), context)
        return StagingWriter(stage, self.options, context)

    def create_committer(self) -> SinkCommitter | None:
        if self.options.mode is not Mode.XA:
            return None
        stage = self._stage()
        assert isinstance(stage, TableStage)
        return XaCommitter(stage, transactions_for(self.options), self.identity)

    def create_aggregated_committer(self) -> SinkAggregatedCommitter:
        stage = self._stage()
        if self.options.mode is Mode.XA:
            assert isinstance(stage, TableStage)
            return XaEvidenceCommitter(stage, self.identity)
        return StagingCommitter(stage, self.options, self.identity)

    def inspect(self) -> Mapping[str, Any]:
        """`prepared`: the prepared transactions of all jobs in the database, for people (`mode: xa`)."""
        if self.options.mode is not Mode.XA:
            return {}
        transactions = transactions_for(self.options)
        found = asked(self._stage().database, transactions.found)
        mine = xid_prefix(self.identity)
        return {"prepared": [described(one, mine) for one in sorted(found, key=lambda one: one.xid)]}

    def roll_back(self, name: str) -> bool:
        """Roll a prepared transaction of another job or sink back, at a person's word; False: there is none of this
        name. Raises `ConfigurationError` for one of this sink's own, of which the ledger knows what becomes of it."""
        if self.options.mode is not Mode.XA:
            return False
        if name.startswith(xid_prefix(self.identity)):
            message = f"{name} is this job's own: its ledger says what becomes of it"
            raise ConfigurationError("OwnTransaction", message, advice="use --resolve while the job is stopped")
        transactions = transactions_for(self.options)

        def act(session: Session) -> bool:
            there = any(found.xid == name for found in transactions.found(session))
            if there:
                transactions.rollback(session, name)
            return there

        return asked(self._stage().database, act)

    def evidence(self) -> Proof:
        stage = self._stage()

        def read(session: Session) -> tuple[Standing, str]:
            target = stage.database.identity(session, stage.schema, stage.table)
            return self._evidence(stage).read(session), target

        standing, target = asked(stage.database, read)
        return Proof(standing.checkpoint, target, f"{stage.database.address} {self.options.table}")

    def prove(self, checkpoint: int, epoch: int) -> str | None:
        proof = self.evidence()
        if proof.checkpoint < checkpoint:
            return None
        return f"the evidence beside {self.options.table} stands at checkpoint {proof.checkpoint}"

    def prepare_target(self, schema: pa.Schema) -> None:
        stage = self._stage()

        def act(session: Session) -> None:
            if self.options.mode is Mode.XA:
                transactions = transactions_for(self.options)
                check_limit(transactions.limit(session), 1, 1, transactions.setting)
            prepare(session, stage.database, self.options, self._evidence(stage), schema)

        try:
            asked(stage.database, act)
        except TargetError as error:
            if error.reason == "LockTimeout":
                error.advice = (
                    "somebody holds a lock of the table, perhaps a prepared transaction of another job: "
                    "`sinkjob doctor` lists them with age and owner (`mode: xa`)"
                )
            raise

    def distribution(self) -> Distribution | None:
        """All rows of a key come to one writer: only there is it known which is the last."""
        return Distribution(keys=self.options.key) if self.options.key else None

    def _stage(self) -> Stage:
        return stage_for(self.options)

    def _evidence(self, stage: Stage) -> Evidence:
        return Evidence(stage.database, stage.schema, self.identity)


SINK = JdbcSink
