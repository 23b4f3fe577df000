"""Reads the names of the columns out of a schema written as DDL.

Called by `checks.py`, to compare other fields with it. Spark itself reads the types; nothing here judges them.
"""

import re

_COLUMN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([A-Za-z_]\w*))(?:\s+|\s*:\s*)\S")


def column_names(ddl: str) -> tuple[str, ...] | None:
    """The top-level columns of `year INT, place STRUCT<a: INT, b: INT>`; None when it does not look like DDL."""
    names = []
    for part in _top_level_parts(ddl):
        match = _COLUMN.match(part)
        if match is None:
            return None
        names.append(match[1].replace("``", "`") if match[1] else match[2])
    return tuple(names)


def _top_level_parts(ddl: str) -> list[str]:
    """Split at commas that stand in no bracket and no quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in ddl:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "`'\"":
            quote = letter
        elif letter in "<(":
            depth += 1
        elif letter in ">)":
            depth -= 1
        if letter == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
