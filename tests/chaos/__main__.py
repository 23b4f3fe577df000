"""`make chaos`: kills everything that a job needs on a real cluster, and counts its rows.

The last line is `chaos: n kills, missing 0, extra 0, duplicate drivers 0, slowest failover x s`; the exit code is 0
only then, and only if every kill of the plan was made. A failed run prints what people would look at.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.node import Node
from tests.chaos.plan import ALONE, ROUNDS, TOGETHER, PlanError, plan
from tests.chaos.sight import Sight
from tests.chaos.stage import EXAMPLES, Result, Stage, manifest
from tests.chaos.strikes import Place
from tests.e2e.cluster import Cluster, CommandError, cluster, install, start_servers
from tests.e2e.conftest import NAMESPACE, Jobs, make_namespace
from tests.e2e.lake import lake

JOB = "chaos"
HERE = Path(__file__).resolve().parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a plan; 0 when all of it was done and nothing is missing, extra, twice or late."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each kind is killed")
    parser.add_argument("--kinds", default=",".join((*ALONE, *TOGETHER)), help="commas between; a+b: together")
    parser.add_argument("--seed", type=int, default=1, help="decides the plan")
    asked = parser.parse_args(arguments)
    try:
        kills = plan(asked.kinds.split(","), asked.rounds, asked.seed)
    except PlanError as error:
        parser.error(str(error))
    say(f"chaos: {len(kills)} kills planned, seed {asked.seed}: {' '.join(kill.name for kill in kills)}")
    result = Result()
    with tempfile.TemporaryDirectory(prefix="sinkjob-chaos-") as folder, cluster(Path(folder), ("s3",)) as made:
        place = Place(made, Node(f"{made.name}-control-plane"), NAMESPACE, JOB)
        with staged(place) as stage:
            result = stage.result
            try:
                for number, kill in enumerate(kills, start=1):
                    stage.kill(number, len(kills), kill)
                stage.finish()
            except KeyboardInterrupt:
                say("stopped by hand; what was killed until now is counted")
                stage.finish()
            except (CommandError, TimeoutError, subprocess.TimeoutExpired) as error:
                result.problems.append(str(error))
                say(f"the run ends: {error}")
                say(story(made))
    say(result.line())
    return 0 if result.good and result.kills == len(kills) else 1


@contextmanager
def staged(place: Place) -> Iterator[Stage]:
    """The server, the release and the job, which runs when this begins and is removed when it ends."""
    made = place.cluster
    place.node.give_api_server()
    place.node.keep_controllers()
    remove(made)
    start_servers(made, (HERE / "s3.yaml").read_text().replace("RUN", time.strftime("%Y%m%d-%H%M%S")))
    install(made)
    make_namespace(made)
    made.apply(NAMESPACE, (EXAMPLES / "secrets.yaml").read_text())
    with made.forwarded("servers", "service/s3", 7070) as endpoint, lake(endpoint) as bucket:
        bucket.make()
    made.apply(NAMESPACE, manifest(JOB))
    sight = Sight(made, NAMESPACE, JOB)
    try:
        yield Stage(place, sight, say)
    finally:
        sight.close()
        remove(made)


def remove(made: Cluster) -> None:
    """The job and its ledger, if they are there."""
    if "sinkjobs.sinkjob.io" in made.kubectl("get", "crds", "-o", "name") and made.get("sj", JOB, "-n", NAMESPACE):
        Jobs(made).delete(JOB, at_once=True)


def story(made: Cluster) -> str:
    """What people would look at, as far as it can be had."""
    try:
        return Jobs(made).story()
    except CommandError as error:
        return f"no more is known: {error}"


def say(text: str) -> None:
    """Print a line, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}" if not text.startswith("chaos: ") else text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
