"""A job whose driver runs as a process of its own against a real API server, and the operator's part played by hand.

`test_driver` uses it. The processes are the real ones (`sinkjob driver`, `sinkjob commit`), with Spark on this machine;
ledger, epochs and the coordinator under the token are the product's own code, in a loop of this process.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sinkruntime.cluster.job import PodJob, load_pod_job
from sinkruntime.cluster.surroundings import Surroundings
from sinkruntime.coordinator.coordinator import Coordinator, Services, Tenure
from sinkruntime.coordinator.runner import ThreadRunner
from sinkruntime.coordinator.settings import CommitSettings, Metrics
from sinkruntime.coordinator.wishes import Wishes
from sinkruntime.environment import Environment
from sinkruntime.job.backstage import Backstage
from sinkruntime.job.sinks import authorities
from sinkruntime.kube import CONFIG_MAP, Api, ApiSettings
from sinkruntime.ledger.change import change
from sinkruntime.ledger.configmap import ConfigMapLedgerStore, LedgerPlace
from sinkruntime.protocol.events import RaiseEpoch
from sinkruntime.protocol.ledger import Authority, Ledger
from sinkruntime.spec.digest import revision
from sinkruntime.spec.load import parse_object
from tests.killmatrix.tree import Tree

T = TypeVar("T")

NAME = "flights"
ROWS_PER_FILE = 3
WAIT_SECONDS = 240.0
#: A run lives for seconds: what makes a JVM start quickly matters more than what makes it fast later.
SPARK_CONF = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@dataclass(slots=True)
class Place:
    """The job's folder, its namespace, and the kubeconfig of its processes."""

    folder: Path
    namespace: str
    kubeconfig: Path
    backstage: Backstage
    store: ConfigMapLedgerStore
    api: Api
    environment: Environment = field(default_factory=Environment.real)
    coordinators: list[Coordinator] = field(default_factory=list)

    @property
    def job_file(self) -> Path:
        """The manifest, where a pod would have it."""
        return self.folder / "mounts" / "job" / "job.json"

    def write_job(self, *, valid: bool = True, **changes: Any) -> None:
        """The manifest: `lake` is committed by the driver, `lines` by the operator; `changes` of `spec`."""
        sinks = [
            {"name": "lake", "type": "file", "options": {"path": str(self.folder / "lake"), "format": "json"}},
            {
                "name": "lines",
                "type": "file",
                "options": {"path": str(self.folder / "lines"), "format": "json"},
                "commit": {"runOn": "Operator"},
            },
        ]
        spec = {
            "source": {
                "format": "json",
                "path": str(self.folder / "input"),
                "schema": "id BIGINT",
                "options": {"maxFilesPerTrigger": "1"},
            },
            "trigger": {"type": "AvailableNow"},
            "checkpoint": {"location": str(self.folder / "checkpoint")},
            "commit": {"retry": {"initialBackoff": "50ms", "maxBackoff": "200ms"}},
            "sinks": sinks,
            "sparkConf": SPARK_CONF,
            **changes,
        }
        body = {
            "apiVersion": "sinkjob.io/v1alpha1",
            "kind": "SinkJob",
            "metadata": {"name": NAME, "namespace": self.namespace, "uid": "5a0f2d1e"},
            "spec": spec,
        }
        self.job_file.parent.mkdir(parents=True, exist_ok=True)
        _replace(self.job_file, json.dumps(body))
        # Other revisions lie beside it; here every one, so that a coordinator outlives a change of the manifest.
        kept = revision(parse_object(body).spec) if valid else "invalid"
        _replace(self.job_file.parent / f"{kept}.json", json.dumps(body))

    def add_file(self, number: int) -> None:
        """An input file with the ids of that number, which appears whole."""
        inputs = self.folder / "input"
        inputs.mkdir(exist_ok=True)
        part = inputs / f".{number}"
        part.write_text("".join(json.dumps({"id": number * 100 + at}) + "\n" for at in range(ROWS_PER_FILE)))
        part.rename(inputs / f"{number}.json")

    def rows(self, sink: str) -> Counter[int]:
        """What a reader of the target sees."""
        files = [path for path in (self.folder / sink).glob("*.json") if path.name[0] not in "_."]
        return Counter(json.loads(line)["id"] for path in files for line in path.read_text().splitlines())

    def whole(self, *numbers: int) -> bool:
        """Whether both sinks hold these files' rows, each once, and nothing else."""
        wanted = Counter({number * 100 + at: 1 for number in numbers for at in range(ROWS_PER_FILE)})
        return self.rows("lake") == self.rows("lines") == wanted

    def environ(self, epoch: int, **more: str) -> dict[str, str]:
        """The environment of a pod's process."""
        told = {
            "SINKJOB_NAMESPACE": self.namespace,
            "SINKJOB_JOB": NAME,
            "SINKJOB_EPOCH": str(epoch),
            "SINKJOB_POD_NAME": f"{NAME}-driver-{epoch}",
            "SINKJOB_POD_UID": "0b1c",
            "SINKJOB_MASTER": "local[2]",
            "SINKJOB_MOUNTS": str(self.folder / "mounts"),
            "SINKJOB_TERMINATION_LOG": str(self.folder / f"termination-{epoch}"),
            "KUBECONFIG": str(self.kubeconfig),
        }
        return told | more

    def start(self, epoch: int, *arguments: str, **more: str) -> Tree:
        """`sinkjob driver` of that epoch, or what `arguments` say."""
        command = (sys.executable, "-m", "sinkruntime.cli.main", *(arguments or ("driver",)))
        return Tree.start(command, self.folder, self.environ(epoch, **more), self.folder / f"log-{epoch}")

    def run(self, epoch: int, *arguments: str, **more: str) -> int:
        """As `start`, to the end: the exit code."""
        tree = self.start(epoch, *arguments, **more)
        try:
            return tree.leader.wait(WAIT_SECONDS)
        finally:
            tree.kill()

    def last_word(self, epoch: int) -> dict[str, str]:
        """The termination message."""
        found: dict[str, str] = json.loads((self.folder / f"termination-{epoch}").read_text())
        return found

    def log(self, epoch: int) -> list[dict[str, Any]]:
        """The lines of the log that are JSON objects."""
        lines = (self.folder / f"log-{epoch}").read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def wait_for_log(self, epoch: int, message: str) -> None:
        """Until the process has logged that."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not any(line.get("message") == message for line in self.log(epoch)):
            assert time.monotonic() < deadline, self.log(epoch)
            time.sleep(0.05)

    def lose_ledger(self) -> None:
        """Somebody deletes it, and the operator makes a new one, with a coordinator."""
        self.end_coordinators()
        name = self.store.place.name
        free: dict[str, Any] = {"metadata": {"finalizers": None}}
        self.call(self.api.patch(CONFIG_MAP, self.namespace, name, free))
        self.call(self.api.delete(CONFIG_MAP, self.namespace, name))
        deadline = time.monotonic() + WAIT_SECONDS
        while self.call(self.store.load()) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.create_ledger()
        self.coordinate()

    def end_coordinators(self) -> None:
        """As when the operator ends."""
        for coordinator in self.coordinators:
            self.backstage.loop.call_soon_threadsafe(coordinator.stop)
        self.coordinators.clear()
        self.backstage.joined()

    def create_ledger(self) -> str:
        """As the operator does; the ledger's id."""
        made = Ledger(self.environment.identity(), f"{self.namespace}/{NAME}")
        self.call(self.store.create(made))
        return made.ledger_id

    def ledger(self) -> Ledger:
        """The ledger as it is now."""
        stored = self.call(self.store.load())
        assert stored is not None
        return stored.ledger

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it in the operator's loop, whatever has become of its coordinators."""
        return self.backstage.finish(work, WAIT_SECONDS)

    def raise_epoch(self) -> int:
        """As the operator does before each start of a driver; the new epoch."""
        raised = self.ledger().epoch + 1
        self.call(
            change(
                self.store,
                lambda ledger: None if ledger.epoch == raised else RaiseEpoch(raised),
                self.environment,
                WAIT_SECONDS,
            )
        )
        return raised

    def coordinate(self) -> None:
        """Start the operator's coordinator: a new tenure."""
        surroundings = Surroundings.read(self.environ(self.ledger().epoch))
        job: PodJob = load_pod_job(self.job_file, surroundings)
        in_driver = [name for name, found in authorities(job.bound).items() if found is Authority.EPOCH]
        services = Services(
            store=self.store,
            environment=self.environment,
            runner=ThreadRunner(),
            metrics=Metrics(),
            sinks_of=partial(job.sinks_of, ledger_id=self.ledger().ledger_id),
            revision=job.revision,
            driver_sinks=frozenset(in_driver),
            older_gone=lambda epoch: True,
            wishes=Wishes(retry_held=True, who="test"),
        )
        tenure = Tenure(Authority.TOKEN, self.environment.identity())
        made = Coordinator(services, CommitSettings(backoff_first_seconds=0.05, backoff_max_seconds=0.2), tenure)
        self.coordinators.append(made)
        self.backstage.spawn(made.run())

    def until(self, condition: Callable[[Ledger], bool]) -> Ledger:
        """Wait for the ledger."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition(found := self.ledger()):
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return found


def _replace(file: Path, text: str) -> None:
    """At once, as the kubelet does it: a coordinator may be reading."""
    part = file.with_suffix(".part")
    part.write_text(text)
    part.replace(file)


@contextmanager
def operator_at(folder: Path, namespace: str, kubeconfig: Path) -> Iterator[Place]:
    """A place whose coordinators end with it."""

    async def connect(stack: AsyncExitStack) -> tuple[Api, ConfigMapLedgerStore]:
        api = await stack.enter_async_context(await Api.connect(ApiSettings(kubeconfig=str(kubeconfig))))
        place = LedgerPlace(namespace, NAME)
        watch = await stack.enter_async_context(api.watch(CONFIG_MAP, namespace, name=place.name))
        return api, ConfigMapLedgerStore(api, place, watch)

    with Backstage() as backstage:
        stack = AsyncExitStack()
        api, store = backstage.call(connect(stack))
        made = Place(folder, namespace, kubeconfig, backstage, store, api)
        try:
            yield made
        finally:
            made.end_coordinators()
            backstage.finish(stack.aclose(), WAIT_SECONDS)
