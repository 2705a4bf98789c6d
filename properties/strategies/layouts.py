"""Layouts: vocabularies from 1 to 262144, cut as engines cut them and as they do not.

Nearly every published vocabulary is a multiple of 64 and most groups are a power of two, so layouts taken from practice
have neither padding nor uneven nor empty shards, and hide every offset and padding bug.
"""

from __future__ import annotations

import functools

import numpy as np
from hypothesis import strategies as st

from refimpl.vocab.layouts import Layout, even_layout, layout_from_sizes, padded_layout

# The first one is in every run of a property: wide enough for uneven shards. Fewer ids than ranks come often enough.
SMALL = (23, *range(1, 65), 1, 1, 1, 1, 2, 2, 3, 5)
# One column short of a block of vector lanes, threads or a warp's tile, the block itself, and one more.
BLOCK_EDGES = (300, 127, 128, 129, 255, 256, 257, 513, 1023, 1024, 1025, 2051, 4095, 4096, 4097)
# BERT, Llama 2, GPT-2, Llama 3, Qwen 3, Gemma 3.
REAL = (50257, 151936, 30522, 32000, 128256, 262144)
SIZES = ("small", "edges", "real")
STYLES = ("uneven", "engine", "empty", "even", "one holder")

_EXTRA_PADDING = (0, 1, 3, 0, 5, 8, 13, 64)
_BLOCKS = (8, 16, 32, 128, 256, 1024)
# Ids at which narrower formats begin to round or wrap: bfloat16, float16, int16, uint16.
_ID_EDGES = tuple(edge + step for edge in (256, 2048, 32768, 65536) for step in (-1, 0, 1))


def split(
    vocab_size: int, tp_size: int, style: str, seed: int = 0, *, extra_padding: int = 0, min_filled: int = 1
) -> Layout:
    """One layout of a style; at least ``min_filled`` of its shards hold columns.

    ``uneven``: any sizes. ``empty``: uneven over some of the ranks, the first, last or middle ones left empty.
    ``one holder``: all columns on one rank. ``even`` and ``engine``: as `refimpl.vocab.layouts` builds them.
    """
    rng = np.random.default_rng(seed)
    min_filled = min(min_filled, vocab_size, tp_size)
    if style == "engine":
        layout = padded_layout(vocab_size, tp_size, int(rng.choice((1, 8, 64))), pad_to_tp_size=True)
        if num_filled(layout) >= min_filled:
            return Layout(layout.bounds, layout.padded_size + extra_padding)
        style = "even"
    if style == "even":
        layout = even_layout(vocab_size, tp_size)
        return Layout(layout.bounds, layout.padded_size + extra_padding)
    if style == "one holder":
        filled = min_filled
    elif style == "empty":
        filled = int(rng.integers(min_filled, max(min_filled + 1, tp_size)))
    else:
        filled = tp_size
    holders = np.sort(rng.choice(tp_size, filled, replace=False))
    sizes = np.zeros(tp_size, np.int64)
    # Uneven shards may come out empty as well, but for so many.
    sure = rng.choice(holders, min_filled, replace=False)
    sizes[sure] = 1
    cuts = np.sort(rng.integers(0, vocab_size - min_filled + 1, filled - 1))
    sizes[holders] += np.diff(cuts, prepend=0, append=vocab_size - min_filled)
    return layout_from_sizes(sizes.tolist(), extra_padding)


def with_padding(layout: Layout, extra_padding: int) -> Layout:
    """The layout, if some rank of it has padding; else with ``extra_padding`` columns more on every rank."""
    has_padding = any(end - start < layout.padded_size for start, end in layout.bounds)
    return layout if has_padding else Layout(layout.bounds, layout.padded_size + extra_padding)


def num_filled(layout: Layout) -> int:
    """How many shards hold real columns."""
    return sum(end > start for start, end in layout.bounds)


def _vocab_sizes(sizes: str, at_least: int) -> st.SearchStrategy[int]:
    choices = {"small": SMALL, "edges": BLOCK_EDGES, "real": REAL}[sizes]
    return st.sampled_from([size for size in choices if size >= at_least])


@functools.cache  # to build a strategy takes longer than to draw from it
def layouts(
    tp_size: int, sizes: str = "small", *, min_vocab: int = 1, min_filled: int = 1
) -> st.SearchStrategy[Layout]:
    """Layouts of ``tp_size`` ranks over ``sizes`` of vocabulary: small, edges or real.

    ``min_vocab``: columns of the whole vocabulary. ``min_filled``: shards that must hold columns.
    """
    return st.builds(
        split,
        _vocab_sizes(sizes, max(min_vocab, min_filled)),
        st.just(tp_size),
        st.sampled_from(STYLES),
        st.integers(0, 2**16),
        extra_padding=st.sampled_from(_EXTRA_PADDING),
        min_filled=st.just(min_filled),
    )


@functools.lru_cache(maxsize=64)
def edge_columns(layout: Layout) -> np.ndarray:
    """The columns where blocks, shards, padding and id formats begin and end; never all, always the last one."""
    columns = [*_ID_EDGES]
    for start, end in layout.bounds:
        width = end - start
        columns += [start, start + 1, end - 2, end - 1] if width else []
        for block in _BLOCKS:
            last = width // block
            for number in {1, 2, 3, last // 2, last - 1, last}:
                columns += [start + number * block - 1, start + number * block] if 0 < number <= last else []
    found = np.unique(np.array(columns, np.int64))
    return found[(found >= 0) & (found < layout.vocab_size)]
