"""Verdicts from ledgers, and certificates: the published fields, damage, forgery, and what is said of what was seen."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.checkpoints import open_draft
from refimpl.cli import main
from refimpl.verdict import certificate, envelope, readable, subjects
from refimpl.verdict.certificate import CertificateError, Outcomes
from refimpl.verdict.obligations import CONTRACT, OBLIGATIONS, PARTS, Evidence, Ledger, Status
from refimpl.verdict.subjects import Subject
from refimpl.verdict.verdict import (
    MINIMUM_ROWS,
    NOT_ALL_NEG_INF,
    OWN,
    Setting,
    Verdict,
    Word,
    decide,
    overall,
)
from refimpl.verdict.verdict import subjects as pairs
from tests import checkpoint_writers as writers

PATH, HEAD = "gather_pairs", "some_head"
SETTING = Setting("gloo", "cpu", (2, 4), "ci")


def sampled(obligation: str, tp_size: int, head: str | None = HEAD, count: int = MINIMUM_ROWS) -> Evidence:
    return Evidence(PATH, obligation, Status.TESTED, tp_size, "test", head, ("bfloat16",), count=count)


def proved(obligation: str, part: str, tp_size: int) -> Evidence:
    return Evidence(PATH, obligation, Status.PROVED, tp_size, "test", None, ("float32",), part, f"all of {part}", 7)


def refuted(**more: Any) -> Evidence:
    values = dict(
        obligation="O3", head=HEAD, tp_size=4, kind="wrong-tie", witness="case.json", scope="row 0: 1, expected 0"
    )
    return Evidence(PATH, status=Status.REFUTED, source="test", **{**values, **more})  # type: ignore[arg-type]


def whole(sizes: tuple[int, ...] = SETTING.tp_sizes) -> list[Evidence]:
    """Evidence enough: O0 on the head, the rest of the path on given logits."""
    return [sampled(name, size, HEAD if name == "O0" else None) for name in OBLIGATIONS for size in sizes]


def verdict(entries: list[Evidence], setting: Setting = SETTING, head: str | None = HEAD, **more: Any) -> Verdict:
    return decide(Ledger(entries), PATH, head, setting, **more)


class TestWords:
    def test_certified_with_its_scope(self) -> None:
        found = verdict(whole())
        assert (found.word, found.reasons, found.conditions) == (Word.CERTIFIED, (), ())
        assert found.title == "CERTIFIED (gather_pairs, some_head, gloo, cpu, tp 2,4)"
        assert verdict(whole(), head=None).title == "CERTIFIED (gather_pairs, gloo, cpu, tp 2,4)"

    @pytest.mark.parametrize("size", SETTING.tp_sizes)
    @pytest.mark.parametrize("name", OBLIGATIONS)
    def test_each_obligation_is_needed_at_each_tp_size(self, name: str, size: int) -> None:
        entries = [entry for entry in whole() if (entry.obligation, entry.tp_size) != (name, size)]
        found = verdict(entries)
        assert found.word is Word.UNKNOWN
        (reason,) = found.reasons
        assert reason == f"{name} ({OBLIGATIONS[name]}) at tp {size}: not run"

    def test_too_few_rows(self) -> None:
        entries = [replace(e, count=MINIMUM_ROWS - 1) if (e.obligation, e.tp_size) == ("O6", 2) else e for e in whole()]
        found = verdict(entries)
        assert found.word is Word.UNKNOWN
        assert "999 rows, the least is 1,000" in found.reasons[0]

    def test_rows_of_several_tests_add_up(self) -> None:
        entries = [entry for entry in whole() if (entry.obligation, entry.tp_size) != ("O6", 2)]
        entries += [sampled("O6", 2, None, MINIMUM_ROWS // 2)] * 2
        assert verdict(entries).word is Word.CERTIFIED

    def test_a_whole_proof_needs_no_minimum_and_a_part_of_one_does(self) -> None:
        entries = [entry for entry in whole() if entry.obligation != "O1"]
        parts = [proved("O1", part, size) for part in PARTS["O1"] for size in SETTING.tp_sizes]
        assert verdict(entries + parts).word is Word.CERTIFIED
        assert verdict(entries + parts[:-1]).word is Word.UNKNOWN

    def test_a_proof_at_one_tp_size_is_none_at_another(self) -> None:
        parts = [proved(name, part, 2) for name in PARTS for part in PARTS[name]]
        assert verdict(parts, replace(SETTING, tp_sizes=(2,)), head=None).word is Word.CERTIFIED
        found = verdict(parts, head=None)
        assert found.word is Word.UNKNOWN
        assert found.reasons == tuple(f"{name} ({OBLIGATIONS[name]}) at tp 4: not run" for name in PARTS)

    def test_one_candidate_needs_no_reduction(self) -> None:
        setting = replace(SETTING, tp_sizes=(1,))
        entries = [entry for entry in whole((1,)) if entry.obligation != "O3"]
        assert verdict(entries, setting).word is Word.CERTIFIED

    @pytest.mark.parametrize("profile", ["dev", "fast", ""])
    def test_the_dev_profile_never_certifies(self, profile: str) -> None:
        found = verdict(whole(), replace(SETTING, profile=profile))
        assert found.word is Word.UNKNOWN
        assert "too short to certify; run --hypothesis-profile=ci or nightly" in found.reasons[0]

    def test_a_witness_refutes_whatever_else_holds(self) -> None:
        found = verdict([*whole(), refuted()], replace(SETTING, profile="dev"))
        assert found.word is Word.REFUTED
        assert found.reasons == ("O3 refuted at tp 4: wrong-tie; row 0: 1, expected 0; witness case.json",)

    def test_what_breaks_the_contract_refutes_too(self) -> None:
        assert verdict([*whole(), refuted(obligation=CONTRACT, kind="input-modified")]).word is Word.REFUTED

    def test_named_rows_make_it_conditional(self) -> None:
        entry = refuted(obligation="O5", condition="rows that tie at draft ids 3 and 7")
        found = verdict([*whole(), entry])
        assert (found.word, found.reasons) == (Word.CONDITIONAL, ())
        assert found.conditions == ("rows that tie at draft ids 3 and 7",)
        assert verdict([*whole(), entry, refuted()]).word is Word.REFUTED
        assert verdict([*whole()[:-1], entry]).word is Word.UNKNOWN

    @pytest.mark.parametrize("count", [0, MINIMUM_ROWS - 1])
    def test_all_other_rows_are_asked_for_under_a_condition_too(self, count: int) -> None:
        entries = [replace(entry, count=count) if entry.obligation == "O5" else entry for entry in whole()]
        entries += [refuted(obligation="O5", tp_size=size, condition="some rows") for size in SETTING.tp_sizes]
        found = verdict(entries)
        assert found.word is Word.UNKNOWN
        assert [reason.partition(" (")[0] for reason in found.reasons] == ["O5", "O5"]

    def test_a_condition_of_the_path_yields_to_the_heads_own_table(self) -> None:
        of_path = refuted(obligation="O5", head=None, condition="tables that do not rise")
        assert verdict([*whole(), of_path]).word is Word.CONDITIONAL
        assert verdict([*whole(), of_path, sampled("O5", 2), sampled("O5", 4)]).word is Word.CERTIFIED
        assert verdict([*whole(), replace(of_path, condition=""), sampled("O5", 2)]).word is Word.REFUTED

    def test_what_could_not_be_decided_is_never_a_pass(self) -> None:
        unknown = replace(sampled("O2", 2), status=Status.UNKNOWN, scope="rank 1 did not start")
        found = verdict([*whole(), unknown])
        assert found.word is Word.UNKNOWN
        assert found.reasons == ("O2 could not be decided: rank 1 did not start",)
        conditional = refuted(obligation="O2", tp_size=2, condition="some rows")
        assert verdict([*whole(), conditional, unknown]).reasons == found.reasons

    def test_a_reference_that_numpy_contradicts_certifies_nothing(self) -> None:
        doubt = refuted(obligation=CONTRACT, kind="reference", scope="rank 0: full gather gives 3, NumPy 4")
        found = verdict([*whole(), replace(doubt, status=Status.UNKNOWN)])
        assert found.word is Word.UNKNOWN
        assert found.reasons == ("contract could not be decided: rank 0: full gather gives 3, NumPy 4; case.json",)
        assert verdict(whole(), problems=["a worker died"]).word is Word.UNKNOWN

    def test_evidence_of_others_counts_for_nothing(self) -> None:
        others = [replace(entry, path="other") for entry in whole()]
        assert verdict(others).word is Word.UNKNOWN
        of_another_head = [replace(entry, head="another") for entry in whole()]
        assert verdict(of_another_head).word is Word.UNKNOWN

    def test_refusals_are_named(self) -> None:
        refusal = replace(sampled("O5", 2), status=Status.NOT_RUN, count=0, scope="refused: no tables")
        entries = [entry for entry in whole() if entry.obligation != "O5" or entry.tp_size != 2]
        assert "not run (refused: no tables)" in verdict([*entries, refusal]).reasons[0]

    def test_a_head_that_was_never_compared(self) -> None:
        """What is known of the path alone, O0 aside, would do for any head."""
        refusal = replace(sampled("O4", 2), head=HEAD, status=Status.NOT_RUN, count=0, scope="refused: too wide")
        entries = [entry for entry in whole() if entry.head is None]
        found = verdict([*entries, refusal], given_logits=True)
        assert found.word is Word.UNKNOWN
        assert found.reasons[:2] == (
            "no row of this head was compared at tp 2 (refused: too wide)",
            "no row of this head was compared at tp 4",
        )

    def test_a_head_without_weights(self) -> None:
        """O0 is none of its scope, and the word says so."""
        entries = [replace(entry, obligation="O4") if entry.obligation == "O0" else entry for entry in whole()]
        found = verdict(entries, given_logits=True)
        assert found.word is Word.CERTIFIED and "O0" not in {row.obligation for row in found.rows}
        assert found.title == f"CERTIFIED ({PATH}, {HEAD}, given logits, gloo, cpu, tp 2,4)"
        assert any(note.startswith("given logits: the head has no weights") for note in found.notes)
        assert verdict(entries).word is Word.UNKNOWN

    def test_a_head_that_answers_for_itself(self) -> None:
        entries = [replace(sampled("O0", size), path=OWN) for size in SETTING.tp_sizes]
        assert decide(Ledger(entries), OWN, HEAD, SETTING).word is Word.CERTIFIED
        assert decide(Ledger(entries[:1]), OWN, HEAD, SETTING).word is Word.UNKNOWN

    def test_the_condition_about_rows_of_neg_inf_is_printed(self) -> None:
        assert NOT_ALL_NEG_INF in verdict(whole()).notes
        assert NOT_ALL_NEG_INF not in verdict(whole(), has_table=False).notes

    def test_the_gravest_word_is_that_of_the_run(self) -> None:
        good, conditional = verdict(whole()), verdict([*whole(), refuted(condition="some rows")])
        assert overall([good]) is Word.CERTIFIED
        assert overall([good, conditional]) is Word.CONDITIONAL
        assert overall([good, conditional, verdict([])]) is Word.UNKNOWN
        assert overall([good, verdict([]), verdict([refuted()])]) is Word.REFUTED
        assert overall([]) is Word.UNKNOWN

    def test_pairs(self) -> None:
        ledger = Ledger(whole())
        assert pairs(ledger, [PATH], []) == [(PATH, None)]
        assert pairs(ledger, [PATH, "b"], ["x", "y"]) == [(PATH, "x"), (PATH, "y"), ("b", "x"), ("b", "y")]


# -- the certificate ---------------------------------------------------------------------------------------------------


def document(folder: Path, *verdicts: Verdict) -> dict[str, Any]:
    draft = open_draft(folder)
    source = folder.parent / "path.py"
    source.write_text("def path(): ...")
    about = [
        *subjects.of_checkpoint(draft),
        *subjects.of_source("path", PATH, {"file": str(source), "sha256": subjects.of_file(source)}),
        *subjects.of_source("path", "pkg.mod:f", {"package": "numpy", "version": __import__("numpy").__version__}),
    ]
    tests = Outcomes(("test_a", "test_b"), ("test_known",), ())
    configuration = {
        "tp_sizes": {"tp_sizes": [2, 4]},
        "checkpoint": {"folder": str(folder), "target": None},
    }
    return certificate.statement(verdicts or (verdict(whole()),), about, tests, configuration)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return writers.specforge(tmp_path / "draft").save(2)


@pytest.fixture
def file(folder: Path, tmp_path: Path) -> Path:
    file = tmp_path / "certificate.json"
    file.write_text(json.dumps(document(folder)))
    return file


def resource_descriptor_faults(entry: Any, where: str, *, needs_digest: bool) -> list[str]:
    """The published fields of in-toto's ResourceDescriptor: spec/v1/resource_descriptor.md."""
    if not isinstance(entry, dict):
        return [f"{where} is no object"]
    known = {"name": str, "uri": str, "digest": dict, "content": str, "downloadLocation": str, "mediaType": str}
    known["annotations"] = dict
    faults = [
        f"{where}.{key} is unknown or has a wrong type"
        for key in entry
        if not isinstance(entry[key], known.get(key, ()))
    ]
    if not any(key in entry for key in ("uri", "digest", "content")):
        faults.append(f"{where} has none of uri, digest and content")
    if needs_digest and not entry.get("digest"):
        faults.append(f"{where} has no digest")
    for algorithm, value in (entry.get("digest") or {}).items():
        if algorithm != "sha256" or len(value) != 64 or set(value) - set("0123456789abcdef"):
            faults.append(f"{where}.digest is no lower-case sha256")
    return faults


def statement_faults(value: Any) -> list[str]:
    """The published fields of Statement v1 and of the test-result predicate v0.1."""
    faults = []
    if value.get("_type") != "https://in-toto.io/Statement/v1":
        faults.append("_type")
    if value.get("predicateType") != "https://in-toto.io/attestation/test-result/v0.1":
        faults.append("predicateType")
    if set(value) != {"_type", "subject", "predicateType", "predicate"}:
        faults.append("fields of the statement")
    for number, entry in enumerate(value["subject"]):
        faults += resource_descriptor_faults(entry, f"subject[{number}]", needs_digest=True)
    names = [entry["name"] for entry in value["subject"]]
    if len(names) != len(set(names)) or not names:
        faults.append("names of subjects are not unique, or there is none")
    predicate = value["predicate"]
    if predicate.get("result") not in ("PASSED", "WARNED", "FAILED"):
        faults.append("result")
    if set(predicate) - {"result", "configuration", "url", "passedTests", "warnedTests", "failedTests"}:
        faults.append("fields of the predicate")
    for number, entry in enumerate(predicate["configuration"]):
        faults += resource_descriptor_faults(entry, f"configuration[{number}]", needs_digest=False)
    for name in ("passedTests", "warnedTests", "failedTests"):
        if not all(isinstance(test, str) for test in predicate.get(name, [])):
            faults.append(name)
    return faults


def test_the_published_fields(folder: Path) -> None:
    value = document(folder)
    assert statement_faults(json.loads(json.dumps(value))) == []
    assert certificate.check(value) is value
    names = {entry["name"] for entry in value["subject"]}
    assert {"tensor/lm_head.weight", "tensor/d2t", "checkpoint file/config.json", f"path/{PATH}"} <= names
    assert "checkpoint file/model.safetensors.index.json" in names
    assert value["predicate"]["passedTests"] == ["test_a", "test_b"]


@pytest.mark.parametrize(
    ("entries", "result"),
    [
        (whole(), "PASSED"),
        ([*whole(), refuted(condition="some rows")], "WARNED"),
        ([*whole(), refuted()], "FAILED"),
        (whole()[1:], "FAILED"),
    ],
    ids=["certified", "conditional", "refuted", "unknown"],
)
def test_results(entries: list[Evidence], result: str, folder: Path) -> None:
    assert document(folder, verdict(entries))["predicate"]["result"] == result


def test_any_change_of_any_value_is_seen(folder: Path) -> None:
    value = document(folder)

    def places(at: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if isinstance(at, dict):
            return [place for key in at for place in places(at[key], (*path, key))]
        if isinstance(at, list):
            return [place for index in range(len(at)) for place in places(at[index], (*path, index))] or [path]
        return [path]

    everywhere = places(value)
    assert len(everywhere) > 100
    for place in everywhere:
        changed = copy.deepcopy(value)
        holder = changed
        for key in place[:-1]:
            holder = holder[key]
        old = holder[place[-1]]
        holder[place[-1]] = [1] if isinstance(old, list) else f"{old}x" if isinstance(old, str) else 99
        with pytest.raises(CertificateError):
            certificate.check(changed)


@pytest.mark.parametrize("junk", [None, [], {}, {"_type": 3}, "text", {"predicate": []}, {"subject": [1]}])
def test_what_is_no_certificate(junk: Any, tmp_path: Path) -> None:
    with pytest.raises(CertificateError):
        certificate.check(junk)
    (tmp_path / "junk.json").write_text(json.dumps(junk))
    assert main(["verify", str(tmp_path / "junk.json")]) == (1 if isinstance(junk, dict) else 4)


def test_a_pipe_is_no_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    assert main(["verify", str(tmp_path / "pipe.json")]) == 4
    assert "it is no regular file; give the certificate" in capsys.readouterr().err


class TestVerify:
    def test_unchanged(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["verify", str(file)]) == 0
        out = capsys.readouterr().out
        assert "digest fit" in out and "CERTIFIED (gather_pairs, some_head, gloo, cpu, tp 2,4)" in out

    @pytest.mark.parametrize(
        "target", ["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"]
    )
    def test_a_changed_checkpoint_file(self, target: str, file: Path, folder: Path, capsys: Any) -> None:
        content = bytearray((folder / target).read_bytes())
        content[-2] ^= 1
        (folder / target).write_bytes(content)
        assert main(["verify", str(file)]) == 1
        assert "is another one in" in (error := capsys.readouterr().err) or "cannot be read as it was" in error

    def test_each_file_matters(self, file: Path, folder: Path, tmp_path: Path) -> None:
        for target in [*folder.iterdir(), tmp_path / "path.py"]:
            content = target.read_bytes()
            target.write_bytes(content + b" ")
            assert main(["verify", str(file)]) == 1, target
            target.unlink()
            assert main(["verify", str(file)]) == 1, target
            target.write_bytes(content)
            assert main(["verify", str(file)]) == 0

    def test_weights_that_come_before_the_certified_ones(self, file: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes((folder / "model-00001-of-00002.safetensors").read_bytes())
        assert main(["verify", str(file)]) == 1

    def test_another_head(self, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        other = writers.specforge(tmp_path / "other")
        other.tensors["lm_head.weight"] = writers.weights(99, writers.DRAFT, writers.HIDDEN)
        assert main(["verify", str(file), "--checkpoint", str(other.save(2))]) == 1
        assert "tensor/lm_head.weight: it is another one in" in capsys.readouterr().err
        assert main(["verify", str(file), "--head", "another"]) == 1
        assert "it is about head some_head, not another" in capsys.readouterr().err
        assert main(["verify", str(file), "--path", "another"]) == 1
        assert main(["verify", str(file), "--head", HEAD, "--path", PATH]) == 0

    def test_a_path_and_a_head_must_be_those_of_one_verdict(self, folder: Path, tmp_path: Path, capsys: Any) -> None:
        alone = replace(verdict(whole()), path=OWN, head="another")
        place = tmp_path / "c.json"
        place.write_text(json.dumps(document(folder, verdict(whole()), alone, verdict(whole(), head=None))))
        for path, head, status in [(PATH, HEAD, 0), (OWN, "another", 0), (PATH, "another", 1), (PATH, "None", 1)]:
            assert main(["verify", str(place), "--path", path, "--head", head]) == status, (path, head)
        assert "it is about head another, some_head, not None" in (error := capsys.readouterr().err)
        assert f"it holds no verdict on path {PATH} with head another" in error

    def test_a_copy_elsewhere(self, file: Path, folder: Path, tmp_path: Path) -> None:
        folder.rename(tmp_path / "moved")
        assert main(["verify", str(file)]) == 1
        assert main(["verify", str(file), "--checkpoint", str(tmp_path / "moved")]) == 0

    def test_damage(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        text = file.read_text()
        file.write_text(text.replace('"PASSED"', '"WARNED"'))
        assert main(["verify", str(file)]) == 1
        assert "its own digest does not fit" in capsys.readouterr().err
        file.write_text(text[: len(text) // 2])
        assert main(["verify", str(file)]) == 4
        assert "it is no JSON" in capsys.readouterr().err

    def test_a_failed_result_is_nothing_to_rely_on(self, folder: Path, tmp_path: Path) -> None:
        for entries, status, accepted in [
            ([*whole(), refuted()], 1, 1),
            (whole()[1:], 1, 1),
            ([*whole(), refuted(condition="some rows")], 1, 0),
        ]:
            (tmp_path / "c.json").write_text(json.dumps(document(folder, verdict(entries))))
            assert main(["verify", str(tmp_path / "c.json")]) == status
            assert main(["verify", str(tmp_path / "c.json"), "--accept-conditions"]) == accepted

    def test_another_version_of_a_package(self, folder: Path, tmp_path: Path, capsys: Any) -> None:
        value = document(folder)
        about = [Subject("path package/x/numpy==0.0.1", "0" * 64, "path package")]
        other = certificate.statement([verdict(whole())], about, Outcomes(), {"n": {}})
        (tmp_path / "c.json").write_text(json.dumps(other))
        assert main(["verify", str(tmp_path / "c.json")]) == 1
        assert "installed is numpy==" in capsys.readouterr().err
        assert value["subject"]

    def test_absent(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["verify", str(tmp_path / "absent.json")]) == 4
        assert "could not be checked: No such file" in capsys.readouterr().err

    @pytest.mark.parametrize("content", ["[]", "3", "null", '"certificate"'])
    def test_no_certificate_at_all(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
        (tmp_path / "c.json").write_text(content)
        assert main(["verify", str(tmp_path / "c.json")]) == 4
        assert "could not be checked: it holds no JSON object" in capsys.readouterr().err


class TestSigned:
    @pytest.fixture(params=["ed25519", "ecdsa", "rsa"])
    def keys(self, request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
        return write_keys(tmp_path, "mine", request.param)

    @pytest.fixture
    def signed(self, keys: tuple[Path, Path], folder: Path, tmp_path: Path) -> Path:
        file = tmp_path / "signed.json"
        file.write_text(json.dumps(envelope.sign(document(folder), envelope.load_signer(keys[0]))))
        return file

    def test_signed_and_unchanged(self, signed: Path, keys: tuple[Path, Path], capsys: Any) -> None:
        assert main(["verify", str(signed), "--key", str(keys[1])]) == 0
        assert "signature and digest fit" in capsys.readouterr().out
        value = json.loads(signed.read_text())
        assert value["payloadType"] == "application/vnd.in-toto+json"
        assert set(value) == {"payload", "payloadType", "signatures"}

    def test_forgeries(self, signed: Path, keys: tuple[Path, Path], folder: Path, tmp_path: Path) -> None:
        key = str(keys[1])
        mallory, _ = write_keys(tmp_path, "mallory", "ed25519")
        genuine = json.loads(signed.read_text())
        better = envelope.sign(document(folder, verdict([*whole(), sampled("O6", 2)])), envelope.load_signer(mallory))
        forgeries: dict[str, Any] = {
            "signed by another": better,
            "another's payload": {**genuine, "payload": better["payload"]},
            "another's signature under the name of the key": {
                **better,
                "signatures": [{**better["signatures"][0], "keyid": genuine["signatures"][0]["keyid"]}],
            },
            "no signature": {**genuine, "signatures": []},
            "not signed at all": document(folder),
            "another type": {**genuine, "payloadType": "text/plain"},
            "nonsense": {"payload": "!", "signatures": "x"},
        }
        for name, forged in forgeries.items():
            signed.write_text(json.dumps(forged))
            assert main(["verify", str(signed), "--key", key]) == 1, name

    def test_a_changed_file(self, signed: Path, keys: tuple[Path, Path], folder: Path) -> None:
        (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
        assert main(["verify", str(signed), "--key", str(keys[1])]) == 1

    def test_without_the_key_it_cannot_be_checked(self, signed: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["verify", str(signed)]) == 4
        assert "it is signed; give the public key with --key" in capsys.readouterr().err

    def test_keys_that_are_none(self, signed: Path, keys: tuple[Path, Path], tmp_path: Path, capsys: Any) -> None:
        (tmp_path / "junk.pem").write_text("junk")
        for bad in (keys[0], tmp_path / "junk.pem", tmp_path / "absent.pem", tmp_path):
            assert main(["verify", str(signed), "--key", str(bad)]) == 4
            assert capsys.readouterr().err.count("\n") == 1
        for bad in (keys[1], tmp_path / "junk.pem", tmp_path / "absent.pem"):
            with pytest.raises(envelope.KeyUnusable, match=bad.name):
                envelope.load_signer(bad)


def write_keys(folder: Path, name: str, kind: str) -> tuple[Path, Path]:
    """A private and a public key as OpenSSL writes them."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    make: dict[str, Callable[[], Any]] = {
        "ed25519": ed25519.Ed25519PrivateKey.generate,
        "ecdsa": lambda: ec.generate_private_key(ec.SECP256R1()),
        "rsa": lambda: rsa.generate_private_key(65537, 2048),
    }
    key = make[kind]()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    pem = serialization.Encoding.PEM
    none = serialization.NoEncryption()
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, none))
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


# -- for people --------------------------------------------------------------------------------------------------------


def test_what_was_proved_and_what_was_sampled_is_said() -> None:
    entries = [entry for entry in whole() if entry.obligation != "O1"]
    entries += [proved("O1", part, size) for part in PARTS["O1"] for size in SETTING.tp_sizes]
    found = verdict(entries)
    text = "\n".join(readable.lines([found]))
    assert found.title in text
    assert "proved within their scopes: O1; sampled: O0, O2, O3, O4, O5, O6, O7" in text
    table = readable.markdown([found], "out.json", "PASSED")
    assert "proved: all of orderings, 14 rows, float32, tp 2,4" in table
    assert "tested: drawn rows, 2,000 rows, bfloat16, tp 2,4" in table


def test_what_stands_against_all_verdicts_is_said_once_and_long_lists_are_cut() -> None:
    setting = replace(SETTING, profile="dev")
    many = [decide(Ledger(), path, "a_head", setting) for path in ("one", "other")]
    said = readable.lines(many)
    assert [line for line in said if "dev profile" in line] == [f"of every verdict below: {many[0].reasons[0]}"]
    assert said.count(many[0].title) == said.count(many[1].title) == 1
    alone = readable.lines(many[:1])
    assert alone[-1] == f"    and {len(many[0].reasons) - 3} more, all of them with --certificate=OUT.json"
    assert readable.lines(many[:1], "out.json")[-1].endswith("more, all of them in out.json")
    assert len(alone) == 5


def test_markdown_cannot_be_broken_out_of() -> None:
    found = verdict([*whole(), refuted(scope="a | b\n<script>`x`")])
    text = readable.markdown([found], "o|ut.json", "FAILED")
    assert "<script>" not in text
    assert "a \\| b &lt;script>'x'" in text


def test_the_step_summary_stays_within_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "summary.md"
    file.write_text("before\n")
    readable.append_step_summary(file, "short\n")
    assert file.read_text() == "before\nshort\n"
    for _ in range(4):
        readable.append_step_summary(file, "é" * 400_000)
    assert file.stat().st_size < 1 << 20
    assert file.read_text().startswith("before\nshort\n")
    assert "The certificate holds the rest" in file.read_text()
