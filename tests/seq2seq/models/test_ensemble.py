"""Ensembles compare the vocabularies of their models, and each vocabulary is read but once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fenchel.seq2seq import Characters, ModelConfig, Seq2Seq, search
from fenchel.seq2seq.models._ensemble import Ensemble, cut_out, join, select

CONFIG = ModelConfig(embedding=4, hidden=4, layers=1)


def model(source: str, target: str) -> Seq2Seq:
    return Seq2Seq(CONFIG, Characters(source), Characters(target))


@pytest.mark.parametrize(("other", "side"), [(("abd", "xyz"), "source"), (("abc", "xy"), "target")])
def test_other_vocabularies_are_refused(other: tuple[str, str], side: str) -> None:
    with pytest.raises(ValueError, match=f"must share their {side} vocabulary; train them"):
        Ensemble([model("abc", "xyz"), model(*other)])


def test_vocabularies_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [model("abc", "xyz"), model("abc", "xyz")]
    read: list[Characters] = []
    to_json = Characters.to_json

    def counted(self: Characters) -> dict[str, Any]:
        read.append(self)
        return to_json(self)

    monkeypatch.setattr(Characters, "to_json", counted)
    source, lengths = torch.tensor([[4, 5]]), torch.tensor([2])
    for _ in range(3):
        search(models, source, lengths, max_length=3)
    assert len(read) == 4
    assert len({id(vocabulary) for vocabulary in read}) == 4


def test_states_are_cut_and_joined() -> None:
    config = ModelConfig(architecture="transformer", hidden=4, heads=2, feedforward=4, layers=1)
    transformer = Seq2Seq(config, Characters("abc"), Characters("xyz")).eval()
    ensemble, source = Ensemble([transformer]), torch.tensor([[4, 5], [5, 6], [6, 4]])
    with torch.no_grad():
        states = ensemble.start(source, torch.tensor([2, 2, 1]))
        tokens = torch.tensor([1, 4, 5])
        whole, _, after = ensemble.step(states, tokens)
        cuts = (slice(2), slice(2, 3))
        parts = [ensemble.step(cut_out(states, rows), tokens[rows]) for rows in cuts]
        joined = join([part[2] for part in parts])
        torch.testing.assert_close(torch.cat([part[0] for part in parts]), whole)
        following, _, _ = ensemble.step(joined, tokens)
        torch.testing.assert_close(following, ensemble.step(after, tokens)[0])
        rows = torch.tensor([2, 0, 2])
        moved, _, _ = ensemble.step(select(joined, rows), tokens[rows])
        torch.testing.assert_close(moved, following[rows])
        assert select(joined, torch.arange(3)) is joined


def test_models_without_vocabularies_may_join() -> None:
    class Bare:
        def start(self, source: Any, lengths: Any) -> dict[str, Any]:
            return {}

        step = probabilities = start

    assert len(Ensemble([Bare(), model("abc", "xyz")]).models) == 2


@pytest.mark.parametrize(
    ("models", "error", "message"),
    [
        ([], ValueError, "must hold at least one model"),
        ([3], TypeError, "`probabilities`; got int"),
    ],
)
def test_what_is_no_model_is_refused(models: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        Ensemble(models)
