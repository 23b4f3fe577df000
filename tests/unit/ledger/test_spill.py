"""Where the largest payloads go, with whose credentials, and what cannot be reached."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sinkruntime.errors import ConfigurationError, LedgerCorrupt, LedgerUnavailable
from sinkruntime.ledger.spill import FOLDER, Spill

KEYS = {"fs.s3a.access.key": "a", "fs.s3a.secret.key": "hidden"}


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_file_is_written_read_and_removed(tmp_path: Path, scheme: str) -> None:
    async def play() -> None:
        spill = Spill(f"{scheme}{tmp_path}/a", {}, own=True)
        await spill.write("1-aa", b"one")
        await spill.write("1-aa", b"one")
        assert (tmp_path / "a" / FOLDER / "1-aa").read_bytes() == b"one"
        assert [path.name for path in (tmp_path / "a" / FOLDER).iterdir()] == ["1-aa"]
        assert await spill.read("1-aa") == b"one"
        await spill.remove("1-aa")
        await spill.remove("1-aa")
        with pytest.raises(LedgerCorrupt, match="is missing in"):
            await spill.read("1-aa")

    asyncio.run(play())


def test_a_folder_that_cannot_be_written_may_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")
    with pytest.raises(LedgerUnavailable, match="cannot be written"):
        asyncio.run(Spill(str(tmp_path / "a"), {}, own=True).write("1-aa", b""))


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("location", ["hdfs://host/a", "viewfs:///a", "ftp://host/a"])
def test_a_scheme_without_a_client_is_refused(location: str, own: bool) -> None:
    with pytest.raises(ConfigurationError, match=r"spec.checkpoint.location.*cannot be kept at") as caught:
        Spill(location, KEYS, own=own).check()
    assert "s3a" in caught.value.advice


@pytest.mark.parametrize(
    ("location", "options", "named"),
    [
        ("s3a://bucket/a", {}, "fs.s3a.access.key"),
        ("s3a://bucket/a", {"fs.s3a.access.key": "a"}, "fs.s3a.secret.key"),
        ("abfss://box@account.dfs.core.windows.net/a", {}, "fs.azure.account.key.account.dfs.core.windows.net"),
        ("gs://bucket/a", {}, "no way to give it"),
        ("/data/a", {}, "path of the driver's machine"),
    ],
)
def test_the_operators_own_credentials_and_disks_are_never_used(
    location: str, options: dict[str, str], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        Spill(location, options, own=False).check()
    assert "commit.runOn: Driver" in caught.value.advice


@pytest.mark.parametrize(
    ("location", "options"),
    [
        ("s3a://bucket/a", KEYS),
        ("s3a://bucket/a", {"spark.hadoop." + key: value for key, value in KEYS.items()}),
        ("s3a://bucket/a", {key.replace("s3a.", "s3a.bucket.bucket."): value for key, value in KEYS.items()}),
        ("abfss://box@account.dfs.core.windows.net/a", {"fs.azure.account.key": "aGlkZGVu"}),
    ],
)
def test_the_jobs_own_credentials_are_enough(location: str, options: dict[str, str]) -> None:
    spill = Spill(location, options, own=False)
    spill.check()
    assert "hidden" not in repr(spill)


@pytest.mark.parametrize(
    ("location", "options", "host"),
    [
        ("s3a://bucket/a", {}, ""),
        ("s3a://bucket/a", {"fs.s3a.endpoint": "http://minio.team.svc:9000"}, "minio.team.svc"),
        ("s3a://bucket/a", {"fs.s3a.endpoint": "minio.team.svc:9000"}, "minio.team.svc"),
        ("s3a://b/a", {"fs.s3a.endpoint": "one:1", "fs.s3a.bucket.b.endpoint": "https://two:2"}, "two"),
        ("abfss://box@account.dfs.core.windows.net/a", {}, "account.dfs.core.windows.net"),
        ("/data", {}, ""),
    ],
)
def test_the_host_that_is_called_can_be_asked_for(location: str, options: dict[str, str], host: str) -> None:
    assert Spill(location, options, own=False).host == host
