"""Files of models and trainings: tensors as safetensors with a digest, everything else as JSON.

All are written atomically, and a damaged file is recognized when it is read.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .._atomic import atomic_write, write_text

METADATA = "fenchel"
"""The metadata key of a tensor file for its JSON value."""
DIGEST = "sha256"
"""The metadata key of a tensor file for the digest of its JSON value and its tensors."""


class FormatError(ValueError):
    """A file that this package has not written, or that was damaged since."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder against other processes; creates it if it is missing.

    Raises:
        BlockingIOError: if another process has locked it.
        OSError: if its lock file is a link, which is not followed, or not a regular file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(f"{path} is a link, and must be a file; remove it.") from None
        raise
    with open(handle, "wb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is not a regular file; remove it.")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(f"another process is training in {folder}.") from None
        yield


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON, atomically."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """The value of a JSON file.

    Raises:
        FormatError: if it is not JSON, or not a regular file.
    """
    _check_regular(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FormatError(f"{path} is not JSON: {error}.") from None
    except RecursionError:
        raise FormatError(f"{path} is not JSON that can be read: it nests too deep.") from None


def _check_regular(path: Path) -> None:
    """Raises for a pipe or a device; reading it might never end."""
    if path.exists() and not path.is_file():
        raise FormatError(f"{path} is not a regular file.")


def digest(*parts: str | np.ndarray) -> str:
    """The SHA-256 of all parts, each preceded by its length."""
    sha = hashlib.sha256()
    for part in parts:
        content = memoryview(part.encode()) if isinstance(part, str) else part.data
        sha.update(f"{content.nbytes}:".encode())
        sha.update(content)
    return sha.hexdigest()


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """The digest of a tensor file: its JSON text, and its tensors with name, dtype and shape."""
    parts: list[str | np.ndarray] = [text]
    for name, tensor in sorted(tensors.items()):
        parts.append(f"{name} {tensor.dtype} {tuple(tensor.shape)}")
        flat = tensor.new_empty(tensor.numel()).copy_(tensor.flatten())  # of stride one, always
        parts.append(flat.view(torch.uint8).numpy())
    return digest(*parts)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], value: Any) -> None:
    """Writes tensors and a JSON value to one file, atomically.

    Raises:
        OSError: if the file cannot be written, for example on a full disk.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(value)
    metadata = {METADATA: text, DIGEST: _digest(plain, text)}
    with atomic_write(path) as new:
        try:
            save_file(plain, new, metadata=metadata)
        except SafetensorError as error:
            raise OSError(f"{path} cannot be written: {error}.") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """The tensors and the JSON value of a file.

    A file without a digest, from an early version, is not checked for damage.

    Raises:
        FormatError: if it is not such a file, or was damaged.
    """
    _check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata: dict[str, str] = file.metadata()
        text = metadata[METADATA]
        value = json.loads(text)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{path} is not a file of this package's tensors: {error}.") from None
    if metadata.keys() != {METADATA} and metadata.get(DIGEST) != _digest(tensors, text):
        raise FormatError(
            f"{path} is damaged: it does not hold what was written to it. Put a copy of it in its "
            "place, or train again in another folder."
        )
    return tensors, value


def check_fit(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor], where: Path) -> None:
    """Checks that tensors have the names and shapes of the parameters, which may be meta tensors.

    Raises:
        FormatError: if a name or a shape differs.
    """
    if parameters.keys() != tensors.keys():
        different = ", ".join(sorted(parameters.keys() ^ tensors.keys())[:4])
        raise FormatError(f"{where} does not hold the weights of this model; see {different}.")
    for name, parameter in parameters.items():
        if parameter.shape != tensors[name].shape:
            raise FormatError(
                f"{where} has {name} of shape {tuple(tensors[name].shape)}, "
                f"not {tuple(parameter.shape)}."
            )


def fill(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor], where: Path) -> None:
    """Copies tensors into the parameters of the same names; raises as `check_fit` does."""
    check_fit(parameters, tensors, where)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(like(tensors[name], parameter))


def full(tensor: Tensor) -> Tensor:
    """The whole tensor; a sharded one is gathered from all processes."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[attr-defined]


def local(tensor: Tensor) -> Tensor:
    """This process's shard of a tensor; the tensor itself if it is not sharded."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[attr-defined]


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """A tensor on the device of another, and sharded as that one is."""
    if not hasattr(other, "full_tensor"):
        return tensor.to(other.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        tensor.to(other.device),
        other.device_mesh,  # type: ignore[attr-defined]
        other.placements,  # type: ignore[attr-defined]
    )
