"""status, commits, explain on fabricated ledgers: what is said comes from the ledger, proofs from the targets alone."""

import fcntl
import json
import logging
import os
import re
from typing import Any

import pytest
import yaml

from sinkruntime.protocol.events import OutcomeKind
from sinkruntime.sinks.memory.session import INTERCEPTS, Fault, NoFaults
from tests.unit.cli.fabricate import LEDGER_ID, MANIFEST, Fabricated, invoke


def told(*arguments: str) -> Any:
    """What a command says in JSON; YAML must say the same."""
    result = invoke(*arguments, "--output", "json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert yaml.safe_load(invoke(*arguments, "-o", "yaml").stdout) == found
    return found


def test_a_job_that_never_ran_is_said_so(job: Fabricated) -> None:
    result = invoke("status", job.path)
    root = job.folder / ".sinkjob" / "tests" / "small"
    assert (result.exit_code, result.stdout) == (
        0,
        f"job    tests/small\nphase  never run: there is no ledger in {root}\n",
    )
    assert told("status", job.path) == {"job": "tests/small", "phase": "NeverRun"}
    assert not (job.folder / ".sinkjob").exists(), "looking makes nothing"


def test_commits_of_a_job_that_never_ran_are_an_error(job: Fabricated) -> None:
    result = invoke("commits", job.path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("NeverRun: tests/small has never run: there is no ledger in ")


def test_status_of_a_job_that_has_settled_everything(job: Fabricated) -> None:
    job.begin()
    job.settle(1)
    job.settle(2)
    assert told("status", job.path) == {
        "job": "tests/small",
        "phase": "Stopped",
        "ledger": LEDGER_ID,
        "epoch": 1,
        "commit": {
            "decided": 2, "lastCheckpoint": 2, "pending": 0, "inDoubt": 0, "held": 0,
            "lastDecisionTime": "2025-11-21T04:40:02Z",
            "sinks": {"lake": {"committed": 2}, "screen": {"committed": 2}},
        },
    }  # fmt: skip
    assert invoke("status", job.path).stdout == (
        "job        tests/small\n"
        "phase      Stopped\n"
        f"ledger     {LEDGER_ID}\n"
        "epoch      1\n"
        "decided    2 checkpoints, the last at 2025-11-21T04:40:02Z\n"
        "committed  up to checkpoint 2\n"
        "open       0 pending, 0 in doubt, 0 held\n"
        "\n"
        "SINK    COMMITTED\n"
        "lake    2\n"
        "screen  2\n"
    )


def test_status_says_why_a_checkpoint_is_held_and_what_to_do(job: Fabricated) -> None:
    job.begin()
    job.settle(1)
    job.decide(2)
    job.decide(3)
    job.report(2, OutcomeKind.REFUSED, ["lake"], "CommittableLost")
    text = invoke("status", job.path).stdout
    assert "phase      Held\n" in text
    assert "committed  up to checkpoint 1\n" in text
    assert "open       2 pending, 0 in doubt, 1 held\n" in text
    assert "checkpoint 2 of sink lake is held: CommittableLost: why CommittableLost came\n" in text
    assert "recovery.accept: [CommittableLost]" in text


def test_status_says_that_a_process_runs_the_job_only_while_it_does(job: Fabricated) -> None:
    job.begin()
    root = job.workspace.root
    with (root / "run.lock").open("w") as lock:
        lock.write(str(os.getpid()))
        lock.flush()
        assert told("status", job.path)["phase"] == "Stopped", "nobody holds the lock"
        fcntl.flock(lock, fcntl.LOCK_EX)
        status = told("status", job.path)
        assert (status["phase"], status["process"]) == ("Running", os.getpid())


def test_commits_lists_settled_and_pending_checkpoints_with_proofs(job: Fabricated) -> None:
    job.begin()
    for number in (1, 2):
        job.settle(number)
    job.decide(3)
    job.report(3, OutcomeKind.COMMITTED, ["screen"])
    job.decide(4)
    job.report(4, OutcomeKind.UNKNOWN, ["screen"], "Timeout")
    heading, *rows, empty, lake, screen = invoke("commits", job.path).stdout.splitlines()
    cells = [re.split(" {2,}", line) for line in (heading, *rows)]
    assert cells == [
        ["CHECKPOINT", "STATE", "EPOCH", "BATCH", "OFFSETS", "ROWS", "PROVED IN lake", "PROVED IN screen"],
        ["1", "committed", "1", "0", 'the beginning → {"offset":1}', "lake 3, screen 1", "yes", "yes"],
        ["2", "committed", "1", "1", '{"offset":1} → {"offset":2}', "lake 3, screen 1", "yes", "yes"],
        ["3", "pending", "1", "2", '{"offset":2} → {"offset":3}', "lake 3, screen 1", "no", "yes"],
        ["4", "in doubt", "1", "3", '{"offset":3} → {"offset":4}', "lake 3, screen 1", "no", "no"],
    ]
    starts = {line.index(row[-2]) for line, row in zip(rows, cells[1:], strict=True) if row[-2] != row[-1]}
    assert starts == {heading.index("PROVED IN lake")}, "columns stand below their headings"
    assert empty == ""
    assert lake == "lake: the target holds evidence of checkpoint 2 (in memory, 0 publications)"
    assert screen == "screen: the target holds evidence of checkpoint 3 (in memory, 0 publications)"


def test_proofs_come_from_the_target_even_where_the_ledger_says_otherwise(job: Fabricated) -> None:
    job.begin()
    job.settle(1)
    job.target.evidence[LEDGER_ID, "lake"] = 0  # somebody emptied the target
    (entry,) = told("commits", job.path)["checkpoints"]
    assert entry["state"] == "committed"
    assert entry["evidence"]["lake"] == {
        "proved": "no",
        "text": "the target holds no evidence of this job; an empty checkpoint may leave none",
    }
    assert entry["evidence"]["screen"]["proved"] == "yes"


class _Down(NoFaults):
    def before(self, operation: str, subject: str) -> Fault:
        return Fault.UNAVAILABLE


def test_a_target_that_is_down_proves_nothing_and_the_rest_is_still_said(job: Fabricated) -> None:
    job.begin()
    job.settle(1)
    INTERCEPTS[job.folder.name] = _Down()
    found = told("commits", job.path)
    assert found["targets"] == {
        name: {"error": "ConnectionError: evidence of : unavailable"} for name in ("lake", "screen")
    }
    text = invoke("commits", job.path).stdout
    assert "1           committed  1      0" in text
    assert "unknown" in text
    assert "lake: not reached, so nothing is known: ConnectionError: evidence of : unavailable\n" in text


def test_only_the_last_checkpoints_are_listed_and_older_ones_say_what_is_left_of_them(job: Fabricated) -> None:
    job.begin()
    for number in range(1, 23):
        job.settle(number)
    listed = told("commits", job.path)["checkpoints"]
    assert [entry["checkpoint"] for entry in listed] == list(range(3, 23))
    first, *_, last = told("commits", job.path, "--last", "1000")["checkpoints"]
    assert {key: first[key] for key in ("checkpoint", "state", "epoch")} == {
        "checkpoint": 1, "state": "committed", "epoch": 1,
    }  # fmt: skip
    assert "rows" not in first
    assert first["evidence"]["lake"]["proved"] == "yes"
    assert last["rows"] == {"lake": 3, "screen": 1}
    text = invoke("explain", job.path, "--checkpoint", "1").stdout
    assert "the ledger remembers only the last checkpoints" in text


def test_explain_tells_state_meaning_next_step_and_each_sinks_part(job: Fabricated) -> None:
    job.begin()
    job.decide(1)
    job.report(1, OutcomeKind.REFUSED, ["lake"], "TargetBehindLedger")
    assert invoke("explain", job.path, "--checkpoint", "1").stdout == (
        "checkpoint  1 of tests/small\n"
        "state       held\n"
        "means       decided; a target turned its commit down, and nothing later is committed there\n"
        "next        nothing is dropped; the next run asks the target and tries again\n"
        "epoch       1\n"
        f"revision    {job.workspace.revision}\n"
        "decided     2025-11-21T04:40:01Z\n"
        "record      record 1\n"
        "batch       0\n"
        "from        the beginning\n"
        'to          {"offset":1}\n'
        "\n"
        "sink lake\n"
        "  ledger says  held\n"
        "  rows         3\n"
        "  attempts     1\n"
        "  reason       TargetBehindLedger: why TargetBehindLedger came\n"
        "  advice       restore the newer target; or accept: go on, without the rows that the target has lost\n"
        "  target says  the target holds no evidence of this job; an empty checkpoint may leave none\n"
        "\n"
        "sink screen\n"
        "  ledger says  pending\n"
        "  rows         1\n"
        "  attempts     0\n"
        "  target says  the target holds no evidence of this job; an empty checkpoint may leave none\n"
    )


def test_explain_of_a_checkpoint_that_is_not_decided_says_which_is_the_last(job: Fabricated) -> None:
    job.begin()
    job.settle(1)
    result = invoke("explain", job.path, "--checkpoint", "2")
    assert (result.exit_code, result.stderr) == (
        1,
        "UnknownCheckpoint: checkpoint 2 of tests/small is not decided; the last one is 1\n"
        "before its decision a checkpoint never happened\n",
    )


def test_an_aborted_checkpoint_names_who_and_why(job: Fabricated) -> None:
    job.begin()
    job.decide(1)
    job.abort(1)
    assert "aborted by  ann: wrong rows\n" in invoke("explain", job.path, "--checkpoint", "1").stdout
    assert (
        "checkpoints 1 to 1 were aborted by ann: wrong rows; the job does not start"
        in invoke("status", job.path).stdout
    )
    job.report(1, OutcomeKind.CLEANED)
    (entry,) = told("commits", job.path)["checkpoints"]
    assert entry["state"] == "aborted"


def test_a_ledger_that_was_edited_by_hand_is_refused_and_left_alone(job: Fabricated) -> None:
    job.begin()
    path = job.workspace.root / "ledger" / "ledger.json"
    edited = path.read_text().replace('"epoch":1', '"epoch":9')
    path.write_text(edited)
    result = invoke("status", job.path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "LedgerCorrupt: " in result.stderr
    assert "its checksum is wrong: it was edited by hand or damaged" in result.stderr
    assert path.read_text() == edited


_TOY = """\
from pydantic import Field
from sinkruntime.api import Evidence, Guarantee, Offer, Sink
from sinkruntime.errors import TargetError
from sinkruntime.spec.base import OptionsModel

class Options(OptionsModel):
    password: str = Field(description="The password.")

class Toy(Sink):
    Options = Options
    summary = "a toy"
    @classmethod
    def guarantee(cls, options, facts):
        return Offer(Guarantee.AT_LEAST_ONCE, "a toy")
    def create_writer(self, context):
        raise NotImplementedError
    def inspect(self):
        raise TargetError("Down", f"login with {self.options.password} failed")
    def evidence(self):
        raise OSError(f"postgres://me:{self.options.password}@host refused")
"""


def test_secrets_are_never_printed(job: Fabricated) -> None:
    module = f"toy_{job.folder.name.replace('-', '_')}"
    (job.folder / f"{module}.py").write_text(_TOY)
    (job.folder / "pass.env").write_text("password=hunter2hunter2\n")
    head = MANIFEST.partition("  - name: lake")[0]
    job.write(f"{head}  - name: lake\n    type: {module}:Toy\n    optionsFrom: [{{fileRef: {{path: pass.env}}}}]\n")
    job.begin()
    for arguments in (
        ("validate", job.path), ("plan", job.path), ("status", job.path), ("commits", job.path),
        ("doctor", job.path), ("--debug", "--log-level", "debug", "commits", job.path),
    ):  # fmt: skip
        result = invoke(*arguments)
        assert "hunter2" not in result.stdout + result.stderr, arguments
    assert "login with *** failed" in invoke("plan", job.path).stdout
    assert "login with *** failed" in invoke("doctor", job.path).stdout
    assert "postgres://me:***@host refused" in invoke("commits", job.path).stdout


def test_the_secrets_of_a_sink_that_left_the_manifest_are_not_printed_either(job: Fabricated) -> None:
    module = f"toy_{job.folder.name.replace('-', '_')}"
    (job.folder / f"{module}.py").write_text(_TOY)
    (job.folder / "pass.env").write_text("password=hunter2hunter2\n")
    toy = f"  - name: lake\n    type: {module}:Toy\n    optionsFrom: [{{fileRef: {{path: pass.env}}}}]\n"
    job.write(MANIFEST.partition("  - name: lake")[0] + toy)
    job.begin()
    job.settle(1)
    job.write(MANIFEST.replace("name: lake", "name: pond"))
    for arguments in (("commits", job.path), ("explain", job.path, "--checkpoint", "1")):
        result = invoke(*arguments)
        assert "postgres://me:***@host refused" in result.stdout
        assert "hunter2" not in result.stdout + result.stderr


def test_an_error_that_holds_a_secret_is_shown_without_it(job: Fabricated, monkeypatch: pytest.MonkeyPatch) -> None:
    (job.folder / "pass.env").write_text("target=hunter2hunter2\n")
    head = MANIFEST.partition("  - name: lake")[0]
    job.write(f"{head}  - name: lake\n    type: memory\n    optionsFrom: [{{fileRef: {{path: pass.env}}}}]\n")

    def fail(*_: object) -> None:
        logging.getLogger("sinkruntime.x").error("cannot log in with hunter2hunter2")
        raise ValueError("no such user: me:hunter2hunter2@host")

    monkeypatch.setattr("sinkruntime.cli.look.read_ledger", fail)
    for arguments in (("status", job.path), ("--debug", "--log-format", "json", "status", job.path)):
        result = invoke(*arguments)
        assert result.exit_code == 1
        assert "ValueError: no such user: me:***@host" in result.stderr
        assert "cannot log in with ***" in result.stderr
        assert "hunter2" not in result.stdout + result.stderr


def test_a_sink_that_left_the_manifest_is_still_asked_with_the_manifest_it_had(job: Fabricated) -> None:
    job.begin()
    job.settle(1)
    former = job.workspace.revision
    job.write(MANIFEST.replace("name: screen", "name: other"))
    (entry,) = told("commits", job.path)["checkpoints"]
    assert entry["evidence"]["screen"]["proved"] == "yes"
    (job.workspace.root / "revisions" / f"{former}.json").unlink()
    (entry,) = told("commits", job.path)["checkpoints"]
    assert entry["evidence"]["screen"] == {"proved": "unknown", "text": "this sink is no longer in the manifest"}
