"""What a supervisor loads before it forks, so that an executor is up in milliseconds.

Nothing here may start threads: a thread pool does not survive a fork, and its locks hang the child.
"""

from __future__ import annotations


def load(engine: str | None = None) -> None:
    """``engine``: of ``--engine``, whose import takes far longer than everything else here."""
    import torch

    torch.set_num_threads(1)

    import numpy.random  # noqa: F401 - otherwise imported at its first use, which is in every executor

    import refimpl.oracle
    import refimpl.paths.full_gather
    import refimpl.paths.gather_pairs
    import refimpl.paths.reduce_max_key
    import refimpl.paths.target_tie_break
    import refimpl.ranks.counting
    import refimpl.ranks.executor  # noqa: F401

    if engine is not None:
        from refimpl import engines

        engines.preload(engine)
        torch.set_num_threads(1)
