"""Where a database is: what a `url` says, read without any client library.

Used by the options, and by the databases to connect. It never shows a password: an `Address` has it, its text has not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

#: Schemes that this sink writes to, by the name of the database.
SCHEMES = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite",
    "duckdb": "duckdb",
}
#: SQL is made and tested for these, yet no driver is there and nothing was run against one.
UNTRIED = {"oracle": "Oracle", "sqlserver": "SQL Server", "mssql": "SQL Server"}
EXPECTED = (
    "postgresql://user@host:5432/database, mysql:// or mariadb:// alike, sqlite:///file.db (relative), "
    "sqlite:////folder/file.db, or duckdb:/// alike"
)
PORTS = {"postgresql": 5432, "mysql": 3306}
FILES = ("sqlite", "duckdb")
#: What may stand after `?`, by database.
PARAMETERS = {
    "postgresql": frozenset({"sslmode", "sslrootcert"}),
    "mysql": frozenset({"ssl_ca"}),
    "sqlite": frozenset[str](),
    "duckdb": frozenset[str](),
}


class AddressError(ValueError):
    """A `url` that cannot be used. Its text never holds the URL, which may hold a password."""


@dataclass(frozen=True, slots=True)
class Address:
    """A database. `path` is the file of one that is a file; `database` the name on a server."""

    kind: str  # postgresql, mysql, sqlite, duckdb
    host: str = ""
    port: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""
    path: str = ""
    parameters: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """For people: without user and password."""
        return f"{self.kind}://{self.host}:{self.port}/{self.database}" if self.host else f"{self.kind}:///{self.path}"

    @property
    def is_file(self) -> bool:
        """Whether it is a file of this machine."""
        return self.kind in FILES


def parse(url: str) -> Address:
    """Read a URL; raises `AddressError`."""
    if url.startswith("jdbc:"):
        raise AddressError(f"a Java driver's URL; leave `jdbc:` out: expected {EXPECTED}")
    scheme, separator, _ = url.partition("://")
    scheme = scheme.lower()
    if scheme in UNTRIED and separator:
        raise AddressError(f"{UNTRIED[scheme]} is not supported: no driver is built in; expected {EXPECTED}")
    if scheme not in SCHEMES or not separator:
        said = f"{scheme[:20]}:// is not supported" if separator and scheme.isalnum() else "has no scheme"
        raise AddressError(f"{said}; expected {EXPECTED}")
    kind = SCHEMES[scheme]
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(kind, 0)
    except ValueError:
        raise AddressError(f"is no URL; expected {EXPECTED}") from None  # its text would hold the URL
    # Else a part of a password is taken for a database or a parameter, which are told.
    if parts.fragment or (kind not in FILES and "@" in parts.path + parts.query):
        raise AddressError("`/`, `?`, `#` and `@` must be percent-encoded within a name or password (%2F %3F %23 %40)")
    parameters = tuple(sorted(parse_qsl(parts.query, keep_blank_values=True)))
    for name, _ in parameters:
        if name not in PARAMETERS[kind]:
            known = ", ".join(sorted(PARAMETERS[kind])) or "none"
            raise AddressError(f"the parameter `{name[:40]}` is not supported for {kind}; known: {known}")
    if kind in FILES:
        return _file(kind, parts.netloc, parts.path)
    if not parts.hostname:
        raise AddressError(f"names no host; expected {EXPECTED}")
    database = unquote(parts.path.removeprefix("/"))
    if not database or "/" in database:
        raise AddressError(f"names no database; expected {EXPECTED}")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return Address(kind, parts.hostname, port, user, password, database, "", parameters)


def _file(kind: str, netloc: str, path: str) -> Address:
    name = unquote(path.removeprefix("/"))
    if netloc or not name or name == ":memory:":
        raise AddressError(f"names no file; expected {EXPECTED}")
    return Address(kind, path=name)


def located(address: Address, base: str) -> Address:
    """The address with its file, if it is one and relative, begun at `base`."""
    if not address.is_file:
        return address
    return Address(address.kind, path=os.path.abspath(os.path.join(base, address.path)))
