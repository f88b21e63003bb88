"""Files that are never seen half written, nor damaged unnoticed: tensors as safetensors, the rest
as JSON."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

METADATA = "fenchel"
"""The key under which a tensor file holds its JSON."""
DIGEST = "sha256"
"""The key under which it holds the digest of that and of the tensors."""


class FormatError(ValueError):
    """A file that is not what this package writes."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` when all is written.

    The path is always the same, so that a process that is killed leaves one file, not many. What
    is no file, such as a terminal, a pipe or /dev/null, is written to as it is, and a link stays.

    Raises:
        OSError: as `writable` does.
    """
    writable(path)
    if path.exists() and not path.is_file():
        yield path
        return
    path = path.resolve()
    new = path.with_name(f".{path.name}.partial")
    new.unlink(missing_ok=True)  # what a killed process left; a link goes, and what it names stays
    os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield new
        with open(new, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(new, 0o666 & ~_umask())
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def writable(path: Path) -> None:
    """Checks that a file can be written; for whoever works long before it is.

    Raises:
        OSError: if the path is a folder, or its own folder is missing or not writable.
    """
    folder = path.parent
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file in it.")
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder {folder} does not exist; create it first.")
    if not path.exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"the folder {folder} is not writable; choose another.")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a folder, which is made if it is missing, against other processes.

    Raises:
        BlockingIOError: if another process holds it.
        OSError: if its lock is a link, which is not followed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(f"{path} is a link, and must be a file; remove it.") from None
        raise
    with open(handle, "wb", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(f"another process is training in {folder}.") from None
        yield


def write_text(path: Path, text: str) -> None:
    """Writes text at once."""
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON at once."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """The value of a JSON file.

    Raises:
        FormatError: if it is not JSON, or no file.
    """
    _check_kind(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FormatError(f"{path} is not JSON: {error}.") from None
    except RecursionError:
        raise FormatError(f"{path} is not JSON that can be read: it nests too deep.") from None


def _check_kind(path: Path) -> None:
    """Raises if a path names a pipe or another thing that one may read from without an end."""
    if path.exists() and not path.is_file():
        raise FormatError(f"{path} is not a regular file.")


def digest(*parts: str | np.ndarray) -> str:
    """The SHA-256 of parts, each with its length before it."""
    total = hashlib.sha256()
    for part in parts:
        content = memoryview(part.encode()) if isinstance(part, str) else part.data
        total.update(f"{content.nbytes}:".encode())
        total.update(content)
    return total.hexdigest()


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """The digest of a file: of the text in it, and of the tensors with their names and kinds."""
    parts: list[str | np.ndarray] = [text]
    for name, tensor in sorted(tensors.items()):
        parts.append(f"{name} {tensor.dtype} {tuple(tensor.shape)}")
        parts.append(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest(*parts)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], value: Any) -> None:
    """Writes tensors, and a value as JSON beside them, to one file at once.

    Raises:
        OSError: if that fails, as on a full disk.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(value)
    metadata = {METADATA: text, DIGEST: _digest(plain, text)}
    with replacing(path) as new:
        try:
            save_file(plain, new, metadata=metadata)
        except SafetensorError as error:
            raise OSError(f"{path} cannot be written: {error}.") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """The tensors of a file, and the value beside them.

    Raises:
        FormatError: if it is not such a file, or not as it was written. A file without a digest,
            as they were once written, is taken as it is.
    """
    _check_kind(path)
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
    """Checks that tensors are those of the parameters, be these on no device.

    Raises:
        FormatError: if names or shapes are not the same.
    """
    if parameters.keys() != tensors.keys():
        odd = ", ".join(sorted(parameters.keys() ^ tensors.keys())[:4])
        raise FormatError(f"{where} does not hold the weights of this model; see {odd}.")
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
    """A tensor gathered from all processes, if it is divided among them."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[attr-defined]


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, if it is divided among processes."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[attr-defined]


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """A tensor on the device of another, and divided among processes as that is."""
    if not hasattr(other, "full_tensor"):
        return tensor.to(other.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        tensor.to(other.device),
        other.device_mesh,  # type: ignore[attr-defined]
        other.placements,  # type: ignore[attr-defined]
    )
