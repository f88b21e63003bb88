"""IDX files: read, and refused if they are damaged."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
import torch

from experiments import files, images


def idx(*shape: int, content: bytes | None = None) -> bytes:
    """An IDX file of that shape, counting up."""
    size = torch.Size(shape).numel()
    body = bytes(i % 256 for i in range(size)) if content is None else content
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body


@pytest.mark.parametrize("packed", [False, True])
def test_images_and_labels(tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "VALIDATION", 2)
    for name, content in (
        ("train-images-idx3-ubyte", idx(5, 2, 2)),
        ("train-labels-idx1-ubyte", idx(5)),
    ):
        if packed:
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (tmp_path / name).write_bytes(content)
    given, held = images.read_training(tmp_path)
    assert given.labels.tolist() == [0, 1, 2]
    assert held.labels.tolist() == [3, 4]
    torch.testing.assert_close(held.pixels[0] * 255, torch.tensor([12.0, 13.0, 14.0, 15.0]))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\0\0", "must be an IDX file of unsigned bytes"),
        (b"GIF89a", "must be an IDX file of unsigned bytes"),
        (bytes([0, 0, 8, 3, 0]), "ends within its header"),
        (idx(3, content=b"ab"), r"must hold 3 bytes for shape \(3,\); it has 2"),
        (idx(2**31, 2, content=b""), "claims 4294967296 bytes, more than"),
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "train-images"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=text):
        images.read_idx(path)


def test_a_file_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "train-images.gz"
    path.write_bytes(gzip.compress(idx(200))[:60])
    with pytest.raises(ValueError, match=r"train-images.gz is damaged"):
        images.read_idx(path)
    with pytest.raises(FileNotFoundError, match=r"named labels, ending in nothing or .gz"):
        files.find(tmp_path, ["labels"], ("", ".gz"))


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(5, 2, 2))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(4))
    with pytest.raises(ValueError, match="must hold more than 10000 images and a label for each"):
        images.read_training(tmp_path)
