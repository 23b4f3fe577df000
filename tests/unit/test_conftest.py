"""The rules of `tests/conftest.py`, seen from a test run of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SKIPS = """
import pytest
def test_that_skips() -> None:
    pytest.skip({reason!r})
"""
SKIPPED_MODULE = """
import pytest
pytest.skip("missing server: none", allow_module_level=True)
"""
SLEEPS = """
import time, pytest
@pytest.mark.timeout(0.2)
def test_that_sleeps() -> None:
    time.sleep(20)
"""


def run_pytest(folder: Path, source: str, ci: str) -> subprocess.CompletedProcess[str]:
    """Runs one test file elsewhere under our conftest.py; `ci` is the value of CI."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_sample.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", "pytest.ini"]
    environment = os.environ | {"CI": ci, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*command, "test_sample.py"],
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=25,
    )


@pytest.mark.parametrize("source", [SKIPS.format(reason="missing server: none"), SKIPPED_MODULE])
def test_a_skip_fails_in_ci_and_only_there(tmp_path: Path, source: str) -> None:
    in_ci = run_pytest(tmp_path, source, "true")
    assert in_ci.returncode in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED), in_ci.stdout
    assert "skipped in CI, where nothing may be missing" in in_ci.stdout
    assert "1 skipped" in run_pytest(tmp_path, source, "").stdout


def test_a_skip_by_design_passes_in_ci(tmp_path: Path) -> None:
    assert "1 skipped" in run_pytest(tmp_path, SKIPS.format(reason="by design: one system only"), "true").stdout


def test_a_test_that_hangs_is_ended(tmp_path: Path) -> None:
    assert "Timeout (>0.2s)" in run_pytest(tmp_path, SLEEPS, "").stdout
