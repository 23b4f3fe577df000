"""A sink's class is found by its type, and its options are read as the class declares them."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from sinkruntime.api import Sink
from sinkruntime.errors import ManifestError
from sinkruntime.spec.options_from import Secrets
from sinkruntime.spec.sink_options import load_sink_class, parse_options, sink_types

HERE = Path(__file__).parent
TYPE = ("spec", "sinks", 0, "type")
OPTIONS = ("spec", "sinks", 1, "options")


@pytest.fixture(autouse=True)
def toy_on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(HERE)
    yield
    sys.modules.pop("toy_sink", None)


def toy() -> type[Sink]:
    return load_sink_class("toy_sink:ToySink", TYPE)


def read(options: dict[str, Any], **secrets: str) -> Any:
    return parse_options(toy(), options, OPTIONS, Secrets(secrets))


def messages(options: dict[str, Any], **secrets: str) -> list[str]:
    with pytest.raises(ManifestError) as refused:
        read(options, **secrets)
    # What the user sees is the message; a traceback must not show more than it does.
    assert refused.value.__cause__ is None
    return str(refused.value).splitlines()


def refusal(type_name: str) -> str:
    with pytest.raises(ManifestError) as refused:
        load_sink_class(type_name, TYPE)
    return str(refused.value)


def test_a_type_is_the_name_of_a_module_of_ours() -> None:
    assert load_sink_class("memory", TYPE).summary
    assert "memory" in sink_types()


def test_a_type_may_be_a_class_of_the_users() -> None:
    assert toy().__name__ == "ToySink"


def test_a_type_may_be_an_entry_point_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "toys-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[sinkjob.sinks]\ntoy = toy_sink:ToySink\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_sink_class("toy", TYPE).__name__ == "ToySink"
    assert "toy" in sink_types()


def test_an_unknown_type_gets_a_near_one_suggested() -> None:
    assert refusal("memry") == "spec.sinks[0].type: there is no sink `memry`; did you mean `memory`?"


def test_a_module_that_is_missing_is_named() -> None:
    assert refusal("nowhere.sinks:Lake") == (
        "spec.sinks[0].type: there is no module `nowhere`; put its file into spec.deps.pyFiles, or install its package"
    )


def test_a_class_that_is_missing_is_named() -> None:
    assert refusal("toy_sink:Lake") == (
        "spec.sinks[0].type: the sink `toy_sink:Lake` cannot be loaded: module 'toy_sink' has no attribute 'Lake'"
    )


def test_what_is_no_sink_is_refused() -> None:
    expected = "is not a sink; a class that extends sinkruntime.api.Sink"
    assert refusal("toy_sink:NOT_A_SINK") == f"spec.sinks[0].type: `toy_sink:NOT_A_SINK` {expected}"
    assert refusal("toy_sink:Catalog") == f"spec.sinks[0].type: `toy_sink:Catalog` {expected}"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import none_such", "needs the module `none_such`"),
        ("1 / 0", "cannot be loaded: ZeroDivisionError: division by zero"),
        ("def", "cannot be loaded: SyntaxError: invalid syntax"),
    ],
)
def test_a_module_that_cannot_be_imported_is_a_problem_of_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    (tmp_path / "broken_sink.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert f"spec.sinks[0].type: the sink `broken_sink:S` {message}" in refusal("broken_sink:S")


def test_options_are_read_with_their_types() -> None:
    options = read({"table": "t", "maxRows": 5, "targetFileSize": "2MiB", "write": "upsert", "key": ["a", "b"]})
    assert (options.table, options.max_rows, options.target_file_size.bytes) == ("t", 5, 2 * 1024**2)
    assert (options.write, options.key) == ("upsert", ("a", "b"))


def test_every_wrong_option_is_named_with_its_path() -> None:
    assert messages({"tabel": "t", "maxRows": 0, "write": "upset", "requestTimeout": 3, "catalog": {"url": "x"}}) == [
        "spec.sinks[1].options.table: is required",
        "spec.sinks[1].options.write: `upset` is not allowed; did you mean `upsert`?",
        "spec.sinks[1].options.maxRows: must be at least 1",
        "spec.sinks[1].options.requestTimeout: expected a duration such as 200ms, 10s, 5m or 1h, got `3`",
        "spec.sinks[1].options.catalog.uri: is required",
        "spec.sinks[1].options.catalog.url: unknown option; did you mean `uri`?",
        "spec.sinks[1].options.tabel: unknown option; did you mean `table`?",
    ]


def test_the_attribute_of_an_option_is_not_its_name() -> None:
    assert messages({"table": "t", "max_rows": 5}) == [
        "spec.sinks[1].options.max_rows: unknown option; did you mean `maxRows`?"
    ]


def test_an_option_of_two_kinds_is_named_without_pydantics_words() -> None:
    lines = messages({"table": "t", "key": 3})
    assert all(line.startswith("spec.sinks[1].options.key: expected ") for line in lines)


def test_secrets_become_options_and_text_becomes_what_the_option_needs() -> None:
    options = read({"table": "t"}, password="hunter2", maxRows="7")
    assert options.password.get_secret_value() == "hunter2"
    assert options.max_rows == 7


def test_a_secret_with_a_dot_goes_into_an_option_with_fields() -> None:
    given = {"uri": "http://catalog"}
    options = read({"table": "t", "catalog": given}, **{"catalog.token": "hunter2"})
    assert (options.catalog.uri, options.catalog.token.get_secret_value()) == ("http://catalog", "hunter2")
    assert given == {"uri": "http://catalog"}, "the manifest's own options stay without secrets"


def test_an_option_from_two_places_is_refused() -> None:
    assert messages({"table": "t", "catalog": {"uri": "a"}}, **{"table": "u", "catalog.uri": "b"}) == [
        "spec.sinks[1].options.table: is in `optionsFrom` too; keep one of them",
        "spec.sinks[1].options.catalog.uri: is in `optionsFrom` too; keep one of them",
    ]


def test_a_secret_never_appears_in_a_message_or_in_the_options_repr() -> None:
    assert messages({"table": "t"}, password="pwd") == ["spec.sinks[1].options.password: *** is too short"]
    (line,) = messages({"table": "t"}, maxRows="hunter2")
    assert line == "spec.sinks[1].options.maxRows: expected a whole number, got text"
    (line,) = messages({"table": "t"}, write="upset2")
    assert line == "spec.sinks[1].options.write: this value is not allowed; expected one of: insert, upsert"
    (line,) = messages({"table": "t"}, code="hunter" * 20)
    assert line == "spec.sinks[1].options.code: this value is not allowed"
    (line,) = messages({"table": "t", "code": "a b"})
    assert line == "spec.sinks[1].options.code: `a b` is not a code, at most 9 characters"
    assert "hunter2" not in repr(read({"table": "t"}, password="hunter2"))


def test_a_validator_that_fails_itself_is_a_problem_of_the_manifest() -> None:
    assert messages({"table": "t"}, region="hunter2") == [
        "spec.sinks[1].options: cannot be checked by the sink: KeyError: '***'"
    ]


def test_options_are_an_instance_of_the_class_that_the_sink_declares() -> None:
    options: BaseModel = read({"table": "t"})
    assert type(options) is toy().Options
