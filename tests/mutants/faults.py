"""Ranks that raise, die, sleep or stop.

Where a docstring says "the rank" it is the last one, on a batch above one.
"""

from __future__ import annotations

import os
import re
import signal
import time

from refimpl.verdict.kinds import Kind
from tests.mutants import mutant, parts


def _right(local_logits, shard, group, d2t):
    return parts.finish(*parts.shard_winner(local_logits, shard), group, d2t)


def _is_due(local_logits, shard):
    return shard.tp_rank == shard.tp_size - 1 and local_logits.shape[0] > 1


# -- exceptions -------------------------------------------------------------------------------------------------------


@mutant(kinds={Kind.RAISED_ON_SOME_RANKS}, seen="reasoned")
def one_rank_raises(local_logits, shard, group, d2t=None):
    """The rank's workspace is too small and it raises before the exchange."""
    if _is_due(local_logits, shard):
        raise RuntimeError("workspace too small")
    return _right(local_logits, shard, group, d2t)


@mutant(kinds={Kind.RAISED_ON_SOME_RANKS}, seen="reasoned")
def one_rank_raises_after_the_exchange(local_logits, shard, group, d2t=None):
    """The rank raises when the others already have their tokens."""
    tokens = _right(local_logits, shard, group, d2t)
    if _is_due(local_logits, shard):
        raise RuntimeError("workspace too small")
    return tokens


@mutant(kinds={Kind.RAISED_ON_SOME_RANKS}, seen="reasoned (torch.argmax of no columns raises IndexError)")
def argmax_of_an_empty_shard(local_logits, shard, group, d2t=None):
    """The argmax of a shard without real columns raises on its rank."""
    return parts.finish(*parts.winner_of(local_logits[:, : shard.num_real], shard.start), group, d2t)


@mutant(kinds={Kind.RAISED_ON_SOME_RANKS, Kind.DIED}, seen="reasoned")
def one_rank_exits_by_exception(local_logits, shard, group, d2t=None):
    """The rank calls sys.exit, which no ``except Exception`` catches."""
    if _is_due(local_logits, shard):
        raise SystemExit(0)
    return _right(local_logits, shard, group, d2t)


@mutant(kinds={Kind.RAISED}, seen="reasoned (view(batch, -1) of no elements)")
def empty_batch_raises(local_logits, shard, group, d2t=None):
    """Every rank raises on an empty batch, whose -1 cannot be resolved."""
    return _right(local_logits.reshape(local_logits.shape[0], -1), shard, group, d2t)


@mutant(kinds={Kind.RAISED}, seen="ROCm ATOM embed_head; vLLM (assertion)")
def asserts_an_even_vocabulary(local_logits, shard, group, d2t=None):
    """Every rank fails an assertion, where it should refuse, if tp_size does not divide the vocabulary."""
    assert shard.vocab_size % shard.tp_size == 0, "vocabulary does not divide by tp_size"
    return _right(local_logits, shard, group, d2t)


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__

    def __reduce__(self) -> str:
        raise TypeError("no pickle")


@mutant(kinds={Kind.RAISED}, seen="reasoned")
def raises_what_cannot_be_printed(local_logits, shard, group, d2t=None):
    """Every rank raises, on a batch above one, an exception that can be neither printed nor pickled."""
    if local_logits.shape[0] > 1:
        raise UnprintableError
    return _right(local_logits, shard, group, d2t)


# -- deaths -----------------------------------------------------------------------------------------------------------


@mutant(kinds={Kind.DIED}, seen="a current engine, on an empty batch")
def dies_of_sigfpe_on_an_empty_batch(local_logits, shard, group, d2t=None):
    """The last rank divides by an empty batch and dies."""
    if local_logits.shape[0] == 0 and shard.tp_rank == shard.tp_size - 1:
        os.kill(os.getpid(), signal.SIGFPE)
    return _right(local_logits, shard, group, d2t)


def _dies_of(number, local_logits, shard, group, d2t):
    if _is_due(local_logits, shard):
        os.kill(os.getpid(), number)
    return _right(local_logits, shard, group, d2t)


@mutant(kinds={Kind.DIED}, seen="reasoned")
def dies_of_sigsegv(local_logits, shard, group, d2t=None):
    """The rank dies of a segmentation fault."""
    return _dies_of(signal.SIGSEGV, local_logits, shard, group, d2t)


@mutant(kinds={Kind.DIED}, seen="reasoned (a rank out of memory)")
def killed(local_logits, shard, group, d2t=None):
    """The rank is killed by a signal that no handler sees."""
    return _dies_of(signal.SIGKILL, local_logits, shard, group, d2t)


@mutant(kinds={Kind.DIED}, seen="reasoned")
def exits_with_status_zero(local_logits, shard, group, d2t=None):
    """The rank's process ends at once, with the status of success."""
    if _is_due(local_logits, shard):
        os._exit(0)
    return _right(local_logits, shard, group, d2t)


# -- no end -----------------------------------------------------------------------------------------------------------


@mutant(kinds={Kind.HANG}, seen="reasoned")
def one_rank_sleeps(local_logits, shard, group, d2t=None):
    """The rank sleeps for ever."""
    while _is_due(local_logits, shard):
        time.sleep(1.0)
    return _right(local_logits, shard, group, d2t)


@mutant(kinds={Kind.HANG}, seen="reasoned")
def one_rank_is_stopped(local_logits, shard, group, d2t=None):
    """The rank's process is stopped: no thread of it runs, and it heeds SIGKILL alone."""
    return _dies_of(signal.SIGSTOP, local_logits, shard, group, d2t)


@mutant(kinds={Kind.HANG}, seen="reasoned (an extension that never releases the interpreter)")
def one_rank_holds_the_interpreter(local_logits, shard, group, d2t=None):
    """The rank computes for ever inside one call that lets no other Python thread run."""
    if _is_due(local_logits, shard):
        re.match(r"(a+)+b", "a" * 64)
    return _right(local_logits, shard, group, d2t)
