"""Every kind of case file names its format, of the case and of the report around it; one that this release does not
know is refused in a sentence, and never read as if it were known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refimpl.case import REPORT_FORMAT, Call, Case, CaseError
from refimpl.draft_case import DraftCase
from refimpl.engine_case import EngineCase, EngineOptions
from refimpl.head_case import HeadCase, HeadRef
from refimpl.topk.case import TopKCall, TopKCase
from refimpl.vocab.layouts import even_layout

LAYOUT, HEAD = even_layout(4, 2), HeadRef("small_eagle3", None)
CALL = Call(LAYOUT, "bfloat16", np.zeros((1, 4), np.uint16))
STATES = np.zeros((1, 4), np.uint16)
CASES: dict[str, Any] = {
    "case": Case((CALL,)),
    "topk_case": TopKCase((TopKCall(CALL, 2),)),
    "head_case": HeadCase(HEAD, LAYOUT, "bfloat16", STATES),
    "draft_case": DraftCase(HEAD, LAYOUT, (0, 1), 2, 0),
    "engine_case": EngineCase(
        "vllm", 2, EngineOptions(vocab_size=4, padding_size=4, dtype="bfloat16"), STATES.repeat(4, axis=0), STATES
    ),
}


def written(folder: Path, name: str, suffix: str, note: dict[str, str], alter: tuple[str, str] = ("", "")) -> Path:
    """The case of this name in a file, one word of it altered into another of the same length."""
    case, (word, other) = CASES[name], alter
    assert len(word) == len(other)
    content = json.dumps({**note, name: case.to_json()}).encode() if suffix == ".json" else case.to_bytes(note)
    assert word.encode() in content
    file = folder / f"case{suffix}"
    file.write_bytes(content.replace(word.encode(), other.encode()))
    return file


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
@pytest.mark.parametrize("name", CASES)
def test_a_format_that_is_not_known_is_refused(name: str, suffix: str, tmp_path: Path) -> None:
    kind = type(CASES[name])
    for note in ({}, {"format": REPORT_FORMAT}):
        kind.load(written(tmp_path, name, suffix, note))
    own = f"argmax-parity/{name.replace('_', '-')}/"
    for note, alter in (({"format": REPORT_FORMAT.replace("/1", "/2")}, ("", "")), ({}, (f"{own}1", f"{own}2"))):
        with pytest.raises(CaseError, match=r"its format is 'argmax-parity/[a-z-]+/2', this release reads"):
            kind.load(written(tmp_path, name, suffix, note, alter))
