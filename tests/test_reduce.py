"""The reducer and what it makes of seeded bugs on real ranks: small cases, right kinds, true explanations."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from refimpl import bits
from refimpl.case import Call, Case
from refimpl.ranks import backend as backends
from refimpl.ranks.outcome import CallOutcome, Died, RankOutcome, Run, Stuck
from refimpl.ranks.runtime import Ranks
from refimpl.verdict import reduce
from refimpl.verdict.explain import Observation, explain, explanation
from refimpl.verdict.judge import Finding, expected, judge
from refimpl.verdict.kinds import Kind
from refimpl.verdict.reduce import Counterexample, reduce_failure
from refimpl.verdict.report import obligation_of, render
from refimpl.vocab import d2t as tables
from refimpl.vocab.layouts import Layout, even_layout, layout_from_sizes

DTYPE = "bfloat16"
NEG_INF, INF, NAN = bits.neg_inf(DTYPE), bits.INFINITY[DTYPE], bits.NAN[DTYPE]
NUMBERS = (-1.0, 0.0, 1.0, 2.0)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(backend="gloo", limit=1.0) as ranks:
        yield ranks


def random_call(
    layout: Layout, batch: int = 200, values: Sequence[float] = NUMBERS, d2t: np.ndarray | None = None, seed: int = 0
) -> Call:
    palette = bits.encode(np.array(values), DTYPE)
    logits = np.random.default_rng(seed).choice(palette, (batch, layout.vocab_size))
    return Call(layout, DTYPE, logits, (NAN, INF), d2t)


UNEVEN = layout_from_sizes([7, 4], 2)
EVEN = even_layout(12, 2)
INVERTED = tables.offsets(np.array([30, 3, 20, 5, 40, 9, 10, 50, 13, 2, 60, 4]))


def reduced(ranks: Ranks, path: str, case: Case, earlier: tuple[Case, ...] = ()) -> Counterexample:
    """Run the case as a driver would, and reduce the first failure."""
    ranks.retire()
    for other in earlier:
        ranks.run(other, path)
    run = ranks.run(case, path)
    findings = judge(case, run).findings
    assert findings, f"{path} holds"
    return reduce_failure(ranks, path, case, findings[0], observed=run, earlier=earlier)


def size(counterexample: Counterexample) -> list[tuple[int, int]]:
    return [(call.batch, call.layout.vocab_size) for call in counterexample.case.calls]


# -- one row says it all ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "call", "kind", "why", "obligation"),
    [
        ("ties:last_rank_wins_ties", random_call(UNEVEN), Kind.WRONG_TIE, "last rank wins a tie", "O3"),
        ("padding:padding_unmasked", random_call(UNEVEN), Kind.PADDING_RETURNED, "padding takes part: rank", "O4"),
        ("reduction:no_reduction", random_call(EVEN), Kind.RANK_DISAGREEMENT, "nothing is reduced", "O7"),
        ("tables:offsets_added_twice", random_call(EVEN, d2t=INVERTED), Kind.WRONG_TARGET, "applied twice", "O5"),
        ("ties:claims_target_ids_maps_by_draft_id", random_call(EVEN, d2t=INVERTED), Kind.WRONG_TIE, "draft id", "O5"),
    ],
    ids=["tie", "padding", "disagreement", "target", "table-tie"],
)
def test_a_wrong_token_is_reduced_named_and_explained(
    ranks: Ranks, name: str, call: Call, kind: Kind, why: str, obligation: str
) -> None:
    found = reduced(ranks, f"tests.mutants.{name}", Case((call,)))
    assert found.kind is kind
    assert found.identity == kind.value == found.finding.identity
    (batch, vocabulary), *others = size(found)
    assert batch == 1 and vocabulary <= 3 and not others
    assert why in (found.why or ""), found.why
    assert obligation_of(found) == obligation
    assert found.case.tp_size <= 2 and found.confirmed
    cut = [note for note in found.notes if "found at tp_size 2; fewer ranks fail alike" in note]
    assert bool(cut) == (found.case.tp_size == 1)


def test_an_identity_is_stable_under_replay(ranks: Ranks) -> None:
    path = "tests.mutants.ties:last_rank_wins_ties"
    found = reduced(ranks, path, Case((random_call(UNEVEN),)))
    again = judge(found.case, ranks.run(found.case, path)).findings
    assert [finding.identity for finding in again] == [found.identity]
    smaller = reduced(ranks, path, found.case)
    assert smaller.case.digest == found.case.digest
    assert smaller.identity == found.identity


def test_a_threshold_is_found_exactly(ranks: Ranks) -> None:
    logits = np.full((3, 1500), NEG_INF, bits.STORAGE[DTYPE])
    logits[[0, 1, 2], [40, 1001, 300]] = 0
    case = Case((Call(even_layout(1500, 2), DTYPE, logits),))
    found = reduced(ranks, "tests.mutants.payload:ids_through_bfloat16", case)
    assert size(found) == [(1, 258)]
    assert found.why == "ids from 257 on are rounded: they travel as bfloat16"


def test_what_is_needed_of_ranks_stays(ranks: Ranks) -> None:
    case = Case((random_call(layout_from_sizes([3, 2, 4], 1)),))
    found = reduced(ranks, "tests.mutants.ties:folded_tree_mixes_the_ranks", case)
    assert found.case.tp_size == 3
    assert found.case.calls[0].layout == layout_from_sizes([1, 1, 1])


# -- a row that depends on more than itself ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "batches", "expected"),
    [
        ("reduction:rank_and_row_axes_swapped", (200,), [(2, 2)]),
        ("state:slots_not_zeroed_again", (9, 9), [(1, 2), (1, 2)]),
    ],
    ids=["batch", "earlier-call"],
)
def test_row_dependence(ranks: Ranks, name: str, batches: tuple[int, ...], expected: list[tuple[int, int]]) -> None:
    calls = tuple(random_call(even_layout(4, 2), batch, seed=seed) for seed, batch in enumerate(batches))
    found = reduced(ranks, f"tests.mutants.{name}", Case(calls))
    assert found.kind is Kind.ROW_DEPENDENCE
    assert all(batch == most and width <= 2 for (batch, width), (most, _) in zip(size(found), expected, strict=True))
    assert any("alone, on fresh ranks, is right" in note for note in found.notes)
    assert obligation_of(found) == "O6"


def test_a_call_that_is_wrong_now_and_then_is_repeated_until_it_is(ranks: Ranks) -> None:
    path = "tests.mutants.state:wrong_on_every_third_call"
    case = Case((random_call(EVEN),))
    ranks.retire()
    runs = [ranks.run(case, path) for _ in range(3)]
    findings = [judge(case, run).findings for run in runs]
    assert [bool(found) for found in findings] == [False, False, True]
    found = reduce_failure(ranks, path, case, findings[2][0])
    assert found.kind is Kind.ROW_DEPENDENCE
    assert size(found) == [(1, 2)] * 3
    assert found.why is None  # models of a single call do not apply


def test_an_earlier_case_may_be_what_it_takes(ranks: Ranks) -> None:
    path = "tests.mutants.state:offset_kept_from_the_first_call"
    first, second = (
        Case((random_call(layout_from_sizes([2, 1], 1)),)),
        Case((random_call(layout_from_sizes([1, 2], 1)),)),
    )
    with_it = reduced(ranks, path, second, earlier=(first,))
    assert with_it.kind is Kind.ROW_DEPENDENCE
    assert len(with_it.case.calls) == 2 and all(batch == 1 for batch, _ in size(with_it))
    ranks.retire()
    ranks.run(first, path)
    finding = judge(second, ranks.run(second, path)).findings[0]
    without = reduce_failure(ranks, path, second, finding)
    assert without.kind is Kind.NONDETERMINISTIC
    assert without.answers[0].startswith("at first: ")
    assert size(without) == [(1, 3)]


WRONG_ONCE = """
import pathlib
import torch

def wrong_once(local_logits, shard, group, d2t=None):
    seen = pathlib.Path({seen!r})
    first = len(local_logits) == 2 and not seen.exists()
    torch.distributed.barrier(group=group)
    if first and torch.distributed.get_rank(group) == 0:
        seen.touch()
    return torch.tensor([5, 9] if first else [5] * len(local_logits))
"""


def test_what_never_comes_again_is_told_in_the_case_s_own_rows(ranks: Ranks, tmp_path: Path) -> None:
    """The calls before it are tried as well; what those of fewer rows gave is no answer to this case."""
    (tmp_path / "once.py").write_text(WRONG_ONCE.format(seen=str(tmp_path / "seen")))
    logits = bits.encode(np.eye(12)[[5, 5]], DTYPE)
    case, before = Case((Call(EVEN, DTYPE, logits),)), Case((Call(EVEN, DTYPE, logits[:1]),))
    found = reduced(ranks, f"{tmp_path / 'once.py'}:wrong_once", case, earlier=(before, before))
    assert found.kind is Kind.NONDETERMINISTIC
    assert found.answers[1] == "on fresh ranks: row 1: rank 0: 5, rank 1: 5"
    assert size(found) == [(1, 12)]


def test_random_answers_are_nondeterministic(ranks: Ranks) -> None:
    found = reduced(ranks, "tests.mutants.state:random_tie_break", Case((random_call(EVEN),)))
    assert found.kind is Kind.NONDETERMINISTIC
    assert len(found.answers) == 2 and found.answers[0] != found.answers[1]
    assert all(batch <= 2 and width <= 8 for batch, width in size(found))


def test_random_answers_to_a_wide_row_are_cut_down_too(ranks: Ranks) -> None:
    """Two columns tie: every other answer is right by chance, and none of these may end the search."""
    path, layout = "tests.mutants.state:random_tie_break", layout_from_sizes([4096, 0], 3)
    logits = np.full((2, 4096), bits.neg_inf("float16"), np.uint16)
    logits[0, [5, 4090]] = 15360
    case = Case((Call(layout, "float16", logits),))
    for _ in range(6):  # in most of them the whole case comes through when it is asked again
        ranks.retire()
        findings: list[Finding] = []
        while not findings:
            findings = judge(case, ranks.run(case, path)).findings
        found = reduce_failure(ranks, path, case, findings[0])
        assert found.kind is Kind.NONDETERMINISTIC
        assert all(batch <= 2 and width <= 8 for batch, width in size(found))
        told = [answer.removeprefix("before it was cut down: ") for answer in found.answers]
        tokens = {int(token) for answer in told for token in re.findall(r"rank \d+: (\d+)", answer)}
        assert told == list(found.answers) or tokens <= {5, 4090}


def test_a_path_that_is_slow_at_first_is_not_taken_for_one_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that compiles itself at its first call: the reducer's short limits show nothing of it."""
    (tmp_path / "slow.py").write_text(
        "import time\nfrom tests.mutants.ties import last_rank_wins_ties\nfirst = True\n"
        "def path(logits, shard, group, d2t=None):\n    global first\n    time.sleep(1.2 if first else 0)\n"
        "    first = False\n    return last_rank_wins_ties(logits, shard, group, d2t)\n"
    )
    monkeypatch.setattr(reduce, "_PATIENT_SECONDS", 0.4)
    monkeypatch.setattr(reduce, "_SHORT_SECONDS", 0.1)
    with Ranks(backend="gloo", limit=20.0) as patient:
        found = reduced(patient, f"{tmp_path / 'slow.py'}:path", Case((random_call(EVEN),)))
    assert found.kind is Kind.WRONG_TIE
    assert size(found) == [(1, 2)]


# -- ranks that do not come through -------------------------------------------------------------------


def test_where_earlier_calls_are_needed_the_last_one_is_not_the_reason(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "fourth.py").write_text(
        "import os\nfrom refimpl.paths.gather_pairs import gather_pairs\ncalls = 0\n"
        "def path(logits, shard, group, d2t=None):\n    global calls\n    calls += 1\n"
        "    if calls == 4:\n        os._exit(0)\n    return gather_pairs(logits, shard, group, d2t)\n"
    )
    name = f"{tmp_path / 'fourth.py'}:path"
    found = reduced(ranks, name, Case(tuple(random_call(EVEN, batch) for batch in (5, 7, 3, 0))))
    assert found.kind is Kind.DIED and len(found.case.calls) == 4
    assert found.why is None
    text = render(found, property_id="x", head=None, path=name, backend="gloo", replay_command="replay")
    assert "fails at call" not in text


class OneEnd:
    """Ranks that end every case alike."""

    limit, backend = 1.0, backends.choose("gloo", [], 1)

    def __init__(self, run: Run) -> None:
        self._run = run

    def run(self, *args: object, **more: object) -> Run:
        return self._run

    def retire(self) -> None:
        pass


def test_what_is_told_of_a_broken_connection_is_of_one_run() -> None:
    """Which of its endings shows is chance; the name, the message and the ranks' ends are those of the same time."""
    case = Case((random_call(EVEN, 1),))
    aborted = Run((RankOutcome((), Died(int(signal.SIGABRT), None, "")), RankOutcome((), Stuck(1.0, ""))), 1.0)
    waiting = Run((RankOutcome((), Stuck(1.0, "")), RankOutcome((), Stuck(1.0, ""))), 1.0)
    finding = judge(case, aborted).findings[0]
    search = reduce._Search(OneEnd(waiting), "p", case, finding, "target_id", 0.0)  # type: ignore[arg-type]
    search.run = aborted
    found = reduce._named(search, set())
    assert found.kind is Kind.DIED and found.run is aborted
    assert "SIGABRT" in found.finding.message


def test_mismatched_collectives_are_named_by_torch(ranks: Ranks) -> None:
    path = "tests.mutants.collectives:payload_dtype_differs_on_one_rank"
    found = reduced(ranks, path, Case((random_call(EVEN),)))
    assert found.kind is Kind.COLLECTIVE_MISMATCH
    assert found.identity == "collective-mismatch"
    assert "dtypes: Long vs Double" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "batch", "identity", "smallest"),
    [
        ("one_rank_raises", 9, "raised-on-some-ranks:RuntimeError", 2),
        ("empty_batch_raises", 0, "raised:RuntimeError", 0),
        ("dies_of_sigfpe_on_an_empty_batch", 0, f"died:{signal.Signals.SIGFPE.name}", 0),
        ("dies_of_sigsegv", 9, f"died:{signal.Signals.SIGSEGV.name}", 2),
    ],
)
def test_ends_keep_their_identity(ranks: Ranks, name: str, batch: int, identity: str, smallest: int) -> None:
    found = reduced(ranks, f"tests.mutants.faults:{name}", Case((random_call(EVEN, 9), random_call(EVEN, batch))))
    assert found.identity == identity
    assert size(found) == [(smallest, 1)]
    assert (found.why == "the batch is empty") == (batch == 0)


WRONG_ON_ONE = """
from refimpl.paths.gather_pairs import gather_pairs

def wrong_on_one(local_logits, shard, group, d2t=None):
    tokens = gather_pairs(local_logits, shard, group, d2t)
    return tokens.int() if shard.tp_rank == 0 else tokens
"""


def test_a_result_of_the_wrong_form_on_one_rank_is_no_hang_of_the_others(ranks: Ranks, tmp_path: Path) -> None:
    """They wait at the next call for a rank that goes no further, as after an error or a refusal."""
    (tmp_path / "one.py").write_text(WRONG_ON_ONE)
    found = reduced(ranks, f"{tmp_path / 'one.py'}:wrong_on_one", Case((random_call(EVEN, 9), random_call(EVEN, 9))))
    assert found.kind is Kind.RESULT_TYPE and found.finding.ranks == (0,)
    assert size(found) == [(1, 1)]


def test_a_hang_is_confirmed_once_at_the_full_limit(ranks: Ranks) -> None:
    path = "tests.mutants.collectives:extra_collective_on_one_rank"
    case = Case((random_call(EVEN, 9),))
    ranks.retire()
    run = ranks.run(case, path, limit=0.3)
    hangs: set[str] = set()
    found = reduce_failure(ranks, path, case, judge(case, run).findings[0], confirmed_hangs=hangs)
    assert found.kind is Kind.HANG and found.confirmed
    assert found.run.limit == ranks.limit
    assert size(found) == [(1, 1)]
    assert found.why == "rank 1 is done while rank 0 waits in a collective that needs all ranks"
    assert len(hangs) == 1 and "extra_collective_on_one_rank" in next(iter(hangs))


def test_a_wait_that_comes_through_in_the_end_is_no_failure(ranks: Ranks) -> None:
    case = Case((random_call(EVEN, 2),))
    run = ranks.run(case, "tests.test_reduce:slow_path", limit=0.2)
    finding = judge(case, run).findings[0]
    assert finding.kind is Kind.HANG
    found = reduce_failure(ranks, "tests.test_reduce:slow_path", case, finding)
    assert not found.confirmed


RAISED_ONCE = """
import pathlib
from refimpl.paths.gather_pairs import gather_pairs

def raised_once(local_logits, shard, group, d2t=None):
    seen = pathlib.Path({seen!r})
    tokens = gather_pairs(local_logits, shard, group, d2t)
    if shard.tp_rank == 1 and not seen.exists():
        seen.touch()
        raise RuntimeError("once")
    return tokens
"""


def test_an_error_that_does_not_come_again_is_no_late_reference(ranks: Ranks, tmp_path: Path) -> None:
    """The other rank waits in the reference of the next call: for one that has left, and is not coming."""
    (tmp_path / "once.py").write_text(RAISED_ONCE.format(seen=str(tmp_path / "seen")))
    path, case = f"{tmp_path / 'once.py'}:raised_once", Case((random_call(EVEN, 2), random_call(EVEN, 2)))
    run = ranks.run(case, path)
    (finding,) = judge(case, run).findings
    assert finding.kind is Kind.RAISED_ON_SOME_RANKS
    assert [isinstance(rank.end, Stuck) and rank.end.in_reference for rank in run.ranks] == [True, False]
    found = reduce_failure(ranks, path, case, finding, observed=run)
    assert found.confirmed and found.kind is Kind.NONDETERMINISTIC
    assert "RuntimeError: once" in found.answers[0]


def slow_path(local_logits, shard, group, d2t=None):  # type: ignore[no-untyped-def]  # runs on the ranks
    import time

    from refimpl.paths.gather_pairs import gather_pairs

    time.sleep(0.5)
    return gather_pairs(local_logits, shard, group, d2t)


# -- paths that refuse some of what the reducer asks ------------------------------------------------------

REFUSING = """
from refimpl.contract import UnsupportedInput
from tests.mutants.ties import last_rank_wins_ties

def padding(local_logits, shard, group, d2t=None):
    if any(end - start < shard.padded_size for start, end in shard.bounds):
        raise UnsupportedInput("no padding")
    return last_rank_wins_ties(local_logits, shard, group, d2t)

def single_rows(local_logits, shard, group, d2t=None):
    if len(local_logits) == 1:
        raise UnsupportedInput("no batch of one")
    return last_rank_wins_ties(local_logits, shard, group, d2t)
"""


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("paths") / "refusing.py"
    file.write_text(REFUSING)
    return str(file)


def test_calls_after_a_refusal_have_no_outcome(ranks: Ranks, refusing: str) -> None:
    """Also where the reducer asks for more rows by itself."""
    plain, refused = random_call(EVEN), random_call(UNEVEN)
    for calls in ((plain,), (plain, refused, plain)):
        found = reduced(ranks, f"{refusing}:padding", Case(calls))
        assert found.kind is Kind.WRONG_TIE and size(found) == [(1, 2)]
        assert found.why == "the last rank wins a tie across ranks"


def test_a_row_that_is_refused_alone_is_not_right_alone(ranks: Ranks, refusing: str) -> None:
    found = reduced(ranks, f"{refusing}:single_rows", Case((random_call(EVEN),)))
    assert found.kind is Kind.WRONG_TIE and not found.notes
    assert size(found) == [(2, 2)]


# -- explanations, without ranks --------------------------------------------------------------------


def observed(case: Case, tokens: Sequence[Sequence[int]], kind: Kind, rows: tuple[int, ...] = (0,)) -> Counterexample:
    """``tokens``: of the last call, by rank; the calls before it are right."""
    ranks = []
    for answer in tokens:
        calls = [CallOutcome("answered", tokens=expected(call, "target_id").tokens) for call in case.calls[:-1]]
        ranks.append(RankOutcome((*calls, CallOutcome("answered", tokens=np.array(answer)))))
    run = Run(tuple(ranks), 1.0)
    finding = Finding(kind, kind.value, len(case.calls) - 1, "", rows)
    return Counterexample(kind, kind.value, case, "target_id", run, finding)


def rows_of(layout: Layout, *rows: Sequence[float], padding: float = -np.inf, d2t: np.ndarray | None = None) -> Case:
    patterns = bits.encode(np.array(rows), "float32")
    (pad,) = bits.encode(np.array([padding]), "float32")
    return Case((Call(layout, "float32", patterns, (int(pad),), d2t),))


TWO_BY_TWO = layout_from_sizes([2, 2])
TARGETS = tables.offsets(np.array([9, 4, 7]))


@pytest.mark.parametrize(
    ("case", "tokens", "why"),
    [
        (rows_of(TWO_BY_TWO, [0, 1, 0, 0]), [7], None),
        (rows_of(TWO_BY_TWO, [0, 1, 1, 0]), [2], "the last rank wins a tie across ranks"),
        (rows_of(TWO_BY_TWO, [1, 1, 0, 0]), [1], "the last column wins a tie within a shard"),
        (rows_of(layout_from_sizes([1, 1]), [-0.0, 0.0]), [1], "the last rank wins a tie across ranks"),
        (rows_of(layout_from_sizes([1, 1, 1]), [-0.0, 0.0, 0.0]), [1], "-0.0 is ordered under +0.0"),
        (rows_of(TWO_BY_TWO, [0, np.nan, 2, 1]), [2], "a NaN loses"),
        (rows_of(TWO_BY_TWO, [0, 2, 1, np.nan]), [1], "a NaN loses"),
        (rows_of(TWO_BY_TWO, [-1, 0, 0, np.nan]), [1], "a NaN loses"),
        (rows_of(TWO_BY_TWO, [0, -1, 1, 1.001]), [2], "values are rounded to bfloat16 before columns of a shard"),
        (rows_of(TWO_BY_TWO, [1, 0, 0, 1.001]), [0], "values are rounded to bfloat16 before the exchange"),
        (rows_of(TWO_BY_TWO, [-1, -3, -2, -2.5]), [2], "negative values are compared in reverse"),
        (rows_of(TWO_BY_TWO, [0, 0, 0, 1]), [1], "ids of rank 1 are off by -2: the shard's start is not added"),
        (rows_of(layout_from_sizes([2, 1], 1), [0, 0, 1]), [3], "off by 1: the offset is rank x padded_size"),
        (rows_of(layout_from_sizes([2, 1]), [-1, -2, -3], padding=5), [3], "rank 1, local column 1 with value 5.0 won"),
        (rows_of(layout_from_sizes([3, 0]), [-np.inf] * 3), [3], "takes part with a finite value, which beats -inf"),
        (rows_of(TWO_BY_TWO, [0, 1, 2, 0]), [3], "the ids of all ranks' candidates are summed"),
        (rows_of(layout_from_sizes([1, 2]), [0, 0, 1], d2t=TARGETS), [2], "the table was not applied"),
        (rows_of(layout_from_sizes([1, 2]), [0, 1, 0], d2t=TARGETS), [3], "the table's entry is returned"),
        (
            rows_of(layout_from_sizes([1, 2]), [1, 0, 1], d2t=TARGETS),
            [9],
            "a tie under the table is broken by draft id",
        ),
    ],
)
def test_hypotheses_are_held_against_the_numbers(case: Case, tokens: list[int], why: str | None) -> None:
    found = explain(observed(case, [tokens] * case.tp_size, Kind.WRONG_MAXIMUM))
    assert found is None if why is None else found is not None and why in found


def test_ranks_that_differ_are_explained_together() -> None:
    case = rows_of(TWO_BY_TWO, [0, 1, 2, 0])
    assert explain(observed(case, [[1], [2]], Kind.RANK_DISAGREEMENT)) == (
        "each rank returns its own shard's winner: nothing is reduced"
    )
    assert explain(observed(case, [[2], [0]], Kind.RANK_DISAGREEMENT)) == (
        "only rank 0 has the reduced token, the other ranks return 0"
    )


def test_more_rows_refute_what_one_row_allows() -> None:
    one = observed(rows_of(TWO_BY_TWO, [0, 1, 1, 0]), [[2], [2]], Kind.WRONG_TIE)
    assert explain(one) == "the last rank wins a tie across ranks"
    # The same answer to a row where the last rank has less: not a tie rule, but an order of candidates by id.
    more = rows_of(TWO_BY_TWO, [0, 1, 1, 0], [2, 0, 0, 0], [0, 3, 1, 0])
    run = observed(more, [[2, 2, 2]] * 2, Kind.WRONG_MAXIMUM).run
    found = explanation(one, [Observation(more, run, "target_id")])
    assert found is not None and found.text.startswith("the highest id of all candidates is returned")


def test_a_row_that_is_right_alone_is_not_explained_by_the_row() -> None:
    (row,) = rows_of(TWO_BY_TWO, [0, 0, 0, 1]).calls
    assert explain(observed(Case((row, row)), [[1], [1]], Kind.ROW_DEPENDENCE)) is None
    (other,) = rows_of(TWO_BY_TWO, [0, 1, 0, 0]).calls
    assert explain(observed(Case((other, row)), [[1], [1]], Kind.ROW_DEPENDENCE)) == (
        "the token is that of the call before"
    )


# -- parts --------------------------------------------------------------------------------------------


def test_shrink_finds_what_is_needed_in_few_tries() -> None:
    tries: list[np.ndarray] = []

    def test(kept: np.ndarray) -> bool:
        tries.append(kept)
        return {700, 1000} <= set(kept.tolist()) and len(kept) >= 40

    smallest: list[np.ndarray] = []

    def recording(kept: np.ndarray) -> bool:
        passes = test(kept)
        if passes:
            smallest[:] = [kept]
        return passes

    reduce._shrink(np.arange(1500), [1000], recording)
    assert len(smallest[0]) == 40
    assert len(tries) < 100


def test_columns_leave_a_case_of_the_same_form() -> None:
    call = Call(UNEVEN, DTYPE, np.arange(11, dtype=np.uint16)[None], (INF,), tables.offsets(np.arange(11)[::-1] + 5))
    kept = reduce._columns(call, np.array([0, 5, 9]), None)
    assert kept.layout == Layout(((0, 2), (2, 3)), 4)
    assert kept.logits.tolist() == [[0, 5, 9]]
    assert tables.targets(kept.d2t).tolist() == [15, 10, 6]  # type: ignore[arg-type]
    assert reduce._columns(call, np.array([0, 5, 9]), 9).layout.padded_size == 9


def test_regroup_merges_neighbours() -> None:
    call = random_call(layout_from_sizes([3, 0, 2, 1], 1), 1)
    assert reduce._regroup(call, [0]).layout == layout_from_sizes([6], 1)
    assert reduce._regroup(call, [0, 2]).layout == layout_from_sizes([3, 3], 1)


@pytest.mark.parametrize("dtype", bits.DTYPES)
def test_plain_forms_keep_the_order_or_give_one_up_on_purpose(dtype: str) -> None:
    row = np.concatenate([bits.landmarks(dtype)[::3], bits.landmarks(dtype)[:4]])
    order = np.where(bits.is_nan(row, dtype), np.iinfo(np.int64).max, bits.ordinal(row, dtype))
    for form in list(reduce._plain_forms(row[None], dtype))[1:]:
        plain = np.where(bits.is_nan(form[0], dtype), np.iinfo(np.int64).max, bits.ordinal(form[0], dtype))
        assert np.array_equal(np.argsort(order, kind="stable"), np.argsort(plain, kind="stable"))


def test_ends_of_one_transport_fault_are_one_cause() -> None:
    ends = ("died:SIGABRT", "hang", "raised:transport", "raised-on-some-ranks:transport")
    assert len({reduce._cause(identity) for identity in ends}) == 1
    others = ("died:SIGSEGV", "raised:ValueError", "wrong-tie")
    assert [reduce._cause(identity) for identity in others] == list(others)
