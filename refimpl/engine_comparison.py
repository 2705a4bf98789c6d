"""``python -m refimpl.engine_comparison --engine=vllm --report=JUNIT.xml``: a live engine, measured like all paths.

The directed rows of `refimpl.probes` become one row of an lm_head each: its weights are the row's values, the hidden
state picks them. What the engine makes of a value on the way (a sign of zero, say) is read back, and a row that did not
arrive as it was meant is said to be not reached. The verdict is that of a run of the engine's properties, which writes
the report: ``.ci/engines --junitxml=JUNIT.xml``.
"""

from __future__ import annotations

import argparse
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import numpy as np

from refimpl import bits, engines, probes
from refimpl.comparison import BATCH, DTYPE, TP_SIZES, VOCAB_SIZE, collectives_in_words, markdown, replace_block
from refimpl.engine_case import EngineCase, EngineOptions
from refimpl.ranks import engine_runtime
from refimpl.ranks.runtime import Ranks
from refimpl.vocab.d2t import targets

PAGE = Path(__file__).resolve().parents[1] / "docs" / "engines.md"
BOTH = (("full", "full gather"), ("local", "local reduction"))
# Its layouts are its own: padding that is not zero, and shards of other sizes, cannot be asked for.
_ASKED = ("tie", "NaN", "signed zeros", "padding", "empty shard", "D2T")
_OUT_OF_REACH = ("padding of NaN", "padding of +inf")
_HIDDEN = 8


def columns(tp_sizes: tuple[int, ...] = TP_SIZES) -> list[str]:
    return ["answer", "collectives", *(f"bytes a row, tp {size}" for size in tp_sizes), *_ASKED]


def as_engine_case(engine: str, ask: probes.Ask) -> EngineCase:
    """The row as logits of an lm_head with one hidden state; its layout is what the engine makes of its padding."""
    call = ask.call
    row, scale = call.logits[0], 1.0
    negative_zero = bits.sign_bit(call.dtype)
    if (row == negative_zero).any():
        # Sums lose the sign of a zero; what underflows in the scaling after them keeps it.
        scale = 0.5
        doubled = bits.encode(bits.decode(row, call.dtype) / scale, call.dtype)
        row = np.where(row == negative_zero, negative_zero | 1, doubled)
    weight = np.zeros((call.layout.vocab_size, _HIDDEN), call.logits.dtype)
    weight[:, 0] = row
    hidden = bits.encode(np.eye(1, _HIDDEN), call.dtype)
    cells = call.layout.padded_size * call.layout.tp_size
    target = None if call.d2t is None else int(targets(call.d2t).max()) + 1
    options = EngineOptions(
        vocab_size=call.layout.vocab_size, padding_size=cells, dtype=call.dtype, target_vocab_size=target, scale=scale
    )
    case = EngineCase(engine, call.layout.tp_size, options, weight, hidden, d2t=call.d2t)
    if case.layout != call.layout:
        raise ValueError(f"{ask.about}: the engine's layout is {case.layout.bounds}, the row's {call.layout.bounds}")
    return case


def answers(ranks: Ranks, engine: str, asks: list[probes.Ask]) -> dict[str, list[probes.Answer]]:
    """What each of both answers gave, by its word in `BOTH`."""
    found: dict[str, list[probes.Answer]] = {name: [] for name, _ in BOTH}
    for entry in asks:
        case = as_engine_case(engine, entry)
        logits = engine_runtime.ask(ranks, case, "logits")
        seen = logits.ranks[0].calls[0].logits if logits.complete else None
        arrived = seen is not None and np.array_equal(seen, entry.call.logits)
        for name, _ in BOTH:
            answer = probes.answer_of(engine_runtime.ask(ranks, case, name), entry)
            found[name].append(answer if arrived else probes.Answer(entry.about, None, "not reached", answer.right))
    return found


def sent(ranks: Ranks, engine: str, op: str, tp_size: int) -> tuple[str, float]:
    """As `refimpl.comparison.sent`: the collectives of one answer in words, and bytes a row."""
    rng = np.random.default_rng(0)
    weight = bits.encode(rng.normal(size=(VOCAB_SIZE, _HIDDEN)), DTYPE)
    hidden = bits.encode(rng.normal(size=(BATCH, _HIDDEN)), DTYPE)
    case = EngineCase(
        engine, tp_size, EngineOptions(vocab_size=VOCAB_SIZE, padding_size=64, dtype=DTYPE), weight, hidden
    )
    return collectives_in_words(engine_runtime.ask(ranks, case, op, count=True))


def measure(ranks: Ranks, engine: str, tp_sizes: tuple[int, ...] = TP_SIZES) -> list[list[str]]:
    """One row for each of both answers."""
    cells: dict[str, list[str]] = {}
    for name, title in BOTH:
        words = [sent(ranks, engine, name, tp_size) for tp_size in tp_sizes]
        cells[name] = [
            title,
            " or ".join(sorted({kinds for kinds, _ in words})),
            *(f"{size:,.0f}" for _, size in words),
        ]
    for probe in probes.PROBES:
        if probe.title in _ASKED:
            asks = [ask for ask in probe.asks() if ask.about not in _OUT_OF_REACH]
            for name, given in answers(ranks, engine, asks).items():
                cells[name].append(probes.words(probe, given))
    return [cells[name] for name, _ in BOTH]


def verdict(report: Path) -> list[str]:
    """A line a property of the run: held, or what of the known divergences it met. Raises ValueError, OSError."""
    try:
        suites = ElementTree.parse(report).getroot()
    except ElementTree.ParseError as error:
        raise ValueError(f"{report} is no JUnit file: {error}") from error
    lines = []
    for test in suites.iter("testcase"):
        skipped = test.find("skipped")
        if test.find("failure") is not None or test.find("error") is not None:
            words = "fails"
        elif skipped is None:
            words = "holds"
        else:
            message = str(skipped.get("message"))
            known = Counter(dict(re.findall(r"(\S+/\S+) \((\d+) cases?\)", message)))
            words = f"diverges as listed: {', '.join(sorted(known))}" if known else f"did not apply: {message}"
        lines.append(f"| `{test.get('name')}` | {words} | {float(test.get('time', 0)):.0f} |")
    if not lines:
        raise ValueError(f"{report} holds no test")
    return ["| property | verdict | seconds |", "| --- | --- | --- |", *lines]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m refimpl.engine_comparison", description=__doc__)
    parser.add_argument("--engine", default="vllm", help="a live engine, see docs/engines.md (default: vllm)")
    parser.add_argument("--report", type=Path, help="JUnit file of a run of its properties; without it verdicts stay")
    parser.add_argument("--tp", default=",".join(map(str, TP_SIZES)), help="tp sizes of the bytes (default: 2,4,8)")
    options = parser.parse_args(argv)
    wrong = engines.check_name(options.engine)
    if wrong:
        parser.error(f"--engine={options.engine}: {wrong}")
    page = PAGE.read_text()
    sizes = tuple(int(word) for word in options.tp.split(","))
    if options.report is not None:
        try:
            page = replace_block(page, "verdicts", "\n".join(verdict(options.report)))
        except (OSError, ValueError) as error:
            parser.error(f"--report={options.report}: {error}; write one with .ci/engines --junitxml={options.report}")
    with Ranks(backend="gloo", limit=60.0, engine=options.engine) as ranks:
        title = engine_runtime.engine_facts(ranks, options.engine).title
        rows = [[f"{title}, {cells[0]}", *cells[1:]] for cells in measure(ranks, options.engine, sizes)]
    PAGE.write_text(replace_block(page, "measured", markdown(columns(sizes), rows)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
