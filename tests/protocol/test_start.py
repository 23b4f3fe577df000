"""The start check: what each disagreement of source, ledger and targets is called, and which batch runs."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from sinkruntime.protocol.events import Accept, OutcomeKind, TargetView
from sinkruntime.protocol.ledger import Ledger, Position
from sinkruntime.protocol.start import ADVICE, REBASE, SourceView, StartReason, Verdict, check, judge_batch
from tests.protocol.build import (
    EPOCH,
    NEW,
    aborting,
    after,
    committed,
    decided,
    offset,
    outcome,
    position,
    report,
    running,
)

#: A target that keeps evidence: of checkpoint 2 in sink `a`; sink `b` keeps none.
AGREEING = {"a": TargetView(2, "uuid-a")}
OTHER_ROWS = Position("query-1", 1, offset(1), offset(7))


def job() -> Ledger:
    """Checkpoints 1 and 2 (batches 0 and 1) are committed everywhere; the target of sink `a` has an identity."""
    ledger = committed(decided(1, 2, targets={"a": "uuid-a"}), 1, "a", "b")
    return committed(ledger, 2, "a", "b")


def spark(finished: int = 1, planned: Position | None = None, query: str = "query-1") -> SourceView:
    """Spark's checkpoint location: after batch 1 unless said otherwise."""
    return SourceView("ledger-1", query, planned or position(1), finished)


def reasons(ledger: Ledger, source: SourceView, targets: Mapping[str, TargetView] | None = None) -> list[StartReason]:
    found = check(ledger, source, AGREEING if targets is None else targets)
    assert all(item.advice == ADVICE[item.reason] and item.message for item in found)
    return [item.reason for item in found]


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(spark(), id="the batch is finished"),
        pytest.param(spark(finished=0), id="decided, and Spark died before its own commit"),
        pytest.param(spark(planned=position(2)), id="the next batch is planned, and was not decided"),
    ],
)
def test_a_job_that_agrees_starts(source: SourceView) -> None:
    assert reasons(job(), source) == []


def test_a_new_job_starts_with_an_empty_location_and_an_empty_target() -> None:
    assert reasons(running(), SourceView(), {"a": TargetView()}) == []
    planned = SourceView("ledger-1", "query-1", position(0))
    assert reasons(running(), planned, {"a": TargetView()}) == [], "it died before its first decision"


def test_a_target_may_be_ahead_of_the_ledger_by_what_is_decided_and_not_yet_reported() -> None:
    ledger = decided(1, 2)
    assert reasons(ledger, spark(), {"a": TargetView(2)}) == []
    assert reasons(ledger, spark(), {"a": TargetView(3)}) == [StartReason.TARGET_AHEAD_OF_LEDGER]


def test_a_target_need_not_have_evidence_of_empty_checkpoints() -> None:
    ledger = committed(decided(1, 2), 1, "a", "b")
    ledger = after(ledger, report(outcome(2, "a", OutcomeKind.COMMITTED, evidence=False)))
    assert reasons(ledger, spark(), {"a": TargetView(1)}) == []


def test_a_location_of_another_ledger() -> None:
    assert reasons(job(), replace(spark(), marker="ledger-9")) == [StartReason.CHECKPOINT_OWNED_BY_ANOTHER]


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(SourceView(), id="the location was emptied"),
        pytest.param(spark(query="query-2"), id="another query wrote there"),
        pytest.param(replace(spark(), marker=""), id="the marker is gone"),
    ],
)
def test_a_checkpoint_location_that_is_new(source: SourceView) -> None:
    assert reasons(job(), source) == [StartReason.NEW_CHECKPOINT]


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(spark(finished=2, planned=position(2)), id="a batch finished without a decision"),
        pytest.param(spark(planned=position(3)), id="the planned batch leaves rows out"),
    ],
)
def test_a_ledger_behind_the_source(source: SourceView) -> None:
    assert reasons(job(), source) == [StartReason.LEDGER_BEHIND_SOURCE]


def test_an_empty_ledger_beside_a_source_with_finished_batches() -> None:
    assert reasons(running(), spark(), {}) == [StartReason.LEDGER_BEHIND_SOURCE]


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(spark(finished=0, planned=position(0)), id="restored one batch back"),
        pytest.param(SourceView("ledger-1", "query-1", None, -1), id="the offsets are gone"),
        pytest.param(spark(finished=0, planned=OTHER_ROWS), id="the same number with other rows"),
        pytest.param(spark(finished=3), id="commits without offsets"),
    ],
)
def test_a_target_ahead_of_the_source(source: SourceView) -> None:
    assert reasons(job(), source) == [StartReason.TARGET_AHEAD_OF_SOURCE]


def test_a_replaced_target() -> None:
    assert reasons(job(), spark(), {"a": TargetView(0, "uuid-new")}) == [StartReason.TARGET_REPLACED]
    assert reasons(job(), spark(), {"a": TargetView(2, "uuid-new")}) == [StartReason.TARGET_REPLACED]


def test_a_target_ahead_of_the_ledger() -> None:
    found = check(job(), spark(), {"a": TargetView(4, "uuid-a")})
    assert [item.reason for item in found] == [StartReason.TARGET_AHEAD_OF_LEDGER]
    assert found[0].message == "a has evidence of checkpoint 4 (by the ledger 2)"
    assert found[0].sinks == {"a": TargetView(4, "uuid-a")}


def test_a_target_behind_the_ledger() -> None:
    assert reasons(job(), spark(), {"a": TargetView(1, "uuid-a")}) == [StartReason.TARGET_BEHIND_LEDGER]


def test_an_abort_that_nobody_accepted() -> None:
    fenced = report(outcome(3, "a", OutcomeKind.FENCED), outcome(3, "b", OutcomeKind.FENCED))
    ledger = after(aborting(decided(1, 2, 3), 3), fenced)
    found = check(ledger, spark(finished=1, planned=position(2)), {})
    assert [item.reason for item in found] == [StartReason.ABORTED]
    assert "3 to 3 (ann: wrong table)" in found[0].message
    accepted = after(ledger, Accept(EPOCH, 1, 1, "Aborted"))
    assert check(accepted, spark(finished=1, planned=position(2)), {}) == ()


def test_every_disagreement_is_found_the_source_first() -> None:
    targets = {"a": TargetView(1, "uuid-a"), "b": TargetView(9)}
    source = replace(spark(query="query-2"), marker="ledger-9")
    assert reasons(job(), source, targets) == [
        StartReason.CHECKPOINT_OWNED_BY_ANOTHER,
        StartReason.NEW_CHECKPOINT,
        StartReason.TARGET_BEHIND_LEDGER,
        StartReason.TARGET_AHEAD_OF_LEDGER,
    ]


def test_accepting_what_a_check_found_makes_the_next_check_agree() -> None:
    for source, targets in [
        (spark(), {"a": TargetView(0, "uuid-new")}),
        (spark(), {"a": TargetView(7, "uuid-a")}),
        (spark(), {"a": TargetView(1, "uuid-a")}),
        (spark(query="query-2"), AGREEING),
        (spark(finished=0, planned=OTHER_ROWS), AGREEING),
        (spark(finished=2, planned=position(2)), AGREEING),
    ]:
        ledger = job()
        (found,) = check(ledger, source, targets)
        word = Accept(EPOCH, 1, 1, found.reason, rebase=found.reason in REBASE, views=found.sinks)
        assert check(after(ledger, word), source, targets) == ()


def test_every_reason_has_an_advice() -> None:
    assert set(ADVICE) == set(StartReason)


@pytest.mark.parametrize(
    ("place", "verdict"),
    [
        (position(2), Verdict.RUN),
        (Position("query-1", 4, offset(2), offset(3)), Verdict.RUN),
        (position(1), Verdict.SKIP),
        (OTHER_ROWS, "batch 1 was decided with other rows, or comes before batch 1"),
        (position(0), "batch 0 was decided with other rows, or comes before batch 1"),
        (position(3), "batch 3 does not start where checkpoint 2 ended"),
        (position(2, "query-2"), "batch 2 is of query query-2, the last decision of query-1"),
        (position(1, "query-2"), "batch 1 is of query query-2, the last decision of query-1"),
    ],
)
def test_a_batch_runs_is_skipped_or_stops_the_job(place: Position, verdict: str) -> None:
    assert judge_batch(job(), place) == verdict


def test_any_batch_runs_where_nothing_was_decided() -> None:
    assert judge_batch(NEW, position(7)) is Verdict.RUN


def test_texts_of_offsets_do_not_matter() -> None:
    last = position(1)
    without = replace(last, start=replace(last.start, text=""), end=replace(last.end, text=""))
    assert judge_batch(job(), without) is Verdict.SKIP
