"""The rank runtime: whatever a path does to its ranks is an outcome of that case, and nothing is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from refimpl import bits
from refimpl.case import Call, Case
from refimpl.ranks.backend import choose
from refimpl.ranks.generations import PathUnusable, RanksUnavailable, Spec
from refimpl.ranks.outcome import REFERENCE_SECONDS, Died, Run, Stuck, never_answers
from refimpl.ranks.runtime import Ranks
from refimpl.verdict.judge import judge
from refimpl.vocab.layouts import even_layout, layout_from_sizes
from tests.processes import processes_with, wait_until_gone

LIMIT = 2.0

FAULTY_PATHS = textwrap.dedent(
    """
    import ctypes, os, signal, sys, threading, time
    import torch
    import torch.distributed as dist
    from refimpl.contract import UnsupportedInput
    from refimpl.paths.gather_pairs import gather_pairs as right

    def raises(logits, shard, group, d2t=None):
        raise ValueError("boom")

    def one_raises(logits, shard, group, d2t=None):
        if shard.tp_rank == 1:
            raise ValueError("boom")
        return right(logits, shard, group, d2t)

    def exits(logits, shard, group, d2t=None):
        sys.exit(3)

    def dies(logits, shard, group, d2t=None):
        if shard.tp_rank == 0:
            os.kill(os.getpid(), signal.SIGFPE)
        return right(logits, shard, group, d2t)

    def reads_nowhere(logits, shard, group, d2t=None):
        ctypes.string_at(0)

    def leaves(logits, shard, group, d2t=None):
        os._exit(0)

    def sleeps(logits, shard, group, d2t=None):
        while shard.tp_rank == 0:
            time.sleep(1)
        return right(logits, shard, group, d2t)

    def stops(logits, shard, group, d2t=None):
        if shard.tp_rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        return right(logits, shard, group, d2t)

    def one_collective_more(logits, shard, group, d2t=None):
        tokens = right(logits, shard, group, d2t)
        if shard.tp_rank == 0:
            dist.all_reduce(torch.ones(4), group=group, async_op=True)
        return tokens

    def refuses(logits, shard, group, d2t=None):
        raise UnsupportedInput("not this one")

    def one_refuses(logits, shard, group, d2t=None):
        if shard.tp_rank == 0:
            raise UnsupportedInput("not this one")
        return right(logits, shard, group, d2t)

    def starts_a_child(logits, shard, group, d2t=None):
        import subprocess
        child = subprocess.Popen(["sleep", "1000"])
        raise RuntimeError(f"child {child.pid}")

    def starts_a_session(logits, shard, group, d2t=None):
        import subprocess
        words = "sleep 1000 & echo $!; wait"
        child = subprocess.Popen(["sh", "-c", words], stdout=subprocess.PIPE, start_new_session=True)
        raise RuntimeError(f"child {child.pid} and {int(child.stdout.readline())}")

    def waits_deep_down(logits, shard, group, d2t=None, depth=90):
        if shard.tp_rank == 1:
            return right(logits, shard, group, d2t)
        if depth:
            return waits_deep_down(logits, shard, group, d2t, depth - 1)
        return innermost(group)

    def breaks_the_suite(logits, shard, group, d2t=None):
        from refimpl.ranks import executor
        if shard.tp_rank == 0 and len(logits) == 1:
            executor.full_gather = None
        return right(logits, shard, group, d2t)

    def innermost(group):
        dist.barrier(group=group)
        dist.barrier(group=group)

    def talks_and_waits_deep_down(logits, shard, group, d2t=None):
        print("words " * 1000, flush=True)
        return waits_deep_down(logits, shard, group, d2t)

    def ignores_sigterm(logits, shard, group, d2t=None):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        threading.Thread(target=time.sleep, args=(1000,)).start()
        return right(logits, shard, group, d2t)

    def talks(logits, shard, group, d2t=None):
        print("to standard output"); print("to standard error", file=sys.stderr)
        return right(logits, shard, group, d2t)

    def reads_input(logits, shard, group, d2t=None):
        sys.stdin.read()
        return right(logits, shard, group, d2t)
    """
)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("paths") / "faulty.py"
    file.write_text(FAULTY_PATHS)
    return str(file)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(backend="gloo", limit=LIMIT) as ranks:
        yield ranks


def a_case(tp_size: int = 2, batch: int = 16) -> Case:
    rng = np.random.default_rng(0)
    logits = rng.choice(bits.landmarks("bfloat16"), (batch, 9))
    return Case((Call(even_layout(9, tp_size), "bfloat16", logits, (0x7FC0, 0x7F80)),))


def identities(case: Case, run: Run) -> set[str]:
    return {finding.identity for finding in judge(case, run).findings}


@pytest.mark.parametrize("path", ["full_gather", "gather_pairs", "reduce_max_key", "target_tie_break"])
@pytest.mark.parametrize("tp_size", [1, 2, 3, 4, 5])
def test_right_paths_hold(ranks: Ranks, path: str, tp_size: int) -> None:
    case = a_case(tp_size, batch=64)
    judgement = judge(case, ranks.run(case, path))
    assert judgement.holds and judgement.tally.rows == 64
    ranks.retire()


@pytest.mark.parametrize(
    ("path", "identity"),
    [
        ("raises", "raised:ValueError"),
        ("one_raises", "raised-on-some-ranks:ValueError"),
        ("exits", "raised:SystemExit"),
        ("dies", "died:SIGFPE"),
        ("reads_nowhere", "died:SIGSEGV"),
        ("leaves", "died:exit status 0"),
        ("sleeps", "hang"),
        ("stops", "hang"),
        ("one_collective_more", "collective-mismatch"),
        ("one_refuses", "refused-on-some-ranks"),
    ],
)
@pytest.mark.parametrize("tp_size", [2, 3])
def test_a_fault_is_an_outcome_and_the_next_case_runs(
    ranks: Ranks, faulty: str, path: str, identity: str, tp_size: int
) -> None:
    case = a_case(tp_size)
    assert identities(case, ranks.run(case, f"{faulty}:{path}")) == {identity}
    assert identities(case, ranks.run(case, "gather_pairs")) == set()
    ranks.retire()


def test_after_a_death_the_ranks_are_back_within_a_second(ranks: Ranks, faulty: str) -> None:
    case = a_case(4)
    ranks.run(case, f"{faulty}:talks")
    ranks.run(case, f"{faulty}:dies")
    noticed = time.monotonic()
    assert ranks.run(case, "reduce_max_key").complete
    # The limit promised to users; on an idle machine it takes a tenth of this.
    assert time.monotonic() - noticed < 1.0


def test_a_stuck_rank_says_where(ranks: Ranks, faulty: str) -> None:
    run = ranks.run(a_case(), f"{faulty}:sleeps", limit=0.3)
    first, second = run.ranks[0].end, run.ranks[1].end
    assert isinstance(first, Stuck) and first.where.endswith("in sleeps")
    assert isinstance(second, Stuck) and second.in_collective
    assert "gather_pairs" in second.where


@pytest.mark.parametrize("path", ["waits_deep_down", "talks_and_waits_deep_down"])
def test_a_deep_stack_is_told_from_its_innermost_line(ranks: Ranks, faulty: str, path: str) -> None:
    end = ranks.run(a_case(), f"{faulty}:{path}", limit=0.5).ranks[0].end
    assert isinstance(end, Stuck) and end.in_collective
    assert end.where.endswith("in innermost"), end.where


def stack(*functions: str) -> str:
    files = {
        "wait": "torch/distributed/distributed_c10d.py",
        "my_path": "mine.py",
        "full_gather": "paths/full_gather.py",
    }
    lines = [f'  File "/x/{files.get(name, "ranks/executor.py")}", line 7 in {name}' for name in functions]
    return "Current thread 0x1 (most recent call first):\n" + "\n".join(lines) + "\n\nThread 0x2\n"


IN_PATH = Stuck(0, stack("wait", "my_path", "run_path"))
IN_REFERENCE = Stuck(0, stack("wait", "full_gather", "run_reference", "run"))
AT_WORK = Stuck(0, stack("my_path", "run_path"))


@pytest.mark.parametrize(
    ("waits", "seconds", "expected"),
    [
        ([IN_PATH], 0.1, True),
        ([IN_PATH, IN_REFERENCE], 0.1, False),  # it may only be late, as it is on a busy machine
        ([IN_REFERENCE], REFERENCE_SECONDS, True),
        ([IN_PATH, AT_WORK], 60.0, False),
        ([Stuck(0, "")], 60.0, False),
    ],
)
def test_who_waits_for_good_after_another_rank_failed(waits: list[Stuck], seconds: float, expected: bool) -> None:
    assert never_answers(waits, seconds) is expected


def test_a_wait_in_the_reference_is_told_as_such() -> None:
    assert IN_REFERENCE.where == "the reference's collectives: another rank did not reach them"
    assert IN_PATH.where == "x/mine.py:7 in my_path"


def test_ranks_on_which_the_suite_itself_failed_are_replaced(ranks: Ranks, faulty: str) -> None:
    """The others still wait for the one that failed, and what they say later is of no other case."""
    path, case = f"{faulty}:breaks_the_suite", a_case()
    with pytest.raises(RanksUnavailable, match="the suite's own code failed on rank 0"):
        ranks.run(Case((case.calls[0].rows([0]), *case.calls)), path)
    assert judge(case, ranks.run(case, path)).holds


def test_a_death_is_told_with_its_last_words(ranks: Ranks, faulty: str) -> None:
    run = ranks.run(a_case(), f"{faulty}:reads_nowhere")
    ends = [rank.end for rank in run.ranks]
    assert any(isinstance(end, Died) and end.signal == signal.SIGSEGV for end in ends)


def test_a_refusal_by_all_is_no_failure_and_keeps_the_ranks(ranks: Ranks, faulty: str) -> None:
    case = a_case()
    started = ranks.generations_started
    for _ in range(3):
        judgement = judge(case, ranks.run(case, f"{faulty}:refuses"))
        assert judgement.holds and judgement.refused == "not this one"
    assert ranks.generations_started == started + 1


def test_what_a_path_prints_stays_off_the_report_and_input_is_empty(
    ranks: Ranks, faulty: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for path in ("talks", "reads_input"):
        assert identities(a_case(), ranks.run(a_case(), f"{faulty}:{path}")) == set()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("path", ["starts_a_child", "starts_a_session"])
def test_what_a_path_started_dies_with_its_rank(ranks: Ranks, faulty: str, path: str) -> None:
    run = ranks.run(a_case(), f"{faulty}:{path}")
    children = [int(word) for rank in run.ranks for word in rank.calls[-1].message.split() if word.isdigit()]
    assert len(children) == (2 if path == "starts_a_child" else 4)
    deadline = time.monotonic() + 5
    while any(_alive(pid) for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_every_generation_draws_other_random_numbers(ranks: Ranks, tmp_path: Path) -> None:
    file = tmp_path / "chance.py"
    file.write_text(
        "import torch\ndef path(logits, shard, group, d2t=None):\n"
        "    raise ValueError(str(torch.randint(1 << 40, (1,)).item()))\n"
    )
    drawn = {ranks.run(a_case(1), f"{file}:path").ranks[0].calls[0].message for _ in range(4)}
    assert len(drawn) == 4


def test_setup_and_teardown_and_claims(ranks: Ranks, tmp_path: Path) -> None:
    file = tmp_path / "with_setup.py"
    file.write_text(
        textwrap.dedent(
            """
            from refimpl.paths.gather_pairs import gather_pairs
            seen = []
            def path(logits, shard, group, d2t=None):
                assert seen == [(shard.tp_size, "cpu")], seen
                return gather_pairs(logits, shard, group, d2t)
            path.setup = lambda group, device: seen.append((group.size(), device.type))
            path.tie_break = "draft_id"
            def broken(logits, shard, group, d2t=None): ...
            def fail(group, device): raise RuntimeError("no workspace")
            broken.setup = fail
            """
        )
    )
    case = a_case()
    for _ in range(2):
        assert identities(case, ranks.run(case, f"{file}:path")) == set()
    assert ranks.facts(Spec(f"{file}:path", 2))["tie_break"] == "draft_id"
    with pytest.raises(PathUnusable, match=r"setup\(\) raised RuntimeError: no workspace"):
        ranks.run(case, f"{file}:broken")


def test_teardown_is_called_once_a_generation_and_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refimpl.ranks.generations._TEARDOWN_SECONDS", 1.0)
    file, told = tmp_path / "torn_down.py", tmp_path / "told"
    file.write_text(
        textwrap.dedent(
            f"""
            import time
            from refimpl.paths.gather_pairs import gather_pairs
            def made(teardown):
                def path(logits, shard, group, d2t=None): return gather_pairs(logits, shard, group, d2t)
                path.teardown = teardown
                return path
            def tells():
                with open({str(told)!r}, "a") as file: file.write("x")
            def fails(): raise OSError("no such workspace")
            quiet, raises, sleeps, exits = made(tells), made(fails), made(lambda: time.sleep(60)), made(lambda: exit(3))
            """
        )
    )
    with Ranks(backend="gloo", limit=LIMIT) as ranks:
        for _ in range(3):
            ranks.run(a_case(), f"{file}:quiet")
            ranks.retire()
        assert told.read_text() == "x" * 6 and ranks.complaints == []
        for name in ("raises", "sleeps", "exits"):
            ranks.run(a_case(), f"{file}:{name}")
            ranks.retire()
    assert [words.partition(": ")[2] for words in ranks.complaints] == [
        "teardown() raised OSError: no such workspace",
        "teardown() had not returned after 1 s",
        "teardown() raised SystemExit: 3",
    ]


def test_a_supervisor_that_does_not_start_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*args: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], stdin=subprocess.PIPE)

    monkeypatch.setattr("refimpl.ranks.runtime.start_supervisor", start)
    ranks = Ranks(backend="gloo")
    started = time.monotonic()
    try:
        with pytest.raises(RanksUnavailable, match="ended with status 3 before it joined"):
            ranks.open()
    finally:
        ranks.close(1)
    assert time.monotonic() - started < 60  # and not the time that is given to others on other machines


def test_a_supervisor_that_comes_too_late_removes_the_folder(tmp_path: Path) -> None:
    """Its run was killed while it was at its imports."""
    (tmp_path / "run").mkdir()
    orders = {"host": "127.0.0.1", "port": 9, "secret": "x", "run": "0" * 12, "folder": str(tmp_path / "run")}
    orders |= {"index": 0, "local_index": 0, "timeout": 1.0, "python_path": [], "environment": {}}
    command = [sys.executable, "-m", "refimpl.ranks.supervisor"]
    line = json.dumps(orders).encode() + b"\n"
    ended = subprocess.run(command, check=False, input=line, capture_output=True, timeout=120)
    assert ended.returncode == 1 and ended.stderr == b""
    assert not (tmp_path / "run").exists()


def test_closed_while_it_starts_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refimpl.ranks.runtime._GONE_SECONDS", 600.0)
    ranks = Ranks(backend="gloo")
    ranks.listen()
    process, folder = ranks._process, ranks._folder
    ranks.close(1)
    assert process is not None and process.returncode == -signal.SIGKILL
    assert folder is not None and not Path(folder).exists()


def test_a_setup_without_an_end_is_told_as_such(tmp_path: Path) -> None:
    file = tmp_path / "sleepy.py"
    file.write_text(
        "import time\ndef path(logits, shard, group, d2t=None): ...\npath.setup = lambda group, device: time.sleep(60)"
    )
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)")
    with Ranks(backend="gloo", limit=LIMIT, setup_limit=1.5) as ranks:
        for name, said in (
            ("sleepy", "its setup() had not returned on rank 0 after 1.5 s; --setup-timeout gives it longer"),
            ("slow", "rank 0 was still importing it after 1.5 s; --setup-timeout gives it longer"),
        ):
            with pytest.raises(PathUnusable) as raised:
                ranks.run(a_case(), f"{tmp_path / name}.py:path")
            assert str(raised.value) == said
            assert raised.value.stage == ("setup" if name == "sleepy" else "import")
        assert ranks.run(a_case(), "gather_pairs").complete


def test_a_setup_that_ends_its_rank_is_told_as_such(ranks: Ranks, tmp_path: Path) -> None:
    file = tmp_path / "leaving.py"
    file.write_text("import os\ndef path(logits, shard, group, d2t=None): ...\npath.setup = lambda *_: os._exit(3)")
    with pytest.raises(PathUnusable, match=r"ended by exit status 3 in the setup\(\) of") as raised:
        ranks.run(a_case(), f"{file}:path")
    assert raised.value.stage == "setup"


def test_a_path_that_flushes_subnormals_leaves_them_to_the_reference(ranks: Ranks, tmp_path: Path) -> None:
    """The mode is the thread's; the path alone answers for what it makes of it, at its import and at a later call."""
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor has no flush-to-zero mode")
    body = "from refimpl.paths.gather_pairs import gather_pairs\nimport torch\n"
    call = "def path(logits, shard, group, d2t=None):\n    {}\n    return gather_pairs(logits, shard, group, d2t)\n"
    (tmp_path / "at_import.py").write_text(body + "torch.set_flush_denormal(True)\n" + call.format("pass"))
    (tmp_path / "at_call.py").write_text(body + call.format("torch.set_flush_denormal(True)"))
    rising = Call(even_layout(4, 2), "float32", np.array([[0, 1, 2, 3]], np.uint32))
    case = Case((rising, rising))
    for name in ("at_import", "at_call"):
        run = ranks.run(case, f"{tmp_path / name}.py:path")
        for rank in run.ranks:
            assert [call.reference.tolist() for call in rank.calls] == [[3], [3]]
            assert [call.tokens.tolist() for call in rank.calls] == [[0], [0]]
        ranks.retire()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import torch.distributed as d; d.init_process_group('gloo')", "is given its group at each call"),
        ("def other(): ...", "has no attribute 'path'"),
        ("path = 3", "is of type int; a path is a callable"),
        ("raise RuntimeError('no licence')", "cannot be imported: RuntimeError: no licence"),
        ("def path(:", "cannot be imported: SyntaxError"),
        ("import sys; sys.exit(1)", "cannot be imported: SystemExit"),
        ("import os; os._exit(3)", "ended by exit status 3 while"),
        ("import os; os.kill(os.getpid(), 11)", "ended by SIGSEGV while"),
    ],
)
def test_a_path_that_cannot_be_loaded_is_one_sentence(ranks: Ranks, tmp_path: Path, source: str, said: str) -> None:
    file = tmp_path / "unusable.py"
    file.write_text(source)
    with pytest.raises(PathUnusable) as caught:
        ranks.run(a_case(), f"{file}:path")
    assert said in str(caught.value) and str(file) in str(caught.value)


def test_a_subgroup_of_the_world_is_the_group(ranks: Ranks) -> None:
    for bystanders in (1, 2):
        case = Case(a_case(2).calls, bystanders=bystanders)
        assert identities(case, ranks.run(case, "gather_pairs")) == set()


def test_empty_shards_and_batches(ranks: Ranks) -> None:
    rows = np.array([[0x3F80, 0x3F80, 0xFF80]], dtype=np.uint16)
    for sizes in ([0, 3], [3, 0], [1, 2]):
        call = Call(layout_from_sizes(sizes, 1), "bfloat16", rows, (0x7FC0,))
        case = Case((call, call.rows(slice(0, 0)), call))
        assert identities(case, ranks.run(case, "gather_pairs")) == set()


def test_the_backend_is_chosen_from_what_every_host_has() -> None:
    assert choose("auto", [0], 2).name == "gloo"
    assert choose("gloo", [8], 2).name == "gloo"
    assert choose("auto", [8, 0], 2).name == "gloo"
    assert choose("auto", [8], 8).name == "nccl" and not choose("auto", [8], 8).shared_gpu
    shared = choose("nccl", [1], 4)
    assert shared.shared_gpu
    assert shared.environment(0, True)["NCCL_HOSTID"] != shared.environment(1, True)["NCCL_HOSTID"]
    with pytest.raises(ValueError, match="needs a GPU on every host"):
        choose("nccl", [0], 2)


def test_nccl_without_a_gpu_is_refused() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, on which nccl is right")
    ranks = Ranks(backend="nccl")
    with pytest.raises(ValueError, match="--backend=nccl"):
        ranks.open()
    ranks.close(1)


# -- what remains ------------------------------------------------------------------------------------

DRIVER = textwrap.dedent(
    """
    import sys, time
    import numpy as np
    from pathlib import Path
    from refimpl.ranks.journal import Journal
    from refimpl.ranks.runtime import Ranks
    from tests.test_ranks import a_case
    ranks = Ranks(backend="gloo", limit=600)
    ranks.open()
    ranks.run(a_case(), "gather_pairs")
    journal = Journal(Path(sys.argv[2]), "killed")
    journal.begin(a_case(), {"property": "the one that was running", "path": sys.argv[1]})
    print("running", flush=True)
    ranks.run(a_case(), sys.argv[1])
    """
)


@pytest.mark.parametrize("path", ["sleeps", "stops", "ignores_sigterm"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_driver_leaves_nothing_but_the_running_case(
    faulty: str, tmp_path: Path, path: str, number: signal.Signals
) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, f"{faulty}:{path}", str(tmp_path / "journal")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == b"running\n"
    assert len(processes_with(tmp_path)) >= 4  # the driver, its supervisor, two ranks
    time.sleep(0.3)
    driver.send_signal(number)
    driver.wait(10)
    wait_until_gone(tmp_path, 10)
    assert not list(tmp_path.glob("argmax-parity-*"))
    [running] = (tmp_path / "journal" / "runs").glob("*/running.safetensors")
    case, note = Case.load(running)
    assert case.digest == a_case().digest and note["property"] == "the one that was running"


def test_sockets_listen_on_loopback_only(ranks: Ranks) -> None:
    ranks.run(a_case(3), "gather_pairs")
    me = psutil.Process()
    processes = [me, *me.children(recursive=True)]
    listening = [
        connection.laddr.ip
        for process in processes
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening and set(listening) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_a_supervisor_that_is_killed_makes_the_case_unknown() -> None:
    ranks = Ranks(backend="gloo", limit=LIMIT)
    ranks.open()
    ranks.run(a_case(), "gather_pairs")
    assert ranks._process is not None
    ranks._process.kill()
    ranks._process.wait()
    with pytest.raises(RanksUnavailable, match="supervisor"):
        ranks.run(a_case(), "gather_pairs")
    ranks.close(1)


def test_a_run_whose_folder_was_removed_is_unknown_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cleaners of temporary folders do that to a run of some days."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Ranks(backend="gloo") as ranks:
        ranks.run(a_case(), "gather_pairs")
        ranks.retire()
        time.sleep(0.5)  # for the spare generation
        [folder] = tmp_path.glob("argmax-parity-*")
        shutil.rmtree(folder)

        def use_up_what_was_there_before() -> None:
            for _ in range(2):
                ranks.run(a_case(), "gather_pairs")
                ranks.retire()

        with pytest.raises(RanksUnavailable, match=r"temporary folder .* is gone"):
            use_up_what_was_there_before()


def test_the_journal_keeps_a_line_a_case(tmp_path: Path) -> None:
    from refimpl.ranks.journal import Journal

    journal = Journal(tmp_path, "unit")
    case = a_case()
    journal.begin(case, {"property": "p"})
    assert (journal.folder / "running.safetensors").exists()
    journal.end(case, {"property": "p"}, "holds")
    longer = Case((replace(case.calls[0], logits=np.repeat(case.calls[0].logits, 50, axis=0)),))
    for running in (longer, case):  # a shorter one after a longer one leaves nothing of it
        journal.begin(running, {"property": "q"})
        assert Case.load(journal.folder / "running.safetensors")[0].digest == running.digest
    journal.end(case, {"property": "q"}, "fails")
    journal.close(0)
    lines = [json.loads(line) for line in (journal.folder / "journal.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["case", "case", "end"]
    assert lines[0]["outcome"] == "holds"
    assert lines[1]["outcome"] == "fails" and lines[1]["digest"] == case.digest
    assert not (journal.folder / "running.safetensors").exists()


def test_only_runs_that_have_ended_make_room_for_new_ones(tmp_path: Path) -> None:
    """Of many pytest-xdist workers each has a folder, all of them at once."""
    from refimpl.ranks.journal import Journal

    ended = tmp_path / "runs" / f"20200101T000000-{2**22 + 1}-main"  # no process has so high a number
    ended.mkdir(parents=True)
    workers = [Journal(tmp_path, f"gw{number}") for number in range(24)]
    assert not ended.exists()
    for worker in workers:
        assert worker.folder.is_dir()
        worker.close(0)
