"""How rows are spread over tasks before they are written, by `distributionMode` and the table's own partitioning.

Used by the sink before the first batch. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sinkruntime.api import Distribution
from sinkruntime.sinks.iceberg.options import DistributionMode, Options
from sinkruntime.sinks.iceberg.transforms import Term, parse_order, spark_expression

if TYPE_CHECKING:
    from pyiceberg.table import Table


def spread(options: Options, table: Table | None) -> Distribution | None:
    """`hash`: rows of one partition meet in one task; `range`: by ranges of partitions and of the sort order.

    None where there is nothing to go by. `table`: None where it is still to be created.
    """
    partitions, orders = _terms(options) if table is None else _of(table)
    hashes = options.distribution_mode is DistributionMode.HASH
    wanted = partitions if hashes else [*partitions, *orders]
    expressions = tuple(spark_expression(term.text, term.column) for term in wanted if term.name != "void")
    return Distribution(expressions=expressions, by_range=not hashes) if expressions else None


def _terms(options: Options) -> tuple[list[Term], list[Term]]:
    routing = () if options.template is None else options.template.fields
    partitions = [Term("identity", None, name) for name in routing]
    partitions += [Term.parse(text) for text in options.partition_by]
    return partitions, [parse_order(text)[0] for text in options.sort_by]


def _of(table: Table) -> tuple[list[Term], list[Term]]:
    metadata = table.metadata
    schema = metadata.schema()

    def term(field: object) -> Term:
        column = schema.find_column_name(field.source_id)  # type: ignore[attr-defined]
        name, _, number = str(field.transform).partition("[")  # type: ignore[attr-defined]
        return Term(name, int(number.rstrip("]")) if number else None, column or "")

    return [term(field) for field in metadata.spec().fields], [term(field) for field in metadata.sort_order().fields]
