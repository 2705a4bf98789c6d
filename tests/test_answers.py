"""What code under test gave, in words: also where the code under test spoils the words."""

from __future__ import annotations

import json

import pytest
import torch

from refimpl.ranks import answers


class Unprintable(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize("error", [ValueError("a" * 100_000), Unprintable(), SystemExit(3), KeyboardInterrupt()])
def test_whatever_is_raised_can_be_told(error: BaseException) -> None:
    try:
        raise error
    except BaseException as caught:
        outcome = answers.raised(caught)
        refusal = answers.refused(caught, 2)
    assert outcome["status"] == "raised" and outcome["type"] == type(error).__name__
    assert refusal["status"] == "refused" and refusal["issued"] == 2 and refusal["message"] == outcome["message"]
    assert len(json.dumps([outcome, refusal])) < 15_000


def test_control_characters_stay_off_the_terminal() -> None:
    assert answers.words(ValueError("oh \x1b[31mno\r\n\té, 語 stay")) == "oh \\x1b[31mno\\r\n\té, 語 stay"


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (torch.zeros(2, dtype=torch.int64), None),
        ([0, 0], "returned a list, expected an int64 tensor of shape (2,)"),
        (torch.zeros(2, dtype=torch.int32), "returned int32 of shape (2,), expected int64 of shape (2,)"),
        (torch.zeros((2, 1), dtype=torch.int64), "returned int64 of shape (2, 1), expected int64 of shape (2,)"),
        (
            torch.zeros(2, dtype=torch.int64, device="meta"),
            "returned a tensor on meta, expected one on cpu",
        ),
    ],
)
def test_a_wrong_form_is_named(tokens: object, said: str | None) -> None:
    assert answers.wrong_form(tokens, (2,), torch.device("cpu")) == said
