"""The verdict on a path and a head: one word, its scope, and why.

    CERTIFIED    every obligation proved, or tested on at least the stated minimum of rows at every tp_size
    CONDITIONAL  holds except on named rows, or under a condition that is printed
    REFUTED      a witness was seen on the ranks, or the table is none
    UNKNOWN      something was not run or could not be decided; never a pass

A verdict says nothing beyond its scope: the path, the head, the backend, the device and the tp sizes that ran.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from refimpl.verdict.obligations import CONTRACT, OBLIGATIONS, Evidence, Ledger, Row, Status

# An obligation that is not proved counts as tested from so many rows on, at each tp_size.
MINIMUM_ROWS = 1000
# From hidden states a row costs a matrix product; what O0 is about shows on few.
MINIMUM_ROWS_FROM_HIDDEN_STATES = 100
# In the place of a path's name: the head answers for its own reduction.
OWN = "own"
CERTIFYING_PROFILES = ("ci", "nightly")
NOT_ALL_NEG_INF = (
    "for rows that are not all -inf (no head with finite weights gives one): there the full gather gives filler "
    "id 0 and a mapped path the target of draft 0"
)


class Word(str, Enum):
    """In the order of what a reader must know first; of several verdicts the first is the word for all."""

    REFUTED = "REFUTED"
    UNKNOWN = "UNKNOWN"
    CONDITIONAL = "CONDITIONAL"
    CERTIFIED = "CERTIFIED"


# in-toto's words.
RESULTS = {
    Word.CERTIFIED: "PASSED",
    Word.CONDITIONAL: "WARNED",
    Word.REFUTED: "FAILED",
    Word.UNKNOWN: "FAILED",
}


@dataclass(frozen=True)
class Setting:
    """What a run was: the scope of all its verdicts."""

    backend: str
    device: str
    tp_sizes: tuple[int, ...]
    profile: str


@dataclass(frozen=True)
class Verdict:
    """One (path, head) pair. ``reasons`` say why it is not CERTIFIED, ``conditions`` under what it holds.

    ``given_logits``: of a head without weights, whose logits no path can be told to see: O0 is none of its scope.
    """

    path: str
    head: str | None
    word: Word
    setting: Setting
    rows: tuple[Row, ...]
    reasons: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    given_logits: bool = False

    @property
    def title(self) -> str:
        """The word with its scope: ``CERTIFIED (gather_pairs, gloo, cpu, tp 2,4)``."""
        parts = [self.path, *([self.head] if self.head else []), *(["given logits"] if self.given_logits else [])]
        parts += [self.setting.backend, self.setting.device]
        return f"{self.word.value} ({', '.join(parts)}, tp {','.join(map(str, self.setting.tp_sizes))})"

    def to_value(self) -> dict[str, Any]:
        """Plain values for the certificate."""
        return {
            "verdict": self.word.value,
            "title": self.title,
            "path": self.path,
            "head": self.head,
            "tp_sizes": list(self.setting.tp_sizes),
            "reasons": list(self.reasons),
            "conditions": list(self.conditions),
            "notes": list(self.notes),
            "obligations": [
                {
                    "obligation": row.obligation,
                    "statement": row.statement,
                    "status": row.status.value,
                    "rows": row.numbers,
                    "scopes": _scopes(row),
                }
                for row in self.rows
            ],
        }


def _scopes(row: Row) -> list[str]:
    """What was proved and for which scope, and what was sampled, one line each."""
    found: dict[tuple[str, str], list[Evidence]] = {}
    for entry in row.evidence:
        if entry.status in (Status.PROVED, Status.TESTED):
            found.setdefault((entry.status.value, entry.scope or "drawn rows"), []).append(entry)
    lines = []
    for (status, scope), entries in sorted(found.items()):
        sizes = ",".join(map(str, sorted({entry.tp_size for entry in entries})))
        dtypes = ", ".join(sorted({dtype for entry in entries for dtype in entry.dtypes}))
        count = sum(entry.count for entry in entries)
        rows = [f"{count:,} rows", *([dtypes] if dtypes else [])] if count else []
        lines.append(", ".join([f"{status}: {scope}", *rows, f"tp {sizes}"]))
    return lines


def subjects(ledger: Ledger, paths: Iterable[str], heads: Iterable[str]) -> list[tuple[str, str | None]]:
    """What a run gives verdicts on: each path with each head; a path alone where no head was asked for."""
    wanted = list(heads)
    seen = {path for path, _ in ledger.subjects()}
    found: list[tuple[str, str | None]] = [(p, h) for p in dict.fromkeys([*paths, *sorted(seen)]) for h in wanted]
    return found or [(path, None) for path in dict.fromkeys([*paths, *sorted(seen)])]


def evidence_for(ledger: Ledger, path: str, head: str | None) -> Ledger:
    """What is evidence for a pair: that from the head itself, and that of the path on given logits.

    A condition of the path alone (ties under tables that do not rise) yields to what was found on the head's own table.
    """
    own = ledger.of((path, head))
    if head is None:
        return Ledger(own)
    if path == OWN:
        # The head answers for its own reduction: each row is a test of all that lies between hidden states and token.
        seen = {entry.obligation for entry in own}
        whole = [entry for entry in own if entry.obligation == "O0" and entry.status is Status.TESTED]
        return Ledger([*own, *(replace(e, obligation=name) for e in whole for name in OBLIGATIONS if name not in seen)])
    table_seen = any(entry.obligation == "O5" and entry.status is not Status.NOT_RUN for entry in own)
    shared = [replace(entry, head=head) for entry in ledger.of((path, None)) if not (entry.condition and table_seen)]
    return Ledger([*own, *shared])


def decide(
    ledger: Ledger,
    path: str,
    head: str | None,
    setting: Setting,
    *,
    problems: Iterable[str] = (),
    has_table: bool = True,
    given_logits: bool = False,
) -> Verdict:
    """The verdict on a pair.

    ``problems``: why the run as a whole shows less than it should (a test that broke outside of a case, a worker that
    died). ``has_table``: whether the condition about all -inf rows concerns the head. ``given_logits``: the head has no
    weights, so O0 is not asked of it.
    """
    pair = evidence_for(ledger, path, head)
    subject = (path, head)
    asks_o0 = head is not None and not given_logits
    rows = tuple(row for row in pair.table(subject) if asks_o0 or row.obligation != "O0")
    refuted = [entry for row in rows for entry in row.evidence if entry.status is Status.REFUTED]
    firm = [entry for entry in refuted if not entry.condition]
    conditions = list(dict.fromkeys(entry.condition for entry in refuted if entry.condition))
    unknown = [
        *problems,
        *(_never_compared(ledger.of(subject), setting) if given_logits else []),
        *_not_shown(rows, pair, subject, setting),
    ]
    if setting.profile not in CERTIFYING_PROFILES:
        choices = " or ".join(CERTIFYING_PROFILES)
        unknown.insert(0, f"the {setting.profile} profile is too short to certify; run --hypothesis-profile={choices}")
    reasons = [_witness(entry) for entry in firm]
    if firm:
        word = Word.REFUTED
    elif unknown:
        word, reasons = Word.UNKNOWN, unknown
    else:
        word = Word.CONDITIONAL if conditions else Word.CERTIFIED
    notes = [NOT_ALL_NEG_INF] if has_table else []
    if head is None:
        notes.append("given logits: whether both paths see the same logits (O0) is a matter of the head")
    if given_logits:
        notes.append("given logits: the head has no weights; whether both paths see the same logits (O0) is not asked")
    return Verdict(
        path, head, word, setting, rows, tuple(dict.fromkeys(reasons)), tuple(conditions), tuple(notes), given_logits
    )


def overall(verdicts: Iterable[Verdict]) -> Word:
    """The word for a run: the gravest; UNKNOWN where there is no verdict at all."""
    words = {verdict.word for verdict in verdicts}
    return next((word for word in Word if word in words), Word.UNKNOWN)


def _never_compared(own: list[Evidence], setting: Setting) -> list[str]:
    """What is known of a path alone would do for a head of which no O0 is asked and every row was refused."""
    found = []
    for tp_size in setting.tp_sizes:
        here = [entry for entry in own if entry.tp_size == tp_size]
        if not any(entry.count or entry.status is Status.REFUTED for entry in here):
            why = next((entry.scope for entry in here if entry.status is Status.NOT_RUN), "")
            found.append(f"no row of this head was compared at tp {tp_size}{f' ({why})' if why else ''}")
    return found


def _not_shown(rows: tuple[Row, ...], ledger: Ledger, subject: tuple[str, str | None], setting: Setting) -> list[str]:
    found = []
    for row in rows:
        undecided = next((entry for entry in row.evidence if entry.status is Status.UNKNOWN), None)
        if undecided is not None:  # whatever else is known of it, a condition included
            words = [undecided.scope.partition("\n")[0], undecided.witness]
            found.append(f"{row.obligation} could not be decided: {'; '.join(word for word in words if word)}")
        if undecided is not None or row.obligation == CONTRACT:
            continue
        least = MINIMUM_ROWS_FROM_HIDDEN_STATES if row.obligation == "O0" else MINIMUM_ROWS
        for tp_size in setting.tp_sizes:
            if row.obligation == "O3" and tp_size == 1:
                continue  # one candidate: there is nothing to reduce
            here = [entry for entry in row.evidence if entry.tp_size == tp_size]
            if any(entry.status is Status.REFUTED and not entry.condition for entry in here):
                continue  # the witness is the word; under a condition all other rows have to be shown yet
            proved = any(entry.status is Status.PROVED for entry in here)
            count = sum(entry.count for entry in here if entry.status in (Status.PROVED, Status.TESTED))
            if count >= least or (proved and not _missing_parts(ledger, subject, row.obligation, tp_size)):
                continue
            why = next((entry.scope for entry in here if entry.status is Status.NOT_RUN and entry.scope), "")
            found.append(
                f"{row.obligation} ({OBLIGATIONS[row.obligation]}) at tp {tp_size}: "
                + (f"{count:,} rows, the least is {least:,}" if count else f"not run{f' ({why})' if why else ''}")
            )
    return found


def _missing_parts(ledger: Ledger, subject: tuple[str, str | None], obligation: str, tp_size: int) -> bool:
    return any(size == tp_size for size, _ in ledger.unproved(subject, obligation))


def _witness(entry: Evidence) -> str:
    words = [f"{entry.obligation} refuted at tp {entry.tp_size}: {entry.kind or 'table'}", entry.scope]
    return "; ".join(part for part in [*words, f"witness {entry.witness}" if entry.witness else ""] if part)
