"""The probabilities of given outputs are those that a search and the model itself give them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from small_models import build

from fenchel.seq2seq import Characters, ModelConfig, Seq2Seq, Subwords, decode, score
from fenchel.seq2seq.data._vocabulary import BOS, EOS

TEXTS = ["w0 w1 w2", "w3", "w4 w5 w0 w1 w2 w3"]
SHAPES = ["lstm", "transformer"]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_score_is_the_product_of_the_models_probabilities(shape: str) -> None:
    model = build(shape).eval()
    pairs = [(x, y) for x in TEXTS for y in TEXTS]
    for (x, y), found in zip(pairs, score(model, pairs, batch_size=4), strict=True):
        source, target = model.source.encode(x), [*model.target.encode(y), EOS]
        scores, _ = model(
            torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([[BOS, *target[:-1]]])
        )
        truth = model.probabilities(scores)[0, range(len(target)), target].tolist()
        assert found.probabilities == pytest.approx(truth, abs=1e-12)
        assert found.tokens == tuple(target[:-1])
        assert found.probability == pytest.approx(math.prod(truth))


@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_search_finds_has_its_score_and_all_else_is_impossible(shape: str) -> None:
    models = [build(shape, output="sparsemax"), build(shape, output="sparsemax")]
    with torch.no_grad():
        for parameter in models[1].parameters():
            parameter.mul_(1.5)
        for model in models:
            model.output.bias[EOS] += 1.5  # so that sequences end
    options: dict[str, Any] = {"method": "exhaustive", "max_length": 3}
    (result,) = decode(models, TEXTS[:1], **options)
    outputs = [models[0].target.decode(each.tokens) for each in result.hypotheses]
    pairs = [(TEXTS[0], output) for output in outputs if output]
    found = score(models, pairs)
    known = dict(zip(outputs, result.hypotheses, strict=True))
    finished = [(s, known[y]) for (_, y), s in zip(pairs, found, strict=True) if known[y].finished]
    assert finished
    for mine, theirs in finished:
        assert mine.log_probability == pytest.approx(theirs.log_probability)
        assert mine.is_possible
    others = [f"w{i} w{j}" for i in range(9) for j in range(9) if f"w{i} w{j}" not in known]
    impossible = score(models, [(TEXTS[0], other) for other in others])
    assert others
    assert not any(each.is_possible for each in impossible)


def test_an_impossible_output_names_its_first_zero() -> None:
    model = build(output="sparsemax")
    pairs = [("w0 w1", f"w{i} w{j}") for i in range(9) for j in range(9)]
    found = score(model, pairs)
    impossible = [each for each in found if not each.is_possible]
    assert impossible
    for each in impossible:
        first = each.first_zero
        assert first is not None
        assert each.probabilities[first] == 0
        assert all(each.probabilities[:first])
        assert (each.log_probability, each.probability) == (-math.inf, 0.0)


def test_order_and_batches_do_not_matter() -> None:
    model = build()
    pairs = [(x, y) for x in TEXTS for y in TEXTS]
    whole = score(model, pairs)
    for size in (1, 2, 5):
        for one, two in zip(score(model, pairs, batch_size=size), whole, strict=True):
            assert one.probabilities == pytest.approx(two.probabilities)
    assert model.training
    assert score(model, []) == []


def test_subwords_are_scored_as_the_vocabulary_splits_them() -> None:
    words = Subwords.build(["abab ba", "ab abba"] * 4, 12)
    model = Seq2Seq(ModelConfig(embedding=8, hidden=8, layers=1), words, words)
    (found,) = score(model, [("ab", "abba ab")])
    assert found.tokens == tuple(words.encode("abba ab"))


def test_long_outputs_do_not_underflow() -> None:
    letters = Characters("ab")
    values = {"embedding": 4, "hidden": 4, "layers": 1, "output": "softmax"}
    model = Seq2Seq(ModelConfig.model_validate(values), letters, letters)
    (found,) = score(model, [("ab", "ab" * 1000)])
    assert found.probability == 0.0
    assert found.is_possible
    assert -10_000 < found.log_probability < -1000


@pytest.mark.parametrize(
    ("pairs", "error", "message"),
    [
        ([("", "a")], ValueError, "`source` must hold at least one token"),
        ([("a", "")], ValueError, "`target` must hold at least one token"),
        ([("a", 3)], TypeError, "`texts` must be a str, got int"),
    ],
)
def test_wrong_arguments(pairs: Any, error: type[Exception], message: str) -> None:
    letters = Characters("ab")
    model = Seq2Seq(ModelConfig(embedding=4, hidden=4, layers=1), letters, letters)
    with pytest.raises(error, match=message):
        score(model, pairs)
