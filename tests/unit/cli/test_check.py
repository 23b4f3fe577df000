"""validate and plan: all problems with their lines, and what a run would do, without one."""

import json

import pytest

from sinkruntime.protocol.events import Accept
from sinkruntime.protocol.ledger import Authority
from tests.unit.cli.fabricate import MANIFEST, Fabricated, invoke


def test_a_valid_manifest_is_said_to_be_and_what_is_not_checked(job: Fabricated) -> None:
    result = invoke("validate", job.path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        f"{job.path}: valid; job tests/small, sinks lake (memory), screen (memory)\n"
        "its SQL is only checked when it runs: that takes Spark and the source's columns\n"
    )
    assert json.loads(invoke("validate", job.path, "-o", "json").stdout) == {"valid": True, "problems": []}


def test_all_problems_are_listed_with_line_path_and_what_would_be_right(job: Fabricated) -> None:
    text = MANIFEST.replace(
        "    options: {target: TARGET}\n  - name: screen", "    options: {tarjet: x}\n  - name: screen"
    )
    job.write(text.replace("type: memory\n    options: {target: TARGET}\n", "type: memry\n") + "  triger: {}\n")
    result = invoke("validate", job.path)
    assert (result.exit_code, result.stdout) == (2, "")
    lines = [line.removeprefix(job.path) for line in result.stderr.splitlines()]
    assert [line.split(": ")[0:2] for line in lines] == [
        [":11", "spec.sinks[0].options.tarjet"],
        [":11", "spec.sinks[0].options.target"],
        [":13", "spec.sinks[1].type"],
        [":14", "spec.triger"],
    ] or sorted(line.split(": ")[1] for line in lines) == sorted(
        ["spec.sinks[0].options.tarjet", "spec.sinks[0].options.target", "spec.sinks[1].type", "spec.triger"]
    )
    assert "did you mean `trigger`?" in result.stderr
    assert "did you mean `memory`?" in result.stderr
    told = json.loads(invoke("validate", job.path, "-o", "json").stdout)
    assert told["valid"] is False
    assert {problem["path"] for problem in told["problems"]} == {line.split(": ")[1] for line in lines}


def test_a_guarantee_that_the_sink_cannot_give_is_refused_before_anything_runs(job: Fabricated) -> None:
    head = MANIFEST.partition("  - name: lake")[0]
    job.write(f"{head}  - name: lake\n    type: console\n    guarantee: ExactlyOnce\n")
    result = invoke("validate", job.path)
    assert result.exit_code == 2
    assert f"{job.path}:11: spec.sinks[0].guarantee: `ExactlyOnce` is more than this sink can give" in result.stderr


def test_plan_of_a_first_run(job: Fabricated) -> None:
    told = json.loads(invoke("plan", job.path, "-o", "json").stdout)
    assert told["sinceLastRun"] == {"run": "first run: there is no ledger, one will be made", "epoch": 1}
    lake, screen = told["sinks"]
    assert lake == {
        "name": "lake",
        "type": "memory",
        "guarantee": "ExactlyOnce",
        "asked": "the strongest it can give",
        "why": "publishes each writer's rows at once, with evidence in the same operation",
        "committed": "Driver",
        "visible": "writer by writer, then the checkpoint is completed in one operation",
        "evidence": "in the target: the last checkpoint of this job and sink; `sinkjob commits` reads it",
        "stagedLife": "for ever: staged rows wait until they are committed, however long job or target are down",
        "target": "reached",
    }
    assert screen["name"] == "screen"
    assert not (job.folder / ".sinkjob").exists(), "a plan makes nothing"


@pytest.mark.parametrize(
    ("tier", "visible"),
    [
        ("aggregated", "the whole checkpoint at once, in one atomic operation"),
        ("committer", "after the decision, each writer's rows by themselves"),
    ],
)
def test_plan_says_whether_a_checkpoint_is_atomic(tier: str, visible: str, job: Fabricated) -> None:
    job.write(MANIFEST.replace("target: TARGET}", f"target: TARGET, tier: {tier}}}"))
    assert f"  visible           {visible}" in invoke("plan", job.path).stdout


def test_plan_says_how_long_a_job_may_be_down(job: Fabricated) -> None:
    job.write(MANIFEST.replace("target: TARGET}", "target: TARGET, life: 15m}"))
    text = invoke("plan", job.path).stdout
    assert (
        "  staged rows live  15m: job and target together may be down no longer, or decided rows are lost"
        " (CommittableLost)\n"
    ) in text


def test_plan_of_a_later_run_says_what_has_changed_since(job: Fabricated) -> None:
    job.begin()
    job.settle(1)
    job.decide(2)
    assert (
        "goes on after checkpoint 2: the same revision as the last checkpoint (epoch 2)"
        in invoke("plan", job.path).stdout
    )
    job.write(MANIFEST.replace("name: screen", "name: other").replace("SELECT value", "SELECT value, 1 AS one"))
    told = json.loads(invoke("plan", job.path, "--offline", "-o", "json").stdout)
    assert told["sinceLastRun"] == {
        "run": "goes on after checkpoint 2: another revision",
        "epoch": 2,
        "changed": ["sinks", "transform"],
        "newSinks": ["other"],
        "removedSinks": ["screen"],
        "pending": ["checkpoint 2 is committed first"],
    }
    assert told["sinks"][0]["target"] == "not asked"


def test_plan_says_which_words_of_recovery_would_still_count(job: Fabricated) -> None:
    job.begin()
    job.take(Accept(Authority.TOKEN, 1, nonce=4, reason="NewCheckpoint"))
    job.write(f"{MANIFEST}  recovery: {{nonce: 4, accept: [NewCheckpoint, LedgerLost]}}\n")
    told = json.loads(invoke("plan", job.path, "-o", "json").stdout)
    assert told["recovery"] == [
        "NewCheckpoint: used up, raise recovery.nonce to give it again",
        "LedgerLost: would be accepted",
    ]


def test_validate_finds_files_and_code_that_only_a_run_needs(job: Fabricated) -> None:
    text = MANIFEST.replace("{format: rate}", "{format: csv, path: nowhere, schema: a INT}")
    job.write(text.replace("sql: SELECT value FROM input", "python: no_such_module_here:clean"))
    result = invoke("validate", job.path)
    assert (result.exit_code, result.stderr) == (
        2,
        f"{job.path}:5: spec.source.path: there is no file or directory nowhere\n"
        f"{job.path}:7: spec.transform[0].python: there is no module `no_such_module_here`; "
        "the manifest's directory and spec.deps.pyFiles are searched\n",
    )
    assert invoke("run", job.path).stderr == result.stderr
    assert invoke("status", job.path).exit_code == 0, "what is committed can be asked for when the source is gone"
