"""The proxy of the tests cuts connections and loses answers, on demand."""

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError

from tests.servers.s3 import S3Server
from tests.servers.toxiproxy import Proxy, Toxiproxy

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CompletedMultipartUploadTypeDef

pytestmark = pytest.mark.integration
BUCKET = "behind-a-proxy"


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> str:
    return s3_server.make_bucket(BUCKET)


@pytest.fixture
def proxy(toxiproxy: Toxiproxy, s3_server: S3Server, bucket: str) -> Iterator[Proxy]:
    with toxiproxy.proxy(s3_server.address) as proxy:
        yield proxy


def test_requests_pass_a_proxy_without_toxics(s3_server: S3Server, proxy: Proxy) -> None:
    with closing(s3_server.client(f"http://{proxy.listen}")) as client:
        client.put_object(Bucket=BUCKET, Key="passed", Body=b"")
        assert client.head_object(Bucket=BUCKET, Key="passed")["ContentLength"] == 0


def test_a_cut_connection_comes_back_on_the_same_port(s3_server: S3Server, proxy: Proxy) -> None:
    with closing(s3_server.client(f"http://{proxy.listen}")) as client:
        proxy.disable()
        with pytest.raises(EndpointConnectionError):
            client.put_object(Bucket=BUCKET, Key="cut", Body=b"")
        proxy.enable()
        client.put_object(Bucket=BUCKET, Key="cut", Body=b"")


def test_a_lost_answer_leaves_the_completion_done(s3_server: S3Server, proxy: Proxy) -> None:
    # A PUT would not do: it asks `Expect: 100-continue` first, and without that answer no body is sent.
    with closing(s3_server.client(f"http://{proxy.listen}")) as client, closing(s3_server.client()) as direct:
        upload = client.create_multipart_upload(Bucket=BUCKET, Key="lost-answer")["UploadId"]
        part = client.upload_part(Bucket=BUCKET, Key="lost-answer", UploadId=upload, PartNumber=1, Body=b"rows")
        parts: CompletedMultipartUploadTypeDef = {"Parts": [{"ETag": part["ETag"], "PartNumber": 1}]}
        toxic = proxy.add_toxic("limit_data", bytes=0)
        with pytest.raises(ConnectionClosedError):
            client.complete_multipart_upload(Bucket=BUCKET, Key="lost-answer", UploadId=upload, MultipartUpload=parts)
        assert direct.head_object(Bucket=BUCKET, Key="lost-answer")["ContentLength"] == 4
        proxy.remove_toxic(toxic)
        assert client.head_object(Bucket=BUCKET, Key="lost-answer")["ContentLength"] == 4
