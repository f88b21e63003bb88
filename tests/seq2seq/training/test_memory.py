"""Memory is counted before it is taken: what there is, and what a model needs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fenchel.seq2seq import Characters, ModelConfig
from fenchel.seq2seq.training import _memory as memory
from fenchel.seq2seq.training._distributed import World

LETTERS = Characters("abc")
CONFIG = ModelConfig(hidden=1000, embedding=1000)


def check(available: int, monkeypatch: pytest.MonkeyPatch, size: int, divided: bool) -> None:
    monkeypatch.setattr(memory, "available", lambda: available)
    memory.check_memory(CONFIG, LETTERS, LETTERS, World(0, size, torch.device("cpu")), divided)


@pytest.mark.parametrize(
    ("size", "here", "divided", "copies"),
    [(1, 1, False, 4), (3, 1, True, 2), (2, 2, False, 8), (3, 3, True, 6)],
)
def test_gradients_and_moments_count(
    monkeypatch: pytest.MonkeyPatch, size: int, here: int, divided: bool, copies: int
) -> None:
    with torch.device("meta"):
        model = memory.Seq2Seq(CONFIG, LETTERS, LETTERS)
    held = 4 * sum(weight.numel() for weight in model.parameters())
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
    check(copies * held, monkeypatch, size, divided)
    with pytest.raises(ValueError, match="of memory to train"):
        check(copies * held - 1, monkeypatch, size, divided)


def test_the_figure_and_the_remedy_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError,
        match=r"a model of \d+,\d+,\d+ weights takes 0\.\d GiB .* this machine has 0\.2 GiB; lower",
    ):
        check(2**28, monkeypatch, 1, False)


@pytest.mark.parametrize(
    ("line", "file"),
    [("0::/job/step", "job/memory.max"), ("4:memory:/job", "memory/job/memory.limit_in_bytes")],
)
def test_a_jobs_limit_is_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, file: str
) -> None:
    assert 2**20 < memory.available() < 2**60
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("12345\n", encoding="ascii")
    (tmp_path / "memory.max").write_text("max\n", encoding="ascii")
    own = tmp_path / "own"
    own.write_text(f"{line}\n7:cpu:/other\n", encoding="utf-8")
    monkeypatch.setattr(memory, "CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(memory, "OWN_CGROUPS", own)
    assert memory.available() == 12345
