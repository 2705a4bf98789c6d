"""Write a checkpoint again with its D2T table sorted and every draft-indexed tensor permuted alike.

Draft id k of the new checkpoint is draft id ``order[k]`` of the old one, ``order`` being the order of the target ids.
The table then rises strictly, both tie rules agree, and every logit of a target id is computed from the same bytes as
before. Files are copied block by block: headers, shards, index and every other byte stay as they were.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fixtures.checkpoints.tensors import CheckpointError, Tensor, TensorFolder
from refimpl import places
from refimpl.verdict.subjects import of_file
from refimpl.vocab.d2t import check_table, offsets, targets
from refimpl.vocab.mistakes import diagnose

DONE, FAILED, USAGE_ERROR = 0, 1, 4
_BLOCK_BYTES = 1 << 24
# Tensors that are draft-indexed by their name alone; any other of the draft vocabulary's length is asked about.
_HEAD_NAMES = ("lm_head.", "model.lm_head.", "language_model.lm_head.")
# Parts of the trunk, whose axes are never draft ids, whatever their lengths.
_TRUNK = re.compile(r"(^|\.)(midlayer|layers\.\d+|fc|fc_norm|norm|input_norm|embed_tokens|mask_hidden)(\.|$)")
_TABLES = ("d2t", "model.d2t")
_MASKS = ("t2d", "model.t2d")


@dataclass(frozen=True)
class Sorted:
    """What was done: ``order`` int64 ``(draft_vocab_size,)``, the table and the tensors permuted with it."""

    order: np.ndarray
    table: str
    permuted: tuple[str, ...]


def sort_table(folder: Path, out: Path, also: tuple[str, ...] = (), leave: tuple[str, ...] = ()) -> int:
    """The command: prints what was done and returns 0, or one sentence and 4; 1 if the copy is not as it should be."""
    try:
        done = write_sorted(folder, out, also, leave)
        problem = compare(folder, out, done)
    except CheckpointError as error:
        print(f"nothing was written: {error}", file=sys.stderr)
        return USAGE_ERROR
    except OSError as error:
        print(f"{out} could not be written: {error.strerror or error} ({error.filename or ''})", file=sys.stderr)
        return USAGE_ERROR
    if problem is not None:
        print(f"{out} is not the sorted checkpoint: {problem}", file=sys.stderr)
        return FAILED
    print(f"{out}: the table rises strictly, {len(done.order)} draft ids, no inversion")
    for name in done.permuted:
        print(f"  {name}: row k is row order[k] of the old tensor on all {len(done.order)} rows, byte for byte")
    print("  every other tensor and file: equal byte for byte (compared after writing)")
    return DONE


def write_sorted(folder: Path, out: Path, also: tuple[str, ...] = (), leave: tuple[str, ...] = ()) -> Sorted:
    """Write the sorted checkpoint. Raises CheckpointError, OSError; what was begun is removed."""
    if places.exists(out) or os.path.islink(out):
        raise CheckpointError(f"{out} exists already; name a folder that does not")
    if not places.is_dir(out.parent):
        raise CheckpointError(f"{out.parent} is no folder; make it first")
    if folder.resolve() in out.resolve().parents:
        raise CheckpointError(f"{out} lies in {folder}; name a folder outside it")
    tensors = _weights(folder)
    table_name = next((name for name in _TABLES if name in tensors), None)
    if table_name is None:
        raise CheckpointError(f"{tensors.where()} in {folder} holds no 'd2t': there is no table to sort")
    d2t = np.array(tensors[table_name].values())
    draft = len(d2t) if d2t.ndim == 1 else 0
    mask = next((np.array(tensors[name].patterns()) for name in _MASKS if name in tensors), None)
    head = _head_rows(tensors)
    if head is None:
        raise CheckpointError(
            f"{tensors.where()} in {folder} holds no lm_head, whose rows would have to move with the table; give a "
            "checkpoint with an lm_head of its own"
        )
    diagnosis = diagnose(d2t, head, None, mask)
    if not diagnosis.is_sound:
        raise CheckpointError(
            f"{table_name!r} in {tensors[table_name].file.name} is no table that sorting would mend: "
            f"{diagnosis.sentences[0]}"
        )
    if diagnosis.report.is_rising:
        raise CheckpointError(f"{table_name!r} in {tensors[table_name].file.name} rises strictly already")
    ids = targets(d2t)
    order = np.argsort(ids, kind="stable")
    permuted = _draft_indexed(tensors, draft, table_name, also, leave)
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    try:
        partial.mkdir()
        _copy_others(folder, partial, {tensors[name].file for name in tensors.names})
        for file in sorted({tensors[name].file for name in tensors.names}):
            inside = [tensors[name] for name in tensors.names if tensors[name].file == file]
            _write_file(file, partial / file.name, inside, permuted, table_name, order, ids)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return Sorted(order, table_name, permuted)


def compare(folder: Path, out: Path, done: Sorted) -> str | None:
    """Read both checkpoints again and hold them against each other, byte for byte; None, or what differs."""
    old, new = _weights(folder), _weights(out)
    if old.names != new.names:
        return f"it holds {new.listed}, not {old.listed}"
    wanted = offsets(np.sort(targets(np.array(old[done.table].values()))))
    written = np.array(new[done.table].values())
    if not np.array_equal(written, wanted) or not check_table(written, len(wanted)).is_rising:
        return f"{done.table!r} is not the sorted table"
    for name in old.names:
        before, after = old[name], new[name]
        if (before.dtype, before.shape, before.offset) != (after.dtype, after.shape, after.offset):
            return f"{name!r} was {before.dtype} {before.shape} and is {after.dtype} {after.shape}"
        if name == done.table:
            continue
        expected = _moved(before, done.order) if name in done.permuted else _blocks(before)
        for index, (wanted_bytes, found_bytes) in enumerate(zip(expected, _blocks(after), strict=True)):
            if wanted_bytes != found_bytes:
                return f"block {index} of {name!r} differs"
    same = _same_others(folder, out, {Path(old[name].file.name) for name in old.names})
    return None if same is None else f"{same} differs"


def _weights(folder: Path) -> TensorFolder:
    if not places.is_dir(folder):
        raise CheckpointError(f"{folder} is no folder; give the one that holds config.json and the weights")
    tensors = TensorFolder(folder)
    for name in tensors.names:
        if tensors[name].file.suffix != ".safetensors":
            raise CheckpointError(
                f"{tensors[name].file.name} is no safetensors file; save the checkpoint as safetensors first, "
                "only those are written again"
            )
    return tensors


def _head_rows(tensors: TensorFolder) -> int | None:
    for prefix in _HEAD_NAMES:
        if f"{prefix}weight" in tensors:
            return next(iter(tensors[f"{prefix}weight"].shape), 0)
    return None


def _draft_indexed(
    tensors: TensorFolder, draft: int, table: str, also: tuple[str, ...], leave: tuple[str, ...]
) -> tuple[str, ...]:
    for name in (*also, *leave):
        if name not in tensors:
            raise CheckpointError(f"{tensors.where()} holds no tensor {name!r}; it holds {tensors.listed}")
    for name in leave:
        if name.startswith(_HEAD_NAMES) and tensors[name].shape[:1] == (draft,):
            raise CheckpointError(
                f"tensor {name!r} belongs to the lm_head: its rows are draft ids and move with the table"
            )
    chosen = []
    for name in tensors.names:
        shape = tensors[name].shape
        if name == table or name in _MASKS or name in leave or (name not in also and _TRUNK.search(name)):
            continue
        known = name.startswith(_HEAD_NAMES) or name in also
        if known and shape[:1] == (draft,):
            chosen.append(name)
        elif name.startswith(_HEAD_NAMES) and name not in also and shape and shape[0] not in (1, draft):
            raise CheckpointError(
                f"tensor {name!r} has shape {shape}: it belongs to the lm_head and has no row for each of the "
                f"{draft} draft ids, as scales of blocks have; give an unquantised checkpoint"
            )
        elif name in also:
            raise CheckpointError(f"tensor {name!r} has shape {shape}, its first axis must be the {draft} draft ids")
        elif draft in shape and not name.startswith(_HEAD_NAMES):
            raise CheckpointError(
                f"tensor {name!r} has shape {shape}, and the draft vocabulary {draft} ids: say --also={name} if "
                f"its rows are draft ids, --leave={name} if they are not"
            )
    return tuple(chosen)


def _write_file(
    source: Path,
    target: Path,
    tensors: list[Tensor],
    permuted: tuple[str, ...],
    table: str,
    order: np.ndarray,
    ids: np.ndarray,
) -> None:
    """One file: header and bytes as they are, but for the rows of permuted tensors and the table's entries."""
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    with source.open("rb") as old, target.open("wb") as new:
        for tensor in ordered:
            if tensor.name != table and tensor.name not in permuted:
                continue
            _copy_until(old, new, tensor.offset)
            if tensor.name == table:
                new.write(offsets(np.sort(ids)).astype("<i8").tobytes())
            else:
                for block in _moved(tensor, order):
                    new.write(block)
            old.seek(new.tell())
        _copy_until(old, new, None)
        new.flush()
        os.fsync(new.fileno())


def _copy_until(old: BinaryIO, new: BinaryIO, end: int | None) -> None:
    while True:
        position = new.tell()
        size = _BLOCK_BYTES if end is None else min(_BLOCK_BYTES, end - position)
        block = old.read(size) if size else b""
        if not block:
            return
        new.write(block)


def _blocks(tensor: Tensor) -> Iterator[bytes]:
    """A tensor's bytes in order, a bounded number of rows at a time."""
    return _moved(tensor, np.arange(tensor.shape[0] if tensor.shape else 1))


def _moved(tensor: Tensor, order: np.ndarray) -> Iterator[bytes]:
    """Rows in another order, a bounded number at a time, read from the file and not mapped: pages do not pile up."""
    if not len(order):
        return
    size = tensor.num_bytes // len(order)
    step = max(1, _BLOCK_BYTES // max(1, size))
    with tensor.file.open("rb") as file:
        for begin in range(0, len(order), step):
            part = order[begin : begin + step]
            block = bytearray()
            for run in np.split(part, np.flatnonzero(np.diff(part) != 1) + 1):
                file.seek(tensor.offset + int(run[0]) * size)
                block += file.read(len(run) * size)
            yield bytes(block)


def _copy_others(folder: Path, out: Path, weights: set[Path]) -> None:
    for place in sorted(folder.iterdir()):
        if place in weights:
            continue
        if place.is_dir():
            shutil.copytree(place, out / place.name)
        elif place.is_file():
            shutil.copyfile(place, out / place.name)


def _same_others(folder: Path, out: Path, weights: set[Path]) -> str | None:
    def digests(root: Path) -> dict[str, str]:
        # Linked folders were copied as folders, so they are walked as well.
        places = (Path(at) / name for at, _, names in os.walk(root, followlinks=True) for name in names)
        files = ((place, place.relative_to(root)) for place in places if place.is_file())
        return {str(name): of_file(place) for place, name in files if name not in weights}

    before, after = digests(folder), digests(out)
    return next((name for name in sorted(before | after) if before.get(name) != after.get(name)), None)
