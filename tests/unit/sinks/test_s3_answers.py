"""What S3's answers mean: only a request that was certainly turned down may be sent again as if it were the first."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from sinkruntime.storage.base import AnswerLost
from sinkruntime.storage.s3_client import talking


def answer(code: str, status: int, attempts: int) -> ClientError:
    """An answer as botocore raises it: the last one, after so many attempts that were repeated."""
    facts = {"HTTPStatusCode": status, "RetryAttempts": attempts}
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": facts}, "CompleteMultipartUpload")  # type: ignore[typeddict-item]  # as much as is looked at


@pytest.mark.parametrize("code", ["SlowDown", "503", "ServiceUnavailable"])
def test_a_change_that_was_turned_down_at_once_did_not_happen(code: str) -> None:
    with pytest.raises(ConnectionError), talking("completing x", changes=True):
        raise answer(code, 503, 0)


@pytest.mark.parametrize("code", ["SlowDown", "503", "ServiceUnavailable", "InternalError"])
def test_a_change_that_was_turned_down_at_a_later_attempt_may_have_happened(code: str) -> None:
    with pytest.raises(AnswerLost), talking("completing x", changes=True):
        raise answer(code, 503, 3)


def test_what_changes_nothing_is_asked_again() -> None:
    with pytest.raises(ConnectionError), talking("looking for x"):
        raise answer("SlowDown", 503, 3)
