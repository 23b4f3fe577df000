"""The base of every model of the manifest, and the few field types they share.

Imported by the spec models and by sinks' `Options`. Holds no rule of one field: those stand beside the field.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from sinkruntime.spec.quantities import Duration

# The same bounds stand in the CRD: the API server prices its rules by the longest possible text and list.
NAME_LENGTH_MAX = 63
TEXT_LENGTH_MAX = 16_384
ITEMS_MAX = 256
KEYS_MAX = 512
SHOWN_LENGTH_MAX = 60  # of a wrong value, in a message

T = TypeVar("T")


class Model(BaseModel):
    """A part of the manifest: unknown fields refused, never changed after it was read, no guessing of types."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True,
        extra="forbid", frozen=True, strict=True,
    )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        """`field: null` is `field` left out, as the API server reads it."""
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None}
        return data


class OptionsModel(Model):
    """The base of a sink's own options, and of options within options.

    Not strict about scalars: an option may come from a Secret or the environment, where all is text (`"20"`).
    """

    model_config = ConfigDict(strict=False)


def _positive(value: Duration) -> Duration:
    if value.milliseconds == 0:
        raise PydanticCustomError("positive", "must be more than zero")
    return value


def _unique(items: tuple[Any, ...]) -> tuple[Any, ...]:
    seen: list[Any] = []
    for item in items:
        if item in seen:
            raise PydanticCustomError("unique", "`{item}` is listed twice", {"item": str(item)})
        seen.append(item)
    return items


def spark_text(value: object) -> str:
    """A scalar as Spark's options take it: `true`, `20`, `0.6`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise PydanticCustomError("scalar", "expected text, a number, true or false")


def _not_blank(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("blank", "must not be empty")
    return text


@dataclass(frozen=True, slots=True)
class Matching:
    """The shape of a text field: a regular expression, the words for who does not read those, a length."""

    pattern: str
    expected: str
    length_max: int

    def _check(self, text: str) -> str:
        if len(text) > self.length_max or not re.fullmatch(self.pattern, text, re.ASCII):
            message = "`{text}` is not {expected}, at most {most} characters"
            context = {"text": text[:SHOWN_LENGTH_MAX], "expected": self.expected, "most": self.length_max}
            raise PydanticCustomError("shape", message, context)
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "pattern": f"^({self.pattern})$", "maxLength": self.length_max}


Text = Annotated[str, Field(min_length=1, max_length=TEXT_LENGTH_MAX), AfterValidator(_not_blank)]
# A YAML list; a tuple here, because a model never changes.
Items = Annotated[tuple[T, ...], Strict(False), Field(max_length=ITEMS_MAX)]
UniqueItems = Annotated[Items[T], AfterValidator(_unique)]
PositiveDuration = Annotated[Duration, AfterValidator(_positive)]
Scalars = Annotated[
    dict[Text, Annotated[str, BeforeValidator(spark_text)]],
    Field(max_length=KEYS_MAX),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": KEYS_MAX,
            "additionalProperties": {"x-kubernetes-preserve-unknown-fields": True},
        }
    ),
]
FreeMap = Annotated[
    dict[str, Any],
    Field(max_length=KEYS_MAX),
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
