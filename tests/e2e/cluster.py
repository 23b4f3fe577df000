"""The kind cluster of the end-to-end tests: its images, the servers, the chart's release, kubectl.

`conftest` makes one for the session, `tests/chaos` one for a run. `kind` is asked for a cluster named
SINKJOB_E2E_CLUSTER (default `sinkjob-e2e`); one that is there is used and kept, one that was made here is deleted at
the end. The node's image is KIND_NODE_IMAGE where set, the images' base SINKJOB_E2E_BASE. Nothing is pulled but by
docker and kind themselves.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.servers.programs import HELM, KUBECTL, VERSITYGW, Program, locate

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
KIND = Program("kind")
TAG = "e2e"
#: The servers that have an image of their own here; each is a Dockerfile and one file that it needs.
SERVERS = ("s3", "kafka")
RELEASE = OPERATOR_NAMESPACE = "sinkjob"

BUILD_SECONDS = 1500
CREATE_SECONDS = 300
LOAD_SECONDS = 300
COMMAND_SECONDS = 60
#: For whatever a job is to reach; pods, JVMs and all start within it on a busy machine of two cores.
WAIT_SECONDS = 420
POLL_SECONDS = 1.0

_Seen = TypeVar("_Seen")
Json = dict[str, Any]


class CommandError(Exception):
    """A program failed; the message holds its command and the end of what it said."""


def run(*command: str | Path, seconds: float = COMMAND_SECONDS, stdin: str = "", **environment: str) -> str:
    """What the command prints. Raises `CommandError`."""
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        cwd=ROOT,
        env=os.environ | environment,
    )
    if done.returncode:
        raise CommandError(f"{' '.join(map(str, command))}: {(done.stdout + done.stderr).strip()[-3000:]}")
    return done.stdout


def until(what: str, look: Callable[[], _Seen | None], seconds: float = WAIT_SECONDS) -> _Seen:
    """What `look` returns, once it is neither None nor False. Raises TimeoutError with `what` was waited for."""
    end = time.monotonic() + seconds
    while True:
        seen = look()
        if seen is not None and seen is not False:
            return seen
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster with the images in it. Every method raises `CommandError` where kubectl or helm fails."""

    name: str
    kubeconfig: Path

    def load(self, images: Sequence[str]) -> None:
        """Bring docker's images into the cluster."""
        run(locate(KIND), "load", "docker-image", *images, "--name", self.name, seconds=LOAD_SECONDS)

    def kubectl(self, *arguments: str, stdin: str = "", seconds: float = COMMAND_SECONDS) -> str:
        """What kubectl prints."""
        return run(locate(KUBECTL), "--kubeconfig", self.kubeconfig, *arguments, stdin=stdin, seconds=seconds)

    def helm(self, *arguments: str, seconds: float = WAIT_SECONDS) -> str:
        """What helm prints."""
        return run(locate(HELM), "--kubeconfig", self.kubeconfig, *arguments, seconds=seconds)

    def get(self, *arguments: str) -> Json | None:
        """One object, or a list of them; None where there is none."""
        text = self.kubectl("get", *arguments, "--ignore-not-found", "-o", "json")
        found: Json | None = json.loads(text) if text.strip() else None
        return found

    def items(self, *arguments: str) -> list[Json]:
        """The objects of a list."""
        found: list[Json] = (self.get(*arguments) or {}).get("items", [])
        return found

    def apply(self, namespace: str, text: str) -> None:
        """`kubectl apply` of this YAML or JSON."""
        self.kubectl("apply", "--namespace", namespace, "-f", "-", stdin=text)

    def make_namespace(self, name: str, **labels: str) -> None:
        """It may be there. Returns once pods can be made: they need its service account, which a controller makes."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        self.apply("default", json.dumps(body))
        until(f"namespace {name} is ready", lambda: self.get("-n", name, "serviceaccount", "default"))

    def patch(self, namespace: str, job: str, spec: Json) -> None:
        """Change fields of a SinkJob's spec."""
        self.kubectl("-n", namespace, "patch", "sj", job, "--type=merge", "-p", json.dumps({"spec": spec}))

    @contextmanager
    def forwarded(self, namespace: str, target: str, port: int) -> Iterator[str]:
        """The URL of a pod's or service's port on this machine."""
        command = [str(locate(KUBECTL)), "--kubeconfig", str(self.kubeconfig), "-n", namespace]
        forward = subprocess.Popen(
            [*command, "port-forward", target, f":{port}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            assert forward.stdout is not None
            line = forward.stdout.readline()  # Forwarding from 127.0.0.1:41234 -> 7070
            if not line.startswith("Forwarding from 127.0.0.1:"):
                raise CommandError(f"kubectl port-forward {target}: {line}")
            yield f"http://127.0.0.1:{line.split(':')[1].split()[0]}"
        finally:
            forward.terminate()
            forward.wait(COMMAND_SECONDS)
            if forward.stdout is not None:
                forward.stdout.close()


def build_images(servers: Sequence[str], targets: Sequence[str] = ("operator", "driver")) -> list[str]:
    """Build these targets and servers, and return their images' names; what has not changed comes from docker's
    cache."""
    base = f"BASE={os.environ.get('SINKJOB_E2E_BASE', 'debian:bookworm-slim')}"
    for target in targets:
        command = ("docker", "build", "--build-arg", base, "--target", target, "-t", f"sinkjob-{target}:{TAG}", ".")
        run(*command, seconds=BUILD_SECONDS)
    extra = {"s3": locate(VERSITYGW), "kafka": ROOT / "images" / "fetch_jars.py"}
    for name in servers:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(HERE / name, folder, dirs_exist_ok=True)
            if name in extra:
                shutil.copy(extra[name], folder)
            image = f"sinkjob-test-{name}:{TAG}"
            run("docker", "build", "--build-arg", base, "-t", image, folder, seconds=BUILD_SECONDS)
    return [*(f"sinkjob-{target}:{TAG}" for target in targets), *(f"sinkjob-test-{name}:{TAG}" for name in servers)]


@contextmanager
def cluster(folder: Path, servers: Sequence[str] = SERVERS) -> Iterator[Cluster]:
    """A cluster that has the images, of these servers too; `folder` is for its kubeconfig."""
    name = os.environ.get("SINKJOB_E2E_CLUSTER", "sinkjob-e2e")
    made = Cluster(name, folder / "kubeconfig")
    there = name in run(locate(KIND), "get", "clusters").split()
    images = build_images(servers)
    if there:
        run(locate(KIND), "export", "kubeconfig", "--name", name, "--kubeconfig", made.kubeconfig)
    else:
        node = os.environ.get("KIND_NODE_IMAGE", "")
        options = ["--image", node] if node else []
        create = (locate(KIND), "create", "cluster", "--name", name, "--kubeconfig", made.kubeconfig, "--wait", "3m")
        run(*create, *options, seconds=CREATE_SECONDS)
    try:
        made.load(images)
        yield made
    finally:
        if not there:
            run(locate(KIND), "delete", "cluster", "--name", name, seconds=CREATE_SECONDS)


def start_servers(made: Cluster, manifest: str) -> None:
    """Start the servers of this manifest afresh: their data is in the pods, and would be an earlier run's."""
    made.make_namespace("servers")
    made.kubectl("delete", "-n", "servers", "-f", "-", "--ignore-not-found", stdin=manifest, seconds=120)
    made.apply("servers", manifest)
    made.kubectl("-n", "servers", "wait", "pod", "--all", "--for=condition=Ready", "--timeout=180s", seconds=200)


def install(made: Cluster, *values: str) -> None:
    """Install the chart, or upgrade its release, with the images of `cluster` unless `values` name others; returns
    once two replicas are ready."""
    chosen = ",".join([f"image.tag={TAG}", f"driverImage.tag={TAG}", *values])
    made.helm(
        "upgrade", "--install", RELEASE, str(ROOT / "charts" / "sinkjob"), "--namespace", OPERATOR_NAMESPACE,
        "--create-namespace", "--set", chosen, "--wait", "--timeout", "180s",
    )  # fmt: skip
    # The same tag may be another image than an earlier run's.
    made.kubectl("-n", OPERATOR_NAMESPACE, "rollout", "restart", f"deployment/{RELEASE}")
    made.kubectl("-n", OPERATOR_NAMESPACE, "rollout", "status", f"deployment/{RELEASE}", "--timeout=180s", seconds=200)
