"""The small tables behind the checks: secret names, Spark's settings, columns of a schema, near misses."""

import pytest

from sinkruntime.errors import ManifestError
from sinkruntime.spec.ddl import column_names
from sinkruntime.spec.load import parse_object
from sinkruntime.spec.paths import path_text, suggestion
from sinkruntime.spec.plaintext import plaintext_secrets
from sinkruntime.spec.spark_conf import refusal

SECRET = [
    "password", "dbPassword", "passwd", "secret", "secretKey", "token", "sessionToken", "access.key", "accessKey",
    "access_key", "AWS-ACCESS-KEY", "accesskey", "credential", "credentials", "apiKey", "passphrase", "Authorization",
    "kafka.sasl.jaas.config", "fs.s3a.secret.key", "fs.azure.account.key.me.dfs.core.windows.net", "privateKey",
]  # fmt: skip
HARMLESS = [
    "tokenizer", "tokenized", "key", "partitionKey", "recordKey", "keyFormat", "fs.s3a.aws.credentials.provider",
    "passwordFile", "ssl.keystore.location", "tokenEndpoint", "secretType", "token.ttl", "spark.security.token.enabled",
    "accessor", "keyedAccess",
]  # fmt: skip


@pytest.mark.parametrize("key", SECRET)
def test_the_value_of_a_secret_name_is_refused(key: str) -> None:
    (finding,) = plaintext_secrets({key: "hunter2"}, ("options",))
    assert finding.path == ("options", key)
    assert "hunter2" not in f"{finding}"


@pytest.mark.parametrize("key", HARMLESS)
def test_the_value_of_another_name_is_not(key: str) -> None:
    assert list(plaintext_secrets({key: "x"}, ())) == []


def test_a_secret_is_found_however_deep() -> None:
    options = {
        "producer": {"sasl.password": "x"},
        "headers": [{"Authorization": "Bearer x"}],
        "credentials": {"user": "x"},
    }
    assert [path_text(finding.path) for finding in plaintext_secrets(options, ())] == [
        'producer["sasl.password"]', "headers[0].Authorization", "credentials.user",
    ]  # fmt: skip


@pytest.mark.parametrize("value", [True, False, "", None])
def test_a_switch_or_an_empty_value_is_no_secret(value: object) -> None:
    assert list(plaintext_secrets({"token": value}, ())) == []


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("postgresql://me:pw@host/db", True),
        ("postgresql://:pw@host/db", True),
        ("jdbc:mysql://host/db?user=a&password=b", True),
        ("jdbc:sqlserver://host:1433;databaseName=d;user=sa;password=b", True),
        ("jdbc:db2://host:50000/d:user=a;password=b;", True),
        ("jdbc:postgresql://host/db?user=a&sslpassword=b", True),
        ("jdbc:mysql://host/db?user=a&pwd=b", True),
        ("https://host/x?sv=1&sig=b", True),
        ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=b==", True),
        ("jdbc:sqlserver://host;integratedSecurity=true;trustServerCertificate=true", False),
        ("jdbc:mysql://host/db?passwordFile=/run/x&allowPublicKeyRetrieval=true&requireSecret=false", False),
        ("select * from t where token = 'x' and secret='y'", False),
        ("postgresql://me@host:5432/db", False),
        ("s3a://bucket/a:b@c", False),
        ("http://host:8080/path@v1", False),
        ("me:pw@host", False),
    ],
)
def test_a_url_with_a_password_is_refused_under_every_name(url: str, refused: bool) -> None:
    assert bool(list(plaintext_secrets({"url": url}, ()))) is refused


@pytest.mark.parametrize("kind", ["", "RSA ", "ENCRYPTED "])
def test_a_private_key_is_refused_under_every_name(kind: str) -> None:
    text = f"-----BEGIN {kind}PRIVATE KEY-----\nMIIE"
    assert list(plaintext_secrets({"kafka.ssl.keystore.key": text}, ()))
    assert not list(plaintext_secrets({"kafka.ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----\nMIIE"}, ()))


@pytest.mark.parametrize("field", ["jars", "pyFiles"])
def test_a_url_with_a_password_is_refused_among_the_deps(field: str) -> None:
    manifest = {
        "kind": "SinkJob", "apiVersion": "sinkjob.io/v1alpha1", "metadata": {"name": "j"},
        "spec": {
            "source": {"format": "rate"}, "sinks": [{"name": "s", "type": "console"}],
            "deps": {field: ["a.zip", "https://me:pw@host/b.zip"]},
        },
    }  # fmt: skip
    with pytest.raises(ManifestError, match=rf"spec\.deps\.{field}\[1\]: a URL that holds a password"):
        parse_object(manifest)


@pytest.mark.parametrize(
    ("key", "value", "refused"),
    [
        ("spark.sql.streaming.checkpointLocation", "/tmp", True),
        ("SPARK.SQL.STREAMING.CHECKPOINTLOCATION", "/tmp", True),
        ("spark.sql.streaming.asyncProgressTrackingEnabled", "false", True),
        ("spark.sql.streaming.stateStore.checkpointFormatVersion", "1", False),
        ("spark.sql.streaming.stateStore.checkpointFormatVersion", "2", True),
        (
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
            False,
        ),
        ("spark.sql.streaming.minBatchesToRetain", "20", False),
        ("spark.sql.streaming.minBatchesToRetain", "19", True),
        ("spark.sql.streaming.minBatchesToRetain", "many", True),
        ("spark.sql.streaming.unsupportedOperationCheck", "False", True),
        ("spark.sql.session.timeZone", "Europe/Zurich", True),
        ("spark.sql.session.timeZone", "UTC", False),
        ("spark.master", "local[4]", False),
        ("spark.speculation", "true", False),  # refused beside `mode: xa` only
        ("spark.sql.shuffle.partitions", "4", False),
    ],
)
def test_settings_that_break_the_guarantee_are_refused_by_value(key: str, value: str, refused: bool) -> None:
    assert (refusal(key, value) is not None) is refused


@pytest.mark.parametrize(
    ("ddl", "columns"),
    [
        ("year INT, carrier STRING", ("year", "carrier")),
        ("a STRUCT<x: INT, y: ARRAY<STRING>>, b DECIMAL(10, 2)", ("a", "b")),
        ("`odd, name` INT, `tick``ed` STRING NOT NULL COMMENT 'a, b'", ("odd, name", "tick`ed")),
        ("a: INT", ("a",)),
        ("", None),
        ("a", None),
        ('{"type": "struct"}', None),
    ],
)
def test_columns_are_read_from_ddl_and_nothing_is_guessed(ddl: str, columns: tuple[str, ...] | None) -> None:
    assert column_names(ddl) == columns


def test_a_path_is_written_as_people_read_it() -> None:
    assert path_text(("spec", "sinks", 1, "options", "table")) == "spec.sinks[1].options.table"
    assert path_text(("spec", "sparkConf", "spark.master")) == 'spec.sparkConf["spark.master"]'
    assert path_text(()) == ""


def test_a_near_miss_is_suggested_else_what_is_known() -> None:
    assert suggestion("tabel", ["table", "path"]) == "did you mean `table`?"
    assert suggestion("TABLE", ["table", "path"]) == "did you mean `table`?"
    assert suggestion("zzz", ["table", "path"]) == "expected one of: path, table"
    assert suggestion("zzz", [str(number) for number in range(10, 40)]).endswith(", 21, …")
    assert suggestion("zzz", []) == ""
