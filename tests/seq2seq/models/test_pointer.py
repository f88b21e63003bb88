"""Copying: the actions' probabilities, the loss, and a task that needs it."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from fenchel import seq2seq
from fenchel.seq2seq import Characters, ModelConfig, Seq2Seq
from fenchel.seq2seq.data._batches import Batch, batch
from fenchel.seq2seq.data._vocabulary import BOS, EOS, PAD, UNK
from fenchel.seq2seq.models._pointer import Pointer, first_places

SHAPES = {
    "lstm": {"architecture": "lstm", "embedding": 4},
    "no feeding": {"architecture": "lstm", "embedding": 4, "input_feeding": False},
    "transformer": {"architecture": "transformer", "heads": 2},
}
PAIRS = [("abqaq", "qa"), ("xy", "yxx"), ("c", "bz"), ("cbb", "c")]


def build(shape: str = "lstm", output: Any = "entmax", copy: bool = True) -> Seq2Seq:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"hidden": 6, "layers": 1, "dropout": 0.0, **SHAPES[shape]}
    config = ModelConfig(**sizes, output=output, copy_source=copy)
    model = Seq2Seq(config, Characters("abc"), Characters("abd")).double()
    with torch.no_grad():  # far enough from uniform for zeros to appear
        for name, parameter in model.named_parameters():
            if "encoder.layers" not in name:
                parameter.mul_(3)
    return model


def encoded(model: Seq2Seq) -> Batch:
    return batch([(model.source.encode(x), model.target.encode(y)) for x, y in PAIRS])


def pointer(model: Seq2Seq) -> Pointer:
    assert model.pointer is not None
    return model.pointer


def token_probabilities(model: Seq2Seq, p: torch.Tensor, text: str) -> dict[str, float]:
    """The probability of each token, from a row of those of actions, by their names."""
    found: dict[str, float] = {}
    names = [*model.target.tokens(range(model.target.size)), *text]
    for name, value in zip(names, p.tolist(), strict=False):
        found[name] = found.get(name, 0.0) + value
    return found


@pytest.mark.parametrize("output", ["softmax", "entmax"])
def test_a_token_has_the_probability_of_all_its_actions(output: str) -> None:
    model = build(output=output)
    pairs = encoded(model)
    with torch.no_grad():
        scores, _ = model(pairs.source, pairs.source_lengths, pairs.target[:, :-1])
    actions = model.probabilities(scores)
    places = pointer(model).places(pairs.source)
    merged = pointer(model).merge(actions, places)
    torch.testing.assert_close(merged.sum(-1), torch.ones_like(merged[..., 0]))
    for row, (text, _) in enumerate(PAIRS):
        expected = token_probabilities(model, actions[row, 0], text)
        columns = torch.arange(merged.shape[-1])
        ids = pointer(model).ids(places, torch.full_like(columns, row), columns)
        kept = [c for c in columns.tolist() if merged[row, 0, c] > 0]
        names = model.target.tokens([int(ids[c]) for c in kept])
        assert len(set(names)) == len(names)
        for name, column in zip(names, kept, strict=True):
            assert float(merged[row, 0, column]) == pytest.approx(expected.pop(name))
        assert not any(expected.values())


@pytest.mark.parametrize("shape", SHAPES)
def test_the_loss_of_softmax_is_the_likelihood(shape: str) -> None:
    model = build(shape, "softmax")
    pairs = encoded(model)
    scores, _ = model(pairs.source, pairs.source_lengths, pairs.target[:, :-1])
    p = model.probabilities(scores)
    expected = 0.0
    for row, (text, output) in enumerate(PAIRS):
        for step, name in enumerate([*output, "</s>"]):
            tokens = token_probabilities(model, p[row, step], text)
            expected -= math.log(tokens[name if name in tokens else "<unk>"])
    torch.testing.assert_close(float(model.loss(pairs, "sum").detach()), expected)
    mean = model.loss(pairs).detach()
    torch.testing.assert_close(float(mean), expected / int(pairs.count))


@pytest.mark.parametrize("output", ["sparsemax", "entmax"])
def test_the_loss_is_the_least_over_targets(output: str) -> None:
    """max_Ω(θ) − max_Ω(θ_A) = min of L(θ, q) over distributions q on the right actions A."""
    model = build(output=output)
    mapping = model.output.mapping
    pairs = batch([(model.source.encode("aqaab"), model.target.encode("a"))])
    scores, _ = model(pairs.source, pairs.source_lengths, pairs.target[:, :-1])
    loss = pointer(model).losses(
        scores, pointer(model).places(pairs.source), pairs.target[:, 1:], 0.0
    )[0, 0]
    right = [4, *(model.target.size + i for i in (0, 2, 3))]
    row = scores[0, 0].detach()
    q = torch.zeros(200, len(row), dtype=row.dtype)
    q[:, right] = torch.distributions.Dirichlet(torch.ones(4).double()).sample((200,))
    q[0] = 0.0
    q[0, right] = mapping(row[right])
    losses = mapping.loss(row.expand_as(q), q, reduction="none")
    torch.testing.assert_close(losses[0], loss.detach())
    assert (losses >= losses[0] - 1e-12).all()


def test_one_right_action_has_the_loss_of_a_class() -> None:
    model = build()
    pairs = batch([(model.source.encode("abq"), model.target.encode("d"))])
    scores, _ = model(pairs.source, pairs.source_lengths, pairs.target[:, :-1])
    for output, target in (("d", 6), ("q", model.target.size + 2), ("z", UNK)):
        found = model.loss(
            batch([(model.source.encode("abq"), model.target.encode(output))]), "sum"
        )
        end = model.output.mapping.loss(scores[0, :1], torch.tensor([target]))
        places = pointer(model).places(pairs.source)
        tokens = torch.tensor([model.target.encode(output)])
        first = pointer(model).losses(scores[:, :1], places, tokens, 0.0).sum()
        torch.testing.assert_close(first, end)
        assert found >= first - 1e-12


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_gradient_is_that_of_differences(shape: str, smoothing: float) -> None:
    model = build(shape)
    pairs = encoded(model)
    model.loss(pairs, "sum", smoothing).backward()
    weights = pointer(model).key.weight, pointer(model).gate.weight, model.output.weight
    for weight in weights:
        assert weight.grad is not None
        direction = torch.randn_like(weight)
        slope = float((weight.grad * direction).sum())
        losses = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                weight += step * direction
                losses.append(float(model.loss(pairs, "sum", smoothing)))
                weight -= step * direction
        assert slope == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-4, abs=1e-6)


def test_smoothing_mixes_in_the_uniform_loss() -> None:
    model = build(output="softmax")
    pairs = batch([(model.source.encode("ab"), model.target.encode("a"))])
    scores, _ = model(pairs.source, pairs.source_lengths, pairs.target[:, :-1])
    uniform = torch.zeros_like(scores)
    uniform[..., EOS : model.target.size] = 1 / (model.target.size - EOS)
    expected = model.output.mapping.loss(scores, uniform, reduction="sum")
    torch.testing.assert_close(model.loss(pairs, "sum", 1.0), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_equal_forward_and_padding_changes_nothing(shape: str) -> None:
    model = build(shape).eval()
    pairs = encoded(model)
    scores, _ = model(pairs.source, pairs.source_lengths, pairs.target[:, :-1])
    state = model.start(pairs.source, pairs.source_lengths)
    for step in range(pairs.target.shape[1] - 1):
        found, _, state = model.step(state, pairs.target[:, step])
        torch.testing.assert_close(found, scores[:, step])
    alone = model.start(pairs.source[1:2, :2], pairs.source_lengths[1:2])
    found, _, _ = model.step(alone, torch.tensor([BOS]))
    torch.testing.assert_close(found[0], scores[1, 0, : found.shape[1]])
    assert scores[1, 0, found.shape[1] :].isneginf().all()


def outputs(model: Seq2Seq, text: str, length: int) -> dict[str, float]:
    """The probability of every text of up to `length` tokens, by forced decoding."""
    found = {}
    alphabet = [*"abd", *sorted(set(text) - set("abd"))]
    for count in range(length + 1):
        for tokens in itertools.product(alphabet, repeat=count):
            output = "".join(tokens)
            pairs = batch([(model.source.encode(text), model.target.encode(output))])
            scores, _ = model(pairs.source, pairs.source_lengths, pairs.target[:, :-1])
            places = pointer(model).places(pairs.source)
            p = pointer(model).merge(model.probabilities(scores), places)
            columns = pointer(model).columns(places, pairs.target[:, 1:])
            found[output] = float(p.gather(-1, columns.unsqueeze(-1)).prod())
    return found


@pytest.mark.parametrize("shape", ["lstm", "transformer"])
def test_search_finds_all_texts(shape: str) -> None:
    model = build(shape, {"mapping": "sparsemax", "gamma": 12.0}).eval()
    with torch.no_grad():
        model.output.bias[UNK] -= 99
        expected = {text: p for text, p in outputs(model, "qaq", 3).items() if p > 0}
    (result,) = seq2seq.decode(model, ["qaq"], method="exhaustive", max_length=3)
    found = {
        model.target.decode(each.tokens): each.probability
        for each in result.hypotheses
        if each.finished
    }
    assert found == pytest.approx(expected)
    assert any("q" in text for text in found)


def task(alphabet: str, count: int, seed: int) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    texts = ("".join(draw.sample(alphabet, draw.randint(2, 4))) for _ in range(count))
    return [(text, text[::-1]) for text in texts]


@pytest.mark.parametrize(
    ("architecture", "copy"), [("lstm", True), ("transformer", True), ("lstm", False)]
)
def test_symbols_never_seen_are_reversed_by_copying(architecture: str, copy: bool) -> None:
    """The vocabulary is a to f; training has u to z as unknown ones, and the test Greek."""
    torch.manual_seed(0)
    config = ModelConfig(
        architecture=architecture,  # type: ignore[arg-type]
        hidden=32, embedding=32, layers=1, heads=2, dropout=0.0, copy_source=copy,
    )  # fmt: skip
    model = Seq2Seq(config, Characters("abcdef"), Characters("abcdef"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 if architecture == "lstm" else 0.003)
    for step in range(130):
        pairs = task("abcdefuvwxyz", 32, step)
        loss = model.loss(
            batch([(model.source.encode(x), model.target.encode(y)) for x, y in pairs])
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pairs = task("abcαβγδ", 40, 999)
    results = seq2seq.decode(model, [source for source, _ in pairs], max_length=8)
    found = [model.target.decode(result.hypotheses[0].tokens) for result in results]
    right = sum(output == target for output, (_, target) in zip(found, pairs, strict=True))
    assert right >= 38 if copy else right <= 10
    if copy:
        assert sum(result.exact for result in results) >= 30


def test_it_is_saved_evaluated_and_explained(tmp_path: Path) -> None:
    model = build("lstm", "softmax").float().eval()
    seq2seq.save(model, tmp_path)
    again = seq2seq.load(tmp_path)
    first, second = (seq2seq.decode(each, ["qaq"], max_length=4) for each in (model, again))
    assert [each.tokens for each in first[0].hypotheses] == [
        each.tokens for each in second[0].hypotheses
    ]
    seq2seq.evaluate([model], [("qaq", "q"), ("xy", "")], "translation", max_length=4)
    found = seq2seq.explain(model, "qaqé", reference="qz", shown=3, limit=5, max_length=3)
    assert found.source == ("q", "a", "q", "é")
    assert found.attention[0].shape[1:] == (1, 4)
    position, *_ = found.reference
    assert position.token == "q"
    assert position.probability > 0
    assert len(found.copied) == len(found.outputs)
    for output, copied in zip(found.outputs, found.copied, strict=True):
        for token, shares in zip(output, copied, strict=False):
            assert all("qaqé"[place] == token for place, _ in shares)
    assert "A frame is around what the model copies" in found.html()
    assert "is copied from" in found.html()


def test_ensembles_copy_together() -> None:
    one, two = build("lstm", "softmax"), build("transformer", "sparsemax")
    (result,) = seq2seq.decode([one, two], ["qaq"], max_length=3)
    assert result.hypotheses
    with pytest.raises(ValueError, match=r"must all have `model.copy_source`, or none of them"):
        seq2seq.decode([one, build(copy=False)], ["qaq"])


def test_nothing_to_copy() -> None:
    model = build()
    assert seq2seq.decode(model, [""])[0].hypotheses == []
    state = model.start(torch.tensor([[EOS, PAD]]), torch.tensor([1]))
    scores, _, _ = model.step(state, torch.tensor([BOS]))
    assert model.probabilities(scores)[0, model.target.size :].eq(0).all()


def test_samples_copy() -> None:
    """Samples have the probabilities of the model, with letters of the source alone."""
    model, text = build().eval(), "axbx"
    with torch.no_grad():
        truth = outputs(model, text, 3)
    (found,) = seq2seq.sample(model, [text], samples=200, max_length=3)
    finished = [each for each in found if each.finished]
    assert any("x" in model.target.decode(each.tokens) for each in found)
    for each in finished:
        assert each.probability == pytest.approx(truth[model.target.decode(each.tokens)], rel=1e-5)


def test_places_of_long_sources() -> None:
    ids = torch.randint(2**59, 2**59 + 300, (3, 500))
    pairs = (ids.unsqueeze(2) == ids.unsqueeze(1)).int().argmax(2)
    assert torch.equal(first_places(ids), pairs)
    assert not first_places(torch.zeros(1, 200_000, dtype=torch.int64)).any()
    assert first_places(ids[:, :0]).shape == (3, 0)
