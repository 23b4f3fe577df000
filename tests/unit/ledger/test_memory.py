"""The memory store keeps the contract."""

import pytest

from sinkruntime.ledger.memory import MemoryLedgerStore
from tests.unit.ledger.contract import LedgerStoreContract


class TestMemoryLedgerStore(LedgerStoreContract):
    @pytest.fixture
    def store(self) -> MemoryLedgerStore:
        return MemoryLedgerStore()
