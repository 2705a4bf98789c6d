"""Names of code to objects: what cannot be had is one sentence with the advice that fits."""

from __future__ import annotations

from pathlib import Path

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
