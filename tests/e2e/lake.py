"""The bucket of the end-to-end tests: puts input there, reads back what a reader of the target sees."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import boto3
import pyarrow.parquet
from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BUCKET = "lake"
ACCESS_KEY, SECRET_KEY, REGION = "testkey", "testsecret", "us-east-1"
CARRIERS = ("AA", "BB", "CC")
ROWS_PER_FILE = 100
Trip = tuple[int, str, int]


class Lake:
    """One bucket, by way of a port on this machine."""

    def __init__(self, client: S3Client, endpoint: str) -> None:
        self._client = client
        self._endpoint = endpoint

    def make(self) -> None:
        """Make the bucket, unless it is there."""
        if BUCKET not in {found["Name"] for found in self._client.list_buckets().get("Buckets", [])}:
            self._client.create_bucket(Bucket=BUCKET)

    def keys(self, prefix: str) -> list[str]:
        """The objects below a prefix."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", [])]

    def put_trips(self, folder: str, files: Iterable[int]) -> list[Trip]:
        """CSV files of trips; returns their rows."""
        rows: list[Trip] = []
        for number in files:
            first = number * ROWS_PER_FILE
            trips = [(first + i, CARRIERS[i % len(CARRIERS)], 10 * (first + i)) for i in range(ROWS_PER_FILE)]
            text = "id,carrier,distance\n" + "".join(f"{id_},{carrier},{far}\n" for id_, carrier, far in trips)
            self._client.put_object(Bucket=BUCKET, Key=f"{folder}/{number:05}.csv", Body=text.encode())
            rows += trips
        return rows

    def parquet(self, folder: str) -> list[dict[str, Any]]:
        """The rows of all Parquet files that any reader sees in a folder."""
        return [row for key in self.visible(folder) for row in self.rows(key)]

    def visible(self, folder: str) -> list[str]:
        """The Parquet files that any reader sees in a folder: names with `_` are skipped."""
        return [
            key
            for key in self.keys(f"{folder}/")
            if not any(part.startswith("_") for part in key.split("/")) and key.endswith(".parquet")
        ]

    def rows(self, key: str) -> list[dict[str, Any]]:
        """The rows of one Parquet file."""
        body = self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(io.BytesIO(body)).to_pylist()
        return rows

    def delta_options(self) -> dict[str, str]:
        """What the library deltalake needs to read a table here."""
        return {
            "endpoint": self._endpoint,
            "allow_http": "true",
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "region": REGION,
            "virtual_hosted_style_request": "false",
        }

    def open_uploads(self) -> int:
        """Multipart uploads that nobody has completed or aborted."""
        return len(self._client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []))


@contextmanager
def lake(endpoint: str) -> Iterator[Lake]:
    """The bucket at this endpoint."""
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name=REGION,
        config=Config(s3={"addressing_style": "path"}, proxies={}, connect_timeout=5, read_timeout=30),
    )
    try:
        yield Lake(client, endpoint)
    finally:
        client.close()


def counted(rows: Iterable[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Rows as a multiset: the same row twice counts twice."""
    return Counter(tuple(row.values()) for row in rows)
