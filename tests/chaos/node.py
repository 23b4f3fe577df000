"""The node's container: signals to processes of pods and of the API server, and the container's restart.

`strikes` and `stage` call it. It works by process ids that it looks up by a pod's uid; it asks no API server, so it
works while that is away.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from tests.e2e.cluster import CommandError, run

MANIFESTS = "/etc/kubernetes/manifests"
AWAY = "/etc/kubernetes/kube-apiserver.away"
RESTART_SECONDS = 240


@dataclass(frozen=True, slots=True)
class Node:
    """The container of a cluster with one node. Methods raise `CommandError` where docker fails."""

    name: str

    def sh(self, script: str, seconds: float = 60) -> str:
        """What a shell in the node prints."""
        return run("docker", "exec", self.name, "sh", "-c", script, seconds=seconds)

    def pids(self, uid: str) -> list[int]:
        """The processes of a pod, without the one that only holds its namespaces."""
        either = f"{uid}|{uid.replace('-', '_')}"  # as the cgroup drivers `cgroupfs` and `systemd` write it
        script = (
            f"for f in $(grep -lE '{either}' /proc/[0-9]*/cgroup 2>/dev/null); do p=${{f#/proc/}}; p=${{p%/cgroup}}; "
            'c=$(cat /proc/$p/comm 2>/dev/null) || continue; [ "$c" = pause ] || echo $p; done'
        )
        return [int(line) for line in self.sh(script).split()]

    def signal(self, word: str, pids: list[int]) -> int:
        """Send it to these processes, all at once; returns how many of them were there."""
        wanted = " ".join(map(str, pids))
        return int(self.sh(f"n=0; for p in {wanted}; do kill -{word} $p && n=$((n+1)); done; echo $n"))

    def named(self, program: str) -> list[int]:
        """The processes of a program of the control plane."""
        script = f"for f in /proc/[0-9]*/comm; do grep -qx {program} $f 2>/dev/null && echo $f; done; true"
        return [int(path.split("/")[2]) for path in self.sh(script).split()]

    def take_api_server(self, pids: list[int]) -> None:
        """Kill it, and let nobody start it again."""
        self.sh(f"mv {MANIFESTS}/kube-apiserver.yaml {AWAY}; kill -9 {' '.join(map(str, pids))}")

    def give_api_server(self) -> None:
        """The kubelet may start it again; nothing to do where it may already."""
        self.sh(f"[ ! -e {AWAY} ] || mv {AWAY} {MANIFESTS}/kube-apiserver.yaml")

    def keep_controllers(self) -> None:
        """Controllers that elect no leader outlive an API server's absence: restarted ones would be backed off for
        minutes after some absences, and Deployments with them."""
        self.sh(
            f"cd {MANIFESTS}; for f in $(grep -l -- --leader-elect=true *.yaml); do "
            "sed s/--leader-elect=true/--leader-elect=false/ $f > ../$f.new && mv ../$f.new $f; done"
        )

    def restart(self) -> None:
        """Kill everything in the node, and start it again."""
        before = self._address()
        run("docker", "restart", "--time", "1", self.name, seconds=RESTART_SECONDS)
        if self._address() != before:
            message = f"{self.name} has another address than {before} now, and its etcd may not start"
            raise CommandError(f"{message}: start and remove no other kind cluster during a run")

    def _address(self) -> str:
        template = "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}"
        return run("docker", "inspect", "-f", template, self.name).strip()


class Grip:
    """Holds and releases one pod's processes within milliseconds, by a shell that stays open in the node."""

    def __init__(self, node: Node, uid: str) -> None:
        self._pids = " ".join(map(str, node.pids(uid)))
        if not self._pids:
            raise CommandError(f"the pod {uid} has no process in {node.name}")
        self._shell = subprocess.Popen(
            ["docker", "exec", "-i", node.name, "sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def hold(self) -> None:
        """Stop them where they stand."""
        self._tell("STOP")

    def release(self) -> None:
        """Let them go on."""
        self._tell("CONT")

    def close(self) -> None:
        """End the shell; what is held stays so."""
        for stream in (self._shell.stdin, self._shell.stdout):
            if stream is not None:
                stream.close()
        self._shell.wait(30)

    def _tell(self, word: str) -> None:
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"kill -{word} {self._pids}; echo $?\n")
        self._shell.stdin.flush()
        if (answer := self._shell.stdout.readline().strip()) != "0":
            raise CommandError(f"kill -{word} {self._pids} in the node: {answer or 'the shell is gone'}")
