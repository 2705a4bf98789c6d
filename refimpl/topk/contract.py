"""The contract of a top-k path. It is that of `refimpl.contract` plus k, and values beside ids.

    def path(local_logits, shard, group, k, d2t=None) -> (values, ids)

* ``local_logits``, ``shard``, ``group``, ``d2t``: as for an argmax path. Real columns are read-only, padding columns
  hold anything and may be overwritten.
* ``k``: int, the same on every rank, from 1 to ``shard.vocab_size``; it may exceed the width of any one shard.
* returns ``values`` ``(batch, k)`` in the logits' dtype and ``ids`` int64 ``(batch, k)``, both on the logits' device
  and equal on every rank: draft ids, or target ids when ``d2t`` is given.

**Order.** Entries stand in falling order: NaNs first, as torch.topk puts them, then by value, both zeros being equal;
equal entries, NaNs among themselves too, by the lowest id in the id space returned. So for k = 1 the id is the argmax
path's token, and the first k of a greater k's answer are those of k.

**Values** are the logits of the ids, bit for bit but for two things: the sign of a zero and the payload of a NaN are
not judged, since a transport may make both canonical without changing any token.

**k beyond the real columns** is refused with `UnsupportedInput`: there is no such entry, torch.topk raises as well, and
an invented one would put an id that is none into a draft. Nothing is padded.

**With a table** only ids that have a draft id are candidates. The full gather of an argmax scatters into the target
vocabulary, whose filler is -inf; there a row with fewer than k values above -inf would name filler ids, which no draft
head can propose. Here such entries are the lowest targets of the draft ids at -inf.
"""

from __future__ import annotations

from refimpl.contract import UnsupportedInput, VocabShard


def check_k(k: int, shard: VocabShard) -> None:
    """Raises UnsupportedInput unless there are k entries; from the layout alone, so alike on every rank."""
    if not 1 <= k <= shard.vocab_size:
        raise UnsupportedInput(f"k is {k}: a vocabulary of {shard.vocab_size} has 1 to {shard.vocab_size} entries")
