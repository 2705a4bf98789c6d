"""D2T tables: the offsets that turn draft ids of a reduced vocabulary into target ids, ``target = k + d2t[k]``.

Order is what matters to a tie. Mapping the lowest draft id of the tied set gives the lowest target id for every tied
set exactly when targets strictly increase; each inverted pair (i < j, target of i above target of j) is a two-way tie
for which it does not. EAGLE, SpecForge and vLLM's speculators write sorted tables; NVIDIA Model-Optimizer and NeMo
Automodel write them in frequency order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_MERGE_FROM = 64  # below this length comparing all pairs at once is quicker than merging halves


@dataclass(frozen=True)
class TableReport:
    """What `check_table` found.

    ``errors``: one sentence for each thing that makes the table unusable; empty for a sound table.
    ``is_injective``: no two draft ids share a target.
    ``is_rising``: targets strictly increase, so both tie rules agree.
    ``inversions``: number of inverted pairs; None where the table's form allows no count.
    ``lowest_inverted_pair``: the draft ids (i, j) of the inverted pair with the lowest i, then the lowest j: tied,
    these two columns show the difference. None without inversions.
    """

    errors: tuple[str, ...]
    is_injective: bool
    is_rising: bool
    inversions: int | None
    lowest_inverted_pair: tuple[int, int] | None


def targets(d2t: np.ndarray) -> np.ndarray:
    """int64 ``(draft_vocab_size,)`` target ids of integer ``(draft_vocab_size,)`` offsets."""
    return np.arange(len(d2t), dtype=np.int64) + d2t.astype(np.int64)


def offsets(target_ids: np.ndarray) -> np.ndarray:
    """The table with these targets: int64 ``(draft_vocab_size,)``, the inverse of `targets`."""
    return target_ids.astype(np.int64) - np.arange(len(target_ids), dtype=np.int64)


def check_table(
    d2t: np.ndarray, draft_vocab_size: int, target_vocab_size: int | None = None, t2d: np.ndarray | None = None
) -> TableReport:
    """Check a table against its contract, int64 ``(draft_vocab_size,)``, in range and injective; describe its order.

    ``target_vocab_size``: where None, the length of ``t2d`` stands in, and without that there is no upper limit.
    ``t2d``: bool ``(target_vocab_size,)``, must be true exactly at the targets. Raises nothing: faults are ``errors``.
    """
    errors = []
    if d2t.dtype != np.int64:
        errors.append(f"d2t has dtype {d2t.dtype}, it must be int64")
    if d2t.shape != (draft_vocab_size,):
        errors.append(f"d2t has shape {d2t.shape}, it must be ({draft_vocab_size},)")
    if d2t.ndim != 1 or not np.issubdtype(d2t.dtype, np.integer):
        return TableReport(
            tuple(errors), is_injective=False, is_rising=False, inversions=None, lowest_inverted_pair=None
        )

    ids = targets(d2t)
    if target_vocab_size is None and t2d is not None and t2d.ndim == 1:
        target_vocab_size = len(t2d)
    errors += _range_errors(ids, target_vocab_size)
    duplicate_errors = _duplicate_errors(ids)
    errors += duplicate_errors
    if t2d is not None:
        errors += _membership_errors(ids, t2d, target_vocab_size)
    inversions, _ = _count_inversions(ids)
    return TableReport(
        errors=tuple(errors),
        is_injective=not duplicate_errors,
        is_rising=inversions == 0 and not duplicate_errors,
        inversions=inversions,
        lowest_inverted_pair=_lowest_inverted_pair(ids),
    )


def identity_table(vocab_size: int) -> np.ndarray:
    """All offsets 0: int64 ``(vocab_size,)``."""
    return np.zeros(vocab_size, dtype=np.int64)


def rising_table(draft_vocab_size: int, target_vocab_size: int, rng: np.random.Generator) -> np.ndarray:
    """A strictly increasing table to a random subset of the target vocabulary: int64 ``(draft_vocab_size,)``.

    Raises ValueError if the draft vocabulary is the larger one.
    """
    return offsets(np.sort(rng.choice(target_vocab_size, draft_vocab_size, replace=False)))


def frequency_table(draft_vocab_size: int, target_vocab_size: int, rng: np.random.Generator) -> np.ndarray:
    """The most frequent targets of a made-up corpus, most frequent first: int64 ``(draft_vocab_size,)``.

    Low target ids tend to come first, as in a byte-pair vocabulary. From two draft ids on it has an inverted pair.
    Raises ValueError if the draft vocabulary is the larger one.
    """
    if draft_vocab_size > target_vocab_size:
        raise ValueError(f"{draft_vocab_size} draft ids have no injective table to {target_vocab_size} targets")
    frequencies = rng.exponential(size=target_vocab_size) / np.arange(1, target_vocab_size + 1)  # Zipf's law with noise
    most_frequent = np.argsort(-frequencies, kind="stable")[:draft_vocab_size]
    if np.all(np.diff(most_frequent) > 0):
        most_frequent = most_frequent[::-1]
    return offsets(most_frequent)


def _range_errors(ids: np.ndarray, target_vocab_size: int | None) -> list[str]:
    outside = ids < 0
    if target_vocab_size is not None:
        outside |= ids >= target_vocab_size
    if not outside.any():
        return []
    first = int(np.argmax(outside))
    limit = "is negative" if target_vocab_size is None else f"lies outside the target vocabulary of {target_vocab_size}"
    return [f"target {ids[first]} of draft id {first} {limit} ({outside.sum()} of {len(ids)} draft ids)"]


def _duplicate_errors(ids: np.ndarray) -> list[str]:
    _, first_index, inverse = np.unique(ids, return_index=True, return_inverse=True)
    num_repeated = len(ids) - len(first_index)
    if num_repeated == 0:
        return []
    first_of_target = first_index[inverse]
    second = int(np.argmax(first_of_target != np.arange(len(ids))))
    pair = f"draft ids {first_of_target[second]} and {second} both map to target {ids[second]}"
    return [f"{pair} ({num_repeated} of {len(ids)} draft ids repeat the target of a lower one)"]


def _membership_errors(ids: np.ndarray, t2d: np.ndarray, target_vocab_size: int | None) -> list[str]:
    errors = []
    if t2d.dtype != np.bool_:
        errors.append(f"t2d has dtype {t2d.dtype}, it must be bool")
    if t2d.shape != (target_vocab_size,):
        expected = "of one dimension" if target_vocab_size is None else f"({target_vocab_size},)"
        errors.append(f"t2d has shape {t2d.shape}, it must be {expected}")
    if errors:
        return errors
    has_draft_id = np.zeros_like(t2d)
    has_draft_id[ids[(ids >= 0) & (ids < len(t2d))]] = True
    differs = has_draft_id != t2d
    if not differs.any():
        return []
    first = int(np.argmax(differs))
    says, maps = ("true", "no draft id") if t2d[first] else ("false", "a draft id")
    return [f"t2d is {says} at target {first} but d2t maps {maps} to it ({differs.sum()} of {len(t2d)} target ids)"]


def _count_inversions(ids: np.ndarray) -> tuple[int, np.ndarray]:
    """The number of pairs i < j with ids[i] > ids[j], and the sorted ids, by merge sort: O(n log n)."""
    if len(ids) < _MERGE_FROM:
        return int(np.triu(ids[:, None] > ids[None, :]).sum()), np.sort(ids)
    left_count, left = _count_inversions(ids[: len(ids) // 2])
    right_count, right = _count_inversions(ids[len(ids) // 2 :])
    runs = np.concatenate([left, right])
    order = np.argsort(runs, kind="stable")  # merges the two runs; of equals the left one stays first
    from_left = order < len(left)
    left_still_to_come = len(left) - np.cumsum(from_left)
    return left_count + right_count + int(left_still_to_come[~from_left].sum()), runs[order]


def _lowest_inverted_pair(ids: np.ndarray) -> tuple[int, int] | None:
    lowest_after = np.minimum.accumulate(ids[::-1])[::-1][1:]
    inverted = ids[:-1] > lowest_after
    if not inverted.any():
        return None
    i = int(np.argmax(inverted))
    return i, i + 1 + int(np.argmax(ids[i + 1 :] < ids[i]))
