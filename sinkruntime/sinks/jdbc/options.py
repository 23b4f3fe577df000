"""The options of the `jdbc` sink, and what contradicts itself in them.

Read from the manifest by the spec loader. Never connects to anything: what only the target can tell is checked by
`prepare_target`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from sinkruntime.sinks.jdbc.address import Address, AddressError, parse
from sinkruntime.spec.base import Items, OptionsModel, PositiveDuration, Text, UniqueItems
from sinkruntime.spec.quantities import Duration
from sinkruntime.tables.changes import CONDITIONS, Condition


class Mode(StrEnum):
    """How a checkpoint is staged and committed."""

    STAGING = "staging"
    XA = "xa"


class Write(StrEnum):
    """What a row does to the table."""

    INSERT = "insert"
    UPSERT = "upsert"
    CHANGES = "changes"


class SchemaSaveMode(StrEnum):
    """What is done about the table itself, once per job."""

    CREATE_WHEN_NOT_EXISTS = "CreateWhenNotExists"
    ERROR_WHEN_NOT_EXISTS = "ErrorWhenNotExists"
    RECREATE = "Recreate"
    IGNORE = "Ignore"


class DataSaveMode(StrEnum):
    """What is done about the rows that the table has, once per job."""

    APPEND = "Append"
    DROP = "Drop"
    ERROR_WHEN_EXISTS = "ErrorWhenExists"


class Options(OptionsModel):
    """Options of the `jdbc` sink."""

    url: SecretStr = Field(
        description="`postgresql://user@host:5432/database`, `mysql://…`, `mariadb://…`, `sqlite:///file.db`, "
        "`duckdb:///file.db` (three slashes: relative to the manifest). A URL that holds a password comes from "
        "`optionsFrom`."
    )
    user: Text | None = Field(default=None, description="User, where the URL names none.")
    password: SecretStr | None = Field(default=None, description="Password; from `optionsFrom`.")
    table: Text = Field(description="Table, or `schema.table`; names are taken as they are written.")
    mode: Mode = Field(
        default=Mode.STAGING,
        description="`staging`: rows wait in staging tables, one transaction moves a checkpoint. `xa`: each writer "
        "prepares a transaction (PostgreSQL, MySQL, MariaDB).",
    )
    write: Write = Field(
        default=Write.INSERT,
        description="`insert`; `upsert`: by `key`, the last row of a key counts; `changes`: an upsert, and rows for "
        "which `deleteWhen` holds delete.",
    )
    key: UniqueItems[Text] = Field(default=(), description="Columns that tell rows apart, for `upsert` and `changes`.")
    delete_when: Text | None = Field(
        default=None,
        description=f"changes: which rows delete: {CONDITIONS}. That column is written if the table has it.",
    )
    schema_save_mode: SchemaSaveMode = Field(
        default=SchemaSaveMode.CREATE_WHEN_NOT_EXISTS,
        description="Once per job: create the table where it is missing, demand it (`ErrorWhenNotExists`), drop and "
        "create it (`Recreate`), or leave it to you (`Ignore`).",
    )
    data_save_mode: DataSaveMode = Field(
        default=DataSaveMode.APPEND,
        description="Once per job: keep the table's rows, delete them (`Drop`), or refuse a table that has some.",
    )
    pre_sql: Items[Text] = Field(default=(), description="Statements that run once per job, before its first rows.")
    post_sql: Items[Text] = Field(
        default=(),
        description="Statements that run in the transaction that moves the evidence of a checkpoint, after its rows: "
        "for a batch job, which has one checkpoint, once at its end.",
    )
    lock_timeout: PositiveDuration = Field(
        default=Duration.parse("30s"), description="How long a statement waits for a lock before it is tried again."
    )

    @property
    def address(self) -> Address:
        """Where the database is, with user and password from wherever they came."""
        address = parse(self.url.get_secret_value())
        password = self.password.get_secret_value() if self.password else address.password
        return Address(
            address.kind,
            address.host,
            address.port,
            address.user or self.user or "",
            password,
            address.database,
            address.path,
            address.parameters,
        )

    @property
    def rejects_rows(self) -> bool:
        """Whether rows can be refused before the decision: files that wait for duckdb refuse none."""
        return self.address.kind != "duckdb"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        try:
            address = self.address
        except AddressError as error:
            raise PydanticCustomError("url", "`url`: {what}", {"what": str(error)}) from None
        if not address.is_file and not address.user:
            raise PydanticCustomError("user", "no user is named; expected one in `url` or in `user`")
        if address.kind == "sqlite" and "." in self.table:
            raise PydanticCustomError("table", "`table`: sqlite knows no schema; expected a table's name alone")
        if self.write is not Write.INSERT and not self.key:
            raise PydanticCustomError("key", "`write: {write}` needs `key`", {"write": self.write.value})
        if self.write is Write.INSERT and self.key:
            raise PydanticCustomError("key", "`key` is for `write: upsert` or `changes`")
        if (self.write is Write.CHANGES) != (self.delete_when is not None):
            raise PydanticCustomError("delete_when", "`deleteWhen` and `write: changes` go together")
        if self.delete_when is not None:
            try:
                Condition.parse(self.delete_when)
            except ValueError as error:
                raise PydanticCustomError("delete_when", "`deleteWhen`: {what}", {"what": str(error)}) from None
        self._check_mode(address)
        return self

    def _check_mode(self, address: Address) -> None:
        if self.mode is not Mode.XA:
            return
        if address.is_file:
            raise PydanticCustomError(
                "mode", "`mode: xa` needs a server, {kind} has none; use `staging`", {"kind": address.kind}
            )
        if self.write is not Write.INSERT:
            message = (
                "`mode: xa` supports `write: insert` alone: a prepared transaction keeps its keys locked until it is "
                "committed, so a later checkpoint with the same key would wait for our own; use `mode: staging`"
            )
            raise PydanticCustomError("mode", message)
