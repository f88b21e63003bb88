"""Grey images and their labels in the IDX format of MNIST, compressed or not."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from . import files

VALIDATION = 10_000
"""How many of the last training images are for validation."""
MAX_BYTES = 2**31
"""Bytes that a file may claim to hold."""


class Images(NamedTuple):
    """Pixels (N, 784) in [0, 1] and labels (N,)."""

    pixels: Tensor
    labels: Tensor

    def first(self, count: int | None) -> Images:
        """The first few; all for None."""
        return Images(self.pixels[:count], self.labels[:count])

    def check(self, name: str, count: int) -> None:
        """Raises a ValueError if there are fewer images than the option of this name says."""
        if not 1 <= count <= len(self.labels):
            raise ValueError(f"`{name}` must be from 1 to {len(self.labels)}, got {count}.")

    def to(self, device: str) -> Images:
        return Images(self.pixels.to(device), self.labels.to(device))


def read_idx(path: Path) -> Tensor:
    """The bytes of an IDX file, in its shape.

    Raises:
        ValueError: if it is not one, or not whole.
    """
    try:
        return _read_idx(path)
    except (EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _read_idx(path: Path) -> Tensor:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        head = file.read(4)
        if len(head) < 4 or head[:3] != b"\0\0\x08" or not 1 <= head[3] <= 4:
            raise ValueError(f"{path} must be an IDX file of unsigned bytes.")
        sides = file.read(4 * head[3])
        if len(sides) < 4 * head[3]:
            raise ValueError(f"{path} ends within its header.")
        shape = struct.unpack(f">{head[3]}I", sides)
        size = torch.Size(shape).numel()
        if size > MAX_BYTES:
            raise ValueError(f"{path} claims {size} bytes, more than {MAX_BYTES}.")
        content = file.read(size)
    if len(content) != size:
        raise ValueError(f"{path} must hold {size} bytes for shape {shape}; it has {len(content)}.")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(shape)


def read_training(folder: Path) -> tuple[Images, Images]:
    """The training images of a folder, and the last of them apart, for validation.

    Args:
        folder: holds train-images-idx3-ubyte and train-labels-idx1-ubyte, with or without .gz.
    Raises:
        FileNotFoundError, ValueError: if a file is missing, damaged or does not fit the other.
    """
    endings = ("", ".gz", ".idx3-ubyte", ".idx1-ubyte")
    pixels = read_idx(files.find(folder, ["train-images"], endings))
    labels = read_idx(files.find(folder, ["train-labels"], endings))
    if pixels.ndim != 3 or labels.shape != pixels.shape[:1] or len(labels) <= VALIDATION:
        raise ValueError(
            f"{folder} must hold more than {VALIDATION} images and a label for each; found shapes "
            f"{tuple(pixels.shape)} and {tuple(labels.shape)}."
        )
    images = Images(pixels.flatten(1).float().div_(255), labels.long())
    return images.first(-VALIDATION), Images(*(part[-VALIDATION:] for part in images))
