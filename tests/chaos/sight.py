"""What is seen of a job all the time, by watches of kubectl: its ledger, and its driver pods.

`stage` opens one for a run and asks it. A watch that ends (the API server is away) is begun anew until `close`; it
begins with what there is, so nothing that lasts is missed.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from sinkruntime.protocol import codec
from sinkruntime.protocol.ledger import Ledger
from tests.e2e.cluster import Cluster, Json
from tests.servers.programs import KUBECTL, locate

AGAIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Raised:
    """A token that was seen for the first time, at this time of the monotonic clock."""

    token: int
    holder: str
    seconds: float


class Sight:
    """One job's ledger and driver pods."""

    def __init__(self, cluster: Cluster, namespace: str, job: str) -> None:
        self._cluster = cluster
        self._news = threading.Condition()
        self._closed = threading.Event()
        self._watches: dict[str, subprocess.Popen[str]] = {}
        self.ledger: Ledger | None = None
        self.raised: list[Raised] = []
        self.drivers: dict[str, set[str]] = defaultdict(set)  # epoch: uids of its pods
        self.claims: dict[int, set[str]] = defaultdict(set)  # epoch: who claimed it
        ledger = ("configmaps", "-n", namespace, "--field-selector", f"metadata.name={job}-ledger")
        pods = ("pods", "-n", namespace, "-l", f"sinkjob.io/job={job},app.kubernetes.io/component=driver")
        self._threads = [
            threading.Thread(target=self._follow, args=(ledger, self._see_ledger), daemon=True),
            threading.Thread(target=self._follow, args=(pods, self._see_driver), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float) -> None:
        """Until the next news of the ledger, or so long."""
        with self._news:
            self._news.wait(seconds)

    def check(self) -> None:
        """Raises RuntimeError where a watch has ended for good: what it did not see would be nobody's fault."""
        if not all(thread.is_alive() for thread in self._threads):
            raise RuntimeError("a watch of the run itself has failed; its traceback stands above")

    def raised_after(self, token: int) -> Raised | None:
        """The first token above this one, where one was seen."""
        return next((raised for raised in self.raised if raised.token > token), None)

    def duplicates(self) -> list[str]:
        """Epochs that had more than one driver pod, or more than one claim."""
        pods = [f"epoch {epoch}: driver pods {sorted(uids)}" for epoch, uids in self.drivers.items() if len(uids) > 1]
        claims = [f"epoch {epoch}: claims {sorted(who)}" for epoch, who in self.claims.items() if len(who) > 1]
        return pods + claims

    def close(self) -> None:
        """End the watches."""
        self._closed.set()
        for watch in list(self._watches.values()):
            watch.terminate()
        for thread in self._threads:
            thread.join(10)

    def _follow(self, what: tuple[str, ...], see: Callable[[Json], None]) -> None:
        command = [str(locate(KUBECTL)), "--kubeconfig", str(self._cluster.kubeconfig), "get", *what]
        while not self._closed.is_set():
            watch = subprocess.Popen(
                [*command, "--watch", "--output-watch-events", "-o", "json"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            self._watches[what[0]] = watch
            for line in watch.stdout or ():  # an event each
                if line.endswith("\n"):  # and not cut off in the middle
                    event = json.loads(line)
                    if event["type"] in ("ADDED", "MODIFIED"):  # not ERROR, which the server ends a watch with
                        see(event["object"])
            watch.wait()
            self._closed.wait(AGAIN_SECONDS)

    def _see_ledger(self, found: Json) -> None:
        ledger = codec.decode(found["data"]["ledger.json"])
        with self._news:
            if ledger.claim:
                self.claims[ledger.epoch].add(ledger.claim)
            if not self.raised or ledger.token > self.raised[-1].token:
                self.raised.append(Raised(ledger.token, ledger.holder, time.monotonic()))
            self.ledger = ledger
            self._news.notify_all()

    def _see_driver(self, found: Json) -> None:
        metadata = found["metadata"]
        self.drivers[metadata["labels"]["sinkjob.io/epoch"]].add(metadata["uid"])
