"""`--sink jdbc-xa`: the same tables, each writer's rows in a prepared transaction; none may be left at the end."""

from __future__ import annotations

from tests.killmatrix.jdbc_staging import JdbcBench


class XaBench(JdbcBench):
    """`mode: xa`."""

    mode = "xa"


BENCH = XaBench
