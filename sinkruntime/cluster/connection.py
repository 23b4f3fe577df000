"""What a pod's process works with: the loop, the API server, the job's ledger and pods, and its coordinator.

Both entry points enter `connected` in their main thread. The coordinator is the same code as everywhere else, with its
committers in threads of this process: it is the job's own, and so are its credentials.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from sinkruntime.cluster.job import PodJob
from sinkruntime.cluster.pods import JobPods
from sinkruntime.cluster.surroundings import Surroundings
from sinkruntime.coordinator.coordinator import Coordinator, Services, Tenure
from sinkruntime.coordinator.runner import ThreadRunner
from sinkruntime.coordinator.settings import Metrics
from sinkruntime.coordinator.wishes import Wishes
from sinkruntime.environment import Environment
from sinkruntime.job.backstage import Backstage
from sinkruntime.job.sinks import authorities, commit_settings, warn_sinks
from sinkruntime.kube import CONFIG_MAP, POD, Api
from sinkruntime.kube.names import JOB_LABEL, MANAGED_BY, MANAGED_BY_LABEL
from sinkruntime.ledger.configmap import ConfigMapLedgerStore, LedgerPlace
from sinkruntime.ledger.spill import Spill
from sinkruntime.protocol.ledger import Authority

log = logging.getLogger(__name__)

#: How long a ledger that cannot be reached is waited for before the process gives up; the next epoch goes on.
LEDGER_SECONDS = 600.0
#: To end watches and connections.
CLOSE_SECONDS = 10.0


@dataclass(slots=True)
class Connection:
    """See the module."""

    job: PodJob
    backstage: Backstage
    api: Api
    store: ConfigMapLedgerStore
    pods: JobPods
    environment: Environment
    metrics: Metrics = field(default_factory=Metrics)
    coordinators: list[Coordinator] = field(default_factory=list)

    @property
    def surroundings(self) -> Surroundings:
        """What the pod was told."""
        return self.job.surroundings

    @property
    def claimant(self) -> str:
        """This process, like no other: the pod and a random part."""
        told = self.surroundings
        return "/".join(filter(None, [told.pod_name, told.pod_uid, self.environment.identity()]))

    def coordinate(self, ledger_id: str, tenure: Tenure) -> Coordinator:
        """Start a coordinator. What is held is tried again at once: a new process is a new try."""
        spec, recovery = self.job.spec, self.job.spec.recovery
        in_driver = [name for name, found in authorities(self.job.bound).items() if found is Authority.EPOCH]
        services = Services(
            store=self.store,
            environment=self.environment,
            runner=ThreadRunner(),
            metrics=self.metrics,
            sinks_of=partial(self.job.sinks_of, ledger_id=ledger_id),
            revision=self.job.revision,
            driver_sinks=frozenset(in_driver),
            older_gone=self.pods.older_gone,
            warn_sinks=warn_sinks(spec),
            wishes=Wishes(recovery.nonce, frozenset(recovery.accept), retry_held=True, who=tenure.holder),
        )
        made = Coordinator(services, commit_settings(spec.commit), tenure)
        self.coordinators.append(made)
        self.backstage.spawn(made.run())
        return made

    def end_coordinators(self) -> None:
        """Ask them to end, and wait until what they have under way is on record."""
        for coordinator in self.coordinators:
            self.backstage.loop.call_soon_threadsafe(coordinator.stop)
        self.backstage.joined()


@contextmanager
def connected(job: PodJob, environment: Environment) -> Iterator[Connection]:
    """Connect, and watch ledger and pods; an API server that is away is waited for by whoever reads the ledger."""
    with Backstage() as backstage:
        stack = AsyncExitStack()
        try:
            yield backstage.call(_connect(job, environment, backstage, stack))
        finally:
            try:
                backstage.finish(stack.aclose(), CLOSE_SECONDS)
            except TimeoutError:  # must not hide why it ends
                log.warning("connections to the API server did not close within %.0f s", CLOSE_SECONDS)


async def _connect(job: PodJob, environment: Environment, backstage: Backstage, stack: AsyncExitStack) -> Connection:
    told = job.surroundings
    place = LedgerPlace(told.namespace, told.job)
    selector = f"{MANAGED_BY_LABEL}={MANAGED_BY},{JOB_LABEL}={told.job}"
    api = await stack.enter_async_context(await Api.connect(environment=environment))
    ledgers = await stack.enter_async_context(api.watch(CONFIG_MAP, told.namespace, name=place.name))
    pods = await stack.enter_async_context(api.watch(POD, told.namespace, labels=selector))
    spill = Spill(job.spec.checkpoint.location or "", dict(job.bound.checkpoint_secrets), own=True)
    store = ConfigMapLedgerStore(api, place, ledgers, spill)
    return Connection(job, backstage, api, store, JobPods(pods, told.epoch), environment)
