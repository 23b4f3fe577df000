"""The options of the `delta` sink, and what contradicts itself in them.

Read from the manifest by the spec loader. Never connects to anything: what only the table can tell is checked by
`prepare_target`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from sinkruntime.spec.base import Model, OptionsModel, PositiveDuration, Scalars, Text, UniqueItems
from sinkruntime.spec.quantities import Duration, Size
from sinkruntime.storage.settings import LOCAL_SCHEMES, S3_SCHEMES, check_file_url
from sinkruntime.tables.changes import CONDITIONS, Changes, Condition
from sinkruntime.tables.template import Template


class Write(StrEnum):
    """What a checkpoint's rows do to the table."""

    APPEND = "append"
    COMPLETE = "complete"
    UPSERT = "upsert"


class Compression(StrEnum):
    """How data files are compressed."""

    SNAPPY = "snappy"
    ZSTD = "zstd"
    NONE = "none"


class Storage(Model):
    """How S3 is reached. Only what stands here is used: never keys or settings of the environment."""

    endpoint: Text | None = Field(default=None, description="URL of the S3 service; left out: AWS.")
    region: Text = Field(default="us-east-1", description="Region of the bucket.")
    access_key: SecretStr | None = Field(default=None, description="Access key id; from `optionsFrom`. S3 needs it.")
    secret_key: SecretStr | None = Field(default=None, description="Secret access key; from `optionsFrom`.")
    session_token: SecretStr | None = Field(default=None, description="Session token; from `optionsFrom`.")
    path_style: bool = Field(
        default=False, strict=False, description="Name the bucket in the path, as most services other than AWS need it."
    )

    @model_validator(mode="after")
    def _keys_go_together(self) -> Self:
        if (self.access_key is None) != (self.secret_key is None):
            raise PydanticCustomError("keys", "`accessKey` and `secretKey` are given together or not at all")
        return self


class Maintenance(OptionsModel):
    """What is done to the table after commits; nothing by default."""

    optimize_every: int | None = Field(
        default=None, ge=1, description="Compact small files after every n-th checkpoint; left out: never."
    )
    vacuum_every: int | None = Field(
        default=None, ge=1, description="Remove files that the log has given up after every n-th checkpoint."
    )
    vacuum_retention: PositiveDuration = Field(
        default=Duration.parse("168h"), description="What was given up since then stays, for readers and time travel."
    )


class Options(OptionsModel):
    """Options of the `delta` sink."""

    path: Text | None = Field(
        default=None,
        description="The table: a local directory, or `s3://bucket/prefix`; with `${field}` in it each row goes to the "
        "table that its value names.",
    )
    max_tables: int = Field(
        default=100, ge=1, le=1_000, description="With `${field}`: tables that one task writes to in a checkpoint."
    )
    create_table: bool = Field(default=True, description="Create a table that is missing.")
    catalog: Text | None = Field(default=None, description="Not supported: give `path`.")
    table: Text | None = Field(default=None, description="Not supported: give `path`.")
    write: Write = Field(
        default=Write.APPEND,
        description="`append` adds rows; `complete` replaces all rows by each checkpoint's; `upsert` merges by `key`.",
    )
    key: UniqueItems[Text] = Field(default=(), description="upsert: the columns that identify a row.")
    order_by: UniqueItems[Text] = Field(
        default=(), description="upsert: of several rows with one key in a checkpoint the greatest by these counts."
    )
    delete_when: Text | None = Field(default=None, description=f"upsert: which rows delete: {CONDITIONS}.")
    omit: UniqueItems[Text] = Field(
        default=(),
        description="Columns that are not written to the table: with upsert those that order or mark changes, with "
        "`${field}` in `path` those that route.",
    )
    partition_by: UniqueItems[Text] = Field(
        default=(), description="Partition columns of a table that is created; they must be those of one that exists."
    )
    merge_schema: bool = Field(default=False, description="Add columns of the rows that the table does not have.")
    target_file_size: Size = Field(
        default=Size.parse("128MiB"), description="A file that has reached this size is closed and another one begun."
    )
    max_open_files: int = Field(
        default=100, ge=1, le=10_000, description="Files that one task holds open; the least recently used is closed."
    )
    compression: Compression = Field(default=Compression.SNAPPY, description="`snappy`, `zstd` or `none`.")
    table_properties: Scalars = Field(
        default={}, description="Properties of a table that is created, such as `delta.logRetentionDuration`."
    )
    merge_memory: Size = Field(
        default=Size.parse("512MiB"), description="upsert: what a merge may hold in memory before it spills to disk."
    )
    maintenance: Maintenance = Field(default=Maintenance(), description="What is done after commits.")
    storage: Storage = Field(default=Storage(), description="How S3 is reached.")

    @property
    def location(self) -> str:
        """`path`, which the validator demands."""
        assert self.path is not None
        return self.path

    @property
    def is_local(self) -> bool:
        return urlsplit(self.location).scheme in LOCAL_SCHEMES

    @property
    def folder(self) -> str:
        """Of `path` with fields: what stands before the first name with a field in it; the book lies there."""
        return self.location[: self.location.partition("${")[0].rfind("/") + 1]

    @property
    def template(self) -> Template | None:
        """Names below `folder`, where `path` names many tables."""
        return Template.parse(self.location[len(self.folder) :]) if "${" in self.location else None

    @property
    def rejects_rows(self) -> bool:
        """Single rows are turned down where their table cannot be named."""
        return self.template is not None

    def for_table(self, name: str) -> Options:
        """With one table instead of many."""
        omit = self.omit if self.write is Write.UPSERT else ()
        return self.model_copy(update={"path": self.folder + name, "omit": omit})

    @property
    def changes(self) -> Changes:
        """How rows change the table, for `write: upsert`."""
        condition = None if self.delete_when is None else Condition.parse(self.delete_when)
        return Changes(self.key, self.order_by, condition)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._check_place()
        if self.write is Write.UPSERT and not self.key:
            raise PydanticCustomError("key", "`write: upsert` needs `key`, the columns that identify a row")
        routing = () if self.template is None else self.template.fields
        omit = tuple(name for name in self.omit if name not in routing)
        upsert_only = {"key": self.key, "orderBy": self.order_by, "deleteWhen": self.delete_when, "omit": omit}
        for name, value in upsert_only.items():
            if value and self.write is not Write.UPSERT:
                raise PydanticCustomError("upsert_only", "`{name}` belongs to `write: upsert`", {"name": name})
        for name in self.omit:
            if name in self.key or name in self.partition_by:
                raise PydanticCustomError("omit", "`omit`: `{name}` is a column that the table needs", {"name": name})
        if self.delete_when is not None:
            try:
                Condition.parse(self.delete_when)
            except ValueError as error:
                raise PydanticCustomError("condition", "`deleteWhen`: {why}", {"why": str(error)}) from error
        return self

    def _check_route(self, path: str, bucket: str) -> None:
        """Runs before the other checks of `path`."""
        if "${" in bucket or ".." in path.split("/"):
            text = "`path`: a field must not be in the bucket's name, nor stand beside `..`"
            raise PydanticCustomError("routing", text)
        if self.write is Write.COMPLETE:
            text = "`write: complete` cannot be routed: a table that gets no rows would keep the old ones"
            raise PydanticCustomError("routing", text)
        try:
            Template.parse(path)
        except ValueError as error:
            raise PydanticCustomError("routing", "`path`: {why}", {"why": str(error)}) from error

    def _check_place(self) -> None:
        for name, value in (("catalog", self.catalog), ("table", self.table)):
            if value is not None:
                text = "`{name}` is not supported: no catalog commits Delta tables here; give `path`"
                raise PydanticCustomError("catalog", text, {"name": name})
        if self.path is None:
            raise PydanticCustomError("path", "`path` is missing: a local directory, or s3://bucket/prefix")
        parts = urlsplit(self.path)
        if "${" in self.path:
            self._check_route(self.path, parts.netloc)
        if parts.scheme not in LOCAL_SCHEMES + S3_SCHEMES:
            text = "`path`: {scheme}:// is not supported; expected a local path, or s3://bucket/prefix"
            raise PydanticCustomError("scheme", text, {"scheme": parts.scheme})
        check_file_url("path", self.path)
        if parts.scheme in S3_SCHEMES and not (parts.netloc and parts.path.strip("/")):
            raise PydanticCustomError("bucket", "`path` names no bucket and prefix; expected s3://bucket/prefix")
