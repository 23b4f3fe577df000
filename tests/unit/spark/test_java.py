"""Finding Java: where it is looked for, and what is said when it will not do. The programs here are shell scripts."""

from pathlib import Path

import pytest

from sinkruntime.errors import ConfigurationError
from sinkruntime.spark.java import Java, find_java


def make_java(home: Path, version: str, *, release: bool) -> Path:
    """A Java home that only knows its version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    answer = "exit 99" if release else f"echo 'openjdk version \"{version}\" 2025' >&2"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("25-ea", 25)])
def test_versions_are_read_as_java_writes_them(version: str, major: int) -> None:
    assert Java(Path("/j"), version).major == major


def test_java_home_comes_first_and_no_jvm_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "a", "21.0.1", release=True)))
    monkeypatch.setenv("PATH", str(make_java(tmp_path / "b", "17.0.1", release=True) / "bin"))
    assert find_java() == Java(tmp_path / "a/bin/java", "21.0.1")


def test_a_link_on_the_path_is_followed_to_its_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_java(tmp_path / "jdk", "17.0.15", release=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/java").symlink_to(tmp_path / "jdk/bin/java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_java().version == "17.0.15"


def test_a_java_without_release_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path, "17.0.2", release=False)))
    assert find_java().major == 17


@pytest.mark.parametrize("home", [None, "/nowhere/jdk"])
def test_no_java_is_told_with_what_to_install(home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if home:
        monkeypatch.setenv("JAVA_HOME", home)
    with pytest.raises(ConfigurationError) as caught:
        find_java()
    assert caught.value.reason == "JavaMissing"
    assert "openjdk-17" in caught.value.advice


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path, "11.0.2", release=True)))
    with pytest.raises(ConfigurationError, match=r"Java 11\.0\.2, Spark needs 17") as caught:
        find_java()
    assert caught.value.reason == "JavaTooOld"


def test_a_java_that_says_nonsense_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_java(tmp_path, "17", release=True)
    (home / "release").write_text("nonsense")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(ConfigurationError) as caught:
        find_java()
    assert caught.value.reason == "JavaUnusable"
