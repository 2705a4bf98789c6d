"""What is claimed, in eight obligations, and the ledger of the evidence for and against each.

Local reduction equals full gather on every row if O0 to O7 hold (``docs/correctness.md``). Each is discharged by
itself: proved within a scope that is written out, tested on so many rows, refuted by a witness, or not run. The ledger
is plain values, so that the parts of a run (pytest-xdist workers, several tp sizes) merge into one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from refimpl.verdict.kinds import Kind

OBLIGATIONS: dict[str, str] = {
    "O0": "both paths see the same logits",
    "O1": "the shard argmax returns the greatest candidate of its shard",
    "O2": "the payload embeds the order: no value or id is rounded, reordered or confused",
    "O3": "the cross-rank reduction returns the greatest candidate",
    "O4": "local to global ids strictly increase on real columns; padding is never returned",
    "O5": "draft ids map to their target ids, and ties are broken in the id space that is returned",
    "O6": "a row's token depends on that row alone",
    "O7": "all ranks return the same tokens after the same collectives in the same order",
}
# No obligation of the argument, but what it takes for granted: form of the result, read-only input, the cost claimed.
CONTRACT = "contract"

# What has to be proved before an obligation counts as proved: by these parts, at every tp_size of the run.
PARTS: dict[str, tuple[str, ...]] = {
    "O1": ("orderings", "widths"),
    "O2": ("values", "ids"),
    "O3": ("candidates",),
    "O4": ("columns",),
    "O5": ("tables",),
    "O6": ("batches", "sequences"),
    "O7": ("ranks",),
}
# What a failure kind refutes, where the kind alone says it; of a wrong token `refimpl.verdict.report.obligation_of`
# looks at the row.
BY_KIND = {
    Kind.PADDING_RETURNED: "O4",
    Kind.ID_OUT_OF_RANGE: "O4",
    Kind.WRONG_TARGET: "O5",
    Kind.BAD_TABLE: "O5",
    Kind.OTHER_LOGITS: "O0",
    Kind.ROW_DEPENDENCE: "O6",
    Kind.NONDETERMINISTIC: "O6",
    Kind.RESULT_OVERWRITTEN: "O6",
    Kind.RANK_DISAGREEMENT: "O7",
    Kind.COLLECTIVE_MISMATCH: "O7",
    Kind.REFUSED_ON_SOME_RANKS: "O7",
    Kind.RAISED_ON_SOME_RANKS: "O7",
    Kind.RAISED: "O7",
    Kind.HANG: "O7",
    Kind.DIED: "O7",
}
BEYOND_OBLIGATIONS = {
    Kind.RESULT_TYPE: "the contract: tokens are int64 of shape (batch,) on the rank's device",
    Kind.INPUT_MODIFIED: "the contract: real columns are read-only",
    Kind.REFUSED_LATE: "the contract: a refusal comes before any collective",
    Kind.COMMUNICATION: "the claim of O(batch x tp_size) bytes",
    Kind.FULL_PATH: "nothing about the local answer: what it is compared with is wrong",
    Kind.WRONG_ENTRY: "nothing about the argmax: an engine's top-k is not that of its full logits",
    Kind.REPEATED_ID: "nothing about the argmax: an engine's top-k names an id twice",
    Kind.VALUE_MISMATCH: "nothing about the argmax: an engine's top-k gives other values than its full logits",
    Kind.REFERENCE: "nothing about the path: the reference itself is in doubt",
}


# Subjects that a terminal has room for a table of each.
_TABLES = 9


class Status(str, Enum):
    """What evidence says; of several, the first in this order is the word for the whole."""

    REFUTED = "refuted"
    UNKNOWN = "unknown"
    PROVED = "proved"
    TESTED = "tested"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Evidence:
    """One finding about one obligation of one path (and head) at one tp_size.

    ``part``: of a proof, which of `PARTS` was exhausted. ``scope``: in words, what was run (of a proof: what is
    exhaustive) or why nothing was. ``count``: rows compared. ``witness``: the case file of a refutation, relative to
    the folder of the run. ``source``: the test. ``kind``: of a refutation, its published failure kind. ``condition``:
    of a refutation that leaves all other rows standing, under what they do.
    """

    path: str
    obligation: str
    status: Status
    tp_size: int
    source: str
    head: str | None = None
    dtypes: tuple[str, ...] = ()
    part: str = ""
    scope: str = ""
    count: int = 0
    witness: str | None = None
    kind: str | None = None
    seconds: float = 0.0
    condition: str = ""

    def __post_init__(self) -> None:
        if self.obligation not in OBLIGATIONS and self.obligation != CONTRACT:
            raise ValueError(f"obligation {self.obligation!r} is none of {', '.join(OBLIGATIONS)} and {CONTRACT}")
        if self.status is Status.PROVED and self.part not in PARTS.get(self.obligation, ()):
            known = ", ".join(PARTS.get(self.obligation, ()))
            raise ValueError(f"a proof of {self.obligation} names one of its parts ({known}), not {self.part!r}")

    def to_value(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "status": self.status.value, "dtypes": list(self.dtypes)}

    @classmethod
    def from_value(cls, value: dict[str, Any]) -> Evidence:
        return cls(**{**value, "status": Status(value["status"]), "dtypes": tuple(value["dtypes"])})


Subject = tuple[str, str | None]  # a path, and a head where one is certified


class Ledger:
    """All evidence of a run."""

    def __init__(self, entries: Iterable[Evidence] = ()) -> None:
        self.entries: list[Evidence] = list(entries)

    def add(self, evidence: Evidence) -> None:
        self.entries.append(evidence)

    def to_value(self) -> list[dict[str, Any]]:
        return [entry.to_value() for entry in self.entries]

    @classmethod
    def merged(cls, parts: Iterable[list[dict[str, Any]]]) -> Ledger:
        """One ledger of what several processes carried home."""
        return cls(Evidence.from_value(value) for part in parts for value in part)

    def subjects(self) -> list[Subject]:
        return sorted({(entry.path, entry.head) for entry in self.entries}, key=lambda pair: (pair[0], pair[1] or ""))

    def of(self, subject: Subject, obligation: str | None = None) -> list[Evidence]:
        return [
            entry
            for entry in self.entries
            if (entry.path, entry.head) == subject and obligation in (None, entry.obligation)
        ]

    def unproved(self, subject: Subject, obligation: str) -> list[tuple[int, str]]:
        """What is missing from a proof: each tp_size that the subject ran at, with the part not proved there."""
        proofs = {(e.tp_size, e.part) for e in self.of(subject, obligation) if e.status is Status.PROVED}
        sizes = sorted({entry.tp_size for entry in self.of(subject)})
        wanted = [(size, part) for size in sizes for part in PARTS.get(obligation, ("",))]
        return [pair for pair in wanted if pair not in proofs]

    def status(self, subject: Subject, obligation: str) -> Status:
        """One word for the obligation; proved only where every part is, at every tp_size of the run."""
        seen = {entry.status for entry in self.of(subject, obligation)}
        for status in (Status.REFUTED, Status.UNKNOWN):
            if status in seen:
                return status
        if Status.PROVED in seen and not self.unproved(subject, obligation):
            return Status.PROVED
        return Status.TESTED if seen & {Status.PROVED, Status.TESTED} else Status.NOT_RUN

    def table(self, subject: Subject) -> list[Row]:
        """O0 to O7 in order; then the contract, where there is anything against it."""
        names = [*OBLIGATIONS, *([CONTRACT] if self.of(subject, CONTRACT) else [])]
        return [Row(name, self.status(subject, name), tuple(self.of(subject, name))) for name in names]


@dataclass(frozen=True)
class Row:
    """One obligation of one subject: the word, and the evidence it rests on."""

    obligation: str
    status: Status
    evidence: tuple[Evidence, ...]

    @property
    def statement(self) -> str:
        return OBLIGATIONS.get(self.obligation, "form of the result, read-only input, refusals and cost as claimed")

    def count(self, status: Status) -> int:
        return sum(entry.count for entry in self.evidence if entry.status is status)

    @property
    def numbers(self) -> str:
        """What the word rests on: rows and how they were come by, or the witness, or why nothing was run."""
        if self.status in (Status.REFUTED, Status.UNKNOWN):
            first = next(entry for entry in self.evidence if entry.status is self.status)
            words = first.kind if self.status is Status.REFUTED else first.scope.splitlines()[0]
            return f"{words}; {first.witness}" if first.witness else str(words)
        proved, tested = self.count(Status.PROVED), self.count(Status.TESTED)
        parts = []
        if proved:
            parts.append(f"{'proved' if self.status is Status.PROVED else 'proved in part'} on {proved:,} rows")
        if tested:
            parts.append(f"tested on {tested:,} rows")
        return ", ".join(parts) or next(iter(sorted({entry.scope for entry in self.evidence})), "")


def render(ledger: Ledger) -> list[str]:
    """The terminal's tables, one a subject, and below them once what "proved" means: the scopes.

    Of many heads each gets one line, or a reader would find nothing.
    """
    lines: list[str] = []
    subjects = ledger.subjects()
    for subject in subjects:
        path, head = subject
        sizes = ",".join(map(str, sorted({entry.tp_size for entry in ledger.of(subject)})))
        if head is not None and len(subjects) > _TABLES:
            words: dict[str, list[str]] = {}
            for row in ledger.table(subject):
                words.setdefault(row.status.value, []).append(row.obligation)
            said = "; ".join(f"{word} {', '.join(names)}" for word, names in words.items())
            lines.append(f"obligations of {path}, head {head}, tp {sizes}: {said}")
            continue
        lines.append(f"obligations of {path}{f', head {head}' if head else ''}, tp {sizes}")
        for row in ledger.table(subject):
            numbers = f" ({row.numbers})" if row.numbers else ""
            lines.append(f"  {row.obligation:<2}  {row.status.value:<7}  {row.statement}{numbers}")
    lines += _scopes(ledger, subjects)
    return lines


def _scopes(ledger: Ledger, subjects: list[Subject]) -> list[str]:
    found: dict[tuple[str, str, str], list[Evidence]] = {}
    for entry in ledger.entries:
        if entry.status is Status.PROVED:
            found.setdefault((entry.obligation, entry.part, entry.scope), []).append(entry)
    if not found:
        return []
    lines = ["proved means: on every case of these scopes, and nothing is said beyond them"]
    for (obligation, part, scope), entries in sorted(found.items()):
        sizes = ",".join(map(str, sorted({entry.tp_size for entry in entries})))
        whom = {(entry.path, entry.head) for entry in entries}
        names = "" if len(whom) == len(subjects) else f", {', '.join(sorted(path for path, _ in whom))} only"
        lines.append(f"  {obligation} {part}: {scope} (tp {sizes}{names})")
    return lines
