"""Reading a manifest: what is kept, that all problems come at once, and from where it may come."""

from pathlib import Path

import pytest

from sinkruntime.errors import ManifestError, Problem
from sinkruntime.spec.load import load_manifest, parse_manifest, parse_object

HERE = Path(__file__).parent

# As the manifest's specification writes it, with the sink that its dead letters go to.
FULL = (HERE / "full.yaml").read_text(encoding="utf-8")


def test_every_field_of_the_specification_is_read() -> None:
    spec = parse_manifest(FULL).job.spec

    assert spec.source.options == {"header": "true", "maxFilesPerTrigger": "1"}
    assert spec.source.watermark is not None
    assert spec.source.watermark.delay.seconds == 600
    assert spec.transform[1].python == "mypackage.module:function"
    assert spec.trigger.interval.seconds == 10
    assert spec.commit.timeout.seconds == 60
    assert spec.commit.retry.initial_backoff.milliseconds == 200
    assert spec.sinks[0].select == ("carrier", "distance")
    assert spec.sinks[0].dead_letter is not None
    assert spec.sinks[0].dead_letter.max_rows == 1000
    assert spec.driver.memory_overhead.bytes == 512 * 1024**2
    assert spec.restart_policy.backoff.factor == 2
    assert spec.ttl_seconds_after_finished is None


def test_what_is_left_out_has_the_default_of_the_specification() -> None:
    full = parse_manifest(FULL).job.spec
    small = parse_object(
        {
            "apiVersion": "sinkjob.io/v1alpha1",
            "kind": "SinkJob",
            "metadata": {"name": "small"},
            "spec": {"source": {"format": "rate"}, "sinks": [{"name": "a", "type": "console"}]},
        }
    ).spec
    names = set(type(full).model_fields) - {"source", "sinks", "transform", "checkpoint", "driver", "executor"}
    assert {name: getattr(small, name) for name in names} == {name: getattr(full, name) for name in names}
    assert small.driver.memory == full.driver.memory
    assert small.executor.memory_overhead == full.executor.memory_overhead


def test_all_problems_are_named_at_once_in_the_order_of_their_lines() -> None:
    text = (
        "apiVersion: sinkjob.io/v1alpha1\n"
        "kind: SinkJob\n"
        "metadata: {name: A}\n"  # a wrong field
        "spec:\n"
        "  comit: {}\n"  # an unknown field
        "  source: {format: csv, path: p, options: {header: yes}}\n"  # a contradiction, and no YAML to rely on
        "  sinks:\n"
        "  - {name: a, type: file}\n"
        "  - {name: a, type: file, options: {token: t}}\n"  # two contradictions
    )
    with pytest.raises(ManifestError) as refused:
        parse_manifest(text, "job.yaml")
    # Without a usable name there is no job to look for contradictions in; the rest is said all the same.
    assert [(problem.line, problem.path) for problem in refused.value.problems] == [
        (3, "metadata.name"),
        (5, "spec.comit"),
        (6, "spec.source.options.header"),
    ]
    with pytest.raises(ManifestError) as refused:
        parse_manifest(text.replace("name: A", "name: a"), "job.yaml")
    assert [(problem.line, problem.path) for problem in refused.value.problems] == [
        (5, "spec.comit"),
        (6, "spec.source.options.header"),
        (6, "spec.source.schema"),
        (9, "spec.sinks[1].name"),
        (9, "spec.sinks[1].options.token"),
    ]
    assert str(refused.value).startswith("job.yaml:5: spec.comit: unknown field; did you mean `commit`?\njob.yaml:6: ")


def test_a_wrong_field_is_not_reported_again_as_a_contradiction() -> None:
    text = FULL.replace("onFailure: Fail", "onFailure: Warn").replace("guarantee: ExactlyOnce", "guarantee: Once")
    with pytest.raises(ManifestError) as refused:
        parse_manifest(text)
    assert [problem.path for problem in refused.value.problems] == ["spec.sinks[0].guarantee"]


def test_a_manifest_saved_from_a_cluster_can_be_read() -> None:
    saved = parse_manifest(FULL).job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    saved["metadata"] |= {"uid": "u-1", "generation": 3, "resourceVersion": "7", "managedFields": [{"manager": "me"}]}
    saved["status"] = {"phase": "Running"}

    job = parse_object(saved)

    assert (job.metadata.uid, job.metadata.generation) == ("u-1", 3)
    assert job.spec == parse_manifest(FULL).job.spec


def test_an_object_of_the_api_server_has_problems_without_lines() -> None:
    with pytest.raises(ManifestError) as refused:
        parse_object({"apiVersion": "sinkjob.io/v1alpha1", "kind": "SinkJob", "metadata": {"name": "a"}, "spec": 3})
    assert refused.value.problems == (Problem("spec", None, "expected fields, as `key: value`, got the number `3`"),)


def test_null_is_a_field_left_out() -> None:
    text = FULL.replace("  suspend: false", "  suspend: null").replace('  image: ""', "  image:")
    assert parse_manifest(text).job.spec.suspend is False


def test_anchors_and_merges_are_followed() -> None:
    text = FULL.replace("driver: {", "driver: &size {").replace(
        "executor: {instances: 2,", "executor: {<<: *size, instances: 3,"
    )
    assert parse_manifest(text).job.spec.executor.instances == 3


def test_a_file_tells_its_directory_and_its_name(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(FULL, encoding="utf-8-sig")
    assert load_manifest(file).base == tmp_path

    file.write_text(FULL.replace("maxPending: 4", "maxPending: 44"), encoding="utf-8")
    with pytest.raises(ManifestError) as refused:
        load_manifest(file)
    assert str(refused.value).startswith(f"{file}:23: spec.commit.maxPending: must be at most 16")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the manifest is empty"),
        (b"---\n---\n", "the manifest is empty"),
        (b"kind: \xff", "1: not UTF-8 text"),
        (b"kind: a\x00", "not valid YAML: a character that YAML does not allow"),
        (b'kind: "\\UFFFFFFFF"', "not valid YAML: a character that does not exist"),
        (b"[" * 100, "1: not valid YAML: more than 64 levels deep (column 65)"),
        (b"#" * (1024 * 1024 + 1), "larger than 1048576 bytes"),
        (b"kind", "1: a manifest is a mapping of fields, this is one value"),
    ],
)
def test_a_file_that_is_no_manifest_at_all_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(content)
    with pytest.raises(ManifestError) as refused:
        load_manifest(file)
    assert str(refused.value) == f"{file}:{' ' if not message[0].isdigit() else ''}{message}"


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path, what in ((tmp_path / "none.yaml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ManifestError) as refused:
            load_manifest(path)
        assert str(refused.value) == f"{path}: cannot be read: {what}"


def test_aliases_that_grow_without_end_are_refused() -> None:
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 9))
    with pytest.raises(ManifestError) as refused:
        parse_manifest(f"l0: &l0 [x]\n{levels}")
    assert "more than 50000 values (aliases count each time)" in str(refused.value)
