"""The examples on a real cluster: what is read back from the bucket is what went in, once."""

from __future__ import annotations

from collections import Counter

from tests.e2e.cluster import OPERATOR_NAMESPACE, RELEASE, Cluster, until
from tests.e2e.conftest import NAMESPACE, Jobs
from tests.e2e.lake import CARRIERS, Lake, Trip, counted

KAFKA_ROWS = 600
COLUMNS = ["PHASE", "READY", "SINKS", "LAST-COMMIT", "PENDING", "EPOCH", "RESTARTS", "AGE"]


def far(trips: list[Trip]) -> Counter[tuple[object, ...]]:
    """What the example `files-to-parquet.yaml` makes of trips."""
    return Counter((id_, carrier, distance) for id_, carrier, distance in trips if distance > 0)


def test_the_installed_chart_passes_its_own_test(release: Cluster) -> None:
    release.helm("test", RELEASE, "--namespace", OPERATOR_NAMESPACE)


def test_files_arrive_as_parquet_once_through_suspension_edit_and_end(jobs: Jobs, bucket: Lake) -> None:
    trips = bucket.put_trips("trips", range(5))
    job = jobs.apply("files-to-parquet.yaml")
    until("two executors", lambda: len(jobs.pods(job, "executor")) == 2)
    first = jobs.committed(job, len(far(trips)))
    assert counted(bucket.parquet("trips-parquet")) == far(trips)

    columns = jobs.cluster.kubectl("-n", NAMESPACE, "get", "sj", job).splitlines()
    assert columns[0].split() == ["NAME", *COLUMNS]
    assert columns[1].split()[:4] == [job, "Running", "True", "file"]

    jobs.cluster.patch(NAMESPACE, job, {"suspend": True})
    assert jobs.phase(job, "Suspended")["commit"]["pending"] == 0
    until("no driver", lambda: not jobs.pods(job, "driver"))
    trips += bucket.put_trips("trips", range(5, 8))
    jobs.cluster.patch(NAMESPACE, job, {"suspend": False})
    resumed = jobs.committed(job, len(far(trips)))
    assert resumed["epoch"] > first["epoch"]

    sql = "SELECT id, lower(carrier) AS carrier, CAST(distance AS BIGINT) AS distance FROM input WHERE distance > 0"
    jobs.cluster.patch(NAMESPACE, job, {"transform": [{"sql": sql}]})
    until("a driver of the new spec", lambda: jobs.status(job).get("epoch", 0) > resumed["epoch"])
    jobs.phase(job, "Running")
    later = bucket.put_trips("trips", range(8, 10))
    jobs.committed(job, len(far(trips + later)))

    last = bucket.put_trips("trips", range(10, 12))
    until("the last files are taken", lambda: jobs.status(job)["commit"]["rowsCommitted"] > len(far(trips + later)))
    jobs.delete(job)
    seen = counted(bucket.parquet("trips-parquet"))
    lower = Counter({(id_, str(carrier).lower(), way): n for (id_, carrier, way), n in far(later + last).items()})
    assert seen - far(trips) - lower == Counter(), "rows that nobody sent, or twice"
    assert (far(trips) + Counter(row for row in lower if row[0] in {id_ for id_, _, _ in later})) - seen == Counter()
    assert jobs.cluster.get("configmap", f"{job}-ledger", "-n", NAMESPACE) is None
    assert bucket.open_uploads() == 0


def test_a_kafka_topic_arrives_as_parquet_once(jobs: Jobs, bucket: Lake) -> None:
    produce(jobs.cluster, KAFKA_ROWS, "events")
    job = jobs.apply("kafka-to-parquet.yaml")
    until("two executors", lambda: len(jobs.pods(job, "executor")) == 2)
    jobs.committed(job, KAFKA_ROWS)
    assert counted(bucket.parquet("events-parquet")) == Counter((i, f"event {i}") for i in range(KAFKA_ROWS))


def test_a_batch_job_ends_with_all_rows_in_one_checkpoint(jobs: Jobs, bucket: Lake) -> None:
    trips = bucket.put_trips("trips", range(5))
    wanted: Counter[tuple[object, ...]] = Counter()
    every = bucket.keys("trips/")
    if len(every) > len(range(5)):  # another test's files are there too
        trips = bucket.put_trips("trips", range(len(every)))
    for carrier in CARRIERS:
        own = [distance for _, of, distance in trips if of == carrier]
        wanted[(carrier, len(own), sum(own))] += 1
    job = jobs.apply("batch.yaml")
    status = jobs.phase(job, "Succeeded")
    assert status["commit"]["lastCheckpoint"] == 1
    assert counted(bucket.parquet("trips-by-carrier")) == wanted
    until("no pods", lambda: not jobs.pods(job, "driver") and not jobs.pods(job, "executor"))


def produce(cluster: Cluster, rows: int, topic: str) -> None:
    """Write events into the topic, with the connector of the driver's image."""
    code = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').getOrCreate()\n"
        f"rows = spark.range({rows}).selectExpr('CAST(id AS STRING) AS key', \"concat('event ', id) AS value\")\n"
        "rows.write.format('kafka').option('kafka.bootstrap.servers', 'kafka.servers.svc:9092')"
        f".option('topic', '{topic}').save()\n"
    )
    cluster.kubectl("-n", "servers", "delete", "pod", "producer", "--ignore-not-found", "--wait")
    cluster.kubectl(
        "-n", "servers", "run", "producer", "--image=sinkjob-driver:e2e", "--image-pull-policy=Never",
        "--restart=Never", "--command", "--", "python", "-c", code,
    )  # fmt: skip
    until("the events are in the topic", lambda: _ended(cluster))


def _ended(cluster: Cluster) -> bool:
    pod = cluster.get("pod", "producer", "-n", "servers") or {}
    phase = (pod.get("status") or {}).get("phase")
    assert phase != "Failed", cluster.kubectl("-n", "servers", "logs", "producer", "--tail=30")
    return phase == "Succeeded"
