"""Why a live engine's two answers differ, in a line, from what the smallest case needs and what was observed."""

from __future__ import annotations

from refimpl.engine_case import EngineCase
from refimpl.verdict.judge import Finding
from refimpl.verdict.kinds import Kind


def reason(case: EngineCase, finding: Finding) -> str | None:
    """None where the suite does not know."""
    options, needs, kind = case.options, set(case.departures), finding.kind
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
        return "one of the two answers ends its process on a batch of no rows"
    return None
