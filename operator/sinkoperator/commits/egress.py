"""Which hosts a worker may reach: the rules, how they are read, and what they say of a host or an address. Pure.

A URL in a manifest makes the operator call it, from inside the cluster. So without any rule everything may be reached
except this machine, link-local addresses (where clouds serve credentials) and the API server; with rules only what they
name. `guard` holds them in a worker. A NetworkPolicy is the wall; this is the lock on the door.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Never reached unless a rule names it by network: this machine, link-local addresses, and what clouds serve instead.
CLOSED = (
    "127.0.0.0/8", "::1/128", "0.0.0.0/8", "::/128", "169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128",
)  # fmt: skip
SETTING = "--egress-allow"


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry: a network, or a host's name (`*.` begins a domain); `port` 0 is any."""

    name: str
    network: Network | None
    port: int

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Read `host`, `*.domain`, `10.0.0.0/8`, each with `:port` or without. Raises ValueError."""
        name, port = _split(text.strip())
        if not name:
            raise ValueError(f"{text!r} names no host")
        try:
            network = ipaddress.ip_network(name.strip("[]"))
        except ValueError as error:
            if "/" in name or "*" in name.removeprefix("*."):
                raise ValueError(f"{text!r}: expected host, *.domain or a network as 10.0.0.0/8") from error
            return cls(name.lower().rstrip("."), None, port)
        return cls(name, network, port)

    def takes_name(self, host: str, port: int) -> bool:
        """Whether it names this host."""
        if self.network is not None or not self._takes_port(port):
            return False
        host = host.lower().rstrip(".")
        return host.endswith(self.name[1:]) if self.name.startswith("*.") else host == self.name

    def takes_address(self, address: Address, port: int) -> bool:
        """Whether it holds this address."""
        return self.network is not None and self._takes_port(port) and address in self.network

    def _takes_port(self, port: int) -> bool:
        return not self.port or not port or self.port == port


def _split(text: str) -> tuple[str, int]:
    """Name and port; an IPv6 address has a port only behind brackets."""
    head, colon, tail = text.rpartition(":")
    if not colon or (":" in head and not head.endswith("]")):
        return text, 0
    if not tail.isdigit() or not 0 < int(tail) < 65536:
        raise ValueError(f"{text!r}: {tail!r} is not a port")
    return head, int(tail)


@dataclass(frozen=True, slots=True)
class Egress:
    """The rules. `closed` are further networks or addresses that only a rule by network opens: the API server's."""

    allow: tuple[Rule, ...] = ()
    closed: tuple[Network, ...] = tuple(ipaddress.ip_network(text) for text in CLOSED)

    @classmethod
    def parse(cls, allow: Iterable[str], closed: Iterable[str] = ()) -> Egress:
        """From texts; `closed` are added to what is always closed. Raises ValueError."""
        networks = tuple(ipaddress.ip_network(text) for text in (*CLOSED, *closed))
        return cls(tuple(Rule.parse(text) for text in allow), networks)

    def texts(self) -> dict[str, list[str]]:
        """As they travel to a worker."""
        rules = [f"{rule.name}:{rule.port}" if rule.port else rule.name for rule in self.allow]
        return {"allow": rules, "closed": [str(network) for network in self.closed]}

    def why_not(self, address: Address, port: int, hosts: Sequence[str] = ()) -> str:
        """Why the address may not be reached, "" where it may; `hosts` are the names that it was found under."""
        address = getattr(address, "ipv4_mapped", None) or address
        if any(rule.takes_address(address, port) for rule in self.allow):
            return ""
        if any(address in network for network in self.closed):
            return f"{address} belongs to this machine, to the cloud's metadata or to the API server"
        named = any(rule.takes_name(host, port) for rule in self.allow for host in hosts)
        return "" if named or not self.allow else f"it is not among the hosts of {SETTING}"


def literal(host: str) -> Address | None:
    """The address that a text stands for; None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None


def refusal(host: str, port: int, why: str) -> str:
    """What a person is told."""
    at = f"{host}:{port}" if port else host
    return f"{at} may not be reached: {why}; the operator's setting {SETTING} opens it"
