"""YAML as a manifest may use it: what every reader understands alike, with the line of each field."""

from typing import Any

import pytest

from sinkruntime.spec.yaml_text import read_yaml


def values(text: str) -> dict[str, Any]:
    document = read_yaml(text)
    assert document.problems == ()
    return document.value


def problems(text: str) -> list[str]:
    return [problem.text() for problem in read_yaml(text).problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None), ("0", 0), ("-12", -12),
        ("1.5", 1.5), ("1e3", 1000.0), ("-.5", -0.5), ("0.7", 0.7), ("2026-01-31", "2026-01-31"), ("1:30", "1:30"),
        ("'no'", "no"), ('"0644"', "0644"), ("10s", "10s"), ("1.2.3", "1.2.3"), ("!!str no", "no"), ("=", "="),
        ("NaNa", "NaNa"), ("nope", "nope"), ("|\n  a\n  b\n", "a\nb\n"), ("!!int '7'", 7),
    ],
)  # fmt: skip
def test_a_value_is_what_kubernetes_reads_too(text: str, value: object) -> None:
    read = values(f"a: {text}")["a"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "word", ["y", "Y", "yes", "NO", "n", "On", "off", "0644", "-07", "0x1F", "0o17", "0b11", "1_000", "1_0.5"]
)
def test_a_word_that_readers_understand_differently_is_refused(word: str) -> None:
    (said,) = problems(f"a: {word}")
    assert said.startswith(f"1: a: `{word}` means different things to different YAML readers")
    assert len(problems(f"{word}: a")) == 1, "as a key too"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: !!set {b: }", "1: a: the YAML tag `!!set` is not supported; leave it out"),
        ("a: !!omap [b: c]", "1: a: the YAML tag `!!omap` is not supported; leave it out"),
        ("a: !!binary aGk=", "1: a: the YAML tag `!!binary` is not supported; leave it out"),
        ("a: !own b", "1: a: the YAML tag `!own` is not supported; leave it out"),
        ("a: !!int abc", "1: a: `abc` is not a number, true, false or null that JSON can hold"),
        ("a: !!bool maybe", "1: a: `maybe` is not a number, true, false or null that JSON can hold"),
        ("a: 9223372036854775808", f"1: a: `{2**63}` is not a number, true, false or null that JSON can hold"),
        ("a: 1e999", "1: a: `1e999` is not a number, true, false or null that JSON can hold"),
        ("? [a]\n: b", "1: a key must be text, not a list or a mapping"),
        ("true: a", '1: the key `true` is not text; write "true" in quotes'),
        ("a: &x [*x]", "1: a[0]: an alias that contains itself"),
        ("a: {<<: 3}", '1: a["<<"]: `<<` merges a mapping, or a list of mappings'),
        ('a: "\\0"', "1: a: holds a character that is not text (NUL, or half of a pair)"),
        ('a: "\\ud800"', "1: a: holds a character that is not text (NUL, or half of a pair)"),
    ],
)  # fmt: skip
def test_what_json_cannot_hold_is_refused(text: str, message: str) -> None:
    assert problems(text) == [message]


def test_all_wrong_values_are_named_and_the_others_kept() -> None:
    document = read_yaml("a: yes\nb: 1\nb: 2\nc: .nan\n")
    assert [problem.line for problem in document.problems] == [1, 3, 4]
    assert document.value == {"a": "yes", "b": 1, "c": ".nan"}


def test_merges_take_what_the_mapping_does_not_say_itself() -> None:
    text = "p: &p {a: 1, b: 1}\nq: &q {b: 2, c: 2}\nr: {a: 3, <<: [*p, *q]}\n"
    assert values(text)["r"] == {"a": 3, "b": 1, "c": 2}
    assert read_yaml(text).lines.of("r.a") == 3


def test_the_line_of_a_field_or_of_the_nearest_around_it_is_known() -> None:
    lines = read_yaml('a:\n  b:\n  - c: 1\n    "d.e": 2\n').lines
    assert lines.of("a.b[0].c") == 3
    assert lines.of('a.b[0]["d.e"]') == 4
    assert lines.of("a.b[0].none.none") == 3
    assert lines.of("a.b[7]") == 2
    assert lines.of("a.none") == 1
    assert lines.of("") == 1
