"""The commands as users type them: usage errors are one sentence and exit 4, and every way of launching ends well."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from refimpl import loading
from refimpl.case import Case
from refimpl.options import FILE_OPTIONS, refuse_empty
from tests.processes import processes_with, wait_until_gone

ROOT = Path(__file__).resolve().parents[1]
QUICK = "properties/test_token_parity.py"
WRONG = "tests.mutants.ties:last_column_wins_ties"


def environment() -> dict[str, str]:
    """Ours, less what a surrounding pytest or torchrun put there."""
    dropped = ("PYTEST_", "TORCHELASTIC", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "GITHUB_")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def run(
    *arguments: str, cwd: Path = ROOT, timeout: float = 240, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        cwd=cwd,
        env=environment() if env is None else env,
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def pytest_run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "pytest", *arguments, cwd=cwd)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def torchrun(processes: int, *arguments: str, **more: str) -> list[str]:
    options = {"nproc-per-node": str(processes), "master-port": str(free_port()), **more}
    flags = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "torch.distributed.run", *flags, "-m", "pytest", *arguments]


def sentences(result: subprocess.CompletedProcess[str]) -> list[str]:
    """The error lines of a run; a traceback counts as many."""
    text = result.stdout + result.stderr
    assert "Traceback" not in text and "INTERNALERROR" not in text, text
    return [line for line in text.splitlines() if line.startswith("ERROR: ")]


USAGE_ERRORS = {
    "a path without a colon": (["--path=no_such_thing"], "neither package.module:name nor file.py:name"),
    "a module that is not there": (["--path=no.such.module:path"], "No module named 'no'"),
    "a name that is not there": (["--path=refimpl.paths.full_gather:other"], "has no attribute 'other'"),
    "a file that is not there": (["--path=missing.py:path"], "does not exist"),
    "a path that is no callable": (["--path=refimpl:__version__"], "a path is a callable"),
    "a path of another signature": (["--path=refimpl.oracle:oracle_tokens"], "give it these four positional"),
    "tp that is no number": (["--tp=two"], "give whole numbers"),
    "tp of zero": (["--tp=0,2"], "from 1 to 64"),
    "an unknown backend": (["--backend=mpi"], "choose one of auto, nccl and gloo"),
    "nccl without a GPU": (["--backend=nccl"], "needs a GPU"),
    "a time that is none": (["--rank-timeout=soon"], "give seconds"),
    "a name that no system takes": ([f"--path={'a' * 300}.py:path"], "names a file that does not exist"),
    "a head's name that no system takes": ([f"--head={'a' * 300}.py:head"], "names a file that does not exist"),
    "a folder's name that no system takes": ([f"--checkpoint={'a' * 300}"], "does not exist; give the folder"),
    "two sizes with an underscore": (["--tp=1_0"], "give whole numbers"),
    "a digit of another script": (["--tp=\uff12"], "give whole numbers"),
    "an option twice": (["--rank-timeout=3", "--rank-timeout=4"], "--rank-timeout is given 2 times"),
    "two checkpoints": (["--checkpoint=a", "--checkpoint", "b"], "--checkpoint is given 2 times"),
    "a negative time": (["--rank-timeout=-3"], "give seconds"),
    "a setup time that is none": (["--setup-timeout=0"], "such as --setup-timeout=30"),
    "an unknown profile": (["--hypothesis-profile=weekly"], "choose one of dev, ci, nightly"),
    "a list that is not there": (["--known-divergences=missing.txt"], "(No such file or directory); give a text file"),
    "a list that is no text": (["--known-divergences=fixtures/logits/minilm-l6-v2.safetensors"], "it is no text"),
    "an empty value": (["--checkpoint="], "--checkpoint= is empty: give a file or folder"),
    "a file without a name in it": (["--path=conftest.py"], "give it as conftest.py:name"),
    "logits that are not there": (["--logits=missing.safetensors"], "--logits=missing.safetensors"),
    "a result of int32": (["--path=tests.mutants.contract:result_in_int32"], "returned int32"),
}


@pytest.mark.parametrize("what", USAGE_ERRORS)
def test_wrong_usage_is_one_sentence_and_exit_4(what: str) -> None:
    arguments, said = USAGE_ERRORS[what]
    result = pytest_run(QUICK, *arguments)
    errors = sentences(result)
    assert result.returncode == 4, result.stdout + result.stderr
    assert len(errors) == 1 and said in errors[0]


@pytest.mark.parametrize("option", FILE_OPTIONS)
def test_an_empty_value_is_no_file(option: str, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytestconfig.option, option.removeprefix("--").replace("-", "_"), "")
    with pytest.raises(pytest.UsageError, match=f"{option}= is empty"):
        refuse_empty(pytestconfig)


def test_an_unknown_flag_is_told_by_pytest() -> None:
    result = pytest_run(QUICK, "--no-such-flag")
    assert result.returncode == 4 and "unrecognized arguments: --no-such-flag" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tp=3"], "tp_size 3 is over WORLD_SIZE 2"),
        (["-n", "2"], "-n under torchrun"),
        (["--path", "no.such.module:path"], "No module named 'no'"),
        (["--no-such-flag"], "unrecognized arguments"),
    ],
)
def test_wrong_usage_under_torchrun_is_said_once_and_ends(arguments: list[str], said: str) -> None:
    result = run(*torchrun(2, QUICK, *arguments), timeout=120)
    ours = (result.stdout + result.stderr).split("torch/distributed/elastic")[0]
    assert result.returncode == 1
    assert ours.count(said) == 1 and "Traceback" not in ours


def test_a_slow_first_rank_still_says_what_is_wrong(tmp_path: Path) -> None:
    """Every rank finds the wrong flag; torchrun ends all of them with the first that does."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\nif os.environ.get('RANK') == '0':\n    time.sleep(4)\n"
    )
    extended = {**environment(), "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    result = run(*torchrun(2, QUICK, "--no-such-flag"), timeout=120, env=extended)
    assert result.returncode == 1 and "unrecognized arguments: --no-such-flag" in result.stderr


def test_restarts_are_refused() -> None:
    result = run(*torchrun(2, QUICK, **{"max-restarts": "2"}), timeout=120)
    assert result.returncode == 1 and "--max-restarts would run a red suite again" in result.stderr + result.stdout


@pytest.mark.parametrize("spelling", ["--logits={}", "--logits {}", "--known-divergences={}", "--known-divergences {}"])
@pytest.mark.parametrize("position", ["before", "after"])
def test_a_folder_named_by_an_option_is_data(spelling: str, position: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    marker = tmp_path / "executed"
    (folder / "conftest.py").write_text(f"open({str(marker)!r}, 'w')\n")
    (folder / "test_nothing.py").write_text(f"open({str(marker)!r}, 'w')\n")
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--tp=adopted'\n")
    option = spelling.format(folder).split(" ")
    result = pytest_run(*([*option, QUICK] if position == "before" else [QUICK, *option]))
    assert result.returncode == 4, result.stdout + result.stderr
    assert not marker.exists()
    [error] = sentences(result)
    assert str(folder) in error and "adopted" not in error


def test_the_main_job_from_another_folder_and_in_both_spellings(tmp_path: Path) -> None:
    result = pytest_run(str(ROOT / QUICK), "--path", "gather_pairs", "--tp", "2", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "gather_pairs against full_gather" in result.stdout


def test_help_and_collection_need_no_ranks() -> None:
    result = pytest_run("--help", "properties/")
    assert result.returncode == 0 and "--rank-timeout=SECONDS" in result.stdout
    result = pytest_run("--collect-only", "-q", QUICK)
    assert result.returncode == 0 and "test_token_parity.py::" in result.stdout


@pytest.mark.parametrize("launch", ["alone", "torchrun", "xdist"])
def test_a_red_run_says_so_by_every_launch(launch: str, tmp_path: Path) -> None:
    arguments = ["properties/test_tie_rule.py", f"--path={WRONG}"]
    if launch == "torchrun":
        result = run(*torchrun(2, *arguments))
    else:
        result = pytest_run(*arguments, "--tp=2", *(["-n", "2"] if launch == "xdist" else []))
    text = result.stdout
    assert result.returncode == 1, text + result.stderr
    assert "wrong-tie" in text and "INTERNALERROR" not in text
    case = re.search(r"argmax-parity replay (\S+)", text)
    assert case is not None
    file = ROOT / case[1]
    document = json.loads(file.read_text())
    assert document["kind"] == "wrong-tie" and document["path"] == WRONG


def test_replay_says_fixed_still_fails_or_could_not_run(tmp_path: Path) -> None:
    pytest_run("properties/test_tie_rule.py", f"--path={WRONG}", "--tp=2")
    file = max((ROOT / ".argmax-parity/cases").glob("wrong-tie-*.json"), key=lambda entry: entry.stat().st_mtime)
    replay = [sys.executable, "-m", "refimpl.cli", "replay"]
    still = run(*replay, str(file))
    assert still.returncode == 1 and still.stdout.startswith("still fails")
    fixed = run(*replay, str(file), "--path=gather_pairs")
    assert fixed.returncode == 0 and fixed.stdout.startswith("fixed")
    broken = tmp_path / "case.json"
    broken.write_text(file.read_text()[:-30])
    odd = tmp_path / "odd.json"
    odd.write_text(file.read_text().replace('"backend": "gloo"', '"backend": "mpi"'))
    unknown = tmp_path / "unknown.json"
    unknown.write_text(file.read_text().replace('"kind": "wrong-tie"', '"kind": "bogus"'))
    wrong = [[str(tmp_path / "missing.json")], [str(file), "--path=no.such:path"], [], [str(tmp_path)], [str(odd)]]
    wrong += [[str(file), f"--rank-timeout={seconds}"] for seconds in ("0", "-1", "nan", "soon")]
    wrong += [[str(file), "--setup-timeout=never"], [str(file), f"--path={'a' * 300}.py:path"]]
    for arguments in [[str(broken)], [str(unknown)], *wrong]:
        result = run(*replay, *arguments)
        assert result.returncode == 4 and "Traceback" not in result.stderr
    assert "could not run" in run(*replay, str(broken)).stderr


def test_ids_are_listed_for_the_paths_and_sizes_asked_for() -> None:
    listed = pytest_run(QUICK, "--collect-only", "-q", "--path=some.module:mine", "--tp=2,3")
    ids = [line for line in listed.stdout.splitlines() if "::" in line]
    assert listed.returncode == 0 and ids
    assert {name.rpartition("[")[2] for name in ids} == {"some.module:mine-tp2]", "some.module:mine-tp3]"}
    listed = pytest_run(QUICK, "--collect-only", "-q", "--path=own")  # a group word, as in a run
    ids = [line for line in listed.stdout.splitlines() if "::" in line]
    assert {name.rpartition("[")[2] for name in ids} == {f"{path}-tp2]" for path in loading.SHIPPED_PATHS}


def test_two_agents_on_one_machine_green_and_red() -> None:
    for path, expected in (("reduce_max_key", 0), (WRONG, 1)):
        endpoint = f"127.0.0.1:{free_port()}"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d",
            f"--rdzv-endpoint={endpoint}", "--rdzv-id=argmax-parity", "-m", "pytest", "properties/test_tie_rule.py",
            f"--path={path}",
        ]  # fmt: skip
        agents = [
            subprocess.Popen(
                command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            for _ in range(2)
        ]
        outputs = [agent.communicate(timeout=240)[0] for agent in agents]
        assert [agent.returncode for agent in agents] == [expected, expected], "\n".join(outputs)
        assert sum("argmax parity" in output for output in outputs) == 1


def test_known_divergences_belong_to_the_adopter(tmp_path: Path) -> None:
    file = tmp_path / "known.txt"
    file.write_text(
        "# what we live with\n\nproperties/test_tie_rule.py::test_within_a_shard  # our kernel keeps the last\n"
        "properties/test_tie_rule.py::no_such_test  # long gone\n"
    )
    result = pytest_run("properties/test_tie_rule.py", f"--path={WRONG}", "--tp=2", f"--known-divergences={file}")
    assert "no_such_test matches no test of this run" in result.stdout
    assert "1 xfailed" in result.stdout
    result = pytest_run("properties/test_tie_rule.py", "--path=gather_pairs", "--tp=2", f"--known-divergences={file}")
    assert result.returncode == 0 and "no longer fails" in result.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_says_how_to_run_its_case_again(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "sleeper.py"
    path.write_text(
        "import time\nfrom pathlib import Path\nfrom refimpl.paths.gather_pairs import gather_pairs\n\n"
        "def sleeper(local_logits, shard, group, d2t=None):\n"
        "    if local_logits.shape[0] > 2:  # not the plain call before the properties\n"
        f"        Path({str(tmp_path / 'asleep')!r}).touch()\n        time.sleep(600)\n"
        "    return gather_pairs(local_logits, shard, group, d2t)\n"
    )
    options = ["properties/test_tie_rule.py", f"--path={path}:sleeper", "--tp=2", "--rank-timeout=500"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - background jobs of a shell ignore it
    )
    deadline = time.monotonic() + 90
    while not (tmp_path / "asleep").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    [file] = re.findall(r"interrupted at a case, to run it again: argmax-parity replay (\S+)", said)
    case, note = Case.load(ROOT / file)
    assert case.tp_size == 2 and note["path"] == f"{path}:sleeper"
    again = run(sys.executable, "-m", "refimpl.cli", "replay", file, "--path=gather_pairs")
    assert again.returncode == 0 and again.stdout.startswith("holds: gather_pairs")  # it had not failed


def test_a_run_that_is_killed_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen(
            torchrun(2, "properties/", "--hypothesis-profile=ci"),
            cwd=ROOT,
            env={**environment(), "TMPDIR": str(tmp_path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 90
        while len(processes_with(tmp_path)) < 7:  # torchrun, two ranks, two supervisors, two executors
            assert time.monotonic() < deadline
            time.sleep(0.2)
        if number is signal.SIGKILL:
            for member in processes_with(tmp_path):
                if "pytest" in " ".join(member.cmdline()):  # torchrun and its ranks; their supervisors are on their own
                    member.kill()
        else:
            process.send_signal(number)
        process.wait(60)
        wait_until_gone(tmp_path, 40)
        assert not list(tmp_path.glob("argmax-parity-*"))
