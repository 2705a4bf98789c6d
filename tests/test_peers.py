"""Peers' paths do right what they should, and wrong exactly what is documented: every expected divergence is shown.

Directed rows on real ranks. The properties are run on these paths by whoever asks for them (docs/paths.md).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refimpl import bits, comparison, loading, probes
from refimpl.case import Call, Case
from refimpl.ranks.journal import Journal
from refimpl.ranks.runtime import Ranks
from refimpl.session import Checker, Failure, Session
from refimpl.verdict import expected
from refimpl.verdict.judge import Finding, judge
from refimpl.verdict.kinds import Kind
from refimpl.vocab.d2t import offsets
from refimpl.vocab.layouts import Layout, even_layout, layout_from_sizes

ROOT = Path(__file__).resolve().parents[1]
NAN, SIGN, INF = 0x7FC00000, 0x80000000, np.inf


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(backend="gloo", limit=5.0) as started:
        yield started


def row(layout: Layout, *values: float | int, padding: float = 0.0, d2t: np.ndarray | None = None) -> Call:
    """A row of float32; an integer stands for a bit pattern."""
    patterns = [v if isinstance(v, int) else int(bits.encode(np.array(v), "float32")) for v in values]
    return Call(
        layout, "float32", np.array([patterns], np.uint32), (int(bits.encode(np.array(padding), "float32")),), d2t
    )


def far_row() -> Call:
    (ask,) = probes.beyond_float32()
    return ask.call


EVEN = layout_from_sizes((2, 2))
PADDED = Layout(((0, 2), (2, 3)), 2)
EMPTY_LAST = Layout(((0, 2), (2, 2)), 2)
EMPTY_FIRST = Layout(((0, 0), (0, 2)), 2)

# Of each expected divergence: a row, and the token the path gives there; None where there is no answer.
WITNESSES: dict[str, list[tuple[Call, int | None]]] = {
    "gather_pairs_lowest_id[nan]": [
        (row(EVEN, 0.0, 0.0, NAN, 0.0), 2**24 - 1),
        (row(EVEN, NAN, NAN, 0.0, INF), 2**24 - 1),
    ],
    "gather_index_value_pairs[padding]": [
        (row(PADDED, -3.0, -2.0, -1.0), 3),
        (row(PADDED, -3.0, -2.0, -1.0, d2t=offsets(np.array([0, 2, 4]))), None),
    ],
    "sum_pair_slots[padding]": [
        (row(PADDED, -3.0, -2.0, -1.0), 3),
        (row(PADDED, -3.0, -2.0, -1.0, d2t=offsets(np.array([0, 2, 4]))), None),
    ],
    "gather_index_value_pairs[beyond-float32]": [(far_row(), 2**24)],
    "sum_pair_slots[beyond-float32]": [(far_row(), 2**24)],
    "gather_pairs_dim0[beyond-float32]": [(far_row(), 2**24)],
    # Rank 1 has one real column: its id 2 is sent as 1 * 1 + 0.
    "gather_value_and_id[padding]": [(row(PADDED, 0.0, 1.0, 2.0), 1), (row(PADDED, 0.0, 1.0, 2.0, padding=INF), 1)],
    "gather_value_and_id[empty-shard]": [(row(EMPTY_LAST, 0.0, 1.0), None)],
    "gather_value_and_id_finite_fill[lowest-beside-empty-shard]": [
        (row(EMPTY_LAST, -INF, -INF), 2),  # no id of the vocabulary
        (row(EMPTY_FIRST, -INF, SIGN | 0x7F7FFFFF), 0),  # the lowest finite value ties with the fill
    ],
    "gather_value_and_bitcast_id[nan]": [
        (row(EVEN, 0.0, NAN, 1.0, 0.0), 2),
        (row(EVEN, NAN, NAN, NAN, NAN), 2**31 - 1),
    ],
    "gather_raw_keys[nan]": [
        (row(EVEN, 0.0, 1.0, NAN | SIGN, 0.0), 1),
        (row(EVEN, -INF, -INF, NAN | SIGN, 0.0), 0),
        (row(EVEN, NAN, 0.0, 0x7FFFFFFF, 0.0), 2),
    ],
    "gather_raw_keys[both-zeros]": [(row(EVEN, SIGN, -1.0, 0.0, -1.0), 2)],
}
# Rows next to these, on which the same paths are right.
NEIGHBOURS: dict[str, list[Call]] = {
    "gather_pairs_lowest_id": [row(EVEN, INF, -INF, INF, 0.0), row(EMPTY_FIRST, -INF, -INF)],
    "gather_index_value_pairs": [row(PADDED, -3.0, -2.0, -1.0, padding=-INF), row(EVEN, 0.0, NAN, NAN | SIGN, INF)],
    "sum_pair_slots": [row(PADDED, -3.0, -2.0, -1.0, padding=-INF), row(EVEN, SIGN, SIGN, 0.0, 0.0)],
    "gather_value_and_id": [row(PADDED, 2.0, 1.0, 0.0, padding=INF), row(EVEN, 0.0, NAN, NAN | SIGN, INF)],
    "gather_value_and_id_finite_fill": [row(EMPTY_FIRST, -INF, SIGN | 0x7F7FFFFE), row(EMPTY_LAST, -INF, NAN)],
    "gather_pairs_dim0": [row(EVEN, 0.0, NAN, NAN | SIGN, INF)],
    "gather_value_and_bitcast_id": [row(EVEN, -INF, -INF, -INF, -INF), row(EVEN, 0.0, SIGN, 0.0, SIGN)],
    # One sign in each shard's winner is what it takes: here rank 0 sends the positive zero.
    "gather_raw_keys": [
        row(EVEN, 0.0, SIGN, SIGN, SIGN),
        row(EVEN, SIGN, -1.0, SIGN, -1.0),
        row(EVEN, 0.0, NAN, NAN, 0.0),
    ],
    "gather_unsigned_keys": [
        row(EVEN, SIGN, -1.0, 0.0, -1.0),
        row(EVEN, 0.0, 1.0, NAN | SIGN, 0.0),
        row(EVEN, 0.0, 0x7F800001, 0x7FFFFFFF, INF),
        row(EVEN, SIGN | 1, SIGN | 2, SIGN, 1),
    ],
}


def test_every_expected_divergence_has_its_witness() -> None:
    assert set(WITNESSES) == {line.identity for line in expected.shipped()}
    assert set(NEIGHBOURS) == set(loading.PEER_PATHS)


@pytest.mark.parametrize("line", expected.shipped(), ids=lambda line: line.identity)
def test_each_shows_as_it_is_documented(ranks: Ranks, line: expected.Expected) -> None:
    """The very token, a kind that the line states, and nothing of it left once the line's rows are set aside."""
    for call, token in WITNESSES[line.identity]:
        case = Case((call,))
        run = ranks.run(case, line.path)
        for rank in run.ranks:
            tokens = rank.calls[0].tokens if rank.calls else None
            assert (None if tokens is None else tokens.tolist()) == (None if token is None else [token])
        findings = judge(case, run).findings
        assert findings
        assert {finding.kind for finding in findings} <= line.kinds
        assert expected.set_aside([line], case, findings) == ([], {line.identity: 1})


@pytest.mark.parametrize("path", loading.PEER_PATHS)
def test_right_next_to_it(ranks: Ranks, path: str) -> None:
    for call in NEIGHBOURS[path]:
        case = Case((call,))
        judgement = judge(case, ranks.run(case, path))
        assert judgement.holds
        assert judgement.refused is None


@pytest.mark.parametrize("path", loading.PEER_PATHS)
def test_right_on_plain_rows(ranks: Ranks, path: str) -> None:
    """Numbers and infinities, many ties, positive zeros only, every dtype; three ranks, no padding."""
    rng = np.random.default_rng(5)
    calls = []
    for dtype in bits.DTYPES:
        values = rng.integers(-2, 3, (300, 21)).astype(float)
        values[rng.random(values.shape) < 0.1] = INF
        values[rng.random(values.shape) < 0.3] = -INF
        calls.append(Call(even_layout(21, 3), dtype, bits.encode(values, dtype)))
    case = Case(tuple(calls))
    judgement = judge(case, ranks.run(case, path))
    assert judgement.holds
    assert judgement.refused is None
    assert judgement.tally.cross_shard_ties > 100


def test_unsigned_keys_keep_the_order_of_all_landmarks() -> None:
    import torch

    from refimpl.paths.peers.gather_unsigned_keys import unsigned_keys

    patterns = np.unique(bits.landmarks("float32"))
    keys = unsigned_keys(torch.from_numpy(patterns.view(np.float32)), torch.zeros(len(patterns), dtype=torch.int64))
    high = keys.numpy().view(np.uint64) >> np.uint64(32)
    order = np.where(bits.is_nan(patterns, "float32"), 1 << 40, bits.ordinal(patterns, "float32"))
    assert np.array_equal(np.sign(order[:, None] - order), np.sign(high[:, None].astype(float) - high.astype(float)))


# -- setting aside ---------------------------------------------------------------------------------------------------


def test_other_rows_and_kinds_are_left(ranks: Ranks) -> None:
    nan_row, plain_row = row(EVEN, 0.0, 1.0, NAN, 0.0), row(EVEN, 0.0, 1.0, 0.0, 0.0)
    both = replace(nan_row, logits=np.concatenate([nan_row.logits, plain_row.logits]))
    (line,) = expected.parse("some_path[nan]  # nan-rule, raised: it ignores them")
    case = Case((both,))
    wrong = Finding(Kind.NAN_RULE, "nan-rule", 0, "", rows=(0, 1))
    left, met = expected.set_aside([line], case, [wrong])
    assert [finding.rows for finding in left] == [(1,)]
    assert met == {line.identity: 1}
    for finding in (replace(wrong, kind=Kind.WRONG_TIE), Finding(Kind.RAISED, "raised", 0, "")):
        assert expected.set_aside([line], case, [finding]) == ([finding], {})


def test_one_row_that_is_not_foreseen_fails_among_thousands_that_are(tmp_path: Path) -> None:
    """A corner case hides nothing else, however often it shows."""
    session_path = "tests.test_peers:nan_corner_and_one_more"
    nan_rows = np.tile(row(EVEN, 0.0, 0.0, NAN | SIGN, 0.0).logits, (3000, 1))
    call = replace(
        row(EVEN, 0.0, 0.0, 0.0, 0.0), logits=np.concatenate([nan_rows, row(EVEN, 0.0, 0.0, 7.0, 1.0).logits])
    )
    with Ranks(backend="gloo", limit=5.0) as started:
        session = Session(started, Journal(tmp_path, "test"), reduce_seconds=5.0)
        session.expected = expected.parse(f"{session_path}[nan]  # nan-rule: negative NaNs lose")
        check = Checker(session, session_path, 2, "test")
        with pytest.raises(Failure) as failure:
            check(Case((call,)))
        assert failure.value.kind is Kind.WRONG_MAXIMUM
        assert check.set_aside == {f"{session_path}[nan]": 3000}


def nan_corner_and_one_more(local_logits: Any, shard: Any, group: Any, d2t: Any = None) -> Any:
    """gather_raw_keys, wrong where the maximum is 7."""
    from refimpl.paths.peers.gather_raw_keys import gather_raw_keys

    return gather_raw_keys(local_logits.masked_fill(local_logits == 7.0, -1.0), shard, group, d2t)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a_path  # nan-rule: why", "not of the form"),
        ("a_path[nan]", "not of the form"),
        ("a_path[nan]  # nan-rule:", "not of the form"),
        ("a_path[full moon]  # nan-rule: why", "not of the form"),
        ("a_path[moon]  # nan-rule: why", "'moon' is none of nan"),
        (
            "\na_path[nan]  # no-kind: why",
            "line 2: 'no-kind' is no failure kind; give kinds",
        ),
    ],
)
def test_a_line_that_cannot_be_read_is_named(text: str, said: str) -> None:
    with pytest.raises(expected.ExpectedError, match=said):
        expected.parse(text)


def test_the_run_says_what_it_set_aside_and_what_did_not_show() -> None:
    test = "properties/test_engine_layouts.py::test_vocabulary_that_divides"
    command = [sys.executable, "-m", "pytest", test, "--path=gather_raw_keys", "--path=gather_pairs_dim0", "--tp=2"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "expected divergence gather_raw_keys[nan] on " in done.stdout
    assert "expected divergence gather_pairs_dim0[beyond-float32] did not show" in done.stdout
    assert "1 passed, 1 xfailed" in done.stdout
    ledger = done.stdout.partition("obligations of gather_raw_keys")[2].partition("obligations of")[0]
    assert "O2  refuted" in ledger


def test_an_adopters_file_may_hold_such_lines(tmp_path: Path) -> None:
    path = tmp_path / "copied.py"
    path.write_text("from refimpl.paths.peers.gather_raw_keys import gather_raw_keys as copied\n")
    known = tmp_path / "known.txt"
    known.write_text(f"{path}:copied[nan]  # nan-rule: ours\n{path}:copied[both-zeros]  # wrong-tie: ours too\n")
    test = "properties/test_engine_layouts.py::test_vocabulary_that_divides"
    command = [sys.executable, "-m", "pytest", test, f"--path={path}:copied", "--tp=2", "-p", "no:cacheprovider"]
    command += [f"--known-divergences={known}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert f"expected divergence {path}:copied[nan] on " in done.stdout
    known.write_text("copied[moon]  # nan-rule: ours\n")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 4
    assert "condition 'moon' is none of nan" in done.stderr


# -- names and the page ----------------------------------------------------------------------------------------------


def test_a_default_run_takes_the_own_paths_only() -> None:
    assert loading.expand(["own"]) == ("gather_pairs", "reduce_max_key", "target_tie_break")
    assert loading.expand(["peers", "gather_pairs", "own"])[-3:] == (
        "gather_pairs",
        "reduce_max_key",
        "target_tie_break",
    )
    assert len(loading.PEER_PATHS) == 9
    for path in loading.PEER_PATHS:
        assert loading.check_form(path) is None
        assert callable(loading.load_path(path))


def test_the_page_is_current(ranks: Ranks) -> None:
    """The cheap columns, at tp 2. When this fails: ``python -m refimpl.comparison --no-verdicts`` renews the page."""
    page = comparison.PAGE.read_text()
    header, _, *lines = comparison.block(page, "measured").splitlines()
    titles = [cell.strip() for cell in header.strip("|").split("|")]
    kept = [titles.index(title) for title in comparison.columns(all_probes=False, tp_sizes=(2,))]
    written = [[line.strip("|").split("|")[index].strip() for index in kept] for line in lines]
    assert written == [
        [f"`{path}`", *comparison.measured_row(ranks, path, all_probes=False, tp_sizes=(2,))]
        for path in comparison.PATHS
    ]
    for path in comparison.PATHS:
        assert f"| `{path}` | {comparison.description(path)} |" in page
    verdicts = comparison.block(page, "verdicts").splitlines()[2:]
    assert [line.split("|")[1].strip().strip("`") for line in verdicts] == list(loading.PEER_PATHS)
