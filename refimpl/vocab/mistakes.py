"""What is probably wrong with a D2T table, by name, and what to do about it.

`refimpl.vocab.d2t.check_table` says which rule of a table is broken. A broken rule is seldom the cause: targets run out
of range because ids were saved for offsets, or the table belongs to another training. Each cause leaves a mark of its
own in ``d2t`` and ``t2d``, and is named by it here. Engines read offsets, ``target = k + d2t[k]``; trainers hold ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from refimpl.vocab.d2t import TableReport, check_table, targets

SORT_COMMAND = "argmax-parity sort-table CHECKPOINT OUT"
# Fewer ids than this may have any pattern by chance.
_TELLING_LENGTH = 8


@dataclass(frozen=True)
class Mistake:
    """A likely cause. ``name`` is its published name, ``message`` the mark it left, ``remedy`` what to do.

    ``breaks``: whether the table maps draft ids to wrong targets as it stands; otherwise it is sound as a table and
    right only if it is meant.
    """

    name: str
    message: str
    remedy: str
    breaks: bool = True


@dataclass(frozen=True)
class Diagnosis:
    """A table's `TableReport`, its likely mistakes, and whether it is usable at all: int64, in range, injective."""

    report: TableReport
    mistakes: tuple[Mistake, ...]

    @property
    def is_sound(self) -> bool:
        return not self.report.errors and not any(mistake.breaks for mistake in self.mistakes)

    @property
    def sentences(self) -> tuple[str, ...]:
        named = tuple(f"{m.name}: {m.message}; {m.remedy}" for m in self.mistakes)
        return named + self.report.errors


def diagnose(
    d2t: np.ndarray, draft_vocab_size: int, target_vocab_size: int | None = None, t2d: np.ndarray | None = None
) -> Diagnosis:
    """Check a table and name its likely mistakes.

    ``d2t``: the tensor as stored, of any dtype and shape. ``draft_vocab_size``: rows of the lm_head it belongs to.
    ``target_vocab_size``: length of the target vocabulary; where None the length of ``t2d`` stands in. Raises nothing.
    """
    report = check_table(d2t, draft_vocab_size, target_vocab_size, t2d)
    if target_vocab_size is None and t2d is not None and t2d.ndim == 1:
        target_vocab_size = len(t2d)
    found = [*_wrong_dtype(d2t), *_wrong_length(d2t, draft_vocab_size)]
    integers = _as_integers(d2t)
    if integers is not None and len(integers) and not found_length(found):
        found += _wrong_meaning(integers, target_vocab_size, t2d, report)
    return Diagnosis(report, tuple(found))


def found_length(mistakes: list[Mistake]) -> bool:
    """Whether the table has another length than the head: then its values say nothing about this head."""
    return any(mistake.name == "stale-table" for mistake in mistakes)


def _wrong_dtype(d2t: np.ndarray) -> list[Mistake]:
    if d2t.dtype == np.int64:
        return []
    if np.issubdtype(d2t.dtype, np.integer):
        return [
            Mistake(
                "narrow-integers",
                f"d2t is stored as {d2t.dtype}, engines hold int64 and index with it",
                "save it with .to(torch.int64)",
            )
        ]
    return [
        Mistake(
            "not-integers",
            f"d2t is stored as {d2t.dtype}, which cannot be an index and rounds ids from some size on",
            "make it anew from the integer ids; a cast keeps what was rounded",
        )
    ]


def _wrong_length(d2t: np.ndarray, draft_vocab_size: int) -> list[Mistake]:
    if d2t.ndim != 1 or len(d2t) == draft_vocab_size:
        return []
    return [
        Mistake(
            "stale-table",
            f"d2t has {len(d2t)} entries and lm_head {draft_vocab_size} rows: they come from different trainings",
            "take d2t, t2d and lm_head from one checkpoint",
        )
    ]


def _as_integers(d2t: np.ndarray) -> np.ndarray | None:
    """int64 values of a one-dimensional table, of a floating one too where all of its values are whole."""
    if d2t.ndim != 1 or d2t.dtype == np.bool_:
        return None
    if np.issubdtype(d2t.dtype, np.integer):
        return d2t.astype(np.int64)
    if not np.issubdtype(d2t.dtype, np.floating):
        return None
    values = d2t.astype(np.float64)
    whole = np.isfinite(values) & (np.abs(values) < 2**62) & (values == np.round(values))
    return values.astype(np.int64) if whole.all() else None


def _wrong_meaning(
    values: np.ndarray, target_vocab_size: int | None, t2d: np.ndarray | None, report: TableReport
) -> list[Mistake]:
    draft = len(values)
    mask = t2d if t2d is not None and t2d.dtype == np.bool_ and t2d.shape == (target_vocab_size,) else None
    agrees = mask is not None and _is_mask_of(targets(values), mask)
    if target_vocab_size is not None and draft == target_vocab_size:
        return _full_vocabulary(values)
    if agrees:
        return []  # the mask tells of the same ids by another way
    if not values.any():
        return [
            Mistake(
                "all-zero",
                f"d2t is all zeros in a draft vocabulary of {draft} of {target_vocab_size or 'more'} target ids: draft "
                "ids would be target ids, as where an engine found no table and kept its initial one",
                "save the trained table as d2t",
                breaks=mask is not None,
            )
        ]
    if draft >= 2 and np.array_equal(values, np.arange(draft)):
        return [
            Mistake(
                "arange-as-offsets",
                f"d2t is 0, 1, .. {draft - 1}: as offsets these are the even targets 0, 2, .. {2 * draft - 2}; as ids "
                "they would be the identity",
                "save offsets, d2t[k] = id[k] - k, which are zeros for the identity, or the trained table",
                breaks=mask is not None or bool(report.errors),
            )
        ]
    if _reads_as(values, target_vocab_size, mask) and (
        mask is not None or _broken(values, target_vocab_size) or _no_neighbours(values)
    ):
        return [
            Mistake(
                "ids-for-offsets",
                f"the values of d2t are distinct ids below {target_vocab_size or 'the target vocabulary'}"
                + (" and t2d is true exactly at them" if mask is not None else "")
                + "; read as offsets they give other targets",
                "subtract the position: d2t[k] = id[k] - k",
                breaks=mask is not None or bool(report.errors),
            )
        ]
    twice = targets(values) + np.arange(draft)
    if _reads_as(twice, target_vocab_size, mask) and (mask is not None or _broken(values, target_vocab_size)):
        return [
            Mistake(
                "offsets-for-ids",
                "the positions were subtracted twice: offsets were taken for ids and made into offsets again",
                "add the position once: d2t[k] + k is the right offset",
            )
        ]
    if mask is not None:
        ids = np.unique(targets(values))
        common = int(mask[ids[_inside(ids, len(mask))]].sum())
        if common == len(ids) < draft:
            return []  # it is of this training, with a target twice, which the report names
        return [
            Mistake(
                "stale-table",
                f"t2d marks {int(mask.sum())} target ids and d2t maps to {len(ids)}, of which "
                f"{common} are marked: they come from different trainings",
                "take d2t, t2d and lm_head from one checkpoint",
            )
        ]
    return []


def _full_vocabulary(values: np.ndarray) -> list[Mistake]:
    draft = len(values)
    if not values.any():
        return []  # trainers leave a zero buffer behind; it changes nothing
    return [
        Mistake(
            "table-in-full-vocabulary",
            f"draft and target vocabulary both have {draft} ids and d2t is not zero: engines that build a table only "
            "for a reduced vocabulary ignore it, others apply it",
            "remove d2t and t2d from the checkpoint, or save the reduced lm_head that belongs to them",
        )
    ]


def _inside(ids: np.ndarray, size: int | None) -> np.ndarray:
    inside: np.ndarray = (ids >= 0) & (ids < size) if size is not None else ids >= 0
    return inside


def _is_mask_of(ids: np.ndarray, mask: np.ndarray) -> bool:
    if not _inside(ids, len(mask)).all():
        return False
    marked = np.zeros_like(mask)
    marked[ids] = True
    return bool(np.array_equal(marked, mask)) and len(ids) == int(mask.sum())


def _reads_as(ids: np.ndarray, target_vocab_size: int | None, mask: np.ndarray | None) -> bool:
    """Whether values would be sound ids: in range, distinct, and exactly those of the mask."""
    if mask is not None:
        return _is_mask_of(ids, mask)
    return bool(_inside(ids, target_vocab_size).all()) and len(np.unique(ids)) == len(ids)


def _broken(values: np.ndarray, target_vocab_size: int | None) -> bool:
    return not _reads_as(targets(values), target_vocab_size, None)


def _no_neighbours(values: np.ndarray) -> bool:
    """Rising ids read as offsets leave a gap behind every target; no real draft vocabulary has only gaps."""
    return len(values) >= _TELLING_LENGTH and all(b - a >= 1 for a, b in pairwise(values.tolist()))
