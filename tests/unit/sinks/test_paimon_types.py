"""Which timestamps of a Paimon table are written: those that its readers take for microseconds."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sinkruntime.errors import TargetError
from sinkruntime.sinks.paimon.types import read_fields

KINDS = ["TIMESTAMP({})", "TIMESTAMP({}) NOT NULL", "TIMESTAMP({}) WITH LOCAL TIME ZONE", "TIMESTAMP_LTZ({})"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", range(10))
def test_timestamps_of_a_precision_that_is_not_in_microseconds_are_refused(kind: str, precision: int) -> None:
    documents = [{"id": 0, "name": "at", "type": kind.format(precision)}]
    if precision in (4, 5, 6):
        (field,) = read_fields(documents)
        assert isinstance(field.arrow, pa.TimestampType)
        assert field.arrow.unit == "us"
    else:
        with pytest.raises(TargetError, match="UnsupportedType: column `at`: the table has TIMESTAMP"):
            read_fields(documents)
