"""One screen for a failing top-k case: the rows as the ranks hold them, every answer beside the right one, and how to
replay it; and the file that a replay reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from refimpl import bits
from refimpl.case import REPORT_FORMAT
from refimpl.engine_case import EngineCase
from refimpl.topk.case import TopKCall
from refimpl.topk.judge import ENTRY_KINDS, KINDS, decoded
from refimpl.topk.oracle import oracle_topk
from refimpl.topk.reduce import TopKCounterexample
from refimpl.verdict.engine_topk import VALUES
from refimpl.verdict.judge import describe
from refimpl.verdict.kinds import DESCRIPTIONS, Kind
from refimpl.verdict.reduce import Counterexample

_JSON_VALUES = 20_000
_WIDTH = 100
# What a kind says of a live engine's top-k, where its usual words are those of an argmax.
_ENGINE_KINDS = {
    **ENTRY_KINDS,
    Kind.RESULT_TYPE.value: "no pair of values and int64 ids (batch, k), or one where there are no k entries",
    Kind.FULL_PATH.value: "the engine's own full logits are not those of its head",
}
_SHOWN_ROWS, _SHOWN_COLUMNS, _SHOWN_ENTRIES = 2, 24, 8


def render(
    counterexample: TopKCounterexample,
    *,
    property_id: str,
    path: str,
    backend: str,
    replay_command: str,
    why: Sequence[str] = (),
) -> str:
    """The replay command, the last line, is never cut; every other line is. ``why``: lines before it."""
    case, finding = counterexample.case, counterexample.finding
    entry = case.calls[finding.call]
    call = entry.call
    lines = [
        property_id,
        f"{finding.kind}: {KINDS[finding.kind]}",
        f"path {path}",
        f"tp_size {case.tp_size}, {call.dtype}, {backend}",
        "",
        f"call {finding.call + 1} of {len(case.calls)}: batch {call.batch}, k {entry.k}",
        f"vocabulary {call.layout.vocab_size}, padded_size {call.layout.padded_size}",
    ]
    small = call.layout.padded_size * case.tp_size <= _SHOWN_COLUMNS
    rows = (finding.rows or tuple(range(call.batch if small else 0)))[:_SHOWN_ROWS]
    for row in rows:
        lines += _row_lines(entry, row)
        lines += _answer_lines(counterexample, entry, row)
    lines += ["", *finding.message.splitlines()]
    lines += [*why, "", "to replay exactly this case:"]
    return "\n".join([*(line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..." for line in lines), replay_command])


def write_case(counterexample: TopKCounterexample, folder: Path, *, property_id: str, path: str, backend: str) -> Path:
    """Write ``<kind>-<digest>.json``, or ``.safetensors`` for a case too big to read, and return where.

    The digest is that of the case, the kind and the path. Raises OSError.
    """
    case, finding = counterexample.case, counterexample.finding
    note = {
        "format": REPORT_FORMAT,
        "property": property_id,
        "kind": finding.kind,
        "path": path,
        "backend": backend,
        "message": finding.message,
    }
    parts = f"{case.digest}\0{path}\0{finding.kind}"
    name = f"{finding.kind}-{hashlib.blake2b(parts.encode(), digest_size=12).hexdigest()}"
    if sum(entry.call.logits.size for entry in case.calls) > _JSON_VALUES:
        file = folder / f"{name}.safetensors"
        file.write_bytes(case.to_bytes(note))
    else:
        file = folder / f"{name}.json"
        file.write_text(json.dumps({**note, "topk_case": case.to_json()}, indent=1, allow_nan=False) + "\n")
    return file


def _row_lines(entry: TopKCall, row: int) -> list[str]:
    call = entry.call
    ids = np.arange(call.layout.vocab_size) + (0 if call.d2t is None else call.d2t)
    lines = [f"  row {row}: rank, column, id, value"]
    for rank, (start, end) in enumerate(call.layout.bounds):
        local = call.local_logits(rank)[row]
        for column, pattern in enumerate(local[:_SHOWN_COLUMNS]):
            real = column < end - start
            name = f"{ids[start + column]:>6}" if real else "     -"
            lines.append(
                f"  {rank:>6} {column:>6} {name}  {bits.text(int(pattern), call.dtype)}{'' if real else '  padding'}"
            )
        if len(local) > _SHOWN_COLUMNS:
            lines.append(f"  {rank:>6}  and {len(local) - _SHOWN_COLUMNS} columns more")
    return lines


def _answer_lines(counterexample: TopKCounterexample, entry: TopKCall, row: int) -> list[str]:
    call, k = entry.call, entry.k
    values = call.values()[row : row + 1]
    columns, ids = oracle_topk(values, min(k, call.layout.vocab_size), call.d2t)
    lines = [f"  NumPy        {_pairs(ids[0], values[0, columns[0]])}"]
    for rank, outcome in enumerate(counterexample.run.ranks):
        told = outcome.calls[counterexample.finding.call] if len(outcome.calls) > counterexample.finding.call else None
        if told is None or told.tokens is None:
            lines.append(
                f"  path, rank {rank} {'no answer' if told is None else f'{told.status} {told.message}'[:120]}"
            )
        else:
            lines.append(f"  path, rank {rank} {_pairs(told.tokens[0, row], decoded(told.tokens, call.dtype)[row])}")
    return lines


def _pairs(ids: np.ndarray, values: np.ndarray) -> str:
    shown = [f"{token}: {value:g}" for token, value in zip(ids[:_SHOWN_ENTRIES], values, strict=False)]
    return ", ".join(shown) + (" ..." if len(ids) > _SHOWN_ENTRIES else "")


def render_engine(
    counterexample: Counterexample, *, property_id: str, head: str, backend: str, replay_command: str
) -> str:
    """The report of a live engine's top-k: its full logits as a case of this contract, and its own answer to it."""
    origin, finding, run = counterexample.origin, counterexample.finding, counterexample.run
    assert isinstance(origin, EngineCase) and origin.options.k is not None
    call = counterexample.case.calls[0]
    entry = TopKCall(call, origin.options.k)
    lines = [
        property_id,
        f"{counterexample.identity}: {_ENGINE_KINDS.get(counterexample.kind.value, DESCRIPTIONS[counterexample.kind])}",
        f"{head}: its own top-k against that of its full logits",
        f"tp_size {origin.tp_size}, {call.dtype}, {backend}, batch {origin.num_rows}, k {entry.k}",
    ]
    if run.complete and call.batch and all(rank.calls[0].tokens is not None for rank in run.ranks):
        row = finding.rows[0] if finding.rows else 0
        if call.layout.padded_size * origin.tp_size <= _SHOWN_COLUMNS:
            lines += _row_lines(entry, row)
        full = run.ranks[0].calls[0].reference
        if full is not None:
            lines.append(f"  full logits   {_pairs(full[0, row], decoded(full, VALUES)[row])}")
        for rank, outcome in enumerate(run.ranks):
            tokens = outcome.calls[0].tokens
            if tokens is not None:
                lines.append(f"  engine, rank {rank} {_pairs(tokens[0, row], decoded(tokens, VALUES)[row])}")
    elif not run.complete:
        lines += describe(run).splitlines()
    lines += ["", *finding.message.splitlines()[:4]]
    lines += [f"why: {counterexample.why}"] if counterexample.why else []
    lines += [f"note: {note}" for note in counterexample.notes]
    lines += ["", "to replay exactly this case:"]
    return "\n".join([*(line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..." for line in lines), replay_command])
