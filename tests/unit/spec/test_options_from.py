"""Options by reference: where they are looked up, what is refused, and that values stay hidden."""

from pathlib import Path
from typing import Any

import pytest

from sinkruntime.errors import ManifestError
from sinkruntime.spec.options_from import Places, Secrets, local_places, read_options_from
from sinkruntime.spec.source import OptionsFrom

PATH = ("spec", "source", "optionsFrom")


def entries(*values: dict[str, Any]) -> tuple[OptionsFrom, ...]:
    return tuple(OptionsFrom.model_validate(value) for value in values)


def read(base: Path, *values: dict[str, Any], **environ: str) -> dict[str, str]:
    return dict(read_options_from(entries(*values), local_places(base, environ), PATH))


def refusal(base: Path, *values: dict[str, Any], **environ: str) -> str:
    with pytest.raises(ManifestError) as refused:
        read(base, *values, **environ)
    return str(refused.value)


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_the_files_of_a_secret_are_its_keys_as_kubernetes_mounts_them(tmp_path: Path) -> None:
    write(tmp_path / ".sinkjob/secrets/lake/password", "hunter2\n")
    write(tmp_path / ".sinkjob/secrets/lake/catalog.token", "abc")
    write(tmp_path / ".sinkjob/secrets/lake/..data/password", "hidden")
    assert read(tmp_path, {"secretRef": {"name": "lake"}}) == {"password": "hunter2", "catalog.token": "abc"}


def test_a_config_map_has_a_directory_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / ".sinkjob/configmaps/lake/region", "eu")
    assert read(tmp_path, {"configMapRef": {"name": "lake"}}) == {"region": "eu"}


def test_a_missing_secret_says_where_it_was_looked_for(tmp_path: Path) -> None:
    assert refusal(tmp_path, {"secretRef": {"name": "lake"}}) == (
        "spec.source.optionsFrom[0]: there is no Secret `lake`; "
        f"without a cluster, put one file for each key into {tmp_path}/.sinkjob/secrets/lake"
    )


def test_a_file_of_lines_gives_options(tmp_path: Path) -> None:
    write(tmp_path / "lake.env", "# comment\n\nexport user=me\npassword = 'a=b #c'\nempty=\n")
    options = read(tmp_path, {"fileRef": {"path": "lake.env"}})
    assert options == {"user": "me", "password": "a=b #c", "empty": ""}


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_file_with_a_mapping_gives_text_as_it_stands(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"lake.{suffix}", '{"user": "no", "pin": 0123, "date": 2026-01-01}')
    options = read(tmp_path, {"fileRef": {"path": f"lake.{suffix}"}})
    assert options == {"user": "no", "pin": "0123", "date": "2026-01-01"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.env", "x=1\nhunter2\n", "a.env, line 2: not of the form KEY=VALUE"),
        ("a.env", "x=1\nx=hunter2\n", "a.env, line 2: `x` is given twice"),
        ("a.yaml", "x: 1\nx: hunter2\n", "a.yaml, line 2: `x` is given twice"),
        ("a.yaml", "x: [hunter2]\n", "a.yaml, line 1: an option's value must be text"),
        ("a.yaml", "- hunter2\n", "a.yaml: not a mapping of options"),
        ("a.yaml", "x: {hunter2\n", "a.yaml, line 2: not valid YAML"),
        ("a.yaml", "[" * 2000, "a.yaml: not valid YAML"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_its_content_is_not(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    write(tmp_path / name, text)
    said = refusal(tmp_path, {"fileRef": {"path": name}})
    assert said == f"spec.source.optionsFrom[0]: {tmp_path}/{message}"
    assert "hunter2" not in said


def test_a_file_that_is_missing_binary_or_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")
    write(tmp_path / "large", "#" * (1024 * 1024 + 1))
    for name, message in (
        ("none", "cannot be read: No such file or directory"),
        ("binary", "is not UTF-8 text, or no path of a file"),
        ("large", "is larger than 1048576 bytes"),
    ):
        assert refusal(tmp_path, {"fileRef": {"path": name}}).endswith(f"{tmp_path}/{name} {message}")


def test_variables_with_a_prefix_become_options(tmp_path: Path) -> None:
    environ = {"LAKE_password": "hunter2", "LAKE_": "x", "OTHER": "y"}
    assert read(tmp_path, {"envRef": {"prefix": "LAKE_"}}, **environ) == {"password": "hunter2"}
    assert refusal(tmp_path, {"envRef": {"prefix": "NONE_"}}, **environ) == (
        "spec.source.optionsFrom[0]: no environment variable begins with NONE_"
    )


def test_one_variable_becomes_one_option(tmp_path: Path) -> None:
    entry = {"envRef": {"name": "PGPASSWORD", "key": "password"}}
    assert read(tmp_path, entry, PGPASSWORD="hunter2") == {"password": "hunter2"}
    assert "the environment variable PGPASSWORD is not set" in refusal(tmp_path, entry)


def test_all_entries_that_lead_nowhere_are_named_and_doubles_too(tmp_path: Path) -> None:
    one = {"envRef": {"name": "A", "key": "password"}}
    lines = refusal(tmp_path, one, {"fileRef": {"path": "none"}}, one, A="hunter2").splitlines()
    assert lines == [
        f"spec.source.optionsFrom[1]: {tmp_path}/none cannot be read: No such file or directory",
        "spec.source.optionsFrom[2]: the option `password` comes from an earlier entry too; keep one of them",
    ]


def test_where_there_is_a_cluster_files_and_variables_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "secrets/lake/password", "hunter2")
    places = Places(tmp_path / "secrets", tmp_path / "configmaps")
    assert dict(read_options_from(entries({"secretRef": {"name": "lake"}}), places, PATH)) == {"password": "hunter2"}
    for entry in ({"fileRef": {"path": "a"}}, {"envRef": {"prefix": "A"}}):
        with pytest.raises(ManifestError, match="is only for jobs that run without a cluster; use a secretRef"):
            read_options_from(entries(entry), places, PATH)


def test_objects_can_be_given_themselves_in_place_of_their_folders() -> None:
    places = Places({"lake": {"password": "hunter2\n"}}, {"plain": {"region": "eu"}})
    both = entries({"secretRef": {"name": "lake"}}, {"configMapRef": {"name": "plain"}})
    assert dict(read_options_from(both, places, PATH)) == {"password": "hunter2", "region": "eu"}
    with pytest.raises(ManifestError, match=r"optionsFrom\[0\]: there is no Secret `other`$"):
        read_options_from(entries({"secretRef": {"name": "other"}}), places, PATH)


def test_secrets_show_their_names_and_hide_their_values() -> None:
    secrets = Secrets({"password": "hunter2", "pin": "hunter", "empty": ""})
    assert repr(secrets) == "Secrets(empty, password, pin)"
    assert f"{secrets}" == repr(secrets)
    assert secrets.hide("hunter2 and hunter") == "*** and ***"
