"""A sink that writes nothing, for tests of how a manifest finds a sink and reads its options."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, SecretStr, field_validator

from sinkruntime.api import Guarantee, Offer, Sink, SinkWriter, WriterContext
from sinkruntime.spec.base import Matching, Model, OptionsModel
from sinkruntime.spec.quantities import Duration, Size


class Write(StrEnum):
    INSERT = "insert"
    UPSERT = "upsert"


REGIONS = {"eu": 1}


class Catalog(Model):
    uri: str
    token: SecretStr | None = None


class Options(OptionsModel):
    table: str
    write: Write = Write.INSERT
    max_rows: int = Field(default=20, ge=1)
    target_file_size: Size = Size.parse("1MiB")
    request_timeout: Duration = Duration.parse("1s")
    password: SecretStr | None = None
    catalog: Catalog | None = None
    key: tuple[str, ...] | str = ()
    region: str = "eu"
    code: Annotated[str, Matching("[a-z]+", "a code", 9)] = "a"

    @field_validator("password")
    @classmethod
    def _long_enough(cls, value: SecretStr) -> SecretStr:
        if len(value.get_secret_value()) < 4:
            raise ValueError(f"{value.get_secret_value()} is too short")
        return value

    @field_validator("region")
    @classmethod
    def _known(cls, value: str) -> str:
        REGIONS[value]  # fails with a KeyError, as a careless author's validator does
        return value


class ToySink(Sink):
    Options: ClassVar[type[BaseModel]] = Options
    summary = "writes nothing"

    @classmethod
    def guarantee(cls, options: Any, facts: Mapping[str, Any]) -> Offer:
        return Offer(Guarantee.AT_LEAST_ONCE, "it keeps no evidence")

    def create_writer(self, context: WriterContext) -> SinkWriter:
        raise NotImplementedError


SINK = ToySink
NOT_A_SINK = 3
