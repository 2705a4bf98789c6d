"""The published list of failure kinds.

A kind is derived from what was observed on the ranks, never from the name of a path. Its identity holds neither drawn
numbers nor the way in which the *other* ranks happened to end, so one cause is one kind however often it is replayed.
"""

from __future__ import annotations

from enum import Enum


class Kind(str, Enum):
    """What was observed; the value is the name in reports, certificates and known-divergence files."""

    # All ranks answered, the answer is another token than the reference's.
    WRONG_TIE = "wrong-tie"
    WRONG_MAXIMUM = "wrong-maximum"
    NAN_RULE = "nan-rule"
    ALL_NEG_INF_ROW = "all-neg-inf-row"
    PADDING_RETURNED = "padding-returned"
    ID_OUT_OF_RANGE = "id-out-of-range"
    WRONG_TARGET = "wrong-target"
    # Of a live engine's top-k, where an entry is more than an id.
    WRONG_ENTRY = "wrong-entry"
    REPEATED_ID = "repeated-id"
    VALUE_MISMATCH = "value-mismatch"
    # All ranks answered, but not alike, or not in the contract's form.
    RANK_DISAGREEMENT = "rank-disagreement"
    RESULT_TYPE = "result-type"
    INPUT_MODIFIED = "input-modified"
    RESULT_OVERWRITTEN = "result-overwritten"
    # The answer of a row depends on more than the row.
    ROW_DEPENDENCE = "row-dependence"
    NONDETERMINISTIC = "nondeterministic"
    # Ranks did not get to an answer, or not by the same collectives.
    RAISED = "raised"
    RAISED_ON_SOME_RANKS = "raised-on-some-ranks"
    REFUSED_ON_SOME_RANKS = "refused-on-some-ranks"
    REFUSED_LATE = "refused-late"
    COLLECTIVE_MISMATCH = "collective-mismatch"
    HANG = "hang"
    DIED = "died"
    # From hidden states: what the two answers of a head start from, or what they are compared with.
    OTHER_LOGITS = "other-logits"
    FULL_PATH = "full-path"
    BAD_TABLE = "bad-table"
    # Right tokens by the wrong means.
    COMMUNICATION = "communication"
    # The reference itself is contradicted by the NumPy opinion.
    REFERENCE = "reference"


DESCRIPTIONS: dict[Kind, str] = {
    Kind.WRONG_TIE: "the token belongs to the tied set but is not its lowest id",
    Kind.WRONG_MAXIMUM: "the token's value is not the greatest of its row",
    Kind.NAN_RULE: "the row holds a NaN and the token is not the first NaN's",
    Kind.ALL_NEG_INF_ROW: "every value of the row is -inf and the token is not the one the rule names",
    Kind.PADDING_RETURNED: "without the padding's values the answer is another one: padding took part",
    Kind.ID_OUT_OF_RANGE: "the token is no id of the vocabulary",
    Kind.WRONG_TARGET: "the draft id is right, its target id is not the one the table gives",
    Kind.WRONG_ENTRY: "of top-k: the entry is not that of its place in falling order",
    Kind.REPEATED_ID: "of top-k: the entry's id stands in the row a second time",
    Kind.VALUE_MISMATCH: "of top-k: the entry's value is not that of its id",
    Kind.RANK_DISAGREEMENT: "the ranks returned different tokens",
    Kind.RESULT_TYPE: "the result is no int64 tensor of shape (batch,) on the rank's device",
    Kind.INPUT_MODIFIED: "real columns of the caller's logits, or its table, were changed",
    Kind.RESULT_OVERWRITTEN: "a result changed after it was returned: a later call wrote into it",
    Kind.ROW_DEPENDENCE: "a row's token depends on other rows, on its position or on earlier calls",
    Kind.NONDETERMINISTIC: "the same case gave different answers",
    Kind.RAISED: "every rank raised",
    Kind.RAISED_ON_SOME_RANKS: "some ranks raised, the others did not",
    Kind.REFUSED_ON_SOME_RANKS: "some ranks refused the input, the others did not",
    Kind.REFUSED_LATE: "the input was refused after a collective had been issued",
    Kind.COLLECTIVE_MISMATCH: "the ranks issued different collectives",
    Kind.HANG: "no answer within the limit",
    Kind.DIED: "a rank's process ended",
    Kind.OTHER_LOGITS: "the two answers start from the same hidden states but not from the same logits",
    Kind.FULL_PATH: "the engine's own full gather does not give the argmax of its head's logits",
    Kind.BAD_TABLE: "the head's table is no injective map into the target vocabulary: no row is compared under it",
    Kind.COMMUNICATION: "tokens are right, but the traffic is not that of a local reduction",
    Kind.REFERENCE: "the full gather contradicts the NumPy argmax: a fault of this suite or of the platform",
}
