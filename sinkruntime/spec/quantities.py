"""Durations, sizes and memory amounts as the manifest writes them (`10s`, `128MiB`, `1g`).

Used as field types by the spec models and by sinks' option models. Never reads a clock or a disk.
"""

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

MILLISECONDS_PER_YEAR = 365 * 24 * 3_600_000


@dataclass(frozen=True, slots=True, order=True)
class _Quantity:
    """A whole number of the smallest unit. Written as one number and one unit, without a space or a fraction."""

    amount: int

    _units: ClassVar[dict[str, int]]
    _expected: ClassVar[str]
    _most: ClassVar[int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the manifest's text; ValueError says what would be right, OverflowError what the most is."""
        match = re.fullmatch(r"([0-9]{1,18})([A-Za-z]+)", text)
        scale = cls._units.get(match[2]) if match else None
        if match is None or scale is None:
            raise ValueError(f"expected {cls._expected}")
        amount = int(match[1]) * scale
        if amount > cls._most:
            raise OverflowError(f"must be at most {cls(cls._most)}")
        return cls(amount)

    def __str__(self) -> str:
        """The shortest way to write it: the largest unit that divides it (`60s` prints as `1m`)."""
        for unit, scale in sorted(self._units.items(), key=lambda item: -item[1]):
            if self.amount and self.amount % scale == 0:
                return f"{self.amount // scale}{unit}"
        return f"0{self._zero_unit()}"

    @classmethod
    def _zero_unit(cls) -> str:
        return next(iter(cls._units))

    @classmethod
    def _validate(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise PydanticCustomError("quantity", "expected {expected}", {"expected": cls._expected})
        try:
            return cls.parse(value)
        except OverflowError as error:
            raise PydanticCustomError(
                "quantity_bound", "must be at most {most}", {"most": str(cls(cls._most))}
            ) from error
        except ValueError as error:
            raise PydanticCustomError("quantity", "expected {expected}", {"expected": cls._expected}) from error

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(str),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": f"^[0-9]{{1,18}}({'|'.join(cls._units)})$"}


class Duration(_Quantity):
    """A span of time in whole milliseconds, at most one year: `200ms`, `10s`, `5m`, `1h`."""

    __slots__ = ()
    _units: ClassVar = {"s": 1000, "ms": 1, "m": 60_000, "h": 3_600_000}
    _expected = "a duration such as 200ms, 10s, 5m or 1h"
    _most = MILLISECONDS_PER_YEAR

    @property
    def milliseconds(self) -> int:
        return self.amount

    @property
    def seconds(self) -> float:
        return self.amount / 1000


class Size(_Quantity):
    """A number of bytes, at most 1024 TiB: `128MiB`. Units are powers of 1024."""

    __slots__ = ()
    _units: ClassVar = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
    _expected = "a size such as 512KiB, 128MiB or 1GiB"
    _most = 1024**5

    @property
    def bytes(self) -> int:
        return self.amount


class Memory(_Quantity):
    """An amount of memory as Spark writes it, at most 1024 t: `512m`, `1g`. Units are powers of 1024."""

    __slots__ = ()
    _units: ClassVar = {"m": 1024**2, "k": 1024, "g": 1024**3, "t": 1024**4}
    _expected = "an amount of memory as Spark writes it, such as 512m or 1g"
    _most = 1024**5

    @property
    def bytes(self) -> int:
        return self.amount
