"""`--sink file-s3`: the same two sinks on S3 (versitygw), through a proxy that cuts connections by chance.

Credentials come from a file and from the environment. Objects are read back past the proxy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.killmatrix.cuts import Cuts
from tests.killmatrix.file import FileBench
from tests.killmatrix.files import FileRows
from tests.killmatrix.rows import Rows
from tests.servers import s3, toxiproxy

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BUCKET = "kill-matrix"
PREFIX = "KILL_S3_"


class FileS3Bench(Cuts, FileBench):
    """Two prefixes of one bucket."""

    def prepare(self) -> None:
        super().prepare()
        servers = self.folder / "servers"
        for name in ("s3", "toxiproxy"):
            (servers / name).mkdir(parents=True)
        self._server = self.stack.enter_context(s3.serve(servers / "s3"))
        toxics = self.stack.enter_context(toxiproxy.serve(servers / "toxiproxy"))
        self.proxy = self.stack.enter_context(toxics.proxy(self._server.address))
        self._server.make_bucket(BUCKET)
        self._client: S3Client = self._server.client()
        self.stack.callback(self._client.close)
        (self.folder / "s3.env").write_text(
            f"storage.accessKey={self._server.access_key}\nstorage.secretKey={self._server.secret_key}\n"
        )

    def sinks(self) -> list[dict[str, Any]]:
        storage = {"endpoint": f"http://{self.proxy.listen}", "region": self._server.region, "pathStyle": True}
        sinks = super().sinks()
        for sink in sinks:
            sink["options"] |= {"path": f"s3://{BUCKET}/{sink['name']}", "storage": storage}
            sink.pop("commit", None)
        lake, lines = sinks
        lake["optionsFrom"] = [{"fileRef": {"path": "s3.env"}}]
        lines["optionsFrom"] = [
            {"envRef": {"name": f"{PREFIX}{name}", "key": f"storage.{key}"}}
            for name, key in (("ACCESS", "accessKey"), ("SECRET", "secretKey"))
        ]
        lake["commit"] = {"runOn": "Driver"}
        return sinks

    def environment(self) -> Mapping[str, str]:
        return {f"{PREFIX}ACCESS": self._server.access_key, f"{PREFIX}SECRET": self._server.secret_key}

    def read(self, sink: str) -> Rows:
        present = {}
        for name, etag in self._visible_objects(sink):
            path = self.folder / "fetched" / sink / name
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self._client.get_object(Bucket=BUCKET, Key=f"{sink}/{name}")["Body"].read())
            present[name] = (etag, path)
        return self._rows.setdefault(sink, FileRows()).total(present)

    def _visible_objects(self, sink: str) -> Iterator[tuple[str, str]]:
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{sink}/"):
            for entry in page.get("Contents", []):
                name = entry["Key"].removeprefix(f"{sink}/")
                if not any(part[:1] in "_." for part in Path(name).parts):
                    yield name, entry["ETag"]

    def leftovers(self, ledger_id: str) -> Iterator[str]:
        for page in self._client.get_paginator("list_multipart_uploads").paginate(Bucket=BUCKET):
            for upload in page.get("Uploads", []):
                yield f"open upload {upload['Key']}"
        for sink in self._rows:
            staged = self._client.list_objects_v2(Bucket=BUCKET, Prefix=f"{sink}/_sinkjob/staging/")
            yield from (entry["Key"] for entry in staged.get("Contents", []))


BENCH = FileS3Bench
