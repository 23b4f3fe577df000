"""The options of the `iceberg` sink, and what contradicts itself in them.

Read from the manifest by the spec loader. Never connects to anything: what only the table can tell is checked by
`prepare_target`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from sinkruntime.sinks.iceberg.transforms import Term, parse_order
from sinkruntime.spec.base import OptionsModel, PositiveDuration, Scalars, Text, UniqueItems, spark_text
from sinkruntime.spec.quantities import Duration, Size
from sinkruntime.tables.changes import CONDITIONS, Changes, Condition
from sinkruntime.tables.template import Template

#: Catalog types that are proved by tests; the others are passed to pyiceberg as they are.
PROVED = ("rest", "sql")
MAIN = "main"
#: What Iceberg's own `remove_orphan_files` demands, too.
ORPHAN_AGE_MIN = Duration.parse("24h")
#: A rewrite that was given up this long ago is one that nobody goes on with.
TIME_LIMIT_MAX = Duration.parse("10m")
_SQLITE = re.compile(r"sqlite(?:\+\w+)?:///")
_TABLE = re.compile(r"[^.\s]+(\.[^.\s]+)+")


class CatalogType(StrEnum):
    """Which kind of catalog."""

    REST = "rest"
    SQL = "sql"
    HIVE = "hive"
    GLUE = "glue"


class Write(StrEnum):
    """What becomes of the rows."""

    APPEND = "append"
    UPSERT = "upsert"
    OVERWRITE_PARTITIONS = "overwritePartitions"
    CHANGES = "changes"


class DistributionMode(StrEnum):
    """How rows are spread over tasks before they are written; the words of Iceberg."""

    NONE = "none"
    HASH = "hash"
    RANGE = "range"


class Catalog(OptionsModel):
    """Where the table is registered. Further keys are passed to pyiceberg as they are (`s3.endpoint`, `token`, …)."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[SecretStr, BeforeValidator(spark_text)]]

    type: CatalogType = Field(description="`rest` or `sql`; `hive` and `glue` are passed through, untested.")
    uri: SecretStr = Field(description="Where it is: `https://…`, `sqlite:///…`, `postgresql+psycopg://…`.")
    warehouse: Text | None = Field(default=None, description="The catalog's warehouse: a location or a name.")
    name: Text = Field(default="default", description="The catalog's name; a `sql` catalog keeps it beside each table.")

    @property
    def is_local(self) -> bool:
        """Whether it is, by these options, one that only this machine reaches."""
        local = self.warehouse is not None and (self.warehouse.startswith(("/", "file:", ".")))
        return bool(_SQLITE.match(self.uri.get_secret_value())) or local

    @property
    def sqlite_folder(self) -> str:
        """The folder of a SQLite database; "" for all else."""
        uri = self.uri.get_secret_value()
        found = _SQLITE.match(uri)
        return os.path.dirname(uri[found.end() :]) if found else ""

    def properties(self) -> dict[str, str]:
        """What pyiceberg is given. Holds secrets."""
        extras = {key: value.get_secret_value() for key, value in (self.__pydantic_extra__ or {}).items()}
        named = {"type": self.type.value, "uri": self.uri.get_secret_value()}
        return extras | named | ({} if self.warehouse is None else {"warehouse": self.warehouse})

    def located(self, base: str) -> Catalog:
        """With relative local paths begun at `base`."""
        uri, changed = self.uri.get_secret_value(), {}
        found = _SQLITE.match(uri)
        if found and not uri[found.end() :].startswith(("/", ":memory:")):
            changed["uri"] = SecretStr(found[0] + os.path.abspath(os.path.join(base, uri[found.end() :])))
        if self.warehouse is not None and self.warehouse.startswith("."):
            changed["warehouse"] = SecretStr(os.path.abspath(os.path.join(base, self.warehouse)))
        update: dict[str, Any] = dict(changed)
        if "warehouse" in changed:
            update["warehouse"] = changed["warehouse"].get_secret_value()
        return self.model_copy(update=update)


class Maintenance(OptionsModel):
    """What is done to the table after commits; nothing by default."""

    rewrite_every: int | None = Field(
        default=None, ge=1, description="Rewrite small files, with their deletes applied, after every n-th checkpoint."
    )
    merge_manifests_every: int | None = Field(
        default=None, ge=1, description="Look whether manifests have piled up, after every n-th checkpoint."
    )
    manifests_min: int = Field(
        default=100,
        ge=2,
        description="So many small manifests are merged; Iceberg's `commit.manifest.min-count-to-merge`.",
    )
    expire_every: int | None = Field(default=None, ge=1, description="Expire snapshots after every n-th checkpoint.")
    expire_age: PositiveDuration = Field(
        default=Duration.parse("120h"), description="Snapshots that are younger stay; Iceberg's five days."
    )
    keep_snapshots: int = Field(
        default=1, ge=1, description="So many of a branch's newest snapshots stay, however old they are."
    )
    orphans_every: int | None = Field(
        default=None, ge=1, description="Remove files that no snapshot refers to after every n-th checkpoint."
    )
    orphan_age: PositiveDuration = Field(
        default=Duration.parse("72h"), description="Files that are younger stay; at least `24h`. Iceberg's three days."
    )
    time_limit: PositiveDuration = Field(
        default=Duration.parse("30s"),
        description="What is not begun by then waits for the next turn; at most `10m`, and below `commit.timeout`.",
    )

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.orphan_age < ORPHAN_AGE_MIN:
            message = "`orphanAge`: {age} is too short, others may still be writing; expected at least {least}"
            context = {"age": str(self.orphan_age), "least": str(ORPHAN_AGE_MIN)}
            raise PydanticCustomError("orphan_age", message, context)
        if self.time_limit > TIME_LIMIT_MAX:
            message = "`timeLimit`: {limit} is too long; expected at most {most}"
            raise PydanticCustomError("limit", message, {"limit": str(self.time_limit), "most": str(TIME_LIMIT_MAX)})
        return self


class Options(OptionsModel):
    """Options of the `iceberg` sink."""

    catalog: Catalog = Field(description="Where the table is registered.")
    table: Text = Field(
        description="`namespace.table`; with `${field}` in it each row goes to the table that its value names."
    )
    max_tables: int = Field(
        default=100, ge=1, le=1_000, description="With `${field}`: tables that one task writes to in a checkpoint."
    )
    write: Write = Field(
        default=Write.APPEND,
        description="`append`; `overwritePartitions`: the partitions that a checkpoint writes to are replaced; "
        "`upsert`: rows replace those of equal `key`; `changes`: so do they, or delete where `deleteWhen` holds.",
    )
    key: UniqueItems[Text] = Field(default=(), description="Columns that identify a row, for `upsert` and `changes`.")
    order_by: UniqueItems[Text] = Field(
        default=(),
        description="`upsert`, `changes`: of several rows of one key in a checkpoint the greatest by these counts.",
    )
    delete_when: Text | None = Field(default=None, description=f"`changes`: which rows delete: {CONDITIONS}.")
    omit: UniqueItems[Text] = Field(
        default=(),
        description="Columns that are not written to the table: with `upsert` and `changes` those that order or mark "
        "changes, with `${field}` in `table` those that route.",
    )
    branch: Text = Field(default=MAIN, description="Branch that is written to; made from `main` if it is not there.")
    partition_by: UniqueItems[Text] = Field(
        default=(),
        description="Partitioning of a table that is created: columns, or `year(c)`, `month(c)`, `day(c)`, `hour(c)`, "
        "`bucket(16, c)`, `truncate(4, c)`, `void(c)`.",
    )
    sort_by: UniqueItems[Text] = Field(
        default=(), description="Sort order of a table that is created: `c`, `c desc`, `bucket(16, c)`, …"
    )
    distribution_mode: DistributionMode = Field(
        default=DistributionMode.NONE,
        description="`hash` sends rows of equal partition values to one task, `range` ranges of them: fewer files.",
    )
    target_file_size: Size | None = Field(
        default=None,
        description="A file that has reached this size is closed; left out: the table's "
        "`write.target-file-size-bytes`, or 512MiB.",
    )
    max_open_files: int = Field(
        default=100, ge=1, le=10_000, description="Files that one task holds open; the least recently used is closed."
    )
    create_table: bool = Field(default=False, description="Create namespace and table where they are missing.")
    evolve_schema: bool = Field(
        default=False,
        description="Add columns that the table lacks, widen types, make columns optional that the rows lack.",
    )
    table_properties: Scalars = Field(default={}, description="Properties of a table that is created.")
    empty_checkpoints: int = Field(
        default=10,
        ge=1,
        le=1_000_000,
        description="Of checkpoints without rows in succession, each so many-th makes a snapshot that proves it.",
    )

    maintenance: Maintenance = Field(default=Maintenance(), description="What is done after commits.")

    @property
    def template(self) -> Template | None:
        """`table`, where it names many."""
        return Template.parse(self.table) if "${" in self.table else None

    @property
    def rejects_rows(self) -> bool:
        """Single rows are turned down where their table cannot be named."""
        return self.template is not None

    def for_table(self, name: str) -> Options:
        """With one table instead of many."""
        return self.model_copy(update={"table": name, "omit": self.omit if self.keyed else ()})

    @property
    def keyed(self) -> bool:
        """Whether rows replace others: deletes are written, and each checkpoint needs a snapshot of its own."""
        return self.write in (Write.UPSERT, Write.CHANGES)

    @property
    def changes(self) -> Changes:
        """How rows change the table, where they have a key."""
        condition = None if self.delete_when is None else Condition.parse(self.delete_when)
        return Changes(self.key, self.order_by, condition)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._check_route()
        if not _TABLE.fullmatch(self.table if self.template is None else self.template.example):
            message = "`table`: `{table}` is not a name with a namespace; expected `namespace.table`"
            raise PydanticCustomError("table", message, {"table": self.table})
        self._check_changes()
        for name, given in (("partitionBy", self.partition_by), ("sortBy", self.sort_by)):
            if given and not self.create_table:
                message = "`{name}` belongs to `createTable: true`; a table that is there keeps its own"
                raise PydanticCustomError("create_only", message, {"name": name})
        for name, items, read in (
            ("partitionBy", self.partition_by, Term.parse),
            ("sortBy", self.sort_by, parse_order),
        ):
            for item in items:
                _readable(name, item, read)
        return self

    def _check_route(self) -> None:
        if "${" not in self.table:
            return
        _readable("table", self.table, Template.parse)
        if "${" in self.table.partition(".")[0]:
            message = "`table`: `{table}` begins with a field; expected a namespace first, where the book is kept"
            raise PydanticCustomError("routing", message, {"table": self.table})
        if self.catalog.type not in PROVED:
            message = "`table`: rows are routed with `rest` and `sql` catalogs, not with `{type}`"
            raise PydanticCustomError("routing", message, {"type": self.catalog.type.value})

    def _check_changes(self) -> None:
        if self.keyed and not self.key:
            raise PydanticCustomError("key", "`write: {write}` needs `key`", {"write": self.write.value})
        if (self.delete_when is not None) != (self.write is Write.CHANGES):
            raise PydanticCustomError("delete_when", "`deleteWhen` and `write: changes` belong together")
        if self.delete_when is not None:
            _readable("deleteWhen", self.delete_when, Condition.parse)
        routing = () if self.template is None else self.template.fields
        omit = tuple(name for name in self.omit if name not in routing)
        for name, given in {"key": self.key, "orderBy": self.order_by, "omit": omit}.items():
            if given and not self.keyed:
                message = "`{name}` belongs to `write: upsert` and `write: changes`"
                raise PydanticCustomError("keyed_only", message, {"name": name})
        if self.keyed and self.distribution_mode is not DistributionMode.NONE:
            message = "`distributionMode` cannot be set: `write: {write}` sends rows of equal `key` to one task"
            raise PydanticCustomError("distribution", message, {"write": self.write.value})
        for name in set(self.omit) & set(self.key):
            raise PydanticCustomError("omit", "`omit`: `{name}` is in `key`", {"name": name})


def _readable(option: str, text: str, read: Callable[[str], object]) -> None:
    try:
        read(text)
    except ValueError as error:
        context = {"option": option, "text": text, "error": str(error)}
        raise PydanticCustomError("unreadable", "`{option}`: cannot read `{text}`: {error}", context) from error
