"""The certificate: an in-toto Statement v1 with a test-result predicate, and a digest of its own.

The statement follows https://github.com/in-toto/attestation, spec/v1/statement.md and spec/predicates/test-result.md:
``result``, ``configuration``, ``passedTests``, ``warnedTests`` and ``failedTests``. What this suite adds (verdicts,
obligations, counts) stands in resource descriptors of the configuration, each with the sha256 of its content, and the
last of them is the sha256 of everything else. That digest finds damage; only a signature (`refimpl.verdict.envelope`)
keeps a forger out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from refimpl import __version__
from refimpl.verdict.subjects import Subject
from refimpl.verdict.verdict import RESULTS, Verdict, overall

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
OWN_DIGEST = "this certificate"
_LISTS = ("passedTests", "warnedTests", "failedTests")


class CertificateError(ValueError):
    """A certificate cannot be read, or is not what it was: one sentence that names what is wrong."""


@dataclass(frozen=True)
class Outcomes:
    """Names of tests: ``warned`` are known divergences and those that did not run."""

    passed: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def canonical(value: Any) -> bytes:
    """One spelling of a JSON value: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256(value: Any) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()


def statement(
    verdicts: Iterable[Verdict], subjects: Iterable[Subject], tests: Outcomes, configuration: dict[str, Any]
) -> dict[str, Any]:
    """The statement of a run. ``configuration``: plain values by name: versions, heads, seeds, counts, and the like."""
    verdicts = list(verdicts)
    unique = {subject.name: subject for subject in subjects}
    described = {
        "argmax-parity": {"version": __version__},
        "verdicts": {"verdicts": [verdict.to_value() for verdict in verdicts]},
        **configuration,
    }
    document = {
        "_type": STATEMENT_TYPE,
        "subject": [subject.to_value() for _, subject in sorted(unique.items())],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "result": RESULTS[overall(verdicts)],
            "configuration": [_descriptor(name, value) for name, value in described.items()],
            "passedTests": sorted(set(tests.passed)),
            "warnedTests": sorted(set(tests.warned)),
            "failedTests": sorted(set(tests.failed)),
        },
    }
    digest = sha256(document)
    document["predicate"]["configuration"].append({"name": OWN_DIGEST, "digest": {"sha256": digest}})  # type: ignore[index]
    return document


def _descriptor(name: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": sha256(value)}, "annotations": value}


def check(document: Any) -> dict[str, Any]:
    """A statement that has the published fields and its own digest. Raises CertificateError."""
    if not isinstance(document, dict):
        raise CertificateError("it holds no JSON object")
    for key, wanted in (("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)):
        if document.get(key) != wanted:
            raise CertificateError(f"{key} is {document.get(key)!r}, a certificate of this suite has {wanted!r}")
    predicate = document.get("predicate")
    if not isinstance(predicate, dict) or predicate.get("result") not in RESULTS.values():
        raise CertificateError("its predicate has no result PASSED, WARNED or FAILED")
    configuration = predicate.get("configuration")
    if not isinstance(configuration, list) or not configuration:
        raise CertificateError("its predicate has no configuration")
    for entry in [*configuration, *(document.get("subject") or [])]:
        digest = entry.get("digest") if isinstance(entry, dict) else None
        if not isinstance(digest, dict) or not isinstance(digest.get("sha256"), str):
            raise CertificateError("a resource descriptor in it has no sha256")
    if not document.get("subject") or not isinstance(document["subject"], list):
        raise CertificateError("it has no subject")
    for name in _LISTS:
        if not isinstance(predicate.get(name, []), list):
            raise CertificateError(f"{name} is no list")
    last = configuration[-1]
    if last.get("name") != OWN_DIGEST:
        raise CertificateError("its own digest is missing: the certificate was changed")
    rest = {**document, "predicate": {**predicate, "configuration": configuration[:-1]}}
    if sha256(rest) != last["digest"]["sha256"]:
        raise CertificateError("its own digest does not fit: the certificate was changed or damaged")
    return document


def described(document: dict[str, Any], name: str) -> dict[str, Any]:
    """The content of a resource descriptor of the configuration, empty where it has none. After `check`."""
    for entry in document["predicate"]["configuration"]:
        if entry.get("name") == name:
            annotations = entry.get("annotations")
            return annotations if isinstance(annotations, dict) else {}
    return {}
