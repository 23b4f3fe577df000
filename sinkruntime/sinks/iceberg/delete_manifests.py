"""The manifest of delete files, which pyiceberg reads and does not write.

Used by `manifests`. Its schema differs from pyiceberg's in one place: `equality_ids` is a list of int, as Iceberg's
specification says and its Java library demands.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.manifest import ManifestContent, ManifestWriterV2
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

EQUALITY_IDS = 135
DATA_FILE = 2


class DeleteManifestWriter(ManifestWriterV2):
    """Writes entries of position and equality delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def _with_partition(self, format_version: Any) -> Schema:
        return Schema(*(_with_int_ids(field) for field in super()._with_partition(format_version).fields))


def _with_int_ids(field: NestedField) -> NestedField:
    kind = field.field_type
    if field.field_id == DATA_FILE and isinstance(kind, StructType):
        kind = StructType(*(_with_int_ids(inner) for inner in kind.fields))
    elif field.field_id == EQUALITY_IDS and isinstance(kind, ListType):
        kind = ListType(element_id=kind.element_id, element=IntegerType(), element_required=True)
    else:
        return field
    return NestedField(
        field_id=field.field_id, name=field.name, field_type=kind, required=field.required, doc=field.doc
    )
