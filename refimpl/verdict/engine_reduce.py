"""From a divergence of a live engine to its smallest form: fewer rows, plain options, fewer ids, small values."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from refimpl import bits
from refimpl.case import Case
from refimpl.engine_case import EngineCase
from refimpl.ranks.engine_runtime import BothAnswers, both
from refimpl.ranks.runtime import Ranks
from refimpl.verdict.engine_judge import judge_engine, merged, shown_call
from refimpl.verdict.engine_words import reason
from refimpl.verdict.judge import Finding
from refimpl.verdict.kinds import Kind
from refimpl.verdict.reduce import Counterexample
from refimpl.vocab import d2t as tables

_MOST_TRIES = 120
# A hang was confirmed at the full limit before it is cut down.
_HANG_SECONDS = 0.5


class EngineReducer:
    """One divergence, on the ranks that showed it."""

    def __init__(
        self, ranks: Ranks, case: EngineCase, answers: BothAnswers, finding: Finding, budget_seconds: float
    ) -> None:
        self._ranks = ranks
        self._deadline = time.monotonic() + budget_seconds
        self.case, self.answers, self.finding = case, answers, finding
        self.tries = 0

    def counterexample(self) -> Counterexample:
        """The smallest case found of the same kind. Its identity says what outside the supported use it needs."""
        for _ in range(2):
            before = self.case
            steps = (self._rows, self._options, self._k, self._hidden, self._ids, self._k, self._values, self._options)
            for step in steps:
                self._accept_all(step)
            if self.case is before:
                break
        case, finding = self.case, self.finding
        where = "+".join(case.needs) or "supported-use"
        call = shown_call(case, self.answers)
        kind = finding.kind
        return Counterexample(
            kind=kind,
            identity=f"{finding.identity}/{where}",
            case=Case((call,)),
            tie_rule="target_id",
            run=merged(case, self.answers),
            finding=Finding(kind, finding.identity, 0, finding.message, finding.rows, finding.ranks),
            tries=self.tries,
            notes=(case.words(), *_states(case)),
            why=reason(case, finding),
            obligation="O0" if kind is Kind.OTHER_LOGITS else None,
            origin=case,
        )

    # -- trying ----------------------------------------------------------------------------------------------

    def _accept_all(self, step: Any) -> None:
        """Take the first simpler case of a step that fails alike, and ask the step again, until none does."""
        while True:
            for simpler in step():
                if self._accept(simpler):
                    break
            else:
                return

    def _accept(self, case: EngineCase) -> bool:
        if case.digest == self.case.digest or self.tries >= _MOST_TRIES or time.monotonic() > self._deadline:
            return False
        try:
            if not set(case.needs) <= set(self.case.needs):
                return False  # it would show by other means
        except ValueError:
            return False  # the engine could not cut this vocabulary
        self.tries += 1
        answers = both(self._ranks, case, limit=_HANG_SECONDS if self.finding.kind is Kind.HANG else None)
        for finding in judge_engine(case, answers).findings:
            if finding.identity == self.finding.identity:
                self.case, self.answers, self.finding = case, answers, finding
                return True
        return False

    # -- steps: simpler cases, the boldest first ---------------------------------------------------------------

    def _rows(self) -> Iterator[EngineCase]:
        states = self.case.hidden_states
        if states.ndim == 3:
            yield self.case.changed(hidden_states=states.reshape(-1, states.shape[-1]))
            if not states.size:
                yield self.case.changed(hidden_states=np.zeros((1, 2, states.shape[-1]), states.dtype))
            for shape in ((1, 1), (2, 1), (1, 2)):
                if states.shape[:2] != shape and states.shape[0] >= shape[0] and states.shape[1] >= shape[1]:
                    yield self.case.changed(hidden_states=np.ascontiguousarray(states[: shape[0], : shape[1]]))
        elif not len(states):
            yield self.case.changed(hidden_states=np.zeros((1, states.shape[1]), states.dtype))
        elif len(states) > 1:
            for row in (*self.finding.rows[:3], 0, len(states) - 1):
                yield self.case.changed(hidden_states=states[row : row + 1])
            yield self.case.changed(hidden_states=states[: len(states) // 2])

    def _options(self) -> Iterator[EngineCase]:
        case, options = self.case, self.case.options
        if case.d2t is not None:
            yield case.changed(d2t=None, target_vocab_size=None)
            if not case.has_rising_table:
                yield case.changed(d2t=tables.offsets(np.sort(tables.targets(case.d2t))))
        if options.num_added:
            cut = options.vocab_size
            bias = None if case.bias is None else case.bias[:cut]
            yield case.changed(num_added=0, weight=case.weight[:cut], bias=bias)
            if options.num_added > 1:
                bias = None if case.bias is None else case.bias[: cut + 1]
                yield case.changed(num_added=1, weight=case.weight[: cut + 1], bias=bias)
        if options.logits_as_input and case.hidden_states.shape[-1] == case.weight.shape[1]:
            yield case.changed(logits_as_input=False)
        defaults: dict[str, Any] = {
            "processor_vocab_size": None,
            "scale": 1.0,
            "soft_cap": None,
            "head_dtype": None,
            "bias": None,
            "padding_size": case.tp_size,
        }
        for name, default in defaults.items():
            now = case.bias if name == "bias" else getattr(options, name)
            if now is not None and (name == "bias" or now != default):
                yield case.changed(**{name: default})
        if options.scale not in (1.0, 0.5, -1.0):
            yield case.changed(scale=0.5 if options.scale > 0 else -1.0)
        if options.dtype != "float32":
            yield self._as_dtype("float32")
        elif options.head_dtype == "float32":
            yield case.changed(head_dtype=None)

    def _k(self) -> Iterator[EngineCase]:
        """A smaller k, and logits in place of log probabilities."""
        options = self.case.options
        if options.k is None:
            return
        if options.log_probs:
            yield self.case.changed(log_probs=False)
        for k in sorted({1, options.k // 2, options.k - 1}):
            if 0 < k < options.k:
                yield self.case.changed(k=k)

    def _as_dtype(self, dtype: str) -> EngineCase:
        case = self.case

        def again(array: np.ndarray | None) -> np.ndarray | None:
            return None if array is None else bits.encode(bits.decode(array, case.options.dtype), dtype)

        return case.changed(
            dtype=dtype, weight=again(case.weight), hidden_states=again(case.hidden_states), bias=again(case.bias)
        )

    def _hidden(self) -> Iterator[EngineCase]:
        """A hidden state of one value, by which the weights are the logits; else half of the hidden size."""
        case, dtype = self.case, self.case.options.dtype
        size = case.weight.shape[1]
        if size == 1 or case.options.logits_as_input:
            return
        if case.num_rows == 1:
            one = bits.encode(np.ones((*case.hidden_states.shape[:-1], 1)), dtype)
            yield case.changed(hidden_states=one, weight=bits.encode(case.projected().T, dtype))
        half = size // 2
        yield case.changed(
            hidden_states=np.ascontiguousarray(case.hidden_states[..., :half]),
            weight=np.ascontiguousarray(case.weight[:, :half]),
        )
        yield case.changed(
            hidden_states=np.ascontiguousarray(case.hidden_states[..., half:]),
            weight=np.ascontiguousarray(case.weight[:, half:]),
        )

    def _ids(self) -> Iterator[EngineCase]:
        """Fewer ids: runs of them are taken out, the longest first."""
        size = self.case.options.vocab_size
        run = size // 2
        while run:
            for start in range(0, size - run + 1, run):
                if size - run >= 1:
                    yield self._without(np.arange(start, start + run))
            run //= 2
        if self.case.d2t is not None:
            targets = tables.targets(self.case.d2t)
            ranks = np.argsort(np.argsort(targets, kind="stable"), kind="stable")
            yield self.case.changed(d2t=tables.offsets(ranks), target_vocab_size=len(ranks))

    def _without(self, ids: np.ndarray) -> EngineCase:
        case, options = self.case, self.case.options
        processor = options.processor_vocab_size
        if processor is not None:
            processor = max(1, processor - len(ids))
        states, weight = case.hidden_states, np.delete(case.weight, ids, axis=0)
        if options.logits_as_input:
            states = np.delete(states, ids, axis=-1)
            if weight.shape[1] > states.shape[-1]:
                weight = np.delete(weight, ids, axis=1)
        k = options.k
        if k is not None:  # one that has its entries keeps them, one that has none has none
            beyond = k > options.vocab_size
            k = min(k, options.vocab_size - len(ids)) if not beyond else options.vocab_size - len(ids) + 1
        return case.changed(
            vocab_size=options.vocab_size - len(ids),
            k=k,
            processor_vocab_size=processor,
            weight=weight,
            hidden_states=states,
            bias=None if case.bias is None else np.delete(case.bias, ids),
            d2t=None if case.d2t is None else tables.offsets(np.delete(tables.targets(case.d2t), ids)),
        )

    def _values(self) -> Iterator[EngineCase]:
        """Logits of a single row as small whole numbers in the same order, and all of them equal."""
        case, dtype = self.case, self.case.options.dtype
        if case.num_rows > 1 or case.weight.shape[1] != 1:
            return
        order = bits.ordinal(case.weight[:, 0], dtype)
        if bits.is_nan(case.weight[:, 0], dtype).any():
            return
        zero = int(np.searchsorted(np.unique(order), 0))
        ranks = np.searchsorted(np.unique(order), order) - zero
        for values in (np.zeros(len(ranks)), -np.ones(len(ranks)), np.sign(ranks), ranks):
            yield case.changed(weight=bits.encode(values[:, None].astype(np.float64), dtype))


def _states(case: EngineCase) -> tuple[str, ...]:
    """The logits in a line where there are few of them."""
    if case.num_rows != 1 or case.options.num_embeddings > 12:
        return ()
    dtype = case.options.dtype
    row = bits.encode(case.projected()[0], dtype)
    return (f"projected, before bias, cap and scale: [{', '.join(bits.text(int(p), dtype) for p in row)}]",)
