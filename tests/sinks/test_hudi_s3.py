"""The hudi sink keeps the contract on a real S3 server, with lost answers; read back by hudi-rs from there."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from sinkruntime.api import Answer, Sink
from sinkruntime.errors import TargetError
from sinkruntime.sinks.hudi import HudiSink
from sinkruntime.sinks.hudi.options import Options
from tests.servers.hudi_reader import HudiReader
from tests.servers.s3 import S3Server
from tests.servers.toxiproxy import Proxy, Toxiproxy
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS, YES
from tests.sinks.harness import LEDGER, Row, commit, stage
from tests.sinks.test_file_s3 import Once, before_each
from tests.sinks.test_hudi_local import HudiContract

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

pytestmark = pytest.mark.integration


@dataclass(frozen=True, slots=True)
class Place:
    """A bucket, a client of our own to look into it, and the endpoint that the sink uses."""

    server: S3Server
    client: S3Client
    bucket: str
    endpoint: str
    reader: HudiReader

    def options(self, **more: Any) -> Options:
        storage = self.server.storage(self.endpoint) | more.pop("storage", {})
        given = {"path": f"s3://{self.bucket}/some/table", "table": "flights", "storage": storage}
        return Options.model_validate(given | more)

    def sink(self, ledger_id: str = LEDGER, sink: str = "lake", **more: Any) -> HudiSink:
        made = HudiSink(self.options(**more), harness.identity(ledger_id, sink))
        made.prepare_target(harness.SCHEMA)
        return made

    def rows(self) -> Counter[Row]:
        server = self.server
        options = {
            "aws_endpoint": server.endpoint,
            "aws_region": server.region,
            "aws_access_key_id": server.access_key,
            "aws_secret_access_key": server.secret_key,
            "aws_allow_http": "true",
            "aws_virtual_hosted_style_request": "false",
        }
        found = self.reader.rows(f"s3://{self.bucket}/some/table", options)
        return Counter((row["id"], row["name"]) for row in found)

    def uploads(self) -> set[str]:
        found = self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
        return {f"{upload['Key']} {upload['UploadId']}" for upload in found}

    def names(self, prefix: str = "") -> list[str]:
        found = self.client.list_objects_v2(Bucket=self.bucket, Prefix=f"some/table/{prefix}").get("Contents", [])
        return [entry["Key"].removeprefix("some/table/") for entry in found]


@pytest.fixture
def place(s3_server: S3Server, hudi_reader: HudiReader) -> Iterator[Place]:
    yield from make_place(s3_server, s3_server.endpoint, hudi_reader)


def make_place(server: S3Server, endpoint: str, reader: HudiReader) -> Iterator[Place]:
    client = server.client()
    bucket = server.make_bucket(f"bucket-{uuid.uuid4().hex[:12]}")
    yield Place(server, client, bucket, endpoint, reader)
    client.close()


class TestS3(HudiContract):
    options: ClassVar = {"recordKey": ["id"], "partitionBy": ["name"], "hiveStyle": True}
    fences = False

    def make_sink(self, place: Any, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        made: Sink = place.sink(ledger_id, sink, **self.options)
        return made

    def read_visible(self, place: Any) -> Counter[Row]:
        rows: Counter[Row] = place.rows()
        return rows

    def list_staged(self, place: Any) -> set[str]:
        uploads: set[str] = place.uploads()
        return uploads

    def lose_staged(self, place: Any) -> None:
        for upload in place.uploads():
            key, _, number = upload.rpartition(" ")
            place.client.abort_multipart_upload(Bucket=place.bucket, Key=key, UploadId=number)

    def recreate(self, place: Any) -> None:
        for name in place.names():
            place.client.delete_object(Bucket=place.bucket, Key=f"some/table/{name}")


@pytest.fixture
def proxied(s3_server: S3Server, toxiproxy: Toxiproxy, hudi_reader: HudiReader) -> Iterator[tuple[Place, Proxy]]:
    """A place whose sink goes through a proxy."""
    with toxiproxy.proxy(s3_server.address) as proxy:
        for place in make_place(s3_server, f"http://{proxy.listen}", hudi_reader):
            yield place, proxy


@pytest.mark.parametrize("lost", range(4))
def test_a_lost_answer_of_a_commit_is_unknown_and_found_or_done_again(proxied: tuple[Place, Proxy], lost: int) -> None:
    """Each of the puts of a commit in turn (partition, requested, inflight, commit) is done, and its answer cut."""
    place, proxy = proxied
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    toxics: list[str] = []
    puts: list[int] = []
    # `100 Continue` passes, so that the body is sent; the answer to it does not.
    answer = len("HTTP/1.1 100 Continue\r\n\r\n") + 1

    def cut() -> None:
        puts.append(1)
        if len(puts) == lost + 1:
            toxics.append(proxy.add_toxic("limit_data", bytes=answer))

    with before_each(place, "PutObject", cut):  # type: ignore[arg-type]  # it has `options().storage`
        made = commit(sink, staged)
    assert made.answers() == {Answer.UNKNOWN}
    assert made.reasons() == {"AnswerLost"}
    proxy.remove_toxic(toxics[0])
    (probed,) = harness.ask(sink, "probe", staged).aggregated
    assert probed.answer is (Answer.ALREADY_COMMITTED if lost == 3 else Answer.ABSENT)
    assert commit(sink, staged, may_have_landed=True).answers() <= YES
    assert commit(sink, stage(sink, 2, MORE), 1).answers() == {Answer.COMMITTED}
    assert place.rows() == Counter(ROWS + MORE)


def test_a_server_that_is_away_is_asked_again_later(proxied: tuple[Place, Proxy]) -> None:
    place, proxy = proxied
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    proxy.disable()
    made = commit(sink, staged)
    assert made.answers() == {Answer.RETRY_LATER}
    proxy.enable()
    assert commit(sink, staged).answers() == {Answer.COMMITTED}
    assert place.rows() == Counter(ROWS)


def test_an_answer_that_is_cut_between_data_files_leaves_nothing_visible(proxied: tuple[Place, Proxy]) -> None:
    place, proxy = proxied
    sink = place.sink(partitionBy=["id"])
    staged = stage(sink, 1, ROWS)
    with before_each(place, "CompleteMultipartUpload", Once(proxy.disable)):  # type: ignore[arg-type]
        made = commit(sink, staged)
    assert not made.answers() & YES
    assert place.rows() == Counter()
    proxy.enable()
    assert commit(sink, staged, may_have_landed=True).answers() == {Answer.COMMITTED}
    assert place.rows() == Counter(ROWS)


def test_upserts_rewrite_what_lies_on_s3(place: Place) -> None:
    sink = place.sink(write="upsert", recordKey=["id"], orderingField="name", buckets=1)
    assert commit(sink, stage(sink, 1, [(1, "a"), (2, "b")])).answers() == {Answer.COMMITTED}
    assert commit(sink, stage(sink, 2, [(1, "c"), (2, "a"), (3, "x")]), 1).answers() == {Answer.COMMITTED}
    assert place.rows() == Counter([(1, "c"), (2, "b"), (3, "x")])


def test_a_wrong_key_or_a_missing_bucket_is_said_by_name(place: Place) -> None:
    with pytest.raises(TargetError, match="BucketMissing"):
        place.sink(path="s3://no-such-bucket/x")
    with pytest.raises(TargetError, match="PermissionDenied") as caught:
        place.sink(storage={"secretKey": "wrong-secret"})
    assert "wrong-secret" not in str(caught.value)
