"""The Markdown that a nightly run leaves: red must look red, whatever way the run ended."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / ".github" / "nightly_summary.py"

PASSED = '<testcase classname="properties.test_tie_rule" name="test_ties[gather_pairs-tp2]" time="1.5"/>'
SKIPPED = '<testcase classname="properties.test_d2t" name="test_table"><skipped message="refused"/></testcase>'
FAILED = (
    '<testcase classname="properties.test_padding" name="test_poison[a&lt;b]"><failure message="x">wrong token\n'
    "```\nnot the end\n```</failure></testcase>"
)
UNKNOWN = (
    '<testcase classname="properties.test_padding" name="test_other"><failure message="x">UNKNOWN: no ranks</failure>'
    "</testcase>"
)
ERROR = '<testcase classname="" name="properties.test_d2t"><error message="x">ImportError</error></testcase>'


@pytest.fixture(scope="module")
def summary() -> ModuleType:
    spec = importlib.util.spec_from_file_location("nightly_summary", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for the annotations of their fields
    spec.loader.exec_module(module)
    return module


def junit(file: Path, *cases: str) -> Path:
    file.write_text(f'<testsuites><testsuite name="pytest" time="90">{"".join(cases)}</testsuite></testsuites>')
    return file


def run(summary: ModuleType, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    status = summary.main([str(argument) for argument in arguments])
    return status, capsys.readouterr().out


def test_green(summary: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run(summary, capsys, junit(tmp_path / "tp2.xml", PASSED, SKIPPED))
    assert status == 0
    assert text.startswith("### tp2: green\n")
    assert "| 2 | 1 | 0 | 0 | 1 | 1.5 |" in text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('<?xml version="1.0" encoding="nosuch"?><testsuites/>', "cannot be read (unknown encoding"),
        ("<html><testcase/></html>", "it begins with <html>, not with <testsuites>"),
        (None, "it is no regular file"),
    ],
)
def test_what_is_no_junit_file_is_red(
    summary: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, said: str
) -> None:
    file = tmp_path / "tp2.xml"
    if content is None:
        os.mkfifo(file)
        os.mkfifo(file.with_suffix(".log"))
    else:
        file.write_text(content)
    status, text = run(summary, capsys, file)
    assert status == 1 and text.startswith("### tp2: red: ") and said in text
    assert run(summary, capsys, tmp_path)[0] == run(summary, capsys, ".")[0] == 1


def test_a_test_counts_once_however_it_ended(
    summary: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = '<testcase name="a"><failure>x</failure><error>y</error><skipped/></testcase>'
    file = junit(tmp_path / "tp2.xml", case, PASSED, SKIPPED)
    file.write_text(file.read_text().replace('time="90"', 'time="nan"'))
    assert "| 3 | 1 | 1 | 1 | 1 | 0.0 |" in run(summary, capsys, file)[1]


def test_failed_and_unknown_are_told_apart(
    summary: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = run(
        summary, capsys, junit(tmp_path / "tp2.xml", PASSED, FAILED, UNKNOWN, ERROR), "--outcome=failure"
    )
    assert status == 1
    assert text.startswith("### tp2: red: 1 failed, 2 unknown\n")
    assert "| 4 | 1 | 1 | 2 | 0 | 1.5 |" in text
    assert "test_poison[a&lt;b]</code>" in text
    fence = re.search(r"(`{4,})text\nwrong token\n```\nnot the end\n```\n(`+)\n", text)
    assert fence is not None
    assert fence[1] == fence[2]


@pytest.mark.parametrize(
    ("content", "outcome", "said"),
    [
        (None, "failure", "no JUnit file"),
        ("<testsuites><testsuite", "failure", "cannot be read"),
        ('<testsuites><testsuite name="pytest" time="0"/></testsuites>', "success", "no test ran"),
        (f'<testsuites><testsuite name="pytest" time="0">{SKIPPED}</testsuite></testsuites>', "success", "skipped"),
        (
            f'<testsuites><testsuite name="pytest" time="9">{PASSED}</testsuite></testsuites>',
            "failure",
            "after 1 tests",
        ),
        (f'<testsuites><testsuite name="pytest" time="9">{PASSED}</testsuite></testsuites>', "cancelled", "cancelled"),
    ],
    ids=["no-file", "half-a-file", "nothing-ran", "all-skipped", "failed-without-a-failure", "cancelled"],
)
def test_red_without_a_failing_test(
    summary: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    outcome: str,
    said: str,
) -> None:
    file = tmp_path / "tp2.xml"
    if content is not None:
        file.write_text(content)
    status, text = run(summary, capsys, file, f"--outcome={outcome}")
    assert status == 1
    assert re.match(rf"### tp2: red: .*{said}", text)


def test_the_numbers_come_from_the_log(summary: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = junit(tmp_path / "tp2.xml", PASSED)
    (tmp_path / "tp2.log").write_text(
        "a banner\n=== FAILURES ===\nno\n===== argmax parity =====\npath  tp\ngather_pairs  2\n=== 1 passed in 2s ===\n"
    )
    _, text = run(summary, capsys, file)
    assert "```text\npath  tp\ngather_pairs  2\n```" in text


def test_long_failures_are_cut_whole(summary: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [f'<testcase name="test_{i}"><failure>{"x" * 5000}</failure></testcase>' for i in range(6)]
    status, text = run(summary, capsys, junit(tmp_path / "tp2.xml", *cases), "--limit=7000")
    assert status == 1
    assert len(text) < 7100
    assert text.count("<details>") == text.count("</details>") == 2
    assert "… and 4 more" in text


def test_runs_as_a_script_with_nothing_installed(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", str(SCRIPT), str(tmp_path / "none.xml")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout.startswith("### none: red: no JUnit file")
