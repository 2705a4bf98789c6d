"""``argmax-parity verify``: a certificate against the files on disk, and against its own digest or its signature.

0  everything is as it was certified, and the result was PASSED (or WARNED, with --accept-conditions)
1  something is not as it was, or the result is not one to rely on
4  it could not be checked
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fixtures.checkpoints.tensors import CheckpointError
from refimpl import places
from refimpl.verdict import certificate, envelope, subjects
from refimpl.verdict.certificate import CertificateError

GOOD, BAD, COULD_NOT = 0, 1, 4
_MAX_BYTES = 1 << 28


@dataclass(frozen=True)
class Wanted:
    """What the certificate must be about, where it is not enough that its own files are unchanged."""

    checkpoint: Path | None = None
    target_checkpoint: Path | None = None
    path: str | None = None
    head: str | None = None


class _NotChecked(Exception):
    """What was named on the command line is not there to compare with."""


def verify(file: Path, key: Path | None, wanted: Wanted, accept_conditions: bool) -> int:
    """Print what was checked and return the exit status."""
    try:
        document = _read(file)
        verifier = None if key is None else envelope.load_verifier(key)
    except (OSError, ValueError, RecursionError) as error:
        words = error.strerror if isinstance(error, OSError) else str(error)
        print(f"{file} could not be checked: {words}", file=sys.stderr)
        return COULD_NOT
    if not isinstance(document, dict):
        print(f"{file} could not be checked: it holds no JSON object; give a certificate", file=sys.stderr)
        return COULD_NOT
    try:
        if verifier is not None:
            if not envelope.is_envelope(document):
                raise CertificateError("it is not signed, and a key was given")
            document = envelope.open_signed(document, verifier)
        elif envelope.is_envelope(document):
            print(f"{file} could not be checked: it is signed; give the public key with --key", file=sys.stderr)
            return COULD_NOT
        statement = certificate.check(document)
        problems = _against_disk(statement, wanted) + _against_wishes(statement, wanted)
    except _NotChecked as error:
        print(f"{file} could not be checked: {error}", file=sys.stderr)
        return COULD_NOT
    except CertificateError as error:
        problems = [str(error)]
        statement = None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        problems = [f"it is no certificate of this suite ({type(error).__name__}: {error})"]
        statement = None
    if problems or statement is None:
        print(f"{file} does not hold:", file=sys.stderr)
        for problem in problems:
            print(f"  {problem}", file=sys.stderr)
        print("do not rely on it: certify again what is there now, or fetch what was certified", file=sys.stderr)
        return BAD
    count = len(statement["subject"])
    signed = "signature and " if key else ""
    print(f"{file}: {signed}digest fit, {count} subjects are unchanged")
    for verdict in certificate.described(statement, "verdicts").get("verdicts", []):
        print(f"  {verdict['title']}")
        for text in [*verdict["reasons"], *(f"except: {condition}" for condition in verdict["conditions"])]:
            print(f"    {text}")
    result = statement["predicate"]["result"]
    if result == "PASSED" or (result == "WARNED" and accept_conditions):
        return GOOD
    hint = "; --accept-conditions takes it as it is" if result == "WARNED" else ""
    print(f"the result is {result}{hint}", file=sys.stderr)
    return BAD


def _read(file: Path) -> Any:
    wrong = places.no_regular_file(file)
    if wrong:
        raise ValueError(f"{wrong}; give the certificate that a run wrote")
    if file.stat().st_size > _MAX_BYTES:
        raise ValueError(f"it has {file.stat().st_size} bytes, which no certificate has")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"it is no JSON ({error}); the file is damaged, or no certificate") from error


def _against_disk(statement: dict[str, Any], wanted: Wanted) -> list[str]:
    """Every subject as it is now."""
    found = []
    checkpoint: dict[str, str] = {}
    for entry in statement["subject"]:
        name, digest, role = entry["name"], entry["digest"]["sha256"], entry["annotations"]["role"]
        if role in ("checkpoint file", "target checkpoint file", "tensor"):
            checkpoint[name] = digest
        elif role.endswith(" source"):
            found += _source(name, digest, _local(entry))
        elif role.endswith(" package"):
            found += _package(name)
        elif not role.endswith(" name only"):
            found.append(f"{name}: its role {role!r} is unknown to this release")
    if checkpoint or wanted.checkpoint:
        found += _checkpoint(statement, checkpoint, wanted)
    return found


def _local(entry: dict[str, Any]) -> Path:
    return Path(unquote(urlsplit(entry["uri"]).path))


def _source(name: str, digest: str, file: Path) -> list[str]:
    try:
        now = subjects.of_file(file)
    except OSError as error:
        return [f"{name}: {file} cannot be read ({error.strerror})"]
    return [] if now == digest else [f"{name}: {file} has changed since"]


def _package(name: str) -> list[str]:
    spelled = name.rpartition("/")[2]
    now = subjects.installed_version(spelled)
    return [] if now == spelled else [f"{name}: installed is {now or 'nothing of that name'}"]


def _checkpoint(statement: dict[str, Any], certified: dict[str, str], wanted: Wanted) -> list[str]:
    written = certificate.described(statement, "checkpoint")
    if not certified or not written:
        return [f"it is not about a checkpoint, and --checkpoint={wanted.checkpoint} was given"]
    folder = wanted.checkpoint or Path(written["folder"])
    recorded = written.get("target")
    target = wanted.target_checkpoint or (Path(recorded) if recorded else None)
    for option, place in (("--checkpoint", wanted.checkpoint), ("--target-checkpoint", wanted.target_checkpoint)):
        if place is not None and not places.is_dir(place):
            raise _NotChecked(f"{option}={place} is no folder; give the one that holds the checkpoint now")
    try:
        now = {subject.name: subject.sha256 for subject in subjects.reread_checkpoint(folder, target)}
    except (CheckpointError, OSError) as error:
        return [f"{folder} cannot be read as it was: {error}"]
    problems = []
    for name in sorted(certified.keys() | now.keys()):
        if name not in now:
            problems.append(f"{name}: {folder} does not hold it any more")
        elif name not in certified:
            problems.append(f"{name}: {folder} holds it now, it was not certified")
        elif now[name] != certified[name]:
            problems.append(f"{name}: it is another one in {folder}")
    return problems


def _against_wishes(statement: dict[str, Any], wanted: Wanted) -> list[str]:
    verdicts = certificate.described(statement, "verdicts").get("verdicts", [])
    problems = []
    asked = {option: value for option, value in (("path", wanted.path), ("head", wanted.head)) if value is not None}
    for option, value in asked.items():
        known = sorted({verdict[option] for verdict in verdicts if verdict[option] is not None})
        if value not in known:
            problems.append(f"it is about {option} {', '.join(known) or 'none'}, not {value}")
    # Each may be there with another: a head that answers for itself has no verdict with a path.
    pairs = {(verdict["path"], verdict["head"]) for verdict in verdicts}
    if len(asked) == 2 and not problems and (wanted.path, wanted.head) not in pairs:
        problems.append(f"it holds no verdict on path {wanted.path} with head {wanted.head}")
    return problems
