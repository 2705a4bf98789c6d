"""Certification as users type it: options that cannot work cost no run, runs give one merged certificate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from refimpl import certifying
from refimpl.cli import main
from refimpl.verdict import certificate
from tests import checkpoint_writers as writers
from tests.test_certificate import statement_faults, write_keys
from tests.test_command_line import pytest_run, run, sentences, torchrun

TABLE = "properties/test_head_table.py"


@pytest.fixture
def by_frequency(tmp_path: Path) -> Path:
    return writers.model_optimizer(tmp_path / "by_frequency").save()


class GivenOptions(pytest.Config):
    """As much of a configuration as options are read from, for checks that come before anything else."""

    def __init__(self, folder: Path, given: dict[str, str]) -> None:
        self.stash = pytest.Stash()
        self.pluginmanager = pytest.PytestPluginManager()
        self.invocation_params = pytest.Config.InvocationParams(args=(), plugins=None, dir=folder)
        self._given = given

    def getoption(self, name: str, *default: Any, **more: Any) -> Any:  # type: ignore[override]
        return self._given.get(name)


def options(tmp_path: Path, fault: str) -> tuple[list[str], str]:
    draft = writers.specforge(tmp_path / "draft").save()
    (tmp_path / "file").write_text("")
    (tmp_path / "junk.pem").write_text("junk")
    place = f"--certificate={tmp_path}/out.json"
    torch_file = writers.eagle1(tmp_path / "eagle1").save()
    found: dict[str, tuple[list[str], str]] = {
        "no folder": ([f"--checkpoint={tmp_path}/absent"], "it does not exist; give the folder that holds config.json"),
        "a file": ([f"--checkpoint={tmp_path}/file"], "it is a file; give the folder"),
        "no target": ([f"--checkpoint={torch_file}"], "shares its target's; give the target's folder"),
        "a name of two folders": (
            [f"--checkpoint={writers.specforge(tmp_path / 'a target:b').save()}"],
            "a folder of this name cannot be told to the ranks; rename it",
        ),
        "target alone": ([f"--target-checkpoint={draft}"], "it goes with --checkpoint=DIR"),
        "certificate in no folder": ([f"--certificate={tmp_path}/no/out.json"], "there is no folder"),
        "certificate is a folder": ([f"--certificate={tmp_path}/d.json"], "it is a folder; give a file in it"),
        "certificate of another type": ([f"--certificate={tmp_path}/out.txt"], "give a file whose name ends in .json"),
        "key alone": ([f"--certificate-key={tmp_path}/junk.pem"], "it goes with --certificate=OUT.json"),
        "key that is none": ([place, f"--certificate-key={tmp_path}/junk.pem"], "holds no private key that can sign"),
        "key that is not there": ([place, f"--certificate-key={tmp_path}/no.pem"], "cannot be read (No such file"),
    }
    (tmp_path / "d.json").mkdir()
    return found[fault]


@pytest.mark.parametrize(
    "fault",
    [
        "no folder",
        "a file",
        "no target",
        "a name of two folders",
        "target alone",
        "certificate in no folder",
        "certificate is a folder",
        "certificate of another type",
        "key alone",
        "key that is none",
        "key that is not there",
    ],
)
def test_an_option_that_cannot_work_is_one_sentence(fault: str, tmp_path: Path) -> None:
    arguments, message = options(tmp_path, fault)
    config = GivenOptions(tmp_path, dict(argument.split("=", 1) for argument in arguments))

    def check() -> None:
        certifying.checkpoint_heads(config)
        certifying.check_options(config)

    with pytest.raises(pytest.UsageError) as found:
        check()
    assert message in str(found.value)
    assert "\n" not in str(found.value)
    assert not list(tmp_path.glob("out*"))


def test_such_an_option_costs_no_run(tmp_path: Path) -> None:
    result = pytest_run(TABLE, "--tp=2", "--certificate", f"{tmp_path}/no/out.json")
    assert result.returncode == 4
    (sentence,) = sentences(result)
    assert "there is no folder" in sentence


def set_traps(folder: Path) -> None:
    """Files that show if anything in a folder is imported or taken for configuration."""
    for name in ("conftest.py", "modeling_llama.py", "sitecustomize.py", "config.py"):
        (folder / name).write_text("raise SystemExit('executed')")
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--no-such-option'\n")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")


def read(file: Path) -> dict[str, Any]:
    document = json.loads(file.read_text())
    assert statement_faults(document) == []
    return certificate.check(document)


def verdicts(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["path"]: entry for entry in certificate.described(document, "verdicts")["verdicts"]}


def test_a_table_by_frequency_has_its_witness_and_its_estimate(by_frequency: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    set_traps(by_frequency)
    # As two words, which pytest takes for a folder of tests before it knows the option.
    arguments = [TABLE, "--tp=2", "--checkpoint", str(by_frequency), f"--certificate={out}"]
    result = pytest_run(*arguments, "--path=gather_pairs", "--path=target_tie_break")
    assert "executed" not in result.stdout + result.stderr
    assert result.returncode == 1  # one property is no certification, and a certificate was asked for
    document = read(out)
    assert document["predicate"]["result"] == "FAILED"
    found = verdicts(document)
    assert {entry["verdict"] for entry in found.values()} == {"UNKNOWN"}
    assert "the dev profile is too short to certify" in found["gather_pairs"]["reasons"][0]
    (condition,) = found["gather_pairs"]["conditions"]
    table = writers.most_common_ids()
    i = next(i for i in range(len(table)) if (table[i + 1 :] < table[i]).any())
    j = next(j for j in range(i + 1, len(table)) if table[j] < table[i])
    assert f"draft ids {i} and {j} tie, targets {table[i]} and {table[j]}, full gather {table[j]}" in condition
    assert "of 2048 rows from random hidden states differ" in condition
    assert "argmax-parity sort-table" in condition
    assert found["target_tie_break"]["conditions"] == []
    assert "certificate: " in result.stdout
    assert "(gather_pairs, checkpoint:by_frequency, gloo, cpu, tp 2)" in out.with_suffix(".md").read_text()
    names = {entry["name"] for entry in document["subject"]}
    assert {"path/gather_pairs", "tensor/lm_head.weight", "tensor/d2t", "checkpoint file/config.json"} <= names
    assert main(["verify", str(out)]) == 1  # FAILED is nothing to rely on, though nothing was changed


def test_a_readable_wrong_table_is_refuted(tmp_path: Path) -> None:
    written = writers.specforge(tmp_path / "draft")
    written.tensors["d2t"] += torch.arange(writers.DRAFT)
    out = tmp_path / "out.json"
    arguments = [TABLE, "--tp=2", f"--checkpoint={written.save()}", f"--certificate={out}", "--path=gather_pairs"]
    result = pytest_run(*arguments)
    assert result.returncode == 1
    assert "bad-table" in result.stdout
    (entry,) = verdicts(read(out)).values()
    assert entry["verdict"] == "REFUTED"
    message = "ids-for-offsets: the values of d2t are distinct ids below 160 and t2d is true exactly at them"
    assert message in entry["reasons"][0]


def test_one_merged_certificate_under_xdist_and_over_tp_sizes(tmp_path: Path) -> None:
    draft = writers.specforge(tmp_path / "draft").save(2)
    out = tmp_path / "out.json"
    arguments = [TABLE, "--tp=1,2", f"--checkpoint={draft}", f"--certificate={out}", "--path=gather_pairs", "-n", "2"]
    assert pytest_run(*arguments).returncode == 1
    document = read(out)
    test = f"{TABLE}::test_whole_table[checkpoint:draft-gather_pairs-tp{{}}]"
    assert document["predicate"]["passedTests"] == [test.format(1), test.format(2)]
    assert len(document["subject"]) >= 8
    (found,) = verdicts(document).values()
    assert found["title"] == "UNKNOWN (gather_pairs, checkpoint:draft, gloo, cpu, tp 1,2)"
    table = next(entry for entry in found["obligations"] if entry["obligation"] == "O5")
    assert table["status"] == "tested"
    (scope,) = table["scopes"]  # of both workers
    assert scope.startswith("tested: the whole table of 48 draft ids") and scope.endswith("tp 1,2")
    assert any("only a part of the properties was asked for" in reason for reason in found["reasons"])


def test_under_torchrun_and_signed(tmp_path: Path) -> None:
    draft = writers.automodel(tmp_path / "draft").save()
    private, public = write_keys(tmp_path, "key", "ed25519")
    out = tmp_path / "out.json"
    arguments = [TABLE, f"--checkpoint={draft}", f"--certificate={out}", f"--certificate-key={private}"]
    run(*torchrun(2, *arguments, "--path=target_tie_break"))
    assert "payload" in json.loads(out.read_text())
    assert main(["verify", str(out)]) == 4
    assert main(["verify", str(out), "--key", str(public)]) == 1  # genuine, and its result FAILED: one property only
    assert main(["verify", str(out), "--key", str(write_keys(tmp_path, "other", "ed25519")[1])]) == 1
