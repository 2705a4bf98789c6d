"""A failure on one screen, at most 100 columns wide and about 40 lines long, and its case in a file for replay."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from refimpl import bits
from refimpl.case import REPORT_FORMAT, Call, Case
from refimpl.draft_case import DraftCase
from refimpl.engine_case import EngineCase
from refimpl.head_case import HeadCase
from refimpl.oracle import tied_set
from refimpl.ranks.outcome import Died, RankOutcome, Stuck
from refimpl.verdict.judge import expected
from refimpl.verdict.kinds import DESCRIPTIONS, Kind
from refimpl.verdict.obligations import BEYOND_OBLIGATIONS, BY_KIND, OBLIGATIONS
from refimpl.verdict.reduce import Counterexample
from refimpl.vocab import d2t as tables

_WIDTH = 100
_TABLE_LINES = 16
_SHOWN_CALLS = 3
_SHOWN_RANKS = 8
_SHOWN_ROWS = 3
_TABLE_COLUMNS = 4096  # of a wider shard only what is at stake is looked at
_JSON_VALUES = 20_000


def obligation_of(counterexample: Counterexample) -> str | None:
    """The obligation a counterexample refutes, O0 to O7, or None for a kind that concerns none of them."""
    if counterexample.obligation is not None:
        return counterexample.obligation
    if counterexample.kind in BY_KIND or counterexample.kind in BEYOND_OBLIGATIONS:
        return BY_KIND.get(counterexample.kind)
    # A wrong token: was a shard's candidate wrong, or the choice among the shards?
    call, row = _failing(counterexample)
    wanted, returned = _stakes(counterexample, call, row)
    if call.d2t is not None and wanted and returned and min(returned) < min(wanted):
        targets = tables.targets(call.d2t)
        if counterexample.kind is Kind.WRONG_TIE and targets[min(returned)] > targets[min(wanted)]:
            return "O5"
    bounds = call.layout.bounds
    shards = [{rank for rank, (start, end) in enumerate(bounds) if start <= c < end} for c in (*wanted, *returned)]
    return "O1" if len(shards) > 1 and all(shard == shards[0] for shard in shards) else "O3"


def render(
    counterexample: Counterexample,
    *,
    property_id: str,
    head: str | None,
    path: str,
    backend: str,
    replay_command: str,
) -> str:
    """The report of one failure. The replay command, its last line, is never cut; every other line is."""
    if is_about_topk(counterexample):
        from refimpl.topk.report import render_engine

        return render_engine(
            counterexample, property_id=property_id, head=head or "", backend=backend, replay_command=replay_command
        )
    case, finding = counterexample.case, counterexample.finding
    call, _ = _failing(counterexample)
    setting = [f"tp_size {case.tp_size}", call.dtype, backend]
    if case.bystanders:
        setting.append(f"{case.bystanders} bystander(s) before the group")
    if head is not None:
        setting.insert(0, f"head {head}")
    title = f"{counterexample.identity}: {DESCRIPTIONS[counterexample.kind]}"
    message = []
    if counterexample.run.complete and (counterexample.kind in BEYOND_OBLIGATIONS or not finding.rows):
        message = finding.message.splitlines()[:4]
    answers = [line.replace("\n", "; ") for line in counterexample.answers]
    refuted = obligation_of(counterexample)
    words = BEYOND_OBLIGATIONS.get(counterexample.kind, "") if refuted is None else f"{refuted}: {OBLIGATIONS[refuted]}"
    why = [f"why: {counterexample.why}"] if counterexample.why else []
    sections = [
        [property_id, title, f"path {path}", ", ".join(setting)],
        *(_calls(counterexample) if _has_logits(counterexample) else []),
        _tokens(counterexample),
        _ends(counterexample),
        message,
        ["two answers to the same case:", *(f"  {answer}" for answer in answers)] if answers else [],
        [f"refutes {words}", *why, *(f"note: {note}" for note in counterexample.notes)],
    ]
    lines = [_cut(line) for section in sections if section for line in (*section, "")]
    lines[-1] = "to replay exactly this case:"
    return "\n".join([*lines, replay_command])


def is_about_topk(counterexample: Counterexample) -> bool:
    """Whether it is no argmax that a live engine answered."""
    origin = counterexample.origin
    return isinstance(origin, EngineCase) and origin.options.k is not None


def to_document(counterexample: Counterexample, *, property_id: str, path: str, backend: str) -> dict[str, Any]:
    """What a case file holds: all that a replay needs, in plain values."""
    return {**_note(counterexample, property_id, path, backend), "case": counterexample.case.to_json()}


def write_case(counterexample: Counterexample, folder: Path, *, property_id: str, path: str, backend: str) -> Path:
    """Write ``<kind>-<digest>.json``, or ``.safetensors`` for a case too big to read, and return where.

    The digest is that of all a replay goes by: two paths that fail on one case have a file each. Raises OSError.
    """
    note = _note(counterexample, property_id, path, backend)
    origin = counterexample.origin
    name = f"{counterexample.kind.value}-{_digest(counterexample, path)}"
    if origin is not None:  # the hidden states decide; the logits that the ranks make of them need not be kept
        size, kept_as = 0, "draft_case"
        if isinstance(origin, HeadCase):
            size, kept_as = origin.hidden_states.size, "head_case"
        elif isinstance(origin, EngineCase):
            size, kept_as = origin.hidden_states.size + origin.weight.size, "engine_case"
        if size > _JSON_VALUES:
            file = folder / f"{name}.safetensors"
            file.write_bytes(origin.to_bytes(note))
            return file
        file = folder / f"{name}.json"
        file.write_text(json.dumps({**note, kept_as: origin.to_json()}, indent=1, allow_nan=False) + "\n")
        return file
    if sum(call.logits.size for call in counterexample.case.calls) > _JSON_VALUES:
        file = folder / f"{name}.safetensors"
        file.write_bytes(counterexample.case.to_bytes(_note(counterexample, property_id, path, backend)))
        return file
    file = folder / f"{name}.json"
    document = to_document(counterexample, property_id=property_id, path=path, backend=backend)
    file.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    return file


def shown(file: Path) -> str:
    """Its name as one would type it here."""
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)


def _digest(counterexample: Counterexample, path: str) -> str:
    origin = counterexample.origin
    parts = [(origin or counterexample.case).digest, path, counterexample.identity, counterexample.tie_rule]
    if isinstance(origin, (HeadCase, DraftCase)):
        parts.append(origin.head.name)
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()


def _note(counterexample: Counterexample, property_id: str, path: str, backend: str) -> dict[str, str]:
    return {
        "format": REPORT_FORMAT,
        "property": property_id,
        "kind": counterexample.kind.value,
        "identity": counterexample.identity,
        "path": path,
        "backend": backend,
        "tie_rule": counterexample.tie_rule,
        "message": counterexample.finding.message,
    }


# -- the rows -----------------------------------------------------------------------------------------


def _failing(counterexample: Counterexample) -> tuple[Call, int]:
    finding = counterexample.finding
    call = counterexample.case.calls[min(finding.call, len(counterexample.case.calls) - 1)]
    return call, finding.rows[0] if finding.rows else 0


def _stakes(counterexample: Counterexample, call: Call, row: int) -> tuple[list[int], list[int]]:
    """Columns of the right token and of the returned ones. Neither, where no token is in question."""
    if not counterexample.finding.rows or counterexample.kind is Kind.INPUT_MODIFIED:
        return [], []
    right = int(expected(call.rows([row]), counterexample.tie_rule).tokens[0])
    tokens = [right]
    for rank in counterexample.run.ranks:
        answered = rank.calls[counterexample.finding.call :][:1]
        tokens += [int(outcome.tokens[row]) for outcome in answered if outcome.tokens is not None]
    ids = np.arange(call.layout.vocab_size) if call.d2t is None else tables.targets(call.d2t)
    columns = [[int(column) for column in np.flatnonzero(ids == token)] for token in tokens]
    wanted = [column for column in columns[0] if tied_set(call.values()[row])[column]]
    return wanted, [column for found in columns[1:] for column in found]


def _has_logits(counterexample: Counterexample) -> bool:
    """Whether the case holds the ranks' own logits; of a case from hidden states they may not have made any."""
    is_loop = isinstance(counterexample.origin, DraftCase)
    if counterexample.kind is Kind.BAD_TABLE or (is_loop and not counterexample.finding.rows):
        return False
    return counterexample.origin is None or counterexample.run.complete


def _calls(counterexample: Counterexample) -> list[list[str]]:
    """The failing call's rows, and the calls before it that it takes to fail; equal neighbours are shown once."""
    calls = counterexample.case.calls
    target = min(counterexample.finding.call, len(calls) - 1)
    groups: list[tuple[int, int]] = []
    for index, call in enumerate(calls):
        if groups and Case((call,)).digest == Case((calls[groups[-1][0]],)).digest:
            groups[-1] = groups[-1][0], index
        else:
            groups.append((index, index))
    own = next(number for number, (first, last) in enumerate(groups) if first <= target <= last)
    shown = groups[max(0, own - _SHOWN_CALLS + 1) : own + 1]
    shown += groups[own + 1 :][: _SHOWN_CALLS - len(shown)]
    # A rank that died or waits has told of no call.
    is_known = counterexample.kind not in (Kind.DIED, Kind.HANG)
    sections = []
    for first, last in shown:
        call = calls[last]
        number = f"call {first + 1}" if first == last else f"calls {first + 1} to {last + 1}, all alike,"
        shape = f"batch {call.batch}, vocabulary {call.layout.vocab_size}, padded_size {call.layout.padded_size}"
        failing = f", fails at call {target + 1}" if first <= target <= last and len(calls) > 1 and is_known else ""
        section = [f"{number} of {len(calls)}: {shape}{failing}"]
        if call.batch:
            section += _table(counterexample, call, first <= target <= last, _TABLE_LINES // len(shown))
        sections.append(section)
    if len(shown) < len(groups):
        sections.append([f"and {len(groups) - len(shown)} other call(s)"])
    return sections


def _table(counterexample: Counterexample, call: Call, is_failing: bool, room: int) -> list[str]:
    """One line a column of the row that failed; other rows beside it as far as they fit."""
    row = _failing(counterexample)[1] if is_failing else 0
    wanted, returned = _stakes(counterexample, call, row) if is_failing else ([], [])
    is_tied = tied_set(call.values()[row])
    tied = np.flatnonzero(is_tied)[:4].tolist() if is_tied.sum() > 1 else []
    cells = _cells(call, [*wanted, *returned, *tied])
    at = {start + column: number for number, (rank, column, start) in enumerate(cells) if start >= 0}
    shown = _elided(len(cells), [at[column] for column in (*wanted, *returned, *tied)], room)
    ids = None if call.d2t is None else tables.targets(call.d2t)
    others = [other for other in range(call.batch) if other != row]
    text: list[str] = []
    rows = [row]
    for number in range(min(_SHOWN_ROWS, call.batch), 0, -1):
        rows = sorted([row, *others[: number - 1]])
        names = ["id"] if ids is None else ["draft id", "target id"]
        lines = [
            ["rank", "column", *names, *(f"row {other}" for other in rows), f"(of row {row})" if number > 1 else ""]
        ]
        for place in shown:
            if place is None:
                continue
            rank, column, start = cells[place]
            real = start + column if start >= 0 else None
            named = ["-"] * len(names) if real is None else [str(real), *([] if ids is None else [str(ids[real])])]
            values = [bits.text(int(pattern), call.dtype) for pattern in call.rows(rows).local_logits(rank)[:, column]]
            marks = {"padding": real is None, "expected": real in wanted, "returned": real in returned}
            marks["tied"] = real is not None and bool(tied) and bool(is_tied[real])
            words = [word for word in ("padding", "tied", "expected", "returned") if marks[word]]
            lines.append([str(rank), str(column), *named, *values, " ".join(words)])
        text = _aligned(lines)
        if max(map(len, text)) <= _WIDTH:
            break
    for place, number_shown in enumerate(shown):
        if number_shown is None:
            text.insert(place + 1, "   ...")
    return [*text, *([f"   and {call.batch - len(rows)} other row(s)"] if call.batch > len(rows) else [])]


def _cells(call: Call, at_stake: Sequence[int]) -> list[tuple[int, int, int]]:
    """Rank, local column and the shard's start (-1 for padding) of every cell; of wide shards only what is at stake."""
    cells = []
    for rank, (start, end) in enumerate(call.layout.bounds):
        width = call.layout.padded_size
        columns: Sequence[int] = range(width)
        if width > _TABLE_COLUMNS:
            near = {real - start + step for real in at_stake if start <= real < end for step in (-1, 0, 1)}
            columns = sorted({0, width - 1, *(column for column in near if 0 <= column < width)})
        cells += [(rank, column, start if column < end - start else -1) for column in columns]
    return cells


def _elided(length: int, at_stake: Sequence[int], room: int) -> list[int | None]:
    """Which of so many lines to show, None for a gap: what is at stake, the most important first, neighbours, ends."""
    if length <= room:
        return list(range(length))
    kept: set[int] = set()
    for number in (*at_stake, 0, length - 1, *(number + step for number in at_stake for step in (-1, 1))):
        if 0 <= number < length and len(kept) < room - 3:
            kept.add(number)
    shown: list[int | None] = []
    for number, previous in zip(sorted(kept), (-1, *sorted(kept)), strict=False):
        shown += [number] if number == previous + 1 else [None, number]
    return shown if length - 1 in kept else [*shown, None]


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Cells to the right of their columns, the last one to the left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  "
        + "  ".join([*(cell.rjust(width) for cell, width in zip(line, widths[:-1], strict=False)), line[-1]]).rstrip()
        for line in lines
    ]


# -- what the ranks gave ------------------------------------------------------------------------------


def _tokens(counterexample: Counterexample) -> list[str]:
    index = counterexample.finding.call
    outcomes = [rank.calls[index] if len(rank.calls) > index else None for rank in counterexample.run.ranks]
    call, row = _failing(counterexample)
    if call.batch <= row or counterexample.kind is Kind.INPUT_MODIFIED:
        return []
    if all(outcome is None or outcome.tokens is None for outcome in outcomes):
        return []
    truth = int(expected(call.rows([row]), counterexample.tie_rule).tokens[0])
    by_draft_id = counterexample.tie_rule == "draft_id"
    answers: dict[str, list[np.ndarray | None]] = {
        "full gather" + (", ties by target id" if by_draft_id else ""): [
            None if o is None else o.reference for o in outcomes
        ],
        "path": [None if o is None else o.tokens for o in outcomes],
        "path, after later calls": [None if o is None else o.overwritten for o in outcomes],
        "NumPy" + (", ties by draft id" if by_draft_id else ""): [np.full(call.batch, truth)] * len(outcomes),
    }
    text: list[str] = []
    for number in range(min(_SHOWN_RANKS, len(outcomes)), 0, -1):
        ranks = [*range((number + 1) // 2), *range(len(outcomes) - number // 2, len(outcomes))]
        lines = [[f"token of row {row}", *(f"rank {rank}" for rank in ranks), ""]]
        for name, given in answers.items():
            if any(tokens is not None for tokens in given) or name == "path":
                chosen = [given[rank] for rank in ranks]
                lines.append([name, *("-" if tokens is None else str(tokens[row]) for tokens in chosen), ""])
        width = max(len(line[0]) for line in lines)
        text = _aligned([[line[0].ljust(width), *line[1:]] for line in lines])
        if max(map(len, text)) <= _WIDTH:
            break
    return text


def _ends(counterexample: Counterexample) -> list[str]:
    """How each rank ended, where one did not answer, and where in the code."""
    if counterexample.run.complete:
        return []
    lines = []
    for rank, outcome in enumerate(counterexample.run.ranks):
        if rank == _SHOWN_RANKS:
            lines.append(f"and {len(counterexample.run.ranks) - rank} other rank(s)")
            break
        lines += [f"rank {rank}: {line}" if not number else f"    {line}" for number, line in enumerate(_end(outcome))]
    return lines


def _end(outcome: RankOutcome) -> list[str]:
    if isinstance(outcome.end, Died):
        last = outcome.end.tail.strip().splitlines()[-1:]
        return [f"died by {outcome.end.how}", *last]
    if isinstance(outcome.end, Stuck):
        return [f"no answer within {outcome.end.seconds:.1f} s: {outcome.end.where}"]
    if not outcome.calls:
        return ["nothing heard"]
    call = outcome.calls[-1]
    if call.status == "raised":
        message = call.message.splitlines()[0] if call.message else "no message"
        frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', call.traceback)
        place = [f"at {'/'.join(file.split('/')[-2:])}:{line} in {function}" for file, line, function in frames[-1:]]
        return [f"raised {call.error_type}: {message}", *place]
    if call.status == "refused":
        return [f"refused: {call.message}"]
    return [call.message or "answered"]


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..."
