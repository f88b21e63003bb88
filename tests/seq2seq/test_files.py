"""The files of models and trainings: locks, and what happens on a full disk."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import torch

from fenchel.seq2seq._files import locked, read_tensors, write_tensors


def test_a_link_as_lock_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept", encoding="utf-8")
    (tmp_path / ".lock").symlink_to(precious)
    with (
        pytest.raises(OSError, match=r"\.lock is a link, and must be a file; remove it"),
        locked(tmp_path),
    ):
        pass
    assert precious.read_text(encoding="utf-8") == "kept"


def test_a_pipe_as_lock_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with (
        pytest.raises(OSError, match=r"\.lock is not a regular file; remove it"),
        locked(tmp_path),
    ):
        pass


def test_a_full_disk_is_an_error_of_the_system(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
    try:
        with pytest.raises(OSError, match=r"weights cannot be written: .*File too large"):
            write_tensors(tmp_path / "weights", {"large": torch.zeros(10_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert list(tmp_path.iterdir()) == []


def test_tensors_of_any_stride_are_written(tmp_path: Path) -> None:
    tensors = {"one": torch.ones(1).expand(1).clone(), "wide": torch.ones(()).expand(3)[:1]}
    write_tensors(tmp_path / "x.safetensors", tensors, {})
    found, _ = read_tensors(tmp_path / "x.safetensors")
    assert found["wide"].tolist() == [1.0]
