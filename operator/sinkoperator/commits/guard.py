"""Holds the egress rules in a worker process, and looks at the hosts in a sink's options before it is opened.

`worker` puts it in place once, before it knows anything of a job. It sees Python's own sockets only: a C library that
opens sockets by itself is not held, but for the hosts that stand in the options. It never opens a connection.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from sinkoperator.commits.egress import Egress, literal, refusal
from sinkruntime.errors import ConfigurationError

#: In URLs of these the authority is no host: a bucket, a file.
NOT_HOSTS = frozenset({"s3", "s3a", "gs", "file", "sqlite", "duckdb", "wasbs", "wasb"})
#: Names by address that are remembered.
NAMES_MAX = 10_000
#: Where Kubernetes and clouds put this pod's own tokens: none of them is a job's.
OWN_TOKENS = ("/var/run/secrets/", "/run/secrets/")

#: In the query of a database's URL.
HOST_PARAMETERS = frozenset({"host", "hostaddr"})

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})")
#: Options that hold hosts, perhaps without a port: `s3.endpoint`, `bootstrapServers`, `metadata.broker.list`.
_HOSTS_OPTION = re.compile(r"(endpoint|hosts?|servers?|broker\.list)(\[\d+\])?$", re.IGNORECASE)


class Guard:
    """The rules in force in this process. An audit hook cannot be taken out again, and survives what sinks do."""

    def __init__(self) -> None:
        self._egress = Egress()
        self._names: OrderedDict[str, list[str]] = OrderedDict()

    def install(self) -> None:
        """Once per process."""
        real = socket.getaddrinfo

        def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
            found = real(host, port, *args, **kwargs)
            for entry in found:
                self._remember(str(entry[4][0]), _name(host))
            return found

        socket.getaddrinfo = getaddrinfo
        sys.addaudithook(self._audit)

    def obey(self, egress: Egress) -> None:
        """From now on these rules."""
        self._egress = egress

    def _remember(self, address: str, host: str) -> None:
        names = self._names.setdefault(address, [])
        self._names.move_to_end(address)
        if host not in names:
            names.append(host)
        if len(self._names) > NAMES_MAX:
            self._names.popitem(last=False)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            self._check(arguments[0], arguments[-1])
        elif event == "open" and not isinstance(arguments[0], int | None) and _own_token(arguments[0]):
            raise PermissionError(errno.EACCES, "a worker may not read the operator's own tokens")

    def _check(self, connection: socket.socket, address: Any) -> None:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            if address and connection.family == socket.AF_UNIX:
                raise PermissionError(errno.EACCES, "a worker may not connect to sockets of this machine")
            return
        if isinstance(address, tuple) and len(address) >= 2:
            self.check(str(address[0]), int(address[1]), OSError)

    def check(self, host: str, port: int, kind: type[Exception]) -> None:
        """Raise where this host, by name or address, may not be reached. A name that nobody knows is let through: the
        client says so itself."""
        why = self.why_not(host, port)
        if not why:
            return
        text = refusal(host, port, why)
        print(f"EgressRefused: {text}", file=sys.stderr)
        if kind is OSError:
            raise PermissionError(errno.EACCES, f"EgressRefused: {text}")
        raise ConfigurationError("EgressRefused", text)

    def why_not(self, host: str, port: int) -> str:
        """See `Egress.why_not`; a name is looked up, and one forbidden address among its addresses forbids it."""
        address = literal(host)
        if address is not None:
            return self._egress.why_not(address, port, [host, *self._names.get(str(address), [])])
        try:
            found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port or None, type=socket.SOCK_STREAM)}
        except (OSError, UnicodeError):  # the second: it cannot be any host's name
            found = set()
        whys = (self._egress.why_not(known, port, [host]) for known in map(literal, sorted(found)) if known)
        return next((why for why in whys if why), "")

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise `ConfigurationError` where an option names a host that may not be reached."""
        for path, host, port in hosts_in(options):
            try:
                self.check(host, port, ConfigurationError)
            except ConfigurationError as error:
                error.path = path
                raise


def hosts_in(value: Any, path: str = "options") -> Iterator[tuple[str, str, int]]:
    """Option, host and port, of every URL and every `host:port` in the options."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from hosts_in(inner, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from hosts_in(inner, f"{path}[{index}]")
    elif isinstance(value, str):
        named = _HOSTS_OPTION.search(path) is not None
        parts = (_host_of(part, named) for part in re.split(r"[\s,;]+", value))
        for host, port in dict.fromkeys((*_hosts_of_url(value), *parts)):
            if host:
                yield path, host, port


def _hosts_of_url(text: str) -> Iterator[tuple[str, int]]:
    """Of a text that is one URL, as clients read it: what parts a list may stand in a password, and there may be
    several hosts, also behind the `?`."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return  # the sink says that it is no URL
    if parts.scheme.lower() in NOT_HOSTS or not _URL.match(text.lstrip()):
        return
    hosts = parts.netloc.rpartition("@")[2].split(",")
    if parts.path.startswith("//"):
        hosts.pop()  # of a list of URLs: the scheme of the next one
    hosts += [each for name, value in parse_qsl(parts.query) if name in HOST_PARAMETERS for each in value.split(",")]
    for host in hosts:
        found = _HOST_AND_PORT.fullmatch(host)
        yield (found[1].strip("[]"), int(found[2])) if found else (host.strip("[]").rstrip(":"), 0)


def _host_of(text: str, named: bool) -> tuple[str, int]:
    """The host in one part of a list; `named`: the option's name says that it holds hosts."""
    if _URL.match(text):
        try:
            parts = urlsplit(text)
            if parts.scheme.lower() not in NOT_HOSTS and parts.hostname:
                return parts.hostname, parts.port or 0
        except ValueError:
            return "", 0  # the sink says that it is no URL
        return "", 0
    text = text.partition("/")[0] if named else text
    found = _HOST_AND_PORT.fullmatch(text)
    if found is None:
        return (text.strip("[]"), 0) if named else ("", 0)
    return found[1].strip("[]"), int(found[2])


def _own_token(path: Any) -> bool:
    return os.path.realpath(os.fsdecode(path)).startswith(OWN_TOKENS)


def _name(host: Any) -> str:
    return host.decode(errors="replace") if isinstance(host, bytes) else str(host)
