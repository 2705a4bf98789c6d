"""The certificate for people: lines for the terminal, and Markdown for a file or GitHub's step summary."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from refimpl.verdict.obligations import Status
from refimpl.verdict.verdict import Verdict

# GitHub drops a step summary of more than 1 MiB altogether.
SUMMARY_LIMIT = (1 << 20) - 4096
# Of a verdict, on the terminal; a run of a few properties leaves most obligations open, at every tp_size.
_REASONS = 3
_CUT = "\n\n*Cut: GitHub takes 1 MiB a step. The certificate holds the rest.*\n"


def lines(verdicts: Iterable[Verdict], certificate: str | None = None) -> list[str]:
    """A few lines a verdict: the word with its scope, what stands against it, and under what condition it holds.

    What stands against every one of several verdicts is said once. ``certificate``: where all of it is written, if it
    is.
    """
    where = f"all of them in {certificate}" if certificate else "all of them with --certificate=OUT.json"
    every = list(verdicts)
    common = [r for r in every[0].reasons if all(r in verdict.reasons for verdict in every)] if len(every) > 1 else []
    found = [f"of every verdict below: {reason}" for reason in common]
    for verdict in every:
        found.append(verdict.title)
        own = [reason for reason in verdict.reasons if reason not in common]
        found += [f"    {reason}" for reason in own[:_REASONS]]
        if len(own) > _REASONS:
            found.append(f"    and {len(own) - _REASONS} more, {where}")
        found += [f"    except: {condition}" for condition in verdict.conditions]
        if not verdict.reasons:
            proved = [row.obligation for row in verdict.rows if row.status is Status.PROVED]
            tested = [row.obligation for row in verdict.rows if row.status is Status.TESTED]
            found.append(f"    proved within their scopes: {', '.join(proved) or 'none'}; sampled: {_list(tested)}")
            found += [f"    {note}" for note in verdict.notes]
    return found


def markdown(verdicts: Iterable[Verdict], certificate: str, result: str) -> str:
    """The whole certificate as Markdown."""
    parts = ["# Argmax Parity", "", f"Result **{result}**, certificate `{_cell(certificate)}`.", ""]
    for verdict in verdicts:
        parts += [f"## {_cell(verdict.title)}", ""]
        parts += [f"* {_cell(reason)}" for reason in verdict.reasons]
        parts += [f"* except: {_cell(condition)}" for condition in verdict.conditions]
        parts += [f"* {_cell(note)}" for note in verdict.notes]
        parts += ["", "| obligation | status | rows | what was proved, what was sampled |", "|---|---|---|---|"]
        for entry in verdict.to_value()["obligations"]:
            scopes = "<br>".join(_cell(scope) for scope in entry["scopes"])
            cells = (f"{entry['obligation']}: {entry['statement']}", entry["status"], entry["rows"])
            parts.append(f"| {' | '.join(_cell(cell) for cell in cells)} | {scopes} |")
        parts.append("")
    return "\n".join(parts) + "\n"


def append_step_summary(file: Path, text: str) -> None:
    """Add to GitHub's step summary, within its limit. Raises OSError."""
    taken = file.stat().st_size if file.exists() else 0
    content = text.encode()
    room = SUMMARY_LIMIT - taken
    if len(content) > room:
        content = content[: max(0, room - len(_CUT.encode()))].decode(errors="ignore").encode() + _CUT.encode()
        if room < len(_CUT.encode()):
            return
    with file.open("ab") as stream:
        stream.write(content)


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _cell(text: str) -> str:
    """Text that stays in its cell and is not read as markup."""
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
    return " ".join(escaped.split())
