"""Likely mistakes in a table are named by the mark they leave; sound tables are left in peace."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.vocab.d2t import frequency_table, identity_table, offsets, rising_table, targets
from refimpl.vocab.mistakes import diagnose

DRAFT, TARGET = 300, 1500
RNG = np.random.default_rng(5)
RISING = rising_table(DRAFT, TARGET, RNG)
BY_FREQUENCY = frequency_table(DRAFT, TARGET, RNG)


def mask(d2t: np.ndarray) -> np.ndarray:
    t2d = np.zeros(TARGET, bool)
    t2d[targets(d2t)] = True
    return t2d


@pytest.mark.parametrize("with_mask", [False, True], ids=["d2t alone", "with t2d"])
@pytest.mark.parametrize("table", ["rising", "frequency"])
class TestOfASoundTable:
    def table(self, table: str) -> np.ndarray:
        return RISING if table == "rising" else BY_FREQUENCY

    def names(self, d2t: np.ndarray, t2d: np.ndarray | None, draft: int = DRAFT) -> list[str]:
        diagnosis = diagnose(d2t, draft, TARGET, t2d)
        assert diagnosis.is_sound == (not diagnosis.sentences)
        return [mistake.name for mistake in diagnosis.mistakes]

    def test_itself(self, table: str, with_mask: bool) -> None:
        d2t = self.table(table)
        assert self.names(d2t, mask(d2t) if with_mask else None) == []

    def test_ids_for_offsets(self, table: str, with_mask: bool) -> None:
        d2t = self.table(table)
        assert self.names(targets(d2t), mask(d2t) if with_mask else None) == ["ids-for-offsets"]

    def test_offsets_for_ids(self, table: str, with_mask: bool) -> None:
        d2t = self.table(table)
        assert self.names(offsets(d2t), mask(d2t) if with_mask else None) == ["offsets-for-ids"]

    def test_dtypes(self, table: str, with_mask: bool) -> None:
        d2t = self.table(table)
        t2d = mask(d2t) if with_mask else None
        assert self.names(d2t.astype(np.int32), t2d) == ["narrow-integers"]
        assert self.names(d2t.astype(np.float32), t2d) == ["not-integers"]
        assert self.names(targets(d2t).astype(np.int32), t2d) == ["narrow-integers", "ids-for-offsets"]

    def test_table_of_another_length(self, table: str, with_mask: bool) -> None:
        d2t = self.table(table)
        assert self.names(d2t, mask(d2t) if with_mask else None, DRAFT + 1) == ["stale-table"]
        assert self.names(d2t, mask(d2t) if with_mask else None, DRAFT - 1) == ["stale-table"]


def test_table_of_another_training_shows_against_the_mask() -> None:
    other = rising_table(DRAFT, TARGET, np.random.default_rng(6))
    (mistake,) = diagnose(other, DRAFT, TARGET, mask(RISING)).mistakes
    assert mistake.name == "stale-table"
    common = len(np.intersect1d(targets(other), targets(RISING)))
    assert f"marks 300 target ids and d2t maps to 300, of which {common} are marked" in mistake.message


def test_a_target_twice_is_not_taken_for_another_training() -> None:
    """The mask agrees with all that is left; the report names the two draft ids."""
    ids = targets(RISING).copy()
    ids[7] = ids[3]
    diagnosis = diagnose(offsets(ids), DRAFT, TARGET, mask(RISING))
    assert diagnosis.mistakes == ()
    assert any("both map to target" in sentence for sentence in diagnosis.sentences)


def test_all_zeros() -> None:
    zeros = identity_table(DRAFT)
    (mistake,) = diagnose(zeros, DRAFT, TARGET).mistakes
    assert (mistake.name, mistake.breaks) == ("all-zero", False)  # it may be meant
    (mistake,) = diagnose(zeros, DRAFT, TARGET, mask(RISING)).mistakes
    assert (mistake.name, mistake.breaks) == ("all-zero", True)
    assert diagnose(zeros, DRAFT, TARGET, mask(zeros)).mistakes == ()  # the mask says that it is meant


def test_arange_as_offsets() -> None:
    arange = np.arange(DRAFT)
    (mistake,) = diagnose(arange, DRAFT, TARGET).mistakes
    assert (mistake.name, mistake.breaks) == ("arange-as-offsets", False)
    (mistake,) = diagnose(arange, DRAFT, DRAFT + 1).mistakes  # out of range as well
    assert (mistake.name, mistake.breaks) == ("arange-as-offsets", True)
    (mistake,) = diagnose(arange, DRAFT, TARGET, mask(identity_table(DRAFT))).mistakes
    assert (mistake.name, mistake.breaks) == ("arange-as-offsets", True)


def test_table_left_in_a_full_vocabulary() -> None:
    assert diagnose(identity_table(TARGET), TARGET, TARGET).mistakes == ()
    shuffled = offsets(np.random.default_rng(0).permutation(TARGET))
    diagnosis = diagnose(shuffled, TARGET, TARGET)
    assert [mistake.name for mistake in diagnosis.mistakes] == ["table-in-full-vocabulary"]
    assert diagnosis.report.errors == ()
    assert not diagnosis.is_sound


@given(st.integers(1, 400), st.integers(0, 2000), st.integers(0, 2**32), st.booleans(), st.booleans())
def test_no_sound_table_of_a_trainer_is_called_broken(
    draft: int, more: int, seed: int, rising: bool, with_mask: bool
) -> None:
    make = rising_table if rising else frequency_table
    d2t = make(draft, draft + more, np.random.default_rng(seed))
    if more == 0 and d2t.any():
        return  # a full vocabulary has no table
    t2d = np.zeros(draft + more, bool)
    t2d[targets(d2t)] = True
    diagnosis = diagnose(d2t, draft, draft + more, t2d if with_mask else None)
    assert diagnosis.is_sound, diagnosis.sentences
    assert not (with_mask and diagnosis.mistakes)


@given(st.integers(0, 2**32), st.sampled_from(["int8", "uint16", "float16", "bool", "complex64"]))
def test_nothing_is_raised_on_odd_dtypes_and_shapes(seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    for shape in [(), (0,), (5,), (2, 3)]:
        values = rng.integers(0, 2, shape).astype(dtype)
        assert not diagnose(values, 5, 9).is_sound
