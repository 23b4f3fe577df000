"""Finds the server programs of the tests, or builds them with Go, once, into a cache.

Called by the server fixtures, and by `fetch`. Looked for in this order: the folder named by SINKJOB_TEST_PROGRAMS,
PATH, the cache `${XDG_CACHE_HOME:-~/.cache}/sinkjob-tests/bin`. Never installs anything outside that cache.
"""

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

BUILD_TIMEOUT_SECONDS = 1200


@dataclass(frozen=True, slots=True)
class Program:
    """A server program: its command, and the Go package and version that it is built from; "" where Go cannot build
    it by itself."""

    name: str
    package: str = ""
    version: str = ""


VERSITYGW = Program("versitygw", "github.com/versity/versitygw/cmd/versitygw", "v1.8.0")
TOXIPROXY = Program("toxiproxy-server", "github.com/Shopify/toxiproxy/v2/cmd/server", "v2.5.0")
ETCD = Program("etcd")
KUBE_APISERVER = Program("kube-apiserver")
KUBE_CONTROLLER_MANAGER = Program("kube-controller-manager")
KUBE_SCHEDULER = Program("kube-scheduler")
KWOK = Program("kwok")
KUBECTL = Program("kubectl")
HELM = Program("helm")
OPENSSL = Program("openssl")
CONTROL_PLANE = (ETCD, KUBE_APISERVER, KUBE_CONTROLLER_MANAGER, OPENSSL)
ALL = (VERSITYGW, TOXIPROXY, *CONTROL_PLANE, KUBECTL, HELM)


class ProgramMissingError(Exception):
    """The program is not here and cannot be built; the message says what would help."""


def locate(program: Program) -> Path:
    """Returns where the program is, after building it if need be. Raises ProgramMissingError."""
    named_folder = os.environ.get("SINKJOB_TEST_PROGRAMS", "")
    for folder in (named_folder, os.environ.get("PATH", "")):
        if folder and (found := shutil.which(program.name, path=folder)):
            return Path(found)
    if not program.package:
        raise ProgramMissingError(
            f"{program.name} is missing: put it on PATH or into the folder that SINKJOB_TEST_PROGRAMS names "
            "(etcd and Kubernetes publish binaries of each release; any Linux or macOS has a package of openssl)"
        )
    cached = _cache() / f"{program.name}-{program.version}"
    return cached if cached.exists() else _build(program, cached)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sinkjob-tests" / "bin"


def _build(program: Program, target: Path) -> Path:
    go = shutil.which("go")
    if go is None:
        raise ProgramMissingError(
            f"{program.name} is missing: put it on PATH or into the folder that SINKJOB_TEST_PROGRAMS names, "
            f"or install Go, which builds {program.package}@{program.version}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # A folder of its own and a rename: two test runs may build at the same time.
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [go, "install", f"{program.package}@{program.version}"]
        try:
            subprocess.run(
                command,
                env=os.environ | {"GOBIN": folder},
                check=True,
                capture_output=True,
                text=True,
                timeout=BUILD_TIMEOUT_SECONDS,
            )
        except subprocess.CalledProcessError as error:
            raise ProgramMissingError(f"{' '.join(command)} failed: {error.stderr.strip()[-2000:]}") from error
        except subprocess.TimeoutExpired as error:
            raise ProgramMissingError(f"{' '.join(command)} took over {BUILD_TIMEOUT_SECONDS} s") from error
        (built,) = Path(folder).iterdir()
        built.replace(target)
    return target
