"""What a certificate is about, by sha256: files of checkpoints, lm_head and table, sources of paths and heads.

The same functions make the digests of a run and check them later. Nothing of what they read is imported or executed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from fixtures.checkpoints import open_draft
from fixtures.checkpoints.draft import Draft
from fixtures.checkpoints.tensors import Tensor

_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class Subject:
    """``name`` is unique in a certificate, ``role`` says what it is: checkpoint file, tensor, path source, package ...

    ``where``: the file, or for a tensor its checkpoint folder; None for a package.
    """

    name: str
    sha256: str
    role: str
    where: str | None = None

    def to_value(self) -> dict[str, Any]:
        """An in-toto resource descriptor."""
        uri = {} if self.where is None else {"uri": Path(self.where).as_uri()}
        return {"name": self.name, "digest": {"sha256": self.sha256}, **uri, "annotations": {"role": self.role}}


def of_file(file: Path) -> str:
    """sha256 of a file. Raises OSError."""
    state = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            state.update(block)
    return state.hexdigest()


def of_tensor(tensor: Tensor) -> str:
    """sha256 of dtype, shape and bytes, read and not mapped. Raises OSError."""
    state = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}\n".encode())
    for block in _tensor_bytes(tensor):
        state.update(block)
    return state.hexdigest()


def _tensor_bytes(tensor: Tensor) -> Iterator[bytes]:
    if not tensor.num_bytes:  # of a torch file, which has no place for it
        yield tensor.patterns().tobytes()
        return
    with tensor.file.open("rb") as stream:
        stream.seek(tensor.offset)
        left = tensor.num_bytes
        while left:
            block = stream.read(min(left, _BLOCK_BYTES))
            if not block:
                raise OSError(f"{tensor.file} ended before {tensor.name!r} did")
            left -= len(block)
            yield block


def of_checkpoint(draft: Draft) -> list[Subject]:
    """Every file that was read, each step's lm_head, norm and bias, and the table. Raises OSError."""
    found = []
    for file in draft.files:
        role = "checkpoint file" if file.parent == draft.folder else "target checkpoint file"
        found.append(Subject(f"{role}/{file.name}", of_file(file), role, str(file.absolute())))
    folder = str(draft.folder.absolute())
    for number, step in enumerate(draft.steps):
        at = f"step {number}/" if len(draft.steps) > 1 else ""
        named = [
            (f"{at}{tensor.name}", tensor) for tensor in (step.lm_head, step.norm, step.bias) if tensor is not None
        ]
        found += [Subject(f"tensor/{name}", of_tensor(tensor), "tensor", folder) for name, tensor in named]
    tables = [tensor for tensor in (draft.d2t, draft.t2d) if tensor is not None]
    return found + [Subject(f"tensor/{tensor.name}", of_tensor(tensor), "tensor", folder) for tensor in tables]


def reread_checkpoint(folder: Path, target: Path | None) -> list[Subject]:
    """The same of a folder as it is now. Raises CheckpointError, OSError."""
    return of_checkpoint(open_draft(folder, target))


def of_source(kind: str, name: str, source: dict[str, Any] | None) -> list[Subject]:
    """A path or head by what the ranks said of where it was loaded from: its file, and its package and version.

    ``kind``: path or head. ``source``: ``file``, ``sha256``, ``package``, ``version``, each may be None. Where the
    ranks named neither a file nor a package, its name stands for itself, and the role says so.
    """
    source = source or {}
    found = []
    if source.get("file") and source.get("sha256"):
        found.append(Subject(f"{kind}/{name}", source["sha256"], f"{kind} source", source["file"]))
    if source.get("package"):
        spelled = f"{source['package']}=={source['version']}"
        found.append(Subject(f"{kind} package/{name}/{spelled}", _of_text(spelled), f"{kind} package"))
    if not found:
        found.append(Subject(f"{kind}/{name}", _of_text(name), f"{kind} name only"))
    return found


def installed_version(spelled: str) -> str | None:
    """``package==version`` as it is installed now, or None."""
    package = spelled.partition("==")[0]
    try:
        return f"{package}=={metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return None


def _of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
