"""What a Delta table may demand of its writers, and whether we do it: checked at each start and before each commit.

Pure: it sees the protocol, the properties and the schema of a table. Whatever is not known here is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sinkruntime.sinks.delta.options import Write

#: Features that need nothing of a writer that does what we do, or whose use is looked for below.
HARMLESS = frozenset(
    {"appendOnly", "invariants", "checkConstraints", "generatedColumns", "changeDataFeed", "timestampNtz"}
)
#: What older protocol versions bring without a list of features: their use is looked for below.
WRITER_VERSION_MAX = 7
READER_VERSION_MAX = 3


def refusals(
    protocol: tuple[int, int, list[str] | None, list[str] | None],
    properties: Mapping[str, str],
    schema: str,
    write: Write,
) -> Iterator[str]:
    """Each thing that we cannot do, one sentence. `protocol` as `DeltaTable.protocol` has it, `schema` as JSON."""
    reader, writer, writer_features, reader_features = protocol
    if reader > READER_VERSION_MAX or writer > WRITER_VERSION_MAX:
        yield f"protocol version {reader}/{writer}: at most {READER_VERSION_MAX}/{WRITER_VERSION_MAX} is known"
    for feature in sorted({*(writer_features or ()), *(reader_features or ())} - HARMLESS):
        yield f"table feature `{feature}` is not supported"
    yield from _of_properties(properties, write)
    for field in json.loads(schema)["fields"]:
        yield from _of_column(field)


def _of_properties(properties: Mapping[str, str], write: Write) -> Iterator[str]:
    for name in sorted(properties):
        if name.startswith("delta.constraints."):
            yield f"check constraint `{name.removeprefix('delta.constraints.')}` is not supported"
    if properties.get("delta.columnMapping.mode", "none").lower() != "none":
        yield "column mapping (`delta.columnMapping.mode`) is not supported"
    if _is_on(properties, "delta.appendOnly") and write is not Write.APPEND:
        yield f"the table is append-only (`delta.appendOnly`), and `write: {write}` removes rows"
    if _is_on(properties, "delta.enableChangeDataFeed") and write is Write.UPSERT:
        yield "the change data feed (`delta.enableChangeDataFeed`) is not supported with `write: upsert`"
    if "delta.setTransactionRetentionDuration" in properties:
        yield "`delta.setTransactionRetentionDuration` lets the evidence of commits expire: unset it"


def _is_on(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "false").lower() == "true"


def _of_column(field: dict[str, Any]) -> Iterator[str]:
    metadata = field.get("metadata") or {}
    named = {
        "delta.invariants": "an invariant",
        "delta.generationExpression": "a generation expression",
        "CURRENT_DEFAULT": "a default",
    }
    for key, what in named.items():
        if key in metadata:
            yield f"column `{field['name']}`: {what} (`{key}`) is not supported"
    if any(key.startswith("delta.identity.") for key in metadata):
        yield f"column `{field['name']}`: an identity column is not supported"
