"""The settings of worker processes. The operator's entry point fills them in from its command line."""

from __future__ import annotations

from dataclasses import dataclass

from sinkoperator.commits.egress import Egress

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How many workers there are, and what each may use.

    `memory_bytes` is what a worker may take beyond the pages that it shares with its parent. It limits RLIMIT_DATA,
    writable private memory: RLIMIT_AS counts address space too, of which allocators and thread stacks reserve many
    times what they use, so it would kill healthy workers.
    """

    workers: int = 16
    workers_per_namespace: int = 12  # below `workers`: no namespace can take every slot
    memory_bytes: int = 512 * MEBIBYTE
    nice: int = 5  # the operator's loop goes first
    idle_seconds: float = 60.0  # a worker that was not used for so long is closed
    egress: Egress = Egress()  # noqa: RUF009  (frozen)
    #: Environment variables that workers inherit beside the few that hold no identity (`nursery.INHERITED`).
    pass_environment: tuple[str, ...] = ()
    default_service_account: str = "default"  # of jobs that name none

    @property
    def namespace_share(self) -> int:
        """How many workers one namespace may have; at least one stays for the others."""
        return max(1, min(self.workers_per_namespace, self.workers - 1))
