"""The images with all clients, on a real cluster: one topic into a database, a Delta table and another topic.

Building them takes minutes, so CI leaves it out: `make e2e PYTEST_ARGS='-m "e2e and exhaustive"'`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from deltalake import DeltaTable

from tests.e2e.cluster import HERE, Cluster, build_images, install, start_servers, until
from tests.e2e.conftest import NAMESPACE, Jobs
from tests.e2e.lake import Lake, counted
from tests.e2e.test_jobs import produce

pytestmark = pytest.mark.exhaustive

ROWS = 2_000
#: Prints the values of a topic, one to a line, as a consumer sees them that reads what is committed.
CONSUME = """
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
settings = {"bootstrap.servers": "kafka.servers.svc:9092", "group.id": "none", "isolation.level": "read_committed"}
consumer = Consumer(settings)
partitions = consumer.list_topics("clicks-clean").topics["clicks-clean"].partitions
consumer.assign([TopicPartition("clicks-clean", number, OFFSET_BEGINNING) for number in partitions])
while (message := consumer.poll(15)) is not None:
    print(message.value().decode())
"""


@pytest.fixture
def all_clients(release: Cluster) -> Iterator[Cluster]:
    """The release with the images that hold all clients, and a database."""
    release.load(build_images(["postgresql"], ["operator-all", "driver-all"]))
    start_servers(release, (HERE / "postgresql.yaml").read_text())
    install(release, "image.repository=sinkjob-operator-all", "driverImage.repository=sinkjob-driver-all")
    yield release
    install(release)


def test_a_topic_arrives_once_in_a_database_a_table_and_another_topic(
    all_clients: Cluster, jobs: Jobs, bucket: Lake
) -> None:
    produce(all_clients, ROWS, "clicks")
    job = jobs.apply("kafka-to-many.yaml")
    jobs.committed(job, 3 * ROWS)
    drivers = [pod["metadata"]["name"] for pod in jobs.pods(job, "driver")]
    all_clients.kubectl("-n", NAMESPACE, "delete", "pod", *drivers, "--grace-period=0", "--force")
    produce(all_clients, ROWS, "clicks")
    jobs.committed(job, 6 * ROWS)
    wanted = Counter({(number, f"event {number}"): 2 for number in range(ROWS)})
    assert table(all_clients) == wanted
    assert counted(delta(bucket)) == wanted
    assert topic(all_clients) == Counter({f'{{"id":{n},"text":"{text}"}}': 2 for n, text in wanted})


def table(cluster: Cluster) -> Counter[tuple[object, ...]]:
    """The rows of the database's table."""
    sql = "COPY clicks (id, text) TO STDOUT"
    command = ("-n", "servers", "exec", "postgresql", "--", "psql", "-h", "/tmp", "-U", "events")
    text = cluster.kubectl(*command, "-d", "postgres", "-c", sql)
    return Counter((int(line.split("\t")[0]), line.split("\t")[1]) for line in text.splitlines())


def delta(bucket: Lake) -> list[dict[str, object]]:
    """The rows of the Delta table, by the library that the product commits with."""
    found = DeltaTable("s3://lake/clicks-delta", storage_options=bucket.delta_options())
    rows: list[dict[str, object]] = found.to_pyarrow_table(columns=["id", "text"]).to_pylist()
    return rows


def topic(cluster: Cluster) -> Counter[str]:
    """The values of the topic."""
    cluster.kubectl("-n", "servers", "delete", "pod", "consumer", "--ignore-not-found", "--wait")
    cluster.kubectl(
        "-n", "servers", "run", "consumer", "--image=sinkjob-driver-all:e2e", "--image-pull-policy=Never",
        "--restart=Never", "--command", "--", "python", "-c", CONSUME,
    )  # fmt: skip

    def ended() -> bool:
        pod = cluster.get("pod", "consumer", "-n", "servers") or {}
        return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")

    until("the consumer has read", ended)
    return Counter(cluster.kubectl("-n", "servers", "logs", "consumer").splitlines())
