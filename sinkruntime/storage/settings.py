"""The part of sinks' options that says how an object store is reached.

Read from the manifest, as `options.storage`. Never connects to anything.
"""

from __future__ import annotations

from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from sinkruntime.spec.base import Model, PositiveDuration, Text

#: Schemes of `path`.
LOCAL_SCHEMES = ("", "file")
S3_SCHEMES = ("s3", "s3a")


def is_local(location: str) -> bool:
    """Whether a place is a path of this machine."""
    return urlsplit(location).scheme in LOCAL_SCHEMES


def check_location(option: str, location: str, s3: str = "s3") -> None:
    """Raises `PydanticCustomError` unless it is a local path or a bucket. `option`: its name; `s3`: the scheme said."""
    place = urlsplit(location)
    words = {"option": option, "scheme": place.scheme, "s3": s3}
    if place.scheme not in LOCAL_SCHEMES + S3_SCHEMES:
        text = "`{option}`: {scheme}:// is not supported; expected a local path, or {s3}://bucket/prefix"
        raise PydanticCustomError("scheme", text, words)
    if place.scheme in S3_SCHEMES and not place.netloc:
        raise PydanticCustomError("bucket", "`{option}` names no bucket; expected {s3}://bucket/prefix", words)
    if place.scheme in S3_SCHEMES and ("?" in location or "#" in location):
        # What follows is no part of the path to those who read it as a URL.
        raise PydanticCustomError("url", "`{option}`: a prefix without `?` and `#` is needed", words)


def check_file_url(option: str, location: str) -> None:
    """Raises `PydanticCustomError` for a `file` URL so spelled (`file:/x`, `file://host/x`) that it would be read as a
    relative path."""
    if urlsplit(location).scheme == "file" and not location.startswith("file:///"):
        raise PydanticCustomError("url", "`{option}`: expected a path, or file:///path", {"option": option})


class Storage(Model):
    """How an object store is reached. Keys come from `optionsFrom`, or from the environment as AWS's tools read it."""

    endpoint: Text | None = Field(default=None, description="URL of the S3 service; left out: AWS.")
    region: Text | None = Field(default=None, description="Region of the bucket.")
    access_key: SecretStr | None = Field(default=None, description="Access key id; from `optionsFrom`.")
    secret_key: SecretStr | None = Field(default=None, description="Secret access key; from `optionsFrom`.")
    session_token: SecretStr | None = Field(default=None, description="Session token; from `optionsFrom`.")
    path_style: bool = Field(
        default=False, strict=False, description="Name the bucket in the path, as most services other than AWS need it."
    )
    upload_lifetime: PositiveDuration | None = Field(
        default=None,
        description="After this time the bucket's lifecycle rule aborts incomplete uploads; left out: never.",
    )

    @model_validator(mode="after")
    def _keys_go_together(self) -> Self:
        if (self.access_key is None) != (self.secret_key is None):
            raise PydanticCustomError("keys", "`accessKey` and `secretKey` are given together or not at all")
        return self
