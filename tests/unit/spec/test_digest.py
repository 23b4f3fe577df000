"""A revision names what a job does: it changes with the work, and with nothing else."""

from pathlib import Path

import pytest

from sinkruntime.spec.digest import revision, sinks_revision
from sinkruntime.spec.load import parse_manifest

FULL = (Path(__file__).parent / "full.yaml").read_text(encoding="utf-8")
SPEC = parse_manifest(FULL).job.spec


def changed(old: str, new: str) -> tuple[bool, bool]:
    """Whether the revision, and the sinks' revision, are others after the change."""
    assert FULL.count(old) >= 1
    spec = parse_manifest(FULL.replace(old, new, 1)).job.spec
    return revision(spec) != revision(SPEC), sinks_revision(spec) != sinks_revision(SPEC)


def test_a_revision_is_the_same_in_every_later_release() -> None:
    """A Batch job is run once per revision: were this to change, an upgrade would run every one of them again."""
    assert (revision(SPEC), sinks_revision(SPEC)) == ("edb0c6a4e434e6d8", "15353eb2e1b87796")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("suspend: false", "suspend: true"),
        ("restartNonce: 0", "restartNonce: 1"),
        ("recovery: {nonce: 0, accept: []}", "recovery: {nonce: 1, accept: [InDoubt]}"),
        ("maxRetries: 10", "maxRetries: 3"),
        ("upgrade: {mode: LastCommit}", "upgrade: {mode: Stateless}"),
        ("deletionPolicy: Drain", "deletionPolicy: Orphan"),
        ("deletionTimeout: 5m", "deletionTimeout: 1m"),
        ("ttlSecondsAfterFinished: null", "ttlSecondsAfterFinished: 5"),
        ("name: flights-to-lake", "name: other"),
        ("timeout: 60s", "timeout: 1m"),  # the same, written otherwise
        ('  image: ""\n', ""),  # a default, left out
        ("retry: {initialBackoff: 200ms, maxBackoff: 30s, maxAttempts: 0}", "retry: {}"),
    ],
)
def test_what_does_not_change_the_work_keeps_the_revision(old: str, new: str) -> None:
    assert changed(old, new) == (False, False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("path: data/flights", "path: data/other"),
        ("distance > 0", "distance > 1"),
        ("interval: 10s", "interval: 11s"),
        ("maxPending: 4", "maxPending: 5"),
        ("outputMode: Append", "outputMode: Update"),
        ('image: ""', "image: other"),
        ("sparkConf: {}", "sparkConf: {spark.sql.shuffle.partitions: 3}"),
        ("instances: 2", "instances: 3"),
        ("location: s3a://bucket/checkpoints/flights", "location: s3a://bucket/checkpoints/other"),
    ],
)
def test_what_changes_the_work_but_no_sink_changes_the_revision_alone(old: str, new: str) -> None:
    assert changed(old, new) == (True, False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("options: {table: flights}", "options: {table: other}"),
        ("name: rejects, type: console", "name: rejects, type: console, options: {rows: 1}"),
        ("where: distance > 500", "where: distance > 501"),
        ("name: lake-credentials", "name: other-credentials"),
        ("select: [carrier, distance]", "select: [distance, carrier]"),
    ],
)
def test_what_changes_a_sink_changes_both(old: str, new: str) -> None:
    assert changed(old, new) == (True, True)
