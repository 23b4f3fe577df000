"""Layout rules that no ready-made tool holds: lengths, what may be imported where, no trace of one machine.

Run by `make lint` and `make test`. Reads the files that git knows or would add; never imports them.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 400
# The distribution's dependencies; every other library is an extra, and imported when it is needed.
BASE_LIBRARIES = {"click", "pyarrow", "pydantic", "pydantic_core", "rich", "yaml"}
# The protocol is pure: no I/O, clock, randomness, thread or log, not even by way of the standard library.
IMPURE_MODULES = {
    "asyncio", "concurrent", "datetime", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "shutil", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip
# Libraries of the extras, and what they bring along that a sink could import.
EXTRA_LIBRARIES = {
    "aiohttp", "boto3", "botocore", "confluent_kafka", "deltalake", "duckdb", "fastavro", "hive_metastore", "kopf",
    "kubernetes", "pandas", "prometheus_client", "psycopg", "pyiceberg", "pymetastore", "pymysql", "pyspark",
    "requests", "sqlalchemy", "thrift",
}  # fmt: skip
LOAD_SINKS = """
import importlib, pkgutil, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import sinkruntime.sinks
for module in pkgutil.iter_modules(sinkruntime.sinks.__path__):
    print(importlib.import_module(f"sinkruntime.sinks.{module.name}").SINK.summary)
"""
MACHINE_PATH = re.compile(r"(?:^|(?<=[\s\"'`=:,(\[])|(?<=://))/(work|root|home/\w+|Users/\w+)/", re.MULTILINE)
PACKAGE_INDEX = re.compile(r"(?i)https?://\S+/simple\b|--(extra-)?index-url|--find-links|--trusted-host")
URL = re.compile(r"https?://")


def repository_files() -> list[Path]:
    """The files in the repository and those that `git add` would take, without binary ones."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    files = [ROOT / name for name in names if name]
    return [file for file in files if file.is_file() and b"\0" not in file.read_bytes()]


def python_files(*folders: str) -> list[Path]:
    wanted = [ROOT / folder for folder in folders]
    return [
        file
        for file in repository_files()
        if file.suffix == ".py" and any(file.is_relative_to(folder) for folder in wanted)
    ]


def long_functions(source: str) -> list[str]:
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]


def imported(source: str, *, when_loaded: bool) -> set[str]:
    """The modules that the source imports, by dotted name: all, or only those imported when it is loaded."""
    return {name for node in _nodes(ast.parse(source), when_loaded=when_loaded) for name in _names(node)}


def _nodes(node: ast.AST, *, when_loaded: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if when_loaded and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        yield child
        yield from _nodes(child, when_loaded=when_loaded)


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return [node.module or ""]
    return []


def foreign_to_protocol(source: str) -> set[str]:
    """What the protocol may not import: libraries, other packages of ours, and impure standard modules."""
    allowed = set(sys.stdlib_module_names) - IMPURE_MODULES
    names = imported(source, when_loaded=False)
    return {name for name in names if name.split(".")[0] not in allowed and not _is_in_protocol(name)}


def _is_in_protocol(name: str) -> bool:
    return f"{name}.".startswith("sinkruntime.protocol.")


def extras_when_loaded(source: str) -> set[str]:
    """Libraries of extras that loading this source would import."""
    allowed = set(sys.stdlib_module_names) | BASE_LIBRARIES | {"sinkruntime"}
    return {name for name in imported(source, when_loaded=True) if name.split(".")[0] not in allowed}


def relative(files: list[Path]) -> list[str]:
    return [str(file.relative_to(ROOT)) for file in files]


def test_the_operator_folder_never_becomes_a_package() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists(), "it would shadow the standard library's operator"


def test_no_function_is_longer_than_the_limit() -> None:
    found = {str(file.relative_to(ROOT)): long_functions(file.read_text()) for file in python_files(".")}
    assert {file: names for file, names in found.items() if names} == {}


def test_no_source_file_is_longer_than_the_limit() -> None:
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in python_files(".")}
    assert {file: lines for file, lines in lengths.items() if lines > FILE_LINES_MAX} == {}


def test_the_protocol_imports_only_pure_modules_of_the_standard_library() -> None:
    found = {file.name: foreign_to_protocol(file.read_text()) for file in python_files("sinkruntime/protocol")}
    assert {file: names for file, names in found.items() if names} == {}


def test_loading_the_runtime_imports_no_library_of_an_extra() -> None:
    # What is inside a sink is loaded when it is opened, as the next test shows.
    lazy = [ROOT / "sinkruntime" / "spark", ROOT / "sinkruntime" / "sinks"]
    files = [file for file in python_files("sinkruntime") if not any(file.is_relative_to(folder) for folder in lazy)]
    found = {str(file.relative_to(ROOT)): extras_when_loaded(file.read_text()) for file in files}
    assert {file: names for file, names in found.items() if names} == {}


def test_every_sink_is_loaded_and_described_without_the_library_of_its_target() -> None:
    command = [sys.executable, "-c", LOAD_SINKS, *sorted(EXTRA_LIBRARIES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(list((ROOT / "sinkruntime" / "sinks").glob("[!_]*")))


def test_no_file_names_a_machine_or_a_package_index() -> None:
    texts = {file: file.read_text() for file in repository_files() if file != Path(__file__).resolve()}
    assert relative([file for file, text in texts.items() if MACHINE_PATH.search(text)]) == []
    assert relative([file for file, text in texts.items() if PACKAGE_INDEX.search(text)]) == []


def test_requirements_name_no_host() -> None:
    files = sorted((ROOT / "requirements").glob("*.txt"))
    assert len(files) >= 3
    assert relative([file for file in files if URL.search(file.read_text())]) == []


@pytest.mark.parametrize(
    "source", ["import pyarrow", "import time", "from sinkruntime import api", "def f():\n  import os.path"]
)
def test_the_protocol_check_finds_what_is_forbidden(source: str) -> None:
    assert foreign_to_protocol(source) != set()


def test_the_protocol_check_passes_what_is_allowed() -> None:
    source = "import json\nfrom sinkruntime.protocol import events\nfrom sinkruntime.protocol.events import Decide"
    assert foreign_to_protocol(source) == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import boto3", {"boto3"}),
        ("try:\n  import fastavro.schema\nexcept ImportError: ...", {"fastavro.schema"}),
        ("class A:\n  import boto3", {"boto3"}),
        ("def f():\n  import boto3", set()),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import boto3", set()),
        ("import os, yaml\nimport pyarrow.parquet", set()),
    ],
)
def test_the_extras_check_sees_only_what_loading_imports(source: str, found: set[str]) -> None:
    assert extras_when_loaded(source) == found


@pytest.mark.parametrize("lines", [FUNCTION_LINES_MAX, FUNCTION_LINES_MAX + 1])
def test_the_length_check_counts_the_whole_function(lines: int) -> None:
    source = "def f():\n" + "    pass\n" * (lines - 1)
    assert long_functions(source) == (["f"] if lines > FUNCTION_LINES_MAX else [])


@pytest.mark.parametrize("text", ["see /work/x", "'/root/.cache/y'", "file:///home/ann/x"])
def test_the_machine_path_check_finds_paths(text: str) -> None:
    assert MACHINE_PATH.search(text)


@pytest.mark.parametrize("text", ["--index-url x", "pip --find-links=y", "https://example.org/simple/"])
def test_the_package_index_check_finds_indexes(text: str) -> None:
    assert PACKAGE_INDEX.search(text)


@pytest.mark.parametrize("text", ["../work/x", "$HOME/work/", "https://example.org/work/", "/opt/spark/work-dir"])
def test_the_machine_path_check_passes_others(text: str) -> None:
    assert not MACHINE_PATH.search(text)
