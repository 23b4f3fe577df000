"""Where a field stands in a manifest, and the words for a near miss.

Used by all that reports a problem. Knows nothing of the models.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FieldPath = tuple[str | int, ...]

_PLAIN_KEY = re.compile(r"[A-Za-z_][\w-]*")
_SHOWN_MAX = 12


def path_text(path: Sequence[str | int]) -> str:
    """`spec.sinks[1].options.table`; a key that is no plain word is quoted: `spec.sparkConf["spark.master"]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


def suggestion(word: str, known: Iterable[str]) -> str:
    """``did you mean `table`?`` for a near miss, else the list of what is known; "" when nothing is."""
    names = sorted(set(known))
    folded = {name.casefold(): name for name in names}
    near = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    if near:
        return f"did you mean `{folded[near[0]]}`?"
    if not names:
        return ""
    shown = ", ".join(names[:_SHOWN_MAX])
    return f"expected one of: {shown}, …" if len(names) > _SHOWN_MAX else f"expected one of: {shown}"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong at a field, before it is known where the field stands in a file."""

    path: FieldPath
    message: str
    expected: str = ""
