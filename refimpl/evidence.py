"""How a test ended, as evidence: into the ledger, and into the report of a failure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refimpl.run_state import KNOWN, SESSION
from refimpl.session import Checker, Failure, Unknown
from refimpl.targets import CheckTarget
from refimpl.verdict import report as reports
from refimpl.verdict.kinds import Kind
from refimpl.verdict.obligations import CONTRACT, Evidence, Status
from refimpl.verdict.reduce import Counterexample


def enter(item: pytest.Item, call: pytest.CallInfo[None], result: pytest.TestReport) -> pytest.TestReport:
    """A test has ended: its evidence goes into the ledger; of a failure, cases are written and the report is one screen
    in place of a traceback through Hypothesis and the suite."""
    error = call.excinfo.value if call.excinfo is not None else None
    checker = item.stash.get(CheckTarget.CHECKER, None)
    if checker is None or call.when != "call":
        return result
    ledger = item.config.stash[SESSION].ledger
    if isinstance(error, Failure):
        journal = item.config.stash[SESSION].journal
        texts = []
        for counterexample in error.counterexamples:
            file = reports.write_case(
                counterexample, journal.cases, property_id=item.nodeid, path=checker.path, backend=checker.backend
            )
            if not reports.is_about_topk(counterexample):  # the ledger is about the argmax
                ledger.add(_refutation(checker, counterexample, reports.shown(file)))
            texts.append(
                reports.render(
                    counterexample,
                    property_id=item.nodeid,
                    head=checker.head,
                    path=checker.path,
                    backend=checker.backend,
                    replay_command=f"argmax-parity replay {reports.shown(file)}",
                )
            )
        if result.outcome == "failed":
            result.longrepr = "\n\n".join(texts)
        return result
    for line in checker.expected:
        if checker.set_aside[line.identity]:
            kind = ", ".join(sorted(kind.value for kind in line.kinds))
            scope = f"expected on {checker.set_aside[line.identity]} rows: {line.reason}"
            ledger.add(checker.evidence(line.obligation, Status.REFUTED, kind=kind, scope=scope))
    for witness, reason in item.stash.get(KNOWN, []):
        file = reports.write_case(
            witness,
            item.config.stash[SESSION].journal.cases,
            property_id=item.nodeid,
            path=checker.path,
            backend=checker.backend,
        )
        if reports.is_about_topk(witness):
            continue
        evidence = _refutation(checker, witness, reports.shown(file))
        # A tie that the table decides: all other rows stand.
        condition = reason if witness.obligation == "O5" else ""
        ledger.add(replace(evidence, scope=f"known: {reason}", condition=condition))
    named = [name for mark in item.iter_markers("obligations") for name in mark.args]
    if isinstance(error, Unknown):
        for name in named:
            ledger.add(checker.evidence(name, Status.UNKNOWN, scope=str(error)))
        if result.outcome == "failed":
            result.longrepr = f"UNKNOWN: {error}\nThis says nothing about the path; the property was not decided."
    elif error is None or isinstance(error, pytest.skip.Exception):
        for evidence in checker.proofs:
            ledger.add(evidence)
        for name in set(named) - {evidence.obligation for evidence in checker.proofs}:
            if checker.rows:
                ledger.add(checker.evidence(name, Status.TESTED, count=checker.rows, seconds=round(call.duration, 3)))
            elif checker.refused is not None:
                ledger.add(checker.evidence(name, Status.NOT_RUN, scope=f"refused: {checker.refused}"))
    return result


def _refutation(checker: Checker, counterexample: Counterexample, witness: str) -> Evidence:
    kind = counterexample.kind
    # A reference that NumPy contradicts says nothing about the path, but nothing can be held against it either.
    status = Status.UNKNOWN if kind is Kind.REFERENCE else Status.REFUTED
    obligation = reports.obligation_of(counterexample) or CONTRACT
    return checker.evidence(
        obligation, status, kind=kind.value, witness=witness, scope=counterexample.finding.message.splitlines()[0]
    )
