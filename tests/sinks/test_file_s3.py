"""The file sink keeps the contract on a real S3 server, with cut connections and lost answers."""

from __future__ import annotations

import io
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet
import pytest
from pydantic import SecretStr

from sinkruntime.api import Answer, Lineage, Sink
from sinkruntime.errors import TargetError
from sinkruntime.sinks.file import FileSink
from sinkruntime.sinks.file.options import Options
from sinkruntime.spec.quantities import Duration
from sinkruntime.storage.s3_client import client_for
from tests.servers.s3 import S3Server
from tests.servers.toxiproxy import Proxy, Toxiproxy
from tests.sinks import harness
from tests.sinks.contract import MORE, ROWS, YES, SinkContract
from tests.sinks.harness import LEDGER, Row, commit, stage

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

    def options(self, **more: Any) -> Options:
        server = self.server
        storage = {
            "endpoint": self.endpoint,
            "region": server.region,
            "accessKey": server.access_key,
            "secretKey": server.secret_key,
            "pathStyle": True,
        }
        return Options.model_validate({"path": f"s3://{self.bucket}/some/where", "storage": storage, **more})

    def sink(self, ledger_id: str = LEDGER, sink: str = "lake", **more: Any) -> Sink:
        return FileSink(self.options(**more), harness.identity(ledger_id, sink))

    def objects(self) -> list[str]:
        found = self.client.list_objects_v2(Bucket=self.bucket).get("Contents", [])
        return [entry["Key"] for entry in found]

    def visible(self) -> list[str]:
        return [key for key in self.objects() if not any(part[0] in "_." for part in key.split("/"))]

    def uploads(self) -> set[str]:
        found = self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
        return {f"{upload['Key']} {upload['UploadId']}" for upload in found}

    def rows(self) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for key in self.visible():
            body = self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
            table = pyarrow.parquet.read_table(io.BytesIO(body))
            found.update((row["id"], row["name"]) for row in table.to_pylist())
        return found

    def abort_all(self) -> None:
        for upload in self.uploads():
            key, _, number = upload.partition(" ")
            self.client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=number)


@pytest.fixture
def place(s3_server: S3Server) -> Iterator[Place]:
    yield from make_place(s3_server, s3_server.endpoint)


def make_place(server: S3Server, endpoint: str) -> Iterator[Place]:
    client = server.client()
    bucket = server.make_bucket(f"bucket-{uuid.uuid4().hex[:12]}")
    yield Place(server, client, bucket, endpoint)
    client.close()


class S3Contract(SinkContract):
    more: ClassVar[dict[str, Any]] = {}
    fences = False
    golden_version = 1
    golden_bytes = (
        b'{"files":[{"etags":["e"],"id":"0d","path":"a/part-0d-1-1-0.parquet","rows":5,"size":9,"upload":"u"}]}'
    )
    golden_value: ClassVar = {
        "files": [
            {"path": "a/part-0d-1-1-0.parquet", "upload": "u", "etags": ["e"], "size": 9, "id": "0d", "rows": 5},
        ]
    }

    def make_sink(self, place: Any, ledger_id: str = LEDGER, sink: str = "lake") -> Sink:
        made: Sink = place.sink(ledger_id, sink, **self.more)
        return made

    def read_visible(self, place: Any) -> Counter[Row]:
        rows: Counter[Row] = place.rows()
        return rows

    def list_staged(self, place: Any) -> set[str]:
        uploads: set[str] = place.uploads()
        return uploads

    def lose_staged(self, place: Any) -> None:
        place.abort_all()

    def recreate(self, place: Any) -> None:
        for key in place.objects():
            place.client.delete_object(Bucket=place.bucket, Key=key)


class TestS3(S3Contract):
    pass


class TestS3WithSparkLog(S3Contract):
    more: ClassVar = {"log": "spark", "directoryPerCheckpoint": True}


@pytest.fixture
def proxied(s3_server: S3Server, toxiproxy: Toxiproxy) -> Iterator[tuple[Place, Proxy]]:
    """A place whose sink goes through a proxy."""
    with toxiproxy.proxy(s3_server.address) as proxy:
        for place in make_place(s3_server, f"http://{proxy.listen}"):
            yield place, proxy


@contextmanager
def before_each(place: Place, operation: str, action: Callable[[], object]) -> Iterator[None]:
    """Do something whenever the sink's client is about to send a request of this kind."""

    def handler(**_: Any) -> None:
        action()

    events = client_for(place.options().storage).meta.events
    events.register(f"before-send.s3.{operation}", handler)
    yield
    events.unregister(f"before-send.s3.{operation}", handler)


class Once:
    """Calls an action the first time only."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action: Callable[[], object] | None = action

    def __call__(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()


def test_lost_answers_of_a_completion_are_unknown_and_then_found(proxied: tuple[Place, Proxy]) -> None:
    place, proxy = proxied
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    toxics: list[str] = []
    lose = Once(lambda: toxics.append(proxy.add_toxic("limit_data", bytes=0)))
    with before_each(place, "CompleteMultipartUpload", lose):
        made = commit(sink, staged)
    assert made.answers() == {Answer.UNKNOWN}
    assert made.reasons() == {"AnswerLost"}
    proxy.remove_toxic(toxics[0])
    assert {request.answer for request in harness.ask(sink, "probe", staged).writers} == {Answer.ALREADY_COMMITTED}
    assert commit(sink, staged, may_have_landed=True).answers() <= YES
    assert place.rows() == Counter(ROWS)


def test_lost_answers_of_the_evidence_are_unknown_and_it_moves_once(proxied: tuple[Place, Proxy]) -> None:
    place, proxy = proxied
    sink = place.sink()
    sink.prepare_target(harness.SCHEMA)
    staged = stage(sink, 1, ROWS)
    toxics: list[str] = []
    # `100 Continue` passes, so that the body is sent; the answer to it does not.
    lose = Once(lambda: toxics.append(proxy.add_toxic("limit_data", bytes=len("HTTP/1.1 100 Continue\r\n\r\n") + 1)))
    with before_each(place, "PutObject", lose):
        made = commit(sink, staged)
    assert {request.answer for request in made.aggregated} == {Answer.UNKNOWN}
    proxy.remove_toxic(toxics[0])
    assert harness.ask(sink, "probe", staged).answers() == {Answer.ALREADY_COMMITTED}
    assert commit(sink, stage(sink, 2, MORE), 1).answers() == {Answer.COMMITTED}
    assert place.rows() == Counter(ROWS + MORE)


def test_a_connection_that_is_cut_once_is_made_again(proxied: tuple[Place, Proxy]) -> None:
    place, proxy = proxied
    sink = place.sink()

    def cut() -> None:
        proxy.disable()
        proxy.enable()

    with (
        before_each(place, "UploadPart", Once(cut)),
        before_each(place, "CreateMultipartUpload", Once(cut)),
        before_each(place, "CompleteMultipartUpload", Once(cut)),
    ):
        assert commit(sink, stage(sink, 1, ROWS)).answers() <= YES
    assert place.rows() == Counter(ROWS)


def test_a_server_that_is_away_is_asked_again_later(proxied: tuple[Place, Proxy]) -> None:
    place, proxy = proxied
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    proxy.disable()
    made = commit(sink, staged)
    assert made.answers() == {Answer.RETRY_LATER}
    proxy.enable()
    assert commit(sink, staged).answers() == {Answer.COMMITTED}


def test_large_files_are_sent_in_parts_and_rolled(place: Place) -> None:
    sink = place.sink(targetFileSize="12MiB", compression="none")
    rows: list[Row] = [(number, f"{number:x}" * 300) for number in range(20_000)]
    staged = stage(sink, 1, rows)
    files = staged.present()[0][1]["files"]
    assert len(files) > 1
    assert max(len(file["etags"]) for file in files) == 2
    assert commit(sink, staged).answers() == {Answer.COMMITTED}
    assert place.rows() == Counter(rows)


def test_a_failed_writer_leaves_no_upload(place: Place) -> None:
    writer = harness.open_writer(place.sink(targetFileSize="1MiB", compression="none"))
    for number in range(3):
        writer.write(harness.batch_of([(number, "x" * 9_000_000)]))
    assert place.uploads()
    writer.abort_prepare()
    writer.close()
    assert place.uploads() == set()


def test_an_object_of_another_is_never_replaced(place: Place) -> None:
    sink = place.sink()
    staged = stage(sink, 1, ROWS)
    key = f"some/where/{staged.present()[0][1]['files'][0]['path']}"
    place.client.put_object(Bucket=place.bucket, Key=key, Body=b"mine")
    assert commit(sink, staged).reasons() == {"NameTaken"}
    assert place.client.get_object(Bucket=place.bucket, Key=key)["Body"].read() == b"mine"


def test_other_columns_than_the_objects_have_are_refused(place: Place) -> None:
    sink = place.sink()
    commit(sink, stage(sink, 1, ROWS))
    sink.prepare_target(harness.SCHEMA)
    with pytest.raises(TargetError, match=r"column `id`: the target has int64, it would get string"):
        sink.prepare_target(pa.schema({"id": pa.string(), "name": pa.string()}))


def test_a_missing_bucket_or_a_wrong_key_is_said_by_name(place: Place) -> None:
    nowhere = FileSink(place.options().model_copy(update={"path": "s3://no-such-bucket/x"}), harness.identity())
    with pytest.raises(TargetError, match="BucketMissing"):
        nowhere.prepare_target(harness.SCHEMA)
    storage = place.options().storage.model_copy(update={"secret_key": SecretStr("wrong-secret")})
    stranger = FileSink(place.options().model_copy(update={"storage": storage}), harness.identity())
    with pytest.raises(TargetError, match="PermissionDenied") as caught:
        stranger.prepare_target(harness.SCHEMA)
    assert "wrong-secret" not in str(caught.value)


def test_uploads_say_how_long_they_live(place: Place) -> None:
    options = place.options()
    storage = options.storage.model_copy(update={"upload_lifetime": Duration.parse("1h")})
    sink = FileSink(options.model_copy(update={"storage": storage}), harness.identity())
    clock = harness.ManualClock()
    context = replace(harness.writer_context(sink, Lineage(1, 1, 0, 1, 0)), clock=clock)
    writer = sink.create_writer(context)
    writer.open()
    assert writer.remaining_life_seconds() is None
    writer.write(harness.batch_of(ROWS))
    clock.now_seconds += 600
    writer.prepare_commit(1)
    assert writer.remaining_life_seconds() == 3_000
    writer.abort_prepare()
    writer.close()
