"""The values that this process must never show, and the last sieve before anything is shown.

`jobs` tells it the secrets of the job that it opened; errors, log records and progress pass through `hide`. Sinks and
manifests keep their own secrets out of messages; this catches what a library put into an error all the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from sinkruntime.spec.options_from import Secrets

#: Shorter values (`1`, `true`) are no secrets, and hiding them would garble every text.
SECRET_CHARS_MIN = 6

_hidden: list[Secrets] = []


def conceal(secrets: Iterable[Secrets]) -> None:
    """From now on hide these values, and no others."""
    long = [{key: value for key, value in found.items() if len(value) >= SECRET_CHARS_MIN} for found in secrets]
    _hidden[:] = [Secrets(found) for found in long if found]


def hide(text: str) -> str:
    """The text with every such value replaced."""
    for secrets in _hidden:
        text = secrets.hide(text)
    return text
