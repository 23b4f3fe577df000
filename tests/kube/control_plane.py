"""A Kubernetes control plane for tests: etcd, kube-apiserver, kube-controller-manager as plain processes.

Used by the fixtures of `tests/kube`, and by whatever runs without pytest (`serve`). There are no nodes and nothing
schedules: a Pod stays Pending, with no log. Everything listens on 127.0.0.1 only; the user is cluster-admin by a
token made for the session. Ends only the processes that it started.
"""

from __future__ import annotations

import json
import secrets
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers.process import free_port
from tests.servers.programs import ETCD, KUBE_APISERVER, KUBE_CONTROLLER_MANAGER, OPENSSL, locate

START_TIMEOUT_SECONDS = 90.0
STOP_TIMEOUT_SECONDS = 20.0
POLL_SECONDS = 0.05
# Another process may take a port between its choice and its use.
PORT_ATTEMPTS = 3
LOG_TAIL_CHARACTERS = 2000


@dataclass(slots=True)
class Program:
    """One process that can be killed, held and started again, with the same command."""

    name: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, unless it runs."""
        if self.process is None or self.process.poll() is not None:
            with self.log.open("ab") as output:
                self.process = subprocess.Popen(
                    self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                )

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_SECONDS)

    def pause(self) -> None:
        """SIGSTOP: connections stay, and nothing answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL where that does not help in time."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]


@dataclass(slots=True)
class ControlPlane:
    """A running control plane; `apiserver` may be killed, held and started again by a test, which must leave it
    `ready`."""

    folder: Path
    port: int = 0
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    etcd: Program = field(init=False)
    apiserver: Program = field(init=False)
    controller_manager: Program = field(init=False)

    @property
    def address(self) -> str:
        """`host:port`, as a proxy's upstream."""
        return f"127.0.0.1:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        """Cluster-admin."""
        return self.folder / "kubeconfig"

    def kubeconfig_for(self, address: str, token: str = "", name: str = "other") -> Path:
        """A kubeconfig that reaches the server by another address (a proxy) or with another user's token."""
        path = self.folder / f"kubeconfig-{name}"
        cluster = {"server": f"https://{address}", "certificate-authority": str(self._certificate)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token or self.token}}],
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))  # JSON is YAML
        return path

    def start_apiserver(self) -> None:
        """Start the API server, and return when it is ready."""
        self.apiserver.start()
        _await(self.apiserver, self.is_ready)

    def is_ready(self) -> bool:
        """Whether the API server says so."""
        try:
            return self._certificate.exists() and self.page("/readyz") == b"ok"
        except OSError:
            return False

    def page(self, path: str) -> bytes:
        """What the API server answers to a GET of this path; raises OSError."""
        context = ssl.create_default_context(cafile=str(self._certificate))
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        request = urllib.request.Request(f"https://{self.address}{path}")
        request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.build_opener(*handlers).open(request, timeout=5) as response:
            body: bytes = response.read()
        return body

    @property
    def _certificate(self) -> Path:
        # Made by the API server: its own certificate and the authority that signed it.
        return self.folder / "certificates" / "apiserver.crt"

    def begin(self) -> None:
        """Start everything; raises RuntimeError with the end of a log where something does not come up."""
        self.folder.mkdir(parents=True, exist_ok=True)
        key = self.folder / "service-accounts.key"
        with key.open("wb") as output:
            subprocess.run(
                [str(locate(OPENSSL)), "ecparam", "-genkey", "-name", "prime256v1", "-noout"], stdout=output, check=True
            )
        tokens = self.folder / "tokens"
        tokens.touch(mode=0o600)
        tokens.write_text(f"{self.token},admin,admin,system:masters\n")
        for attempt in range(PORT_ATTEMPTS):
            self._plan(key, tokens)
            try:
                self.etcd.start()
                self.start_apiserver()
                break
            except RuntimeError:
                self.end()
                if attempt + 1 == PORT_ATTEMPTS:
                    raise
        self.kubeconfig_for(self.address, name="admin").rename(self.kubeconfig)
        self.controller_manager.start()

    def end(self) -> None:
        """Stop everything, the API server before its store."""
        for program in (self.controller_manager, self.apiserver, self.etcd):
            program.stop()

    def _plan(self, key: Path, tokens: Path) -> None:
        self.port, client, peer = free_port(), free_port(), free_port()
        store, peers = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        # Without fsync it is quicker; what is written survives a killed process.
        etcd = [str(locate(ETCD)), "--data-dir", str(self.folder / "etcd"), "--log-level", "warn", "--unsafe-no-fsync"]
        etcd += ["--listen-client-urls", store, "--advertise-client-urls", store, "--listen-peer-urls", peers]
        etcd += ["--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"]
        server = [str(locate(KUBE_APISERVER)), "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"]
        server += [
            f"--secure-port={self.port}",
            f"--cert-dir={self.folder / 'certificates'}",
            f"--etcd-servers={store}",
        ]
        server += ["--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16"]
        server += [f"--token-auth-file={tokens}", "--endpoint-reconciler-type=none"]
        server += ["--service-account-issuer=https://kubernetes.default.svc.cluster.local"]
        server += [f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"]
        manager = [str(locate(KUBE_CONTROLLER_MANAGER)), f"--kubeconfig={self.kubeconfig}", "--secure-port=0"]
        manager += ["--leader-elect=false", f"--service-account-private-key-file={key}"]
        manager += ["--use-service-account-credentials"]
        self.etcd = Program("etcd", etcd, self.folder / "etcd.log")
        self.apiserver = Program("kube-apiserver", server, self.folder / "kube-apiserver.log")
        self.controller_manager = Program(
            "kube-controller-manager", manager, self.folder / "kube-controller-manager.log"
        )


def _await(program: Program, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while not ready():
        ended = program.process is None or program.process.poll() is not None
        if ended or time.monotonic() > deadline:
            raise RuntimeError(f"{program.name} did not start; the end of {program.log}:\n{program.tail()}")
        time.sleep(POLL_SECONDS)


@contextmanager
def serve(folder: Path) -> Iterator[ControlPlane]:
    """Runs one with its data below `folder`. Raises ProgramMissingError."""
    plane = ControlPlane(folder)
    plane.begin()
    try:
        yield plane
    finally:
        plane.end()
