"""What a worker may reach: rules as they are written, what they open, and the hosts that stand in options."""

from __future__ import annotations

import ipaddress

import pytest

from sinkoperator.commits.egress import Egress, Rule
from sinkoperator.commits.guard import Guard, _own_token, hosts_in
from sinkruntime.errors import ConfigurationError


def why_not(egress: Egress, address: str, port: int = 443, *hosts: str) -> str:
    return egress.why_not(ipaddress.ip_address(address), port, hosts)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "::1",
        "0.0.0.0",
        "169.254.169.254",
        "fe80::1",
        "fd00:ec2::254",
        "::ffff:169.254.169.254",
    ],
)
def test_without_rules_this_machine_and_metadata_are_closed(address: str) -> None:
    assert "may not" not in why_not(Egress(), address)
    assert why_not(Egress(), address)


@pytest.mark.parametrize("address", ["10.1.2.3", "8.8.8.8", "2001:db8::1"])
def test_without_rules_all_else_is_open(address: str) -> None:
    assert why_not(Egress(), address) == ""


def test_the_api_server_is_closed_though_a_name_leads_to_it() -> None:
    egress = Egress.parse(["*.example.org"], closed=["10.96.0.1"])
    assert why_not(egress, "10.96.0.1", 443, "sneaky.example.org")
    assert why_not(Egress.parse([], closed=["10.96.0.1"]), "10.96.0.1")
    assert why_not(Egress.parse([], closed=["10.96.0.1"]), "10.96.0.2") == ""


@pytest.mark.parametrize(
    ("rules", "address", "port", "host", "opened"),
    [
        (["10.0.0.0/8"], "10.1.1.1", 443, "", True),
        (["10.0.0.0/8"], "11.1.1.1", 443, "", False),
        (["10.0.0.0/8:5432"], "10.1.1.1", 443, "", False),
        (["10.0.0.0/8:5432"], "10.1.1.1", 5432, "", True),
        (["127.0.0.0/8"], "127.0.0.1", 80, "", True),
        (["db.example.org"], "8.8.8.8", 5432, "DB.example.org.", True),
        (["db.example.org"], "8.8.8.8", 5432, "other.example.org", False),
        (["*.example.org"], "8.8.8.8", 443, "a.b.example.org", True),
        (["*.example.org"], "8.8.8.8", 443, "example.org", False),
        (["*.example.org"], "8.8.8.8", 443, "badexample.org", False),
        (["*.example.org:443"], "8.8.8.8", 80, "a.example.org", False),
        (["*.example.org"], "169.254.169.254", 80, "a.example.org", False),
        (["[2001:db8::/32]:443"], "2001:db8::5", 443, "", True),
        (["2001:db8::/32"], "2001:db8::5", 443, "", True),
    ],
)
def test_rules_open_what_they_name(rules: list[str], address: str, port: int, host: str, opened: bool) -> None:
    egress = Egress.parse(rules)
    assert (why_not(egress, address, port, host) == "") is opened
    travelled = egress.texts()
    assert Egress.parse(travelled["allow"], travelled["closed"][7:]).allow == egress.allow


@pytest.mark.parametrize("text", ["", ":443", "host:http", "host:70000", "10.0.0.0/99", "a*b.org"])
def test_a_rule_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|names no host|not a port"):
        Rule.parse(text)


def test_hosts_are_found_in_options_wherever_they_stand() -> None:
    options = {
        "url": "postgresql://user:word@db.example.org:5432/x",
        "catalog": {"uri": "https://[::1]:8181/v1", "warehouse": "s3://bucket/x"},
        "bootstrapServers": "one:9092, two:9093",
        "hosts": ["https://search.example.org"],
        "path": "s3a://bucket/prefix",
        "interval": "10:30",
        "table": "schema.table",
        "topic": "orders",
        "uris": "https://one.example.org,https://two.example.org",
        "storage": {"endpoint": "http://169.254.169.254"},
        "abfss": "abfss://container@account.dfs.example.org/x",
    }
    assert set(hosts_in(options)) == {
        ("options.url", "db.example.org", 5432),
        ("options.catalog.uri", "::1", 8181),
        ("options.bootstrapServers", "one", 9092),
        ("options.bootstrapServers", "two", 9093),
        ("options.hosts[0]", "search.example.org", 0),
        ("options.interval", "10", 30),
        ("options.uris", "one.example.org", 0),
        ("options.uris", "two.example.org", 0),
        ("options.storage.endpoint", "169.254.169.254", 0),
        ("options.abfss", "account.dfs.example.org", 0),
    }


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("url", "postgresql://user:word@allowed,169.254.169.254:80/x"),
        ("url", "postgresql://user:wo,rd@169.254.169.254:80/x"),
        ("url", "postgresql://user:wo;rd@169.254.169.254:80/x"),
        ("url", "postgresql://user:wo rd@169.254.169.254:80/x"),
        ("url", "postgresql://user@169.254.\n169.254:80/x"),
        ("uri", "postgresql+psycopg://user:word@/x?host=allowed,169.254.169.254"),
        ("bootstrapServers", "allowed:9092, 169.254.169.254"),
        ("endpoint", "169.254.169.254"),
        ("s3.endpoint", "metadata.example.org"),
        ("endpoint", "metadata.example.org/path"),
    ],
)
def test_a_host_that_a_client_finds_in_an_option_is_found_here(option: str, text: str) -> None:
    found = {host for _, host, _ in hosts_in({option: text})}
    assert found & {"169.254.169.254", "metadata.example.org"}


def test_an_address_is_open_by_the_name_under_which_it_was_found() -> None:
    guard = Guard()  # not put in place: that could not be undone in this process
    guard.obey(Egress.parse(["*.example.org"]))
    guard._remember("8.8.8.8", "db.example.org")
    guard._remember("9.9.9.9", "elsewhere.example.com")
    guard._remember("169.254.169.254", "sneaky.example.org")
    assert guard.why_not("8.8.8.8", 443) == ""
    assert "--egress-allow" in guard.why_not("9.9.9.9", 443)
    assert guard.why_not("169.254.169.254", 80)
    with pytest.raises(ConfigurationError, match=r"9\.9\.9\.9:443 may not be reached") as caught:
        guard.check_options({"catalog": {"uri": "https://9.9.9.9:443/v1"}})
    assert (caught.value.reason, caught.value.path) == ("EgressRefused", "options.catalog.uri")


def test_a_name_that_no_host_can_have_is_left_to_the_client() -> None:
    guard = Guard()
    guard.obey(Egress.parse(["*.example.org"]))
    guard.check_options({"url": "http://a..b/"})


@pytest.mark.parametrize("path", ["{}", "/{}", "/proc/self/root{}", "{up}{}", "/run/../{}"])
def test_the_operators_own_tokens_are_known_by_every_path(path: str) -> None:
    token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert _own_token(path.format(token, up="/".join([".."] * 30)))
    assert not _own_token("/etc/ssl/cert.pem")
    assert not _own_token(b"token")
