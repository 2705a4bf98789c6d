"""Why a live engine's two answers differ, in a line, from what the smallest case needs and what was observed."""

from __future__ import annotations

from refimpl.engine_case import EngineCase
from refimpl.verdict.judge import Finding
from refimpl.verdict.kinds import Kind


def reason(case: EngineCase, finding: Finding) -> str | None:
    """None where the suite does not know."""
    options, needs, kind = case.options, set(case.departures), finding.kind
    if options.k is not None:
        words = _of_topk(case, finding)
        if words is not None:
            return words
    if needs == {"table-order"} and kind is Kind.WRONG_TIE:
        return (
            "the table does not rise: the local answer maps the lowest draft id of the tie, scatter then argmax takes "
            "the lowest target id"
        )
    if needs == {"table-order"} and kind is Kind.NAN_RULE:
        return (
            "the table does not rise: of two NaNs the local answer takes the lower draft id, scatter then argmax the "
            "lower target id"
        )
    if needs == {"larger-processor"}:
        return (
            f"the processor cuts to {options.processor_vocab_size} columns, the lm_head has {options.vocab_size}: its "
            "padding takes part in the full gather only"
        )
    if needs == {"smaller-processor"}:
        return (
            f"the processor cuts to {options.processor_vocab_size} columns, later ids win in the local reduction only"
        )
    if needs == {"added-vocabulary"}:
        return (
            "added ids lie between base padding and the end of each shard: the local mask takes the last columns for "
            "the base padding, the full gather cuts a row that is not in the order of ids"
        )
    if needs == {"three-dimensional"}:
        return "the gathered pairs are viewed by the first dimension of the hidden states alone"
    if needs == {"logits-as-input"}:
        return "the local reduction projects its input, which the full gather takes for logits already"
    if needs == {"empty-batch"} and kind is Kind.DIED:
        return "a batch of no rows ends the process"
    return None


def _of_topk(case: EngineCase, finding: Finding) -> str | None:
    needs, kind = set(case.needs), finding.kind
    dtype = case.options.logits_dtype
    if needs == {"cap", "scaling"} and kind is Kind.VALUE_MISMATCH:
        return "full logits are capped, then scaled; the k values are scaled, then capped"
    if needs & {"cap", "scaling"} and needs <= {"cap", "scaling", "16-bit"}:
        if kind is Kind.VALUE_MISMATCH and "16-bit" in needs:
            return f"the k values are scaled and capped in float32, full logits in {dtype}"
        if kind is Kind.WRONG_TIE:
            return f"selected before cap and scale, after which logits that differed are equal in {dtype}"
    if not needs and kind in (Kind.WRONG_TIE, Kind.NAN_RULE):
        return "torch.topk promises no order of equals: which ids of a tie, and in which order, is open"
    if not needs and kind in (Kind.ID_OUT_OF_RANGE, Kind.REPEATED_ID):
        return "padding at -inf ties with real columns at -inf; its ids are none of the vocabulary"
    if needs == {"k-beyond-shard"}:
        return f"every shard is asked for {case.options.k} of its {case.layout.padded_size} columns"
    if needs == {"k-beyond-vocabulary"}:
        return "padding columns fill the k entries up, with ids that are none of the vocabulary"
    return None
