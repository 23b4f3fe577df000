"""`--sink jdbc-xa`: the same tables, each writer's rows in a prepared transaction; none may be left at the end."""

from __future__ import annotations

from tests.killmatrix.jdbc_staging import END, JdbcBench


class XaBench(JdbcBench):
    """`mode: xa`."""

    mode = "xa"
    deciding = ("PREPARE TRANSACTION", "COMMIT PREPARED", f"COMMIT{END}")


BENCH = XaBench
