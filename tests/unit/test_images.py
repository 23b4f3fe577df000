"""The scripts that the Dockerfile runs: the list of jars, what is cut, what is never cut by mistake."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from images import fetch_jars, slim

ROOT = Path(__file__).resolve().parents[2]
LISTS = [ROOT / "requirements" / "jars.txt", ROOT / "tests" / "e2e" / "kafka" / "jars.txt"]
DIGEST = hashlib.sha256(b"jar").hexdigest()


@pytest.mark.parametrize("file", LISTS, ids=["driver", "kafka"])
def test_a_list_names_every_jar_once_with_its_digest(file: Path) -> None:
    jars = fetch_jars.parse(file.read_text())
    assert len(jars) >= 40
    assert len({(jar.group, jar.artifact) for jar in jars}) == len(jars)


@pytest.mark.parametrize(
    "line", ["a:b:1", "a:b:1 sha256:12", "a:b sha256:" + DIGEST, "http://a/b.jar sha256:" + DIGEST]
)
def test_a_line_without_a_digest_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(ValueError, match="line 2 "):
        fetch_jars.parse(f"# jars\n{line}\n")


def test_a_folder_is_right_only_if_it_is_exactly_the_list(tmp_path: Path) -> None:
    jars = fetch_jars.parse(f"g:a:1 sha256:{DIGEST}\ng:b:2 sha256:{DIGEST}\n")
    (tmp_path / "a-1.jar").write_bytes(b"jar")
    (tmp_path / "b-2.jar").write_bytes(b"jar")
    assert fetch_jars.wrong(jars, tmp_path) == []
    (tmp_path / "b-2.jar").write_bytes(b"another")
    (tmp_path / "c-3.jar").write_bytes(b"jar")
    (tmp_path / "a-1.jar").unlink()
    assert sorted(text.split(" ")[0] for text in fetch_jars.wrong(jars, tmp_path)) == ["a-1.jar", "b-2.jar", "c-3.jar"]


@pytest.mark.parametrize(
    "name",
    [
        "librocksdbjni-linux64.so",
        "linux/amd64/libzstd-jni-1.5.7-6.so",
        "org/xerial/snappy/native/Linux/x86_64/libsnappyjava.so",
        "netty-tcnative-boringssl-static-2.0.74.Final-linux-x86_64.so",
        "org/example/Main.class",
    ],
)
def test_what_this_machine_loads_is_kept(name: str) -> None:
    assert not slim.is_foreign(name, "x86_64")


@pytest.mark.parametrize(
    "name",
    [
        "librocksdbjni-linux64-musl.so",
        "librocksdbjni-linux-aarch64.so",
        "librocksdbjni-osx-x86_64.jnilib",
        "win/amd64/libzstd-jni-1.5.7-6.dll",
        "freebsd/amd64/libzstd-jni-1.5.7-6.so",
        "netty-tcnative-boringssl-static-2.0.74.Final-linux-aarch_64.so",
    ],
)
def test_what_only_other_machines_load_is_cut(name: str) -> None:
    assert slim.is_foreign(name, "x86_64")


def test_a_jar_keeps_its_classes_and_this_machines_library(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    with zipfile.ZipFile(jar, "w") as made:
        for name in ("Main.class", "linux/amd64/a.so", "win/amd64/a.dll"):
            made.writestr(name, name)
    slim.cut_jar(jar, "x86_64")
    with zipfile.ZipFile(jar) as cut:
        assert cut.namelist() == ["Main.class", "linux/amd64/a.so"]
        assert cut.read("Main.class") == b"Main.class"


def test_a_jar_whose_libraries_are_all_unknown_is_not_cut_but_told(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    with zipfile.ZipFile(jar, "w") as made:
        made.writestr("native/new-name.so", "")
    with pytest.raises(ValueError, match="would keep none"):
        slim.cut_jar(jar, "x86_64")


def test_a_pattern_that_hits_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "kept.py").touch()
    assert slim.remove(tmp_path, ["tests", "docs"]) == ["docs"]
    assert [path.name for path in tmp_path.iterdir()] == ["kept.py"]


def test_equal_libraries_become_links(tmp_path: Path) -> None:
    for name in ("a.so", "a.so.1", "b.so.1"):
        (tmp_path / name).write_bytes(b"library")
    (tmp_path / "a.so.2").write_bytes(b"another")
    slim.merge_twins(tmp_path)
    assert {path.name for path in tmp_path.iterdir() if path.is_symlink()} == {"a.so.1"}
    assert (tmp_path / "a.so.1").read_bytes() == b"library"


def test_a_jar_with_a_classifier_is_asked_for_and_found_by_it() -> None:
    (jar,) = fetch_jars.parse(f"g:a:1:tests sha256:{DIGEST}\n")
    assert jar.name == "a-1-tests.jar"
    assert "<version>1</version><classifier>tests</classifier>" in jar.element()
