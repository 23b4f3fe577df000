"""The rules of a look that need no cluster: when a plan is made twice, and how a refusal is told."""

from __future__ import annotations

import pytest

from sinkoperator import actions
from sinkoperator.actions import Action, Decision
from sinkoperator.apply import trouble_of
from sinkoperator.observed import Trouble
from sinkoperator.reconcile import Refusals, needs_live
from sinkruntime.kube import ApiError, Forbidden, Invalid

DRIVER = actions.CreateDriver(1, "abc")


@pytest.mark.parametrize(
    "action",
    [
        DRIVER,
        actions.RaiseEpoch(1),
        actions.StopDriver("j-driver-1", "uid", 60),
        actions.DeletePod("j-driver-1", "uid"),
        actions.CreateLedger(),
        actions.OrphanLedger("uid"),
        actions.ReleaseLedger("uid"),
        actions.RemoveFinalizer(),
        actions.DeleteJob(),
        actions.BeginAbort(1, "a person", "because"),
        actions.EnsureCommitter(1, "abc"),
    ],
    ids=lambda action: type(action).__name__,
)
def test_whatever_starts_or_ends_something_rests_on_a_live_look(action: Action) -> None:
    assert needs_live(Decision((actions.Emit("Running", ""), action)))


def test_what_is_repeated_on_every_look_does_not() -> None:
    coordinate = actions.RunCoordinator("abc", "abc/0/x")

    assert not needs_live(Decision((coordinate, actions.StopCoordinator(), actions.Emit("Running", ""))))
    assert not needs_live(Decision(()))


def test_what_a_later_plan_reads_rests_on_a_live_look() -> None:
    assert needs_live(Decision((), urgent=True))


def test_a_refusal_is_news_once() -> None:
    refusals, key = Refusals(), ("n", "j")
    trouble = Trouble("QuotaExceeded", "pods=1")

    assert not refusals.put(key, None)
    assert refusals.put(key, trouble)
    assert not refusals.put(key, Trouble("QuotaExceeded", "pods=1"))
    assert refusals.of(key) == trouble
    assert refusals.put(key, None)
    assert refusals.of(key) is None


@pytest.mark.parametrize(
    ("error", "reason", "path"),
    [
        (Forbidden('pods "x" is forbidden: exceeded quota: q, requested: pods=1'), "QuotaExceeded", ""),
        (Forbidden('violates PodSecurity "restricted:latest"'), "PodSecurityRefused", "spec.driver.podTemplate"),
        (Forbidden("unable to create new content because it is being terminated"), "NamespaceTerminating", ""),
        (Forbidden("User cannot create resource pods"), "RightMissing", ""),
        (Invalid("spec.containers[0].ports: Invalid value"), "ObjectRefused", "spec.driver.podTemplate"),
    ],
)
def test_what_the_server_turns_down_has_a_reason_and_a_place(error: ApiError, reason: str, path: str) -> None:
    trouble = trouble_of(error, DRIVER)

    assert (trouble.reason, trouble.path) == (reason, path)
    assert trouble.message == error.message
