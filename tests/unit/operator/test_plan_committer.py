"""Committer pods that keep ending: the next one waits longer each time, and a person's word is another try at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sinkoperator.actions import DeletePod, EnsureCommitter, PruneCommitterObjects
from sinkoperator.names import committer_name
from sinkoperator.observed import CommitterPod, Observed
from sinkoperator.plan import plan
from sinkruntime.spec.digest import revision as revision_of
from tests.unit.operator.plan_world import NAME, NOW, driver, intent, kinds, ledger, observed, raw_of, spec_of

RUNS_SECONDS = 3.0
LOOKS_MAX = 2000


def seen(*pods: CommitterPod, now: float = NOW, **changes: Any) -> Observed:
    """A job whose sink commits in its own image."""
    made = observed(ledger(2), driver(2, changes=changes), raw=raw_of(**changes))
    return replace(made, run_on={"lake": "Job"}, committers=pods, now=now)


def failed(number: int, created: float, seconds: float = RUNS_SECONDS, **fields: Any) -> CommitterPod:
    """A pod for the default manifest that has ended."""
    name = committer_name(NAME, number)
    pod = CommitterPod(name, f"uid-{number}", number, revision_of(spec_of()), intent(), "Failed", created)
    return replace(pod, **({"finished": created + seconds} | fields))


def pauses(times: int, seconds: float = RUNS_SECONDS) -> list[float]:
    """How long each of so many pods that fail has to wait for, as the plan's own looks find it."""
    pods: list[CommitterPod] = []
    found: list[float] = []
    now, ended = NOW, NOW
    for _ in range(LOOKS_MAX):
        made = plan(seen(*pods, now=now))
        gone = {action.name for action in made.actions if isinstance(action, DeletePod)}
        pods = [pod for pod in pods if pod.name not in gone]
        created = [action for action in made.actions if isinstance(action, EnsureCommitter)]
        if created:
            found.append(now - ended)
            pods.append(failed(created[0].number, now, seconds))
            ended = now = now + seconds
        else:
            now += made.look_again_seconds
        if len(found) > times:
            return found[1:]
    raise AssertionError(found)


def test_each_that_ends_soon_makes_the_next_wait_longer() -> None:
    found = pauses(9)
    assert found[:3] == pytest.approx([5.0, 10.0, 20.0], abs=0.5)
    assert found[-1] == pytest.approx(300.0, abs=0.5)


def test_one_that_worked_for_long_is_followed_soon() -> None:
    assert pauses(3, seconds=700.0) == pytest.approx([5.0, 5.0, 5.0], abs=0.5)


def test_a_pod_that_was_evicted_is_no_reason_to_hurry() -> None:
    assert kinds(plan(seen(failed(1, NOW - 1, finished=None)))) == []


def test_another_word_is_another_try_at_once() -> None:
    pods = (failed(1, NOW - 200), failed(2, NOW - 5))
    assert kinds(plan(seen(*pods))) == []
    assert "EnsureCommitter" in kinds(plan(seen(*pods, restartNonce=1)))


def test_only_the_last_two_that_ended_are_kept() -> None:
    pods = (failed(1, NOW - 300), failed(2, NOW - 200), failed(3, NOW - 5))
    assert kinds(plan(seen(*pods))) == ["DeletePod"]


def test_the_number_and_the_configmap_of_a_pod_that_never_came_are_used_again() -> None:
    """Else one that the API server turns down would leave a ConfigMap with each look."""
    waiting = replace(seen(), committer_configs=frozenset({3, 4, 5}))
    made = plan(waiting)
    assert [action.number for action in made.actions if isinstance(action, EnsureCommitter)] == [5]
    assert [action.numbers for action in made.actions if isinstance(action, PruneCommitterObjects)] == [(3, 4)]


def test_the_configmap_of_a_pod_that_is_there_stays() -> None:
    old, new = failed(4, NOW - 6000), failed(5, NOW - 5000)
    made = plan(replace(seen(old, new), committer_configs=frozenset({3, 4, 5})))
    assert [action.number for action in made.actions if isinstance(action, EnsureCommitter)] == [6]
    assert [action.numbers for action in made.actions if isinstance(action, PruneCommitterObjects)] == [(3,)]
