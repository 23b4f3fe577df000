"""What a process gets from outside instead of reaching for it: time, randomness, identity.

The entry points make the real one, the simulator a virtual one; nothing else calls `time`, `random` or `uuid`.
"""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import dataclass

from sinkruntime.api import Clock


class SystemClock:
    """The machine's clock."""

    def wall(self) -> float:
        """Seconds since 1970; for people and expiry, never for order."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since any instant."""
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class Environment:
    """Time and randomness of one process."""

    clock: Clock
    random: random.Random

    @classmethod
    def real(cls) -> Environment:
        """The machine's clock and its randomness."""
        return cls(SystemClock(), random.SystemRandom())

    def identity(self) -> str:
        """A new identity, like no other."""
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))
