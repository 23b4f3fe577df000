"""Files and code that a manifest names are looked for before it runs, and nothing of them is executed."""

from pathlib import Path

import pytest

from sinkruntime.spec.load import parse_manifest
from sinkruntime.spec.surroundings import missing

MANIFEST = """\
apiVersion: sinkjob.io/v1alpha1
kind: SinkJob
metadata: {name: flights}
spec:
  deps: {pyFiles: [code], jars: [a.jar]}
  source: {format: csv, path: data, schema: a INT}
  transform:
  - python: steps.clean:tidy
  - python: helpers:shape
  sinks:
  - {name: a, type: console}
"""
TIDY = "import os\nfrom math import floor\nLIMIT = 3\ndef tidy(df):\n    return df\n"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for name, text in {
        "data/1.csv": "1",
        "a.jar": "",
        "code/helpers.py": "def shape(df): return df",
        "steps/__init__.py": "raise SystemExit('was run')",
        "steps/clean.py": TIDY,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def reported(base: Path, old: str = "", new: str = "") -> str:
    assert old in MANIFEST
    manifest = parse_manifest(MANIFEST.replace(old, new), "job.yaml", base)
    return "\n".join(problem.text("job.yaml") for problem in missing(manifest))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("path: data", "path: data/*.csv"),
        ("path: data", "path: s3a://bucket/data"),
        ("jars: [a.jar]", "jars: [https://host/a.jar]"),
        ("clean:tidy", "clean:floor"),
        ("steps.clean:tidy", "json:loads"),
        ("source: {format: csv, path: data, schema: a INT}", "source: {format: rate}"),
    ],
)
def test_what_is_there_or_cannot_be_looked_for_is_not_reported(base: Path, old: str, new: str) -> None:
    assert reported(base, old, new) == ""


def test_files_that_are_missing_are_named_all_at_once(base: Path) -> None:
    (base / "a.jar").unlink()
    assert reported(base, "path: data", "path: dta").splitlines() == [
        f"job.yaml:5: spec.deps.jars[0]: there is no file or directory {base}/a.jar",
        f"job.yaml:6: spec.source.path: there is no file or directory {base}/dta",
    ]


def test_a_module_that_is_missing_is_named(base: Path) -> None:
    searched = "the manifest's directory and spec.deps.pyFiles are searched"
    for module in ("nowhere", "steps.nowhere", "steps.clean.nowhere"):
        said = reported(base, "steps.clean:tidy", f"{module}:tidy")
        assert said == f"job.yaml:8: spec.transform[0].python: there is no module `{module}`; {searched}"


def test_a_function_that_is_missing_is_named_with_a_near_one(base: Path) -> None:
    assert reported(base, "clean:tidy", "clean:tdy") == (
        "job.yaml:8: spec.transform[0].python: the module `steps.clean` has no `tdy`; did you mean `tidy`?"
    )


@pytest.mark.parametrize("code", ["def", "if True:\n    def tdy(df): ...\n", "from math import *\n", "tdy = 1\n"])
def test_a_module_whose_names_reading_does_not_tell_is_left_to_the_start(base: Path, code: str) -> None:
    (base / "steps/clean.py").write_text(code, encoding="utf-8")
    assert reported(base, "clean:tidy", "clean:tdy") == ""
