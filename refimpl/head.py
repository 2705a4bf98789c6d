"""The contract of a head: what a draft head says of itself, and how it makes logits from hidden states.

A head is a `Head`, or a subclass where its logits are made in another way. The numbers are enough for most:

    head = Head(source={...}, vocab_size=151936, draft_vocab_size=32000, hidden_size=4096, dtype="bfloat16")

What a subclass may override, in the order in which it is used:

* ``d2t()`` -> int64 ``(draft_vocab_size,)`` offsets, or None: ``target_id = k + d2t[k]``.
* ``layout(tp_size)`` -> `Layout` of the logits' columns over the ranks.
* ``weight_rows(start, end, spec_step_idx)``, ``bias_rows(start, end)``, ``norm_weight(spec_step_idx)``: parameters.
  They are drawn here; a head read from a checkpoint gives slices of its files.
* ``transform(hidden_states, spec_step_idx)``: what happens to hidden states before the projection.
* ``local_logits(hidden_states, shard, spec_step_idx=0)``: ``(batch, input_size)`` in ``dtype`` on the rank's device
  -> ``(batch, shard.padded_size)`` float32, bfloat16 or float16; a fresh tensor on every call.
* ``full_logits(hidden_states, group, spec_step_idx=0)`` -> ``(batch, num_logits)`` in the order of their ids, where an
  engine lays its shards out in another way than ``layout`` says.
* ``full_tokens(hidden_states, group, spec_step_idx=0)`` and ``local_tokens(...)``, both or neither: int64 ``(batch,)``
  token ids as an engine's own two ways compute them, on every rank. Such a head answers for its own reduction, so no
  path is put under test with it.

Everything here but the plain numbers runs on the ranks. The order of the steps is that of vLLM's LogitsProcessor:
projection with bias, soft cap ``tanh(x / cap) * cap``, scale.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from refimpl import bits, drawn
from refimpl.contract import VocabShard
from refimpl.heads import HeadError
from refimpl.paths.collectives import all_gather
from refimpl.vocab.layouts import Layout, padded_layout

MOST_STEPS = 64
# As `Head.local_logits`: hidden states, shard, spec_step_idx -> this rank's logits.
Logits = Callable[[torch.Tensor, VocabShard, int], torch.Tensor]


@dataclass(frozen=True)
class Known:
    """A divergence this head is known to have.

    ``kinds``: the published failure kinds under which it shows. ``reason``: one line. ``ties_by_draft_id``: True if it
    is only that a path breaks ties by draft id under this head's table.
    """

    kinds: tuple[str, ...]
    reason: str
    ties_by_draft_id: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Head:
    """One draft head.

    ``source``: where each figure is from, as ``{"vocab_size, hidden_size": "its config.json"}``. ``vocab_size`` is the
    target's; ``draft_vocab_size``: the number of logits where it is another. ``dtype``: of weights and hidden states.
    ``head_dtype``: of the projection, where it is another (an lm_head in float32). ``scale_first``: scale before the
    soft cap. ``norm``: an RMSNorm with a gain stands between hidden states and projection. ``tied``: the weight is the
    draft's own embedding. ``shared``: it is the target's lm_head. ``padding_multiple``: to which engines pad the
    vocabulary. ``steps``: projections of a multi-token-prediction head, chosen by ``spec_step_idx % steps``.
    ``has_weights``: without them a head is certified on given logits only. ``masks``: it can give rows that are all
    -inf (it masks candidates or suppresses ids). ``known``: divergences that are no news.

    Raises HeadError.
    """

    source: Mapping[str, str]
    vocab_size: int
    hidden_size: int
    name: str = ""
    draft_vocab_size: int | None = None
    dtype: str = "bfloat16"
    head_dtype: str | None = None
    logit_scale: float = 1.0
    soft_cap: float | None = None
    scale_first: bool = False
    bias: bool = False
    norm: bool = False
    norm_eps: float = 1e-6
    tied: bool = False
    shared: bool = False
    padding_multiple: int = 64
    steps: int = 1
    has_weights: bool = True
    masks: bool = False
    seed: int = 0
    known: tuple[Known, ...] = ()
    # Set by `within`: the real hidden size, where the weights are those of a smaller one.
    full_hidden_size: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "padding_multiple"):
            _check_count(name, getattr(self, name))
        if self.draft_vocab_size is not None:
            _check_count("draft_vocab_size", self.draft_vocab_size)
            if self.draft_vocab_size > self.vocab_size:
                raise HeadError(
                    f"draft_vocab_size {self.draft_vocab_size} is over vocab_size {self.vocab_size}; a draft "
                    "vocabulary is a part of the target's"
                )
        _check_count("steps", self.steps)
        if self.steps > MOST_STEPS:
            raise HeadError(f"steps is {self.steps}; at most {MOST_STEPS} projections are held")
        for name in ("dtype", "head_dtype"):
            dtype = getattr(self, name)
            if dtype not in bits.DTYPES and not (name == "head_dtype" and dtype is None):
                raise HeadError(f"{name} is {dtype!r}; it must be one of {', '.join(bits.DTYPES)}")
        own = (type(self).full_tokens is not Head.full_tokens, type(self).local_tokens is not Head.local_tokens)
        if own[0] != own[1]:
            there, missing = ("full_tokens", "local_tokens") if own[0] else ("local_tokens", "full_tokens")
            raise HeadError(f"it defines {there} without {missing}; an engine's two answers are compared: give both")
        if not _is_number(self.logit_scale) or (self.logit_scale == 0 and not own[0]):
            raise HeadError(f"logit_scale is {self.logit_scale!r}; it must be a finite number other than 0")
        if self.logit_scale < 0 and not own[0]:
            raise HeadError(
                f"logit_scale is {self.logit_scale!r}; engines refuse a scale that is not positive, since a local "
                "argmax that skips it finds the smallest logit: negate the weights and the bias instead"
            )
        if self.soft_cap is not None and (not _is_number(self.soft_cap) or self.soft_cap <= 0):
            raise HeadError(f"soft_cap is {self.soft_cap!r}; it must be a positive number, or None for no cap")
        if not _is_number(self.norm_eps) or self.norm_eps < 0:
            raise HeadError(f"norm_eps is {self.norm_eps!r}; it must be a number from 0")
        if not self.source:
            raise HeadError('source is empty; say where the figures are from, as source={"vocab_size": "config.json"}')

    # -- what is known without weights ----------------------------------------------------------------

    @property
    def num_logits(self) -> int:
        """Columns of a row of logits: the draft vocabulary's size."""
        return self.vocab_size if self.draft_vocab_size is None else self.draft_vocab_size

    @property
    def input_size(self) -> int:
        """Values of a hidden state as the head gets it: a multiple of hidden_size where `transform` folds copies."""
        return self.hidden_size

    @property
    def logits_dtype(self) -> str:
        return self.head_dtype or self.dtype

    @property
    def gives_own_tokens(self) -> bool:
        return type(self).full_tokens is not Head.full_tokens

    def d2t(self) -> np.ndarray | None:
        """int64 ``(draft_vocab_size,)`` offsets, or None where logits are by target id."""
        return None

    def layout(self, tp_size: int) -> Layout:
        """Shards as engines cut them; where the multiple alone does not divide, padded to a multiple of tp_size too."""
        multiple, size = self.padding_multiple, self.num_logits
        divides = (-(-size // multiple) * multiple) % tp_size == 0
        return padded_layout(size, tp_size, multiple, pad_to_tp_size=not divides)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all projections."""
        return self.num_logits * self.hidden_size * self.steps * torch_dtype(self.dtype).itemsize

    def within(self, most_bytes: int | None) -> Head:
        """This head, with a hidden size reduced until its projections take at most so many bytes; at least 8."""
        if most_bytes is None or not self.has_weights or self.weight_bytes <= most_bytes:
            return self
        each = self.weight_bytes // self.hidden_size
        hidden_size = min(self.hidden_size, max(8, most_bytes // each // 8 * 8))
        return self.changed(hidden_size=hidden_size, full_hidden_size=self.full_hidden_size or self.hidden_size)

    def changed(self, **figures: Any) -> Head:
        """A copy with other figures."""
        return replace(self, **figures)

    def figures(self) -> dict[str, Any]:
        """The plain numbers, for reports and certificates; what a subclass adds of another kind in words."""
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        plain["source"] = dict(self.source)
        plain["known"] = [vars(known) for known in self.known]
        # They travel as JSON, and a certificate has neither infinities nor NaN.
        in_json: dict[str, Any] = json.loads(json.dumps(plain, default=str), parse_constant=str)
        return in_json

    # -- parameters: drawn, the same for every tp_size -------------------------------------------------

    def weight_rows(self, start: int, end: int, spec_step_idx: int = 0) -> torch.Tensor:
        """Rows ``[start, end)`` of a projection: ``(end - start, hidden_size)`` in ``dtype``, on the CPU."""
        return drawn.rows(self.seed, self._step(spec_step_idx), start, end, self.num_logits, self.hidden_size).to(
            torch_dtype(self.dtype)
        )

    def bias_rows(self, start: int, end: int) -> torch.Tensor:
        """``(end - start,)`` in ``dtype``, on the CPU."""
        return drawn.bias(self.seed, start, end, self.num_logits).to(torch_dtype(self.dtype))

    def norm_weight(self, spec_step_idx: int = 0) -> torch.Tensor:
        """The gain of the norm before the projection: ``(hidden_size,)`` in ``dtype``; a uniform one hides its loss."""
        return drawn.gain(self.seed, self._step(spec_step_idx), self.hidden_size).to(torch_dtype(self.dtype))

    def _step(self, spec_step_idx: int) -> int:
        return spec_step_idx % self.steps

    # -- logits, on the rank ----------------------------------------------------------------------------

    def local_logits(self, hidden_states: torch.Tensor, shard: VocabShard, spec_step_idx: int = 0) -> torch.Tensor:
        """This rank's logits: ``(batch, input_size)`` -> ``(batch, shard.padded_size)``; padding rows are zeros."""
        hidden_states = self.transform(hidden_states, spec_step_idx)
        return self.finish(self.project(hidden_states, shard, spec_step_idx))

    def transform(self, hidden_states: torch.Tensor, spec_step_idx: int = 0) -> torch.Tensor:
        """``(batch, input_size)`` -> ``(batch, hidden_size)``: an RMSNorm, where the head has one, rounded once."""
        return self.normed(hidden_states, spec_step_idx) if self.norm else hidden_states

    def normed(self, hidden_states: torch.Tensor, spec_step_idx: int = 0) -> torch.Tensor:
        """RMSNorm with gain, computed in float32: ``(batch, hidden_size)`` in and out."""
        wide = hidden_states.float()
        wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.norm_eps)
        gain = self._kept(("gain", self._step(spec_step_idx)), lambda: self.norm_weight(spec_step_idx))
        return (wide * gain.to(wide.device).float()).to(hidden_states.dtype)

    def project(self, hidden_states: torch.Tensor, shard: VocabShard, spec_step_idx: int = 0) -> torch.Tensor:
        """Matrix product and bias in ``logits_dtype``, accumulated in float32."""
        weight, bias = self.shard_parameters(shard, spec_step_idx, hidden_states.device)
        dtype = torch_dtype(self.logits_dtype)
        if hidden_states.device.type == "cpu":
            # What a GPU does for 16-bit operands, and several times faster than the CPU's own 16-bit product.
            bias = None if bias is None else bias.float()
            return torch.nn.functional.linear(hidden_states.float(), weight.float(), bias).to(dtype)
        bias = None if bias is None else bias.to(dtype)
        return torch.nn.functional.linear(hidden_states.to(dtype), weight.to(dtype), bias)

    def finish(self, logits: torch.Tensor) -> torch.Tensor:
        """Soft cap and scale, each rounded to the logits' dtype."""
        if self.scale_first:
            logits = self._scaled(logits)
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits if self.scale_first else self._scaled(logits)

    def _scaled(self, logits: torch.Tensor) -> torch.Tensor:
        return logits if self.logit_scale == 1.0 else logits * self.logit_scale

    def shard_parameters(
        self, shard: VocabShard, spec_step_idx: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight ``(padded_size, hidden_size)`` and bias ``(padded_size,)`` of a shard; padding rows are zeros."""

        def padded(rows: torch.Tensor) -> torch.Tensor:
            whole = rows.new_zeros((shard.padded_size, *rows.shape[1:]))
            whole[: shard.num_real] = rows
            return whole.to(device)

        step = self._step(spec_step_idx)
        where = (shard.start, shard.end, shard.padded_size)
        weight = self._kept(
            ("weight", where, step), lambda: padded(self.weight_rows(shard.start, shard.end, spec_step_idx))
        )
        if not self.bias:
            return weight, None
        return weight, self._kept(("bias", where), lambda: padded(self.bias_rows(shard.start, shard.end)))

    def _kept(self, key: tuple[Any, ...], make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Parameters stay for the next call; those of another shard make room."""
        if key not in self._parameters:
            for other in [k for k in self._parameters if k[0] == key[0] and k[1] != key[1] and len(key) > 2]:
                del self._parameters[other]
            self._parameters[key] = make()
        return self._parameters[key]

    @cached_property
    def _parameters(self) -> dict[tuple[Any, ...], torch.Tensor]:
        return {}

    def full_logits(
        self, hidden_states: torch.Tensor, group: dist.ProcessGroup, spec_step_idx: int = 0
    ) -> torch.Tensor:
        """All logits in the order of their ids, on every rank: ``(batch, num_logits)``; one all-gather."""
        shard = self.shard(group)
        gathered = all_gather(self.local_logits(hidden_states, shard, spec_step_idx), group)
        real = [part[:, : end - start] for part, (start, end) in zip(gathered, shard.bounds, strict=True)]
        return torch.cat(real, dim=1)

    def variants(self) -> dict[str, Logits]:
        """What a path may have done to the logits that this head does not do: words for a report, and such logits.

        The suite names the one that gives the very tokens that were observed. A subclass adds its own.
        """
        found: dict[str, Logits] = {}
        if self.logit_scale != 1.0:
            found["logit_scale is left out"] = self.changed(logit_scale=1.0).local_logits
        if self.soft_cap is not None:
            found["the soft cap is left out"] = self.changed(soft_cap=None).local_logits
            if self.logit_scale != 1.0:
                swapped = self.changed(scale_first=not self.scale_first)
                found["soft cap and scale are applied in the other order"] = swapped.local_logits
                found["soft cap and scale are left out"] = self.changed(soft_cap=None, logit_scale=1.0).local_logits
        if self.bias:
            found["the bias is left out"] = self.changed(bias=False).local_logits
        if self.norm:
            found["the norm before the projection is left out"] = self.changed(norm=False).local_logits
        if self.steps > 1:
            found["spec_step_idx is ignored: the projection is always that of step 0"] = self._of_step_0
        for dtype in bits.DTYPES:
            if dtype != self.logits_dtype:
                found[f"the projection is computed in {dtype}, not in {self.logits_dtype}"] = self.changed(
                    head_dtype=dtype
                ).local_logits
        return found

    def _of_step_0(self, hidden_states: torch.Tensor, shard: VocabShard, spec_step_idx: int = 0) -> torch.Tensor:
        return self.local_logits(hidden_states, shard, 0)

    # -- an engine's own two answers -------------------------------------------------------------------

    def full_tokens(
        self, hidden_states: torch.Tensor, group: dist.ProcessGroup, spec_step_idx: int = 0
    ) -> torch.Tensor:
        """int64 ``(batch,)``: the engine's full gather. Override together with `local_tokens`. Raises HeadError."""
        raise HeadError(self._leaves_it_to_a_path)

    def local_tokens(
        self, hidden_states: torch.Tensor, group: dist.ProcessGroup, spec_step_idx: int = 0
    ) -> torch.Tensor:
        """int64 ``(batch,)``: the engine's local reduction. Raises HeadError."""
        raise HeadError(self._leaves_it_to_a_path)

    @property
    def _leaves_it_to_a_path(self) -> str:
        return f"head {self.name or '(no name)'} gives logits only; their argmax is a path's: ask local_logits"

    def shard(self, group: dist.ProcessGroup) -> VocabShard:
        """The calling rank's slice of this head's own layout."""
        return self.layout(dist.get_world_size(group)).shard(dist.get_rank(group))

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        """Token ids of full rows ``(batch, num_logits)``; a table scatters them into the target vocabulary."""
        d2t = self.table(logits.device)
        if d2t is not None:
            scattered = logits.new_full((logits.shape[0], self.vocab_size), -torch.inf)
            scattered[:, torch.arange(len(d2t), device=d2t.device) + d2t] = logits
            logits = scattered
        return logits.argmax(dim=1)

    def table(self, device: torch.device) -> torch.Tensor | None:
        """`d2t` as a tensor on the device."""
        offsets = self.d2t()
        return None if offsets is None else torch.from_numpy(np.ascontiguousarray(offsets)).to(device)


def torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise HeadError(f"{name} is {value!r}; it must be a whole number from 1")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
