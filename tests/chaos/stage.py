"""The job that is killed, and one kill of it: aim, strike, mend, wait until everything is committed, compare.

`__main__` makes one for a run. The input grows by a few files at a time, so after each kill the output can be compared
with all of the input, and there is always something left to decide while a kill is aimed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import botocore.exceptions
import yaml

from sinkruntime.protocol import codec
from sinkruntime.protocol.ledger import Ledger
from tests.chaos.node import Grip
from tests.chaos.plan import Kill
from tests.chaos.sight import Sight
from tests.chaos.strikes import FAILOVER_SECONDS_MAX, Place, Strike, prepare
from tests.e2e.cluster import ROOT, CommandError, until
from tests.e2e.lake import Lake, Trip, lake

EXAMPLES = ROOT / "examples" / "kubernetes"
INPUT, OUTPUT = "trips", "trips-parquet"
EXECUTORS = 2
FILES_AT_A_TIME = 6
FILES_PER_CHECKPOINT = 2
AIM_SECONDS = 300.0
#: While the target is held: until a commit that had its answer before is in the ledger.
SETTLE_SECONDS = 0.5
#: The target is slowed down by holding it again and again: from a decision to its commit it is tens of milliseconds.
HOLD_SECONDS = 0.5
LOOSE_SECONDS = 0.3
RECOVER_SECONDS = 600.0

Say = Callable[[str], None]


@dataclass(slots=True)
class Result:
    """What came of it. `problems` are violations seen on the way."""

    kills: int = 0
    missing: int = 0
    extra: int = 0
    duplicates: int = 0
    slowest_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether everything is as it must be."""
        return not (self.missing or self.extra or self.duplicates or self.problems)

    def line(self) -> str:
        """The last line."""
        return (
            f"chaos: {self.kills} kills, missing {self.missing}, extra {self.extra}, duplicate drivers "
            f"{self.duplicates}, slowest failover {self.slowest_seconds:.1f} s"
        )


def manifest(job: str) -> str:
    """The example of files to Parquet, with small checkpoints, and with a restart after every kill."""
    made = yaml.safe_load((EXAMPLES / "files-to-parquet.yaml").read_text())
    made["metadata"]["name"] = job
    spec = made["spec"]
    spec["source"]["options"]["maxFilesPerTrigger"] = str(FILES_PER_CHECKPOINT)
    spec["restartPolicy"] = {"maxRetries": 1000, "backoff": {"initial": "1s", "max": "3s"}}
    return yaml.safe_dump(made)


class Stage:
    """One job and what is done to it."""

    def __init__(self, place: Place, sight: Sight, say: Say) -> None:
        self._place = place
        self._sight = sight
        self._say = say
        self._files = 0
        self._input: Counter[Trip] = Counter()
        self._read: dict[str, Counter[Any]] = {}
        self.result = Result()

    def kill(self, number: int, of: int, kill: Kill) -> None:
        """One kill and its recovery; prints its line."""
        before, grip, strikes = self._aim(kill)
        began = time.monotonic()
        mended = 0.0
        try:
            for strike in strikes:
                strike.hit()
            time.sleep(kill.release_seconds)
        finally:
            self._let_go(grip, kill)
            for strike in sorted(strikes, key=lambda strike: strike.seconds):
                if strike.mend is not None:
                    time.sleep(max(0.0, began + strike.seconds - time.monotonic()))
                    strike.mend()
                    mended = time.monotonic()
        self.result.kills += 1
        pending = ", ".join(str(record.number) for record in before.pending)
        facts = f"pending {pending} of epoch {before.epoch} under token {before.token}"
        self._say(f"{number:3}/{of} {kill.name:<18} {facts}: {'; '.join(strike.what for strike in strikes)}")
        self._recover(kill, strikes, before, began, max(began, mended))

    def finish(self) -> None:
        """After the last kill: everything is read anew."""
        self._drained()
        self._read.clear()
        self._compare()
        for line in self._sight.duplicates():
            self.result.duplicates += 1
            self._say(f"    WRONG: {line}")

    def _aim(self, kill: Kill) -> tuple[Ledger, Grip, list[Strike]]:
        """Feed the job until a checkpoint is pending with the target held, and everything is prepared."""
        place = self._place
        until("driver, executors, both replicas and the S3 server run", self._whole, RECOVER_SECONDS)
        strikes = [prepare(kind, place, kill.dice) for kind in kill.kinds]
        server = place.cluster.get("pod", "s3", "-n", "servers") or {}
        grip = Grip(place.node, server["metadata"]["uid"])
        end = time.monotonic() + AIM_SECONDS
        with self._bucket() as bucket:
            while time.monotonic() < end:
                if self._committed() >= self._input.total():
                    self._feed(bucket)
                if (ledger := self._pending(grip)) is not None:
                    return ledger, grip, strikes
        raise TimeoutError(f"no checkpoint was pending within {AIM_SECONDS:.0f} s")

    def _pending(self, grip: Grip) -> Ledger | None:
        """Hold the target for a moment. If a checkpoint is pending then, and after a while, it stays held."""
        grip.hold()
        end = time.monotonic() + HOLD_SECONDS
        while time.monotonic() < end:
            self._sight.wait(0.1)
            if (seen := self._sight.ledger) and seen.pending:
                time.sleep(SETTLE_SECONDS)
                if (still := self._ledger()).pending:
                    return still
                break
        grip.release()
        time.sleep(LOOSE_SECONDS)
        return None

    def _ledger(self) -> Ledger:
        """As the API server has it now."""
        place = self._place
        found = place.cluster.get("configmap", f"{place.job}-ledger", "-n", place.namespace)
        assert found is not None, "the ledger is gone"
        return codec.decode(found["data"]["ledger.json"])

    def _let_go(self, grip: Grip, kill: Kill) -> None:
        if "node" not in kill.kinds:  # with the node the held processes are gone, and with them the shell
            grip.release()
        grip.close()

    def _whole(self) -> bool:
        place = self._place
        try:
            drivers, executors = place.pods("driver"), place.executors()
            server = (place.cluster.get("pod", "s3", "-n", "servers") or {}).get("status", {}).get("conditions", [])
            ready = any(found["type"] == "Ready" and found["status"] == "True" for found in server)
            enough = len(drivers) == 1 and len(executors) >= EXECUTORS and len(place.replicas()) > 1
            return ready and enough and self._held()
        except CommandError:  # the API server is not back yet
            return False

    def _held(self) -> bool:
        try:
            self._place.committing()
        except (KeyError, StopIteration):
            return False
        return True

    def _recover(self, kill: Kill, strikes: list[Strike], before: Ledger, began: float, mended: float) -> None:
        """Wait until all input is committed, and look at it. Failover is measured where only replicas were hit."""
        took = ""
        self._drained()
        drained = time.monotonic()
        raised = self._sight.raised_after(before.token)
        if any(strike.failover for strike in strikes) and not {"apiserver", "node"} & set(kill.kinds):
            seconds = raised.seconds - began if raised else float("inf")
            took = f"failover {seconds:.1f} s, "
            self.result.slowest_seconds = max(self.result.slowest_seconds, seconds)
            if seconds > FAILOVER_SECONDS_MAX:
                self._problem(f"the failover took {seconds:.1f} s, more than {FAILOVER_SECONDS_MAX} s")
        elif raised:
            took = f"next token after {raised.seconds - began:.1f} s, "
        missing, extra = self._compare()
        ledger = self._sight.ledger
        assert ledger is not None
        self._say(
            f"        {took}all committed {drained - mended:.0f} s after it ended, epoch {ledger.epoch}, token "
            f"{ledger.token}, {ledger.decided} checkpoints, {self._input.total()} rows, missing {missing}, "
            f"extra {extra}"
        )

    def _committed(self) -> int:
        ledger = self._sight.ledger
        return ledger.sinks["lake"].rows if ledger and "lake" in ledger.sinks else 0

    def _drained(self) -> None:
        def look() -> bool:
            self._sight.check()
            ledger = self._sight.ledger
            return bool(ledger and not ledger.pending and self._committed() >= self._input.total())

        until("all input is committed", look, RECOVER_SECONDS)

    def _feed(self, bucket: Lake) -> None:
        rows = bucket.put_trips(INPUT, range(self._files + 1, self._files + FILES_AT_A_TIME + 1))
        self._files += FILES_AT_A_TIME
        self._input.update(rows)

    def _compare(self) -> tuple[int, int]:
        """All output against all input, as multisets; what was read of a file before is not read again."""
        seen: Counter[Any] = Counter()
        for rows in self._visible().values():
            seen.update(rows)
        missing, extra = self._input - seen, seen - self._input
        for word, some in (("missing", missing), ("extra", extra)):
            if some:
                self._problem(f"{some.total()} rows {word}, such as {next(iter(some))}")
        self.result.missing = max(self.result.missing, missing.total())
        self.result.extra = max(self.result.extra, extra.total())
        return missing.total(), extra.total()

    def _visible(self) -> dict[str, Counter[Any]]:
        """The rows of each visible file. Asked again where the way to the bucket breaks."""

        def look() -> dict[str, Counter[Any]] | None:
            try:
                with self._bucket() as bucket:
                    keys = bucket.visible(OUTPUT)
                    for key in keys:
                        if key not in self._read:
                            self._read[key] = Counter(tuple(row.values()) for row in bucket.rows(key))
            except (CommandError, botocore.exceptions.BotoCoreError):
                return None
            return {key: self._read[key] for key in keys}

        return until("the bucket is read", look, RECOVER_SECONDS)

    @contextmanager
    def _bucket(self) -> Iterator[Lake]:
        with self._place.cluster.forwarded("servers", "service/s3", 7070) as endpoint, lake(endpoint) as made:
            yield made

    def _problem(self, text: str) -> None:
        self.result.problems.append(text)
        self._say(f"    WRONG: {text}")
