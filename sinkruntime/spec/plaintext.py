"""Finds secret values written into a manifest, where only references to them may stand.

Called by `checks.py`; the rule is printed into the manifest's reference. Never repeats a value that it found.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sinkruntime.spec.paths import FieldPath, Finding

# `token` but not `tokenizer`; `access.key`, `accessKey`, `access_key`, `access-key`.
SECRET_WORDS = (
    r"passw(or)?d|passphrase|secret|token(?!iz)|credential|(access|api|private|account)[._-]?key|authorization|jaas"
)
# A key that ends so holds the name or the place of a secret, or a setting about it, and no secret:
# `fs.s3a.aws.credentials.provider`, `passwordFile`, `tokenEndpoint`, `token.ttl`.
HARMLESS_ENDINGS = (
    "provider", "providers", "class", "type", "file", "path", "location", "url", "uri", "endpoint",
    "enabled", "timeout", "interval", "expiration", "ttl", "ms", "seconds",
)  # fmt: skip

_SECRET = re.compile(SECRET_WORDS, re.IGNORECASE)
_HARMLESS = re.compile(rf"({'|'.join(HARMLESS_ENDINGS)})$", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
# `?password=x` of a URL, `;password=x` of SQL Server's and Db2's, `AccountKey=x` of a connection string.
_PARAMETER = re.compile(r"(?:^|[?&;])([\w.-]+)=([^&;\s]+)")
_SHORT = frozenset({"pwd", "sig", "x-amz-signature"})  # of parameters only: as keys they are words for other things
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")

_EXPECTED = "give it through `optionsFrom`"


def holds_secret(key: str) -> bool:
    """Whether a key's name says that its value is a secret."""
    return _SECRET.search(key) is not None and _HARMLESS.search(key) is None


def plaintext_secrets(options: Mapping[str, Any], path: FieldPath) -> Iterator[Finding]:
    """Every secret value in `options`, however deep: by its key, or as a password within a URL."""
    for key, value in options.items():
        yield from _within(value, (*path, key), secret=holds_secret(key))


def _within(value: Any, path: FieldPath, *, secret: bool) -> Iterator[Finding]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            # A map under a secret name (`credentials: {…}`) is secret throughout.
            yield from _within(inner, (*path, key), secret=secret or holds_secret(key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _within(inner, (*path, index), secret=secret)
    elif secret and value not in (None, "") and not isinstance(value, bool):
        yield Finding(path, "a secret must not stand in the manifest", _EXPECTED)
    elif isinstance(value, str) and _PRIVATE_KEY.search(value):
        yield Finding(path, "a private key must not stand in the manifest", _EXPECTED)
    elif isinstance(value, str) and _url_holds_secret(value):
        yield Finding(path, "a URL that holds a password must not stand in the manifest", _EXPECTED)


def _url_holds_secret(text: str) -> bool:
    """Before its host, or as the value of a parameter."""
    given = (pair.groups() for pair in _PARAMETER.finditer(text))
    return _URL_PASSWORD.search(text) is not None or any(
        (holds_secret(name) or name.lower() in _SHORT) and value.lower() not in ("true", "false")
        for name, value in given
    )
