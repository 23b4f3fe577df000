"""The staging pass in a real Spark: lineage, retries, select and where, groups, one action per group."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sinkruntime.api import Distribution
from sinkruntime.dead_letters import DeadLetters
from sinkruntime.driver.staging import Assignment, Staging, Written, check_lineage
from sinkruntime.environment import SystemClock
from sinkruntime.errors import ConfigurationError, SinkjobError, TargetError
from sinkruntime.spark.columns import JobSink
from sinkruntime.spark.passes import StagingPass
from tests.spark.lines import lines_sink

pytestmark = pytest.mark.spark

ASSIGNMENT = Assignment(7, 3)


def stage(df: DataFrame, *sinks: JobSink, assignment: Assignment = ASSIGNMENT) -> Staging:
    """Run a pass, and check its lineage as the driver does."""
    staging, _ = StagingPass(df, sinks, SystemClock()).run(df, assignment)
    check_lineage(assignment, staging, [sink.name for sink in sinks])
    return staging


def committables(staging: Staging, sink: str = "lines") -> list[dict[str, Any]]:
    """What the writers of a sink sent back, by subtask."""
    mine = sorted((r for r in staging.results if r.sink == sink), key=lambda r: r.lineage.subtask)
    return [json.loads(r.committable.data) for r in mine if r.committable is not None]


def staged_rows(staging: Staging, path: Path, sink: str = "lines") -> list[dict[str, Any]]:
    """The rows in the staged files that the results name, and in no other."""
    files = [path / "staged" / committable["file"] for committable in committables(staging, sink)]
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def jobs_run(spark: SparkSession, group: str) -> int:
    """How many Spark jobs ran in a job group."""
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def test_every_partition_has_a_subtask_also_an_empty_one(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(3, numPartitions=3).where("id = 1").repartition(5, "id")
    staging = stage(df, JobSink(lines_sink(tmp_path)))
    assert staging.subtasks == {"lines": 5}
    assert [c["rows"] for c in committables(staging)].count(0) == 4
    assert {c["subtasks"] for c in committables(staging)} == {5}
    assert staged_rows(staging, tmp_path) == [{"id": 1}]


def test_a_pass_without_partitions_is_whole(spark: SparkSession, tmp_path: Path) -> None:
    assert stage(spark.range(10).where("false"), JobSink(lines_sink(tmp_path))) == Staging([], {"lines": 0})


def test_partitions_that_adaptive_execution_coalesces_are_counted_as_they_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "9")
    try:
        staging = stage(spark.range(1000).groupBy("id").count(), JobSink(lines_sink(tmp_path)))
    finally:
        spark.conf.unset("spark.sql.shuffle.partitions")
    assert staging.subtasks["lines"] < 9
    assert len(staged_rows(staging, tmp_path)) == 1000


def test_only_the_winning_attempt_of_a_failed_task_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(100, numPartitions=4)
    staging = stage(df, JobSink(lines_sink(tmp_path, fail_once=(1, 3))))
    assert sorted(row["id"] for row in staged_rows(staging, tmp_path)) == list(range(100))
    attempts = [c["attempt"] for c in committables(staging)]
    assert len(set(attempts)) == 4
    assert len(list((tmp_path / "staged").iterdir())) == 4, "the failed attempts took back what they staged"


def test_a_task_that_fails_for_good_raises_the_sinks_own_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TargetError) as caught:
        stage(spark.range(10, numPartitions=2), JobSink(lines_sink(tmp_path, fail=(1,))))
    assert caught.value.reason == "TooBig"
    assert caught.value.message == "sink lines: subtask 1 will not have it"
    assert caught.value.path == "spec.sinks[0].options.path"


def test_an_error_of_spark_itself_is_told_without_its_trace(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(10).selectExpr("assert_true(id < 5) AS broken", "id")
    with pytest.raises(SinkjobError) as caught:
        stage(df, JobSink(lines_sink(tmp_path)))
    assert caught.value.reason == "QueryFailed"
    assert "id < " in caught.value.message
    assert "at org.apache" not in caught.value.message


def test_each_sink_gets_its_own_columns_and_rows_in_one_action(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(10, numPartitions=2).selectExpr("id", "if(id = 5, null, id * 2) AS twice", "'x' AS `a b`")
    sinks = [
        JobSink(lines_sink(tmp_path / "all", "all")),
        JobSink(lines_sink(tmp_path / "some", "some"), 1, ("twice", "a b", "upper(`a b`) AS big"), "twice > 8"),
        JobSink(lines_sink(tmp_path / "none", "none"), 2, None, "id < 0"),
    ]
    spark.sparkContext.setJobGroup("one-pass", "")
    staging = stage(df, *sinks)
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert jobs_run(spark, "one-pass") == 1
    assert len(staged_rows(staging, tmp_path / "all", "all")) == 10
    some = staged_rows(staging, tmp_path / "some", "some")
    assert sorted(row["twice"] for row in some) == [12, 14, 16, 18]
    assert [*some[0]] == ["twice", "a b", "big"]
    assert some[0]["big"] == "X"
    assert staged_rows(staging, tmp_path / "none", "none") == []


def test_a_lone_sinks_select_and_where_are_sparks_own(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(10, numPartitions=2).selectExpr("id", "id * 2 AS twice")
    staging = stage(df, JobSink(lines_sink(tmp_path), 0, ("twice",), "id >= 8"))
    assert sorted(row["twice"] for row in staged_rows(staging, tmp_path)) == [16, 18]


def test_a_select_may_follow_a_transform_that_makes_other_rows(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(3).selectExpr("explode(sequence(0, id)) AS id").groupBy("id").count()
    staging = stage(df, JobSink(lines_sink(tmp_path), 0, ("id", "count + 1 AS more")))
    assert sorted(row["more"] for row in staged_rows(staging, tmp_path)) == [2, 3, 4]


def test_a_shuffle_before_the_pass_runs_once(spark: SparkSession, tmp_path: Path) -> None:
    calls = spark.sparkContext.accumulator(0)

    def count(row: Any) -> Any:
        calls.add(1)
        return row

    df = spark.createDataFrame(spark.range(100, numPartitions=2).rdd.map(count), "id long").repartition(3)
    assert len(staged_rows(stage(df, JobSink(lines_sink(tmp_path))), tmp_path)) == 100
    assert calls.value == 100


def test_sinks_with_another_distribution_form_groups_over_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    keyed = Distribution(keys=("k",), partitions=3, sort_by=("id",))
    df = spark.range(60, numPartitions=2).selectExpr("60 - id AS id", "id % 5 AS k", "rand() AS r")
    sinks = [
        JobSink(lines_sink(tmp_path / "plain", "plain")),
        JobSink(lines_sink(tmp_path / "keyed", "keyed", distribution=keyed), 1),
        JobSink(lines_sink(tmp_path / "few", "few", distribution=keyed), 2, ("id", "k"), "k < 2"),
    ]
    staging = stage(df, *sinks)
    assert staging.subtasks == {"plain": 2, "keyed": 3, "few": 3}
    plain, kept = staged_rows(staging, tmp_path / "plain", "plain"), staged_rows(staging, tmp_path / "keyed", "keyed")
    assert sorted(map(str, plain)) == sorted(map(str, kept)), "the very same rows, random ones too"
    for committable in committables(staging, "keyed"):
        text = (tmp_path / "keyed" / "staged" / committable["file"]).read_text(encoding="utf-8")
        ids = [json.loads(line)["id"] for line in text.splitlines()]
        assert ids == sorted(ids)
    homes = [
        {json.loads(line)["k"] for line in (tmp_path / "keyed" / "staged" / c["file"]).read_text().splitlines()}
        for c in committables(staging, "keyed")
    ]
    assert sum(map(len, homes)) == 5, "each key lives in one task"
    assert len(staged_rows(staging, tmp_path / "few", "few")) == 24


def test_writer_states_travel_to_the_next_checkpoint_by_index(spark: SparkSession, tmp_path: Path) -> None:
    sink = JobSink(lines_sink(tmp_path, stateful=True))
    first = stage(spark.range(9, numPartitions=3), sink)
    states = [state for result in first.results for state in result.states]
    assert [state.data for state in states] == [b"3", b"3", b"3"]
    second = stage(spark.range(4, numPartitions=2), sink, assignment=Assignment(8, 3, {"lines": states}))
    after = [state for result in second.results for state in result.states]
    assert after == [Written(1, b"8"), Written(1, b"5")], "states 0 and 2 went to subtask 0"


def test_sparks_own_writer_stages_for_a_lone_sink_that_asks_for_it(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(10, numPartitions=2)
    staging = stage(df, JobSink(lines_sink(tmp_path, staged_by_spark=True), 0, None, "id > 3"))
    assert staging.subtasks == {"lines": 2}
    assert sorted(row["id"] for row in staged_rows(staging, tmp_path)) == [4, 5, 6, 7, 8, 9]


def test_counters_come_back_by_sink(spark: SparkSession, tmp_path: Path) -> None:
    sinks = [JobSink(lines_sink(tmp_path / "a", "a")), JobSink(lines_sink(tmp_path / "b", "b"), 1, None, "id < 3")]
    df = spark.range(10, numPartitions=2)
    _, report = StagingPass(df, sinks, SystemClock()).run(df, ASSIGNMENT)
    assert report.seen == 10
    assert report.counters == {"a": {"rows": 10.0}, "b": {"rows": 3.0}}


def test_arrow_batches_have_the_schema_that_was_promised(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(2).selectExpr(
        "id", "CAST(id AS DECIMAL(12, 3)) AS price", "timestamp'2026-11-21 01:02:03.000004' AS ts",
        "array(struct(id AS n, NULL AS v)) AS list", "map('k', id) AS pairs", "if(id = 0, NULL, id) AS maybe",
        "current_date() AS day", "binary('x') AS raw",
    )  # fmt: skip
    only = df.where("maybe IS NOT NULL")  # the optimizer now knows that there are no nulls, the plan's schema does not
    for frame, path in ((df, tmp_path / "df"), (only, tmp_path / "only")):
        sinks = [JobSink(lines_sink(path / "a", "a")), JobSink(lines_sink(path / "b", "b"), 1, ("list", "maybe"))]
        stage(frame, *sinks)
        stage(frame, JobSink(lines_sink(path / "c")))


@pytest.mark.parametrize(
    ("sink", "path", "text"),
    [
        ({"select": ("id", "nope")}, "spec.sinks[2].select[1]", "nope"),
        ({"select": ("id", "upper(")}, "spec.sinks[2].select[1]", "upper("),
        ({"select": ("id", "id + 1 AS id")}, "spec.sinks[2].select", "two columns are named id"),
        ({"select": ("id", "explode(sequence(0, id))")}, "spec.sinks[2].select[1]", "other rows"),
        ({"select": ("count(*) AS rows",)}, "spec.sinks[2].select[0]", "other rows"),
        ({"where": "nope > 1"}, "spec.sinks[2].where", "nope"),
        ({"where": "id + 1"}, "spec.sinks[2].where", "BIGINT"),
        ({"where": "count(id) > 1"}, "spec.sinks[2].where", "aggregate"),
    ],
)
def test_a_wrong_select_or_where_names_its_field(
    spark: SparkSession, tmp_path: Path, sink: dict[str, Any], path: str, text: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        StagingPass(spark.range(3).toDF("id"), [JobSink(lines_sink(tmp_path), 2, **sink)], SystemClock())
    assert caught.value.path == path
    assert text.lower() in caught.value.message.lower()
    assert "\n" not in caught.value.message


def test_a_type_that_arrow_lacks_is_refused_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.sql("SELECT interval '1' month AS span")
    with pytest.raises(ConfigurationError, match="span interval month"):
        StagingPass(df, [JobSink(lines_sink(tmp_path))], SystemClock())


def picky(path: Path, refuse: range, rows_max: int = 10, **options: Any) -> JobSink:
    """A sink that turns these ids down, in favour of `rejects`."""
    sink = lines_sink(path / "picky", "picky", refuse=tuple(refuse), **options)
    return JobSink(sink, 0, ("id",), dead_letters=DeadLetters("rejects", rows_max))


def rejects(path: Path) -> JobSink:
    """The dead-letter sink."""
    return JobSink(lines_sink(path / "rejects", "rejects"), 1, takes_refused=True)


def test_refused_rows_are_in_the_dead_letter_sink_of_the_same_decision(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(100, numPartitions=4).selectExpr("id", "'x' AS text")
    every = JobSink(lines_sink(tmp_path / "every", "every"), 2)
    staging = stage(df, picky(tmp_path, range(20, 30)), rejects(tmp_path), every)
    kept = {row["id"] for row in staged_rows(staging, tmp_path / "picky", "picky")}
    letters = staged_rows(staging, tmp_path / "rejects", "rejects")
    assert kept == set(range(100)) - set(range(20, 30))
    assert sorted(row["row"] for row in letters) == [f'{{"id":{number}}}' for number in range(20, 30)]
    assert {(row["sink"], row["checkpoint"], row["reason"]) for row in letters} == {("picky", 7, "Unwanted")}
    assert len(staged_rows(staging, tmp_path / "every", "every")) == 100, "the others do not mind"
    counted = {sink: sum(r.rows for r in staging.results if r.sink == sink) for sink in ("picky", "rejects")}
    assert counted == {"picky": 90, "rejects": 10}


def test_all_tasks_together_refuse_no_more_than_agreed(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(8, numPartitions=4)
    with pytest.raises(TargetError, match="more than 3 rows") as caught:
        stage(df, picky(tmp_path, range(0, 8, 2), rows_max=3), rejects(tmp_path))
    assert (caught.value.reason, caught.value.path) == ("TooManyRefused", "spec.sinks[0].deadLetter.maxRows")


def test_a_dead_letter_sink_takes_rows_of_one_pass_only(spark: SparkSession, tmp_path: Path) -> None:
    keyed = lines_sink(tmp_path / "keyed", "keyed", refuse=(1,), distribution=Distribution(keys=("id",)))
    sinks = [picky(tmp_path, range(1)), rejects(tmp_path), JobSink(keyed, 2, dead_letters=DeadLetters("rejects", 1))]
    with pytest.raises(ConfigurationError, match="distributed in another way") as caught:
        StagingPass(spark.range(3).toDF("id"), sinks, SystemClock())
    assert caught.value.path == "spec.sinks[2].deadLetter.sink"
