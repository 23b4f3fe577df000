"""One kind of kill each: what it looks up before, the blow itself, and what it gives back after a while.

`stage` calls all three. The blow comes while the target is held and a checkpoint is pending, so it is prepared: what
has to be asked of the API server is asked first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sinkoperator.shards import Names, shard_of
from tests.chaos.node import Node
from tests.e2e.cluster import OPERATOR_NAMESPACE, Cluster, CommandError, Json

SHARDS = 16
#: The chart's defaults, and what a takeover may take on top of it.
LEASE_SECONDS = 15
FAILOVER_SECONDS_MAX = LEASE_SECONDS + 5
PAUSE_SECONDS = LEASE_SECONDS + 12
API_AWAY_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Place:
    """Where the job and its operator run."""

    cluster: Cluster
    node: Node
    namespace: str
    job: str

    def pods(self, component: str) -> list[Json]:
        """The job's pods that run: `driver` or `executor`."""
        labels = f"sinkjob.io/job={self.job},app.kubernetes.io/component={component}"
        return _running(self.cluster.items("pods", "-n", self.namespace, "-l", labels))

    def executors(self) -> list[Json]:
        """Those of the driver that runs: after an outage an ended driver's may still be listed."""
        epochs = [pod["metadata"]["name"].rpartition("-")[2] for pod in self.pods("driver")]
        starts = tuple(f"{self.job}-{epoch}-exec-" for epoch in epochs)
        return [pod for pod in self.pods("executor") if pod["metadata"]["name"].startswith(starts)]

    def replicas(self) -> list[Json]:
        """The operator's pods that are ready."""
        labels = "app.kubernetes.io/component=operator"
        pods = _running(self.cluster.items("pods", "-n", OPERATOR_NAMESPACE, "-l", labels))
        return [pod for pod in pods if all(state["ready"] for state in pod["status"].get("containerStatuses", []))]

    def committing(self) -> Json:
        """The operator's pod that holds the job's shard; no pod and KeyError where nobody does."""
        number = shard_of(self.namespace, self.job, SHARDS)
        lease = self.cluster.get("lease", Names().shard(number), "-n", OPERATOR_NAMESPACE) or {}
        holder = lease["spec"]["holderIdentity"]
        return next(pod for pod in self.replicas() if holder.startswith(pod["metadata"]["name"] + "-"))


@dataclass(frozen=True, slots=True)
class Strike:
    """A prepared blow. `mend`, if any, is due `seconds` after it. `failover`: another replica is to take over."""

    what: str
    hit: Callable[[], None]
    seconds: float = 0.0
    mend: Callable[[], None] | None = None
    failover: bool = False


def prepare(kind: str, place: Place, dice: int) -> Strike:
    """Look up what this kind of kill will hit."""
    return _KINDS[kind](place, dice)


def _running(pods: list[Json]) -> list[Json]:
    return [
        pod for pod in pods if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
    ]


def _kill(node: Node, pids: list[int], what: str) -> None:
    if not pids or not node.signal("KILL", pids):
        raise CommandError(f"nothing was left to be killed: {what}")


def _remove(place: Place, namespace: str, names: list[str]) -> None:
    place.cluster.kubectl("-n", namespace, "delete", "pod", *names, "--force", "--grace-period=0", "--wait=false")


def _executor(place: Place, dice: int) -> Strike:
    pods = sorted(pod["metadata"]["name"] for pod in place.executors())
    name = pods[dice % len(pods)]
    return Strike(name, lambda: _remove(place, place.namespace, [name]))


def _driver(place: Place, dice: int) -> Strike:
    del dice
    (pod,) = place.pods("driver")
    pids = place.node.pids(pod["metadata"]["uid"])
    name = pod["metadata"]["name"]
    return Strike(f"{name} ({len(pids)} processes)", lambda: _kill(place.node, pids, name))


def _lost(place: Place, pods: list[Json], failover: bool) -> Strike:
    """Their processes are killed, and the pods removed: containers that start again would be backed off by the kubelet
    after some kills, and a replica that comes back at once would hide what the others do."""
    names = [pod["metadata"]["name"] for pod in pods]
    pids = [pid for pod in pods for pid in place.node.pids(pod["metadata"]["uid"])]

    def hit() -> None:
        _kill(place.node, pids, ", ".join(names))
        _remove(place, OPERATOR_NAMESPACE, names)

    return Strike(f"{', '.join(names)} ({len(pids)} processes)", hit, failover=failover)


def _committer(place: Place, dice: int) -> Strike:
    del dice
    return _lost(place, [place.committing()], failover=True)


def _replicas(place: Place, dice: int) -> Strike:
    del dice
    return _lost(place, place.replicas(), failover=False)


def _pause(place: Place, dice: int) -> Strike:
    del dice
    pod = place.committing()
    pids = place.node.pids(pod["metadata"]["uid"])

    def hit() -> None:
        if not place.node.signal("STOP", pids):
            raise CommandError("the replica has no process left")

    def wake() -> None:
        place.node.signal("CONT", pids)

    what = f"{pod['metadata']['name']} for {PAUSE_SECONDS} s ({len(pids)} processes)"
    return Strike(what, hit, PAUSE_SECONDS, wake, failover=True)


def _apiserver(place: Place, dice: int) -> Strike:
    """By turns: it answers nobody, or is killed and refuses everybody."""
    node, pids = place.node, place.node.named("kube-apiserver")
    if dice % 2:
        what = f"stopped for {API_AWAY_SECONDS} s"
        return Strike(what, lambda: _stop(node, pids), API_AWAY_SECONDS, lambda: _go_on(node, pids))
    return Strike(
        f"killed for {API_AWAY_SECONDS} s", lambda: node.take_api_server(pids), API_AWAY_SECONDS, node.give_api_server
    )


def _stop(node: Node, pids: list[int]) -> None:
    if not node.signal("STOP", pids):
        raise CommandError("there is no kube-apiserver in the node")


def _go_on(node: Node, pids: list[int]) -> None:
    node.signal("CONT", pids)


def _node(place: Place, dice: int) -> Strike:
    del dice
    return Strike(place.node.name, place.node.restart)


_KINDS: dict[str, Callable[[Place, int], Strike]] = {
    "executor": _executor,
    "driver": _driver,
    "committer": _committer,
    "replicas": _replicas,
    "pause": _pause,
    "apiserver": _apiserver,
    "node": _node,
}
