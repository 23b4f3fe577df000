"""A process that raises the ledger's epoch as fast as it can, until it is killed; run by `test_file`.

Prints the version of each write that was acknowledged. `python -m tests.unit.ledger.writer FOLDER [WRITES]`
"""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from sinkruntime.errors import LedgerConflict
from sinkruntime.ledger.file import FileLedgerStore


async def main(folder: str, writes: int) -> None:
    store = FileLedgerStore(Path(folder))
    while writes:
        present = await store.load()
        assert present is not None
        grown = replace(present.ledger, epoch=present.ledger.epoch + 1, firsts=(*present.ledger.firsts, 1))
        try:
            written = await store.replace(grown, present.version)
        except LedgerConflict:
            continue
        writes -= 1
        print(written.version, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else -1))
