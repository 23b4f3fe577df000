"""The S3 server of the tests keeps the conditional writes that the file sink stands on."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from tests.servers.s3 import S3Server

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

pytestmark = pytest.mark.integration
BUCKET = "conditional-writes"


@pytest.fixture(scope="module")
def client(s3_server: S3Server) -> "Iterator[S3Client]":
    s3_server.make_bucket(BUCKET)
    client = s3_server.client()
    yield client
    client.close()


def start_upload(client: "S3Client", key: str, body: bytes) -> tuple[str, str]:
    """Uploads one part and returns the upload's id and the part's ETag."""
    upload = client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
    part = client.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=1, Body=body)
    return upload, part["ETag"]


def complete(client: "S3Client", key: str, upload: str, etag: str) -> None:
    client.complete_multipart_upload(
        Bucket=BUCKET,
        Key=key,
        UploadId=upload,
        MultipartUpload={"Parts": [{"ETag": etag, "PartNumber": 1}]},
        IfNoneMatch="*",
    )


def read(client: "S3Client", key: str) -> bytes:
    with client.get_object(Bucket=BUCKET, Key=key)["Body"] as body:
        return body.read()


def test_an_object_is_a_plain_file_in_the_data_folder(client: "S3Client", s3_server: S3Server) -> None:
    client.put_object(Bucket=BUCKET, Key="folder/plain", Body=b"text")
    assert (s3_server.data_dir / BUCKET / "folder/plain").read_bytes() == b"text"


def test_a_conditional_put_never_replaces_an_object(client: "S3Client") -> None:
    client.put_object(Bucket=BUCKET, Key="once", Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed") as caught:
        client.put_object(Bucket=BUCKET, Key="once", Body=b"second", IfNoneMatch="*")
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412
    assert read(client, "once") == b"first"


def test_an_open_upload_is_invisible_until_it_is_completed(client: "S3Client") -> None:
    upload, etag = start_upload(client, "staged", b"rows")
    assert "Contents" not in client.list_objects_v2(Bucket=BUCKET, Prefix="staged")
    open_uploads = client.list_multipart_uploads(Bucket=BUCKET, Prefix="staged")["Uploads"]
    assert [found["UploadId"] for found in open_uploads] == [upload]
    complete(client, "staged", upload, etag)
    assert read(client, "staged") == b"rows"
    assert "Uploads" not in client.list_multipart_uploads(Bucket=BUCKET, Prefix="staged")


def test_a_conditional_completion_never_replaces_an_object(client: "S3Client") -> None:
    first, first_etag = start_upload(client, "raced", b"first")
    second, second_etag = start_upload(client, "raced", b"second")
    complete(client, "raced", first, first_etag)
    with pytest.raises(ClientError, match="PreconditionFailed"):
        complete(client, "raced", second, second_etag)
    assert read(client, "raced") == b"first"
