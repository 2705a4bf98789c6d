"""Names of code to objects: what cannot be had is one sentence with the advice that fits."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from refimpl import loading


def test_an_error_in_a_users_own_file_is_not_blamed_on_the_installation(tmp_path: Path) -> None:
    for name, text in (("syntax", "def f(:\n"), ("raises", "raise ValueError('mine')\n"), ("exits", "exit(3)\n")):
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        with pytest.raises(loading.LoadError, match=rf"cannot be imported: .*; mend {file}$"):
            loading.load(f"{file}:f")


def test_a_module_that_is_not_there_may_not_be_installed() -> None:
    with pytest.raises(loading.LoadError, match="check that it is installed or on PYTHONPATH"):
        loading.load("no.such.module:f")


def test_the_choices_told_are_those_of_the_contract() -> None:
    of_argmax, of_topk = loading.check_form("nosuch"), loading.check_form("nosuch", loading.TOPK_PATHS)
    assert of_argmax is not None and "gather_pairs" in of_argmax and "topk" not in of_argmax
    assert of_topk is not None and "gather_topk_candidates" in of_topk and "gather_pairs" not in of_topk


class _Called:
    def __call__(self, local_logits: Any, shard: Any, group: Any, d2t: Any) -> None: ...


@pytest.mark.parametrize(
    ("path", "fits"),
    [
        (lambda local_logits, shard, group, d2t: None, True),
        (lambda logits, where, ranks, table=None: None, True),
        (lambda local_logits, shard, group, d2t, scale=1.0: None, True),
        (lambda *anything: None, True),
        (_Called(), True),
        (functools.partial(lambda k, a, b, c, d: None, 3), True),
        (max, True),  # its signature cannot be read
        (lambda local_logits, shard, group: None, False),
        (lambda local_logits, shard, group, d2t, k: None, False),
        (lambda local_logits, shard, group, *, d2t: None, False),
        (_Called, False),  # its class
        (functools.partial(lambda a, b, c, d: None, 3), False),
    ],
)
def test_what_cannot_be_called_as_a_path_is_told_from_its_signature(path: Any, fits: bool) -> None:
    told = loading.misfit(path)
    assert (told is None) == fits
    assert fits or "path(local_logits, shard, group, d2t)" in str(told)
