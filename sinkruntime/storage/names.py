"""Names of files and directories in the target, written and read back.

Used by the writer, the committers and `recover`. Pure.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import os
import re
from typing import Any

from sinkruntime.api import SinkIdentity
from sinkruntime.errors import TargetError

#: Hidden from Spark, Hive and most readers by its first character.
PRIVATE = "_sinkjob"
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
#: What Linux takes as one name, and as a whole path.
NAME_BYTES_MAX = 255
PATH_BYTES_MAX = 4095

#: The characters that Spark escapes in partition directories (`ExternalCatalogUtils.escapePathName`).
_ESCAPED = {chr(code) for code in range(1, 0x20)} | set("\"#%'*/:=?\\{[]^\x7f")
#: Checkpoint and epoch in a writer's stem, the last one in a name: the owner's digest before it may be all digits.
_STEM = re.compile(r"(?:.*[-_])?(\d{12})-(\d+)-\d{5}-\d+-")


def owner_digest(identity: SinkIdentity) -> str:
    """12 hexadecimal digits for (ledger id, sink): in each file's name, so that jobs may share a directory."""
    return hashlib.sha256(f"{identity.ledger_id}/{identity.sink}".encode()).hexdigest()[:12]


def origin_of(name: str) -> tuple[int, int] | None:
    """(checkpoint, epoch) of a staged name that holds a writer's stem; None: it holds none."""
    found = _STEM.match(name)
    return (int(found[1]), int(found[2])) if found else None


def escape(text: str) -> str:
    """As Spark writes a column name or value in a directory's name."""
    return "".join(f"%{ord(character):02X}" if character in _ESCAPED else character for character in text)


def partition_directory(columns: tuple[str, ...], values: tuple[Any, ...]) -> str:
    """`month=1/carrier=AA`; "" without columns."""
    parts = zip(columns, values, strict=True)
    return "/".join(f"{escape(column)}={escape(text_of(value)) or NULL_PARTITION}" for column, value in parts)


def local_path(root: str, path: str) -> str:
    """`path`, if a file below `root` can have it; else `TargetError`: once decided, it could never appear there."""
    longest = max(path.split("/"), key=lambda name: len(os.fsencode(name)))
    why = ""
    if "\0" in path:
        why = "a name of a file or directory holds no NUL character"
    elif len(os.fsencode(longest)) > NAME_BYTES_MAX:
        why = f"a name of a file or directory has at most {NAME_BYTES_MAX} bytes"
    elif len(os.fsencode(f"{root}/{path}")) > PATH_BYTES_MAX:
        why = f"a path has at most {PATH_BYTES_MAX} bytes"
    if why:
        advice = "partition by another column, or shorten its values in a transform"
        raise TargetError("NameNotPossible", f"`{longest[:60]}…`: {why}", path="options.partitionBy", advice=advice)
    return path


def text_of(value: Any) -> str:
    """A partition value as Spark casts it to a string; "" for null, as Spark puts both in one directory."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        text = value.replace(tzinfo=None).isoformat(sep=" ")
        return text.rstrip("0") if value.microsecond else text
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    return str(value)
