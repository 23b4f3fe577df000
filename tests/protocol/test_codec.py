"""The ledger's written form: golden files, round trips, and what is refused."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sinkruntime.protocol.codec import FORMAT, BadLedger, NewerFormat, decode, encode
from sinkruntime.protocol.ledger import (
    Abort,
    Acceptance,
    Authority,
    CheckpointState,
    LastDecision,
    Ledger,
    Offsets,
    Part,
    PartState,
    Payload,
    Position,
    Record,
    Settled,
    SinkEntry,
)
from tests.protocol.build import EPOCH, NEW, TOKEN, position, record, stored

GOLDEN = Path(__file__).parent / "golden"

#: Every field of every class away from its default.
RICH = Ledger(
    ledger_id="0c6c2f0e-6f2f-4a1c-9d0a-2d9c2f6b7a11",
    job="team/flights",
    epoch=3,
    claim="driver-3",
    token=2,
    holder="coordinator-2",
    decided=8,
    recovered={TOKEN: 3, EPOCH: 3},
    closed={TOKEN: 2},
    firsts=(1, 4, 8),
    last=LastDecision(8, "record-8", position(7), {"a": stored("3-states"), "b": stored("i", inline=True)}),
    records=(
        record(
            7,
            epoch=2,
            sinks={
                "a": Part(stored("2-abc"), 12, PartState.HELD, TOKEN, ((0, 2), (5, 5)), 4, "QuotaExceeded", "größer ✓"),
                "b": Part(stored("i", inline=True), 12, PartState.COMMITTED, EPOCH, (), 1),
            },
            decided_ms=1795000000000,
            superseded=("2-old",),
        ),
        record(8, epoch=3, sinks={"a": Part()}, state=CheckpointState.ABORTING, who="ann", why="wrong table"),
    ),
    sinks={"a": SinkEntry(1, 6, 5, "uuid-a", 42, 1795000001000), "b": SinkEntry(4)},
    batches=("rev-1/0",),
    aborts=(Abort(2, 3, "ann", "why", accepted=True), Abort(5, 5, "bob", "policy")),
    acceptances=(Acceptance(1, "Aborted", "2 to 3"),),
    history=(Settled(6, 2, "rev-1", 5, '{"x":5}', '{"x":6}', {"a": 3}, 1795000000000, aborted=True),),
)


def written(body: dict[str, Any], **head: Any) -> str:
    """A text whose checksum is right, whatever it says."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return json.dumps({"format": FORMAT, "sha256": hashlib.sha256(text.encode()).hexdigest(), "ledger": body, **head})


def body_of(ledger: Ledger) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode(ledger))["ledger"]
    return found


@pytest.mark.parametrize(("name", "ledger"), [("counted", RICH), ("new", NEW)])
def test_format_1_is_written_and_read_as_it_was_the_first_time(name: str, ledger: Ledger) -> None:
    golden = (GOLDEN / f"format-1-{name}.json").read_text(encoding="utf-8").rstrip("\n")
    assert decode(golden) == ledger
    assert encode(ledger) == golden, "if this change is meant, old texts must stay readable: add a file, keep this one"


def test_a_text_from_before_rows_were_counted_is_read() -> None:
    golden = (GOLDEN / "format-1-rich.json").read_text(encoding="utf-8").rstrip("\n")
    uncounted = dataclasses.replace(RICH.sinks["a"], rows=0, committed_ms=0)
    assert decode(golden) == dataclasses.replace(RICH, sinks={**RICH.sinks, "a": uncounted})


def test_the_rich_ledger_uses_every_field() -> None:
    classes = {Settled, Abort, Acceptance, SinkEntry, Record, Part, Payload, Position, Offsets, LastDecision, Ledger}
    text = encode(RICH)
    missing = [f"{c.__name__}.{f.name}" for c in classes for f in dataclasses.fields(c) if f'"{f.name}":' not in text]
    assert missing == []


@pytest.mark.parametrize("newer", [FORMAT + 1, 99])
def test_a_newer_format_is_refused_and_never_guessed_at(newer: int) -> None:
    with pytest.raises(NewerFormat, match=f"format {newer} is newer than {FORMAT}"):
        decode(written(body_of(NEW), format=newer))


@pytest.mark.parametrize("strange", [0, -1, True, 1.0, "1", None])
def test_a_format_that_never_was_is_refused(strange: Any) -> None:
    with pytest.raises(BadLedger, match="format"):
        decode(written(body_of(NEW), format=strange))


def test_an_older_release_reads_what_a_newer_one_of_the_same_format_wrote() -> None:
    body = body_of(RICH)
    body["hue"] = {"new": [1, None]}
    body["records"][0]["parts"]["a"]["hue"] = 1.5
    body["sinks"]["b"]["hue"] = "x"
    assert decode(written(body)) == RICH


def test_a_newer_release_reads_what_an_older_one_wrote_without_the_added_fields() -> None:
    body = body_of(RICH)
    del body["history"], body["acceptances"], body["records"][0]["superseded"]
    read = decode(written(body))
    assert (read.history, read.acceptances, read.records[0].superseded) == ((), (), ())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda body: body.pop("job"), "job"),
        (lambda body: body.update(epoch="3"), "ledger.epoch is str, expected int"),
        (lambda body: body.update(epoch=True), "ledger.epoch is bool, expected int"),
        (lambda body: body.update(records={}), "ledger.records is dict, expected a list"),
        (lambda body: body.update(records=[7]), r"ledger.records\[0\] is int, expected an object"),
        (lambda body: body.update(sinks=[]), "items"),
        (lambda body: body["records"][0].update(state="gone"), "gone"),
        (lambda body: body["records"][0]["parts"]["a"].update(done=[[1]]), "has 1 items, expected 2"),
        (lambda body: body.update(recovered={"nobody": 1}), "nobody"),
        (lambda body: body.update(last=None, claim=None), "ledger.claim is NoneType, expected str"),
    ],
)
def test_a_text_of_the_wrong_shape_is_refused_and_says_where(change: Any, said: str) -> None:
    body = body_of(RICH)
    change(body)
    with pytest.raises(BadLedger, match=said):
        decode(written(body))


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", "3", '{"format":1}', '{"format":1,"ledger":{}}', "[" * 99999])
def test_what_is_no_ledger_is_refused(text: str) -> None:
    with pytest.raises(BadLedger):
        decode(text)


def test_an_edit_by_hand_is_found() -> None:
    text = encode(RICH)
    edited = text.replace('"epoch":3', '"epoch":4', 1)
    assert edited != text
    with pytest.raises(BadLedger, match="edited by hand or damaged"):
        decode(edited)


@given(st.data())
@settings(max_examples=300)
def test_no_flipped_byte_is_taken_for_a_ledger(data: st.DataObject) -> None:
    raw = encode(RICH).encode()
    at = data.draw(st.integers(0, len(raw) - 1))
    flipped = bytes([*raw[:at], raw[at] ^ data.draw(st.integers(1, 127)), *raw[at + 1 :]])
    if flipped[at] < 128:
        try:
            found = decode(flipped.decode())
        except BadLedger:
            return
        assert found == RICH, "at most the same value written in another way (an escape in capitals, white space)"


@given(st.integers(0, len(encode(RICH)) - 1))
def test_no_torn_text_is_taken_for_a_ledger(length: int) -> None:
    with pytest.raises(BadLedger):
        decode(encode(RICH)[:length])


FIELDS = st.sampled_from(sorted(body_of(RICH)))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(body_of(RICH))), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON, st.booleans())
def test_decode_raises_nothing_else_whatever_it_is_given(value: Any, with_checksum: bool) -> None:
    text = written(value) if with_checksum else json.dumps(value)
    with pytest.raises(BadLedger):
        decode(text)


@given(st.text())
def test_decode_raises_nothing_else_whatever_the_text(text: str) -> None:
    with pytest.raises(BadLedger):
        decode(text)


def test_a_lone_surrogate_and_a_deep_nest_are_no_reason_to_crash() -> None:
    with pytest.raises(BadLedger):
        decode('{"format":1,"sha256":"x","ledger":"\\ud800"}')
    with pytest.raises(BadLedger):
        decode('{"format":1,"sha256":"x","ledger":' + "[" * 5000 + "]" * 5000 + "}")
    strange = dataclasses.replace(NEW, job="file\udce4name")
    assert decode(encode(strange)) == strange
    assert encode(strange).isascii()


words = st.text(max_size=8)
counts = st.integers(0, 2**53)
names = st.sampled_from(["a", "b", "sink-3"])
payloads = st.builds(Payload, words, counts, st.none() | words, st.none() | words)
positions = st.builds(Position, words, counts, st.builds(Offsets, words, words), st.builds(Offsets, words, words))
parts = st.builds(
    Part,
    st.none() | payloads,
    counts,
    st.sampled_from(PartState),
    st.sampled_from(Authority),
    st.lists(st.tuples(counts, counts), max_size=2).map(tuple),
    counts,
    words,
    words,
)
texts = st.lists(words, max_size=2).map(tuple)
records = st.builds(
    Record,
    counts,
    words,
    counts,
    words,
    positions,
    st.dictionaries(names, parts, max_size=2),
    st.sampled_from(CheckpointState),
    counts,
    texts,
    words,
    words,
)
ledgers = st.builds(
    Ledger,
    ledger_id=words,
    job=words,
    epoch=counts,
    claim=words,
    token=counts,
    holder=words,
    decided=counts,
    recovered=st.dictionaries(st.sampled_from(Authority), counts),
    closed=st.dictionaries(st.sampled_from(Authority), counts),
    firsts=st.lists(counts, max_size=3).map(tuple),
    last=st.none() | st.builds(LastDecision, counts, words, positions, st.dictionaries(names, payloads, max_size=2)),
    records=st.lists(records, max_size=2).map(tuple),
    sinks=st.dictionaries(names, st.builds(SinkEntry, counts, counts, counts, words, counts, counts), max_size=2),
    batches=texts,
    aborts=st.lists(st.builds(Abort, counts, counts, words, words, st.booleans()), max_size=2).map(tuple),
    acceptances=st.lists(st.builds(Acceptance, counts, words, words), max_size=2).map(tuple),
)


@given(ledgers)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_what_is_written_is_read_back_the_same(ledger: Ledger) -> None:
    assert decode(encode(ledger)) == ledger
    assert encode(decode(encode(ledger))) == encode(ledger)
