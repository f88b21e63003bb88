"""Models of either architecture: step by step equals at once, padding and order change nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from small_models import NAMES, PAIRS, SHAPES, WORDS, build
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fenchel import Entmax, mappings
from fenchel.seq2seq import Batch, Seq2Seq
from fenchel.seq2seq.data._vocabulary import BOS, PAD
from fenchel.seq2seq.models._lstm import Recurrent


def assert_gradient(model: Seq2Seq, parameters: Sequence[Tensor]) -> None:
    """The loss's gradient is its slope, by finite differences along random directions."""

    def loss() -> Tensor:
        torch.manual_seed(3)  # the same units are dropped
        return model.loss(PAIRS)

    gradients = torch.autograd.grad(loss(), parameters)
    step = 1e-6
    for parameter, gradient in zip(parameters, gradients, strict=True):
        direction = torch.randn_like(parameter)
        if parameter.ndim == 2 and parameter.abs().max() > 1e3:
            direction[:, -1] = 0  # the fixed weights of padding
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign * step)
                ends.append(loss())
                parameter.sub_(direction, alpha=sign * step)
        slope = (ends[0] - ends[1]) / (2 * step)
        torch.testing.assert_close((gradient * direction).sum(), slope, atol=1e-7, rtol=1e-4)


def stepwise(model: Seq2Seq, pairs: Batch) -> tuple[Tensor, Tensor]:
    """What `forward` gives, one step after the other."""
    state = model.start(pairs.source, pairs.source_lengths)
    scores, weights = [], []
    for tokens in pairs.target[:, :-1].unbind(1):
        score, weight, state = model.step(state, tokens)
        scores.append(score)
        weights.append(weight)
    return torch.stack(scores, 1), torch.stack(weights, 1)


@pytest.mark.parametrize("mapping", ["softmax", "entmax", "fusedmax"])
@pytest.mark.parametrize("shape", SHAPES)
def test_steps_equal_forward(shape: str, mapping: str) -> None:
    model = build(shape, attention=mapping)
    expected = model(PAIRS.source, PAIRS.source_lengths, PAIRS.target[:, :-1])
    for found, wanted in zip(stepwise(model, PAIRS), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    heads = 2 if shape == "transformer" else 1
    assert expected[0].shape == (3, 5, WORDS.size)
    assert expected[1].shape == (3, 5, heads, 5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mapping", ["softmax", "entmax", "fusedmax"])
def test_gradients_equal_those_of_steps(shape: str, mapping: str) -> None:
    model = build(shape, attention=mapping)
    names, parameters = zip(*model.named_parameters(), strict=True)
    expected, weights = stepwise(model, PAIRS)
    mixer = torch.randn_like(weights)

    def objective(scores: Tensor, weights: Tensor) -> Tensor:
        return scores[..., 2:].square().sum() + (weights * mixer).sum()

    wanted = torch.autograd.grad(objective(expected, weights), parameters)
    output = model(PAIRS.source, PAIRS.source_lengths, PAIRS.target[:, :-1])
    found = torch.autograd.grad(objective(*output), parameters)
    for name, one, other in zip(names, found, wanted, strict=True):
        torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("shape", ["lstm", "no feeding", "transformer"])
@pytest.mark.parametrize("output", ["softmax", "entmax"])
def test_loss_has_the_gradient_of_its_differences(shape: str, output: str) -> None:
    model = build(shape, output=output)
    assert_gradient(model, list(model.parameters()))


@pytest.mark.parametrize("shape", ["lstm", "transformer"])
@pytest.mark.parametrize("output", ["softmax", "entmax", "sparsemax", "pnormmax"])
def test_loss_is_that_of_the_scores(shape: str, output: str) -> None:
    model = build(shape, output=output)
    scores, _ = model(PAIRS.source, PAIRS.source_lengths, PAIRS.target[:, :-1])
    kept = PAIRS.target[:, 1:] != PAD
    mapping = mappings.get(output)
    losses = mapping.loss(scores[kept], PAIRS.target[:, 1:][kept], reduction="none")
    torch.testing.assert_close(model.loss(PAIRS), losses.mean())
    torch.testing.assert_close(model.loss(PAIRS, reduction="sum"), losses.sum())
    assert int(PAIRS.count) == len(losses)


def wider(pairs: Batch) -> Batch:
    """The same pairs with more padding."""
    return Batch(
        nn.functional.pad(pairs.source, (0, 3)),
        pairs.source_lengths,
        nn.functional.pad(pairs.target, (0, 2)),
    )


@pytest.mark.parametrize("mapping", ["softmax", "entmax", "fusedmax"])
@pytest.mark.parametrize("shape", SHAPES)
def test_padding_changes_nothing(shape: str, mapping: str) -> None:
    model = build(shape, attention=mapping)
    parameters = list(model.parameters())
    results = []
    for pairs in (PAIRS, wider(PAIRS)):
        scores, weights = model(pairs.source, pairs.source_lengths, pairs.target[:, :-1])
        assert not weights[..., 5:].any()
        loss = model.loss(pairs)
        results.append((scores[:, :5], weights[:, :5, :, :5], loss))
        results[-1] += torch.autograd.grad(loss, parameters)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_the_encoder_is_that_of_packed_sequences() -> None:
    model = build("lstm")
    assert isinstance(model.core, Recurrent)
    encoder, x = model.core.encoder, model.core.source_embedding(PAIRS.source)
    kept = PAIRS.source != PAD
    memory, h, c = encoder(x, kept, PAIRS.source_lengths)
    for place, layer in enumerate(encoder.layers):
        column = torch.zeros_like(x[..., :1])
        packed = pack_padded_sequence(
            torch.cat([x, column], -1), PAIRS.source_lengths, batch_first=True, enforce_sorted=False
        )
        output, (last_h, last_c) = layer(packed)
        x, _ = pad_packed_sequence(output, batch_first=True)
        torch.testing.assert_close(h[place], torch.cat([*last_h], -1))
        torch.testing.assert_close(c[place], torch.cat([*last_c], -1))
    torch.testing.assert_close(memory[kept], x[kept])


def test_the_weights_of_padding_get_no_gradient() -> None:
    model = build("lstm")
    model.loss(wider(PAIRS)).backward()
    for name, parameter in model.named_parameters():
        if "encoder" in name and "weight_ih" in name:
            assert parameter.grad is not None
            assert not parameter.grad[:, -1].any()
            assert parameter.grad.any()


@pytest.mark.parametrize("shape", ["lstm", "no feeding", "transformer"])
def test_a_state_can_be_reordered_and_repeated(shape: str) -> None:
    model = build(shape)
    index = torch.tensor([2, 0, 0, 1])
    state = model.start(PAIRS.source, PAIRS.source_lengths)
    _, _, state = model.step(state, PAIRS.target[:, 0])
    scores, weights, _ = model.step(state, PAIRS.target[:, 1])
    moved = {name: value.index_select(0, index) for name, value in state.items()}
    found, found_weights, after = model.step(moved, PAIRS.target[index, 1])
    torch.testing.assert_close(found, scores[index])
    torch.testing.assert_close(found_weights, weights[index])
    assert all(len(value) == len(index) for value in after.values())


@pytest.mark.parametrize("shape", ["lstm", "no feeding", "transformer"])
def test_a_step_does_not_change_its_state(shape: str) -> None:
    model = build(shape).eval()
    with torch.no_grad():
        state = model.start(PAIRS.source, PAIRS.source_lengths)
        for place in range(2):
            others = model.step(state, PAIRS.target[:, 2])
            expected, _, following = model.step(state, PAIRS.target[:, place])
            scores, _, _ = model.step(state, PAIRS.target[:, place])
            assert torch.equal(scores, expected)
            again = model.step(state, PAIRS.target[:, 2])
            assert torch.equal(again[0], others[0])
            state = following


@pytest.mark.parametrize("shape", ["lstm", "no feeding", "transformer"])
@pytest.mark.parametrize("name", NAMES)
def test_every_mapping_is_an_attention(shape: str, name: str) -> None:
    options = {"mapping": name, "k": 1.0} if name == "ksubset" else name
    model = build(shape, attention=options, output="softmax")
    _, weights = model(PAIRS.source, PAIRS.source_lengths, PAIRS.target[:, :-1])
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    model.loss(PAIRS).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", [name for name in NAMES if mappings.get(name).total == 1.0])
def test_every_mapping_is_an_output(name: str) -> None:
    model = build(output=name)
    scores, _ = model(PAIRS.source, PAIRS.source_lengths, PAIRS.target[:, :-1])
    y = model.probabilities(scores)
    torch.testing.assert_close(y.sum(-1), torch.ones_like(y[..., 0]))
    assert not y[..., [PAD, BOS]].any()
    model.loss(PAIRS).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("shape", ["lstm", "no feeding", "transformer"])
def test_alpha_is_learnt(shape: str) -> None:
    attention = {"mapping": "entmax", "alpha": 1.4, "learned_alpha": True}
    model = build(shape, attention=attention)
    logits = {k: p for k, p in model.named_parameters() if "alpha_logit" in k}
    assert all(len(p) == (2 if shape == "transformer" else 1) for p in logits.values())
    with torch.no_grad():
        for logit in logits.values():
            logit.fill_(-0.4)
    assert_gradient(model, list(logits.values()))
    gradients = torch.autograd.grad(model.loss(PAIRS), list(logits.values()))
    assert any(gradient.any() for gradient in gradients)


def test_the_learnt_alpha_is_that_of_the_mapping() -> None:
    core = build(attention={"mapping": "entmax", "alpha": 1.4, "learned_alpha": True}).core
    with torch.no_grad():
        mapping = core.mapping
    assert isinstance(mapping, Entmax)
    assert float(mapping.alpha) == pytest.approx(1.4, abs=1e-6)


@pytest.mark.parametrize("shape", ["lstm", "transformer"])
def test_probabilities_of_half_precision_are_float32(shape: str) -> None:
    model = build(shape).float()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(PAIRS)
        scores, _ = model(PAIRS.source, PAIRS.source_lengths, PAIRS.target[:, :-1])
        y = model.probabilities(scores)
    loss.backward()
    assert y.dtype == torch.float32
    assert (y >= 0).all()
    torch.testing.assert_close(y.sum(-1), torch.ones_like(y[..., 0]))
    exact = model.loss(PAIRS)
    torch.testing.assert_close(loss.float(), exact, rtol=0.03, atol=0.03)
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("shape", ["lstm", "no feeding", "transformer"])
def test_weights_can_be_saved_and_loaded(shape: str) -> None:
    model, other = build(shape), build(shape)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other.loss(PAIRS), model.loss(PAIRS), rtol=0, atol=0)


@pytest.mark.parametrize("shape", ["lstm", "transformer"])
def test_tied_embeddings_are_one(shape: str) -> None:
    model = build(shape, tie_embeddings=True, embedding=6)
    assert model.output.weight is model.core.target_weight
    names = [name for name, _ in model.named_parameters()]
    assert "output.weight" not in names
    assert len(names) == len(set(names))
    model.loss(PAIRS).backward()


@pytest.mark.parametrize("shape", SHAPES)
def test_dropout_is_for_training_and_keeps_the_mean(shape: str) -> None:
    model = build(shape, dropout=0.4)
    one, other = (model.loss(PAIRS) for _ in range(2))
    assert one != other
    state = torch.get_rng_state()
    torch.manual_seed(5)
    again = model.loss(PAIRS)
    torch.manual_seed(5)
    assert again == model.loss(PAIRS)
    torch.set_rng_state(state)
    model.eval()
    assert model.loss(PAIRS) == model.loss(PAIRS)


def test_a_dropped_unit_is_dropped_in_backward() -> None:
    model = build("lstm", dropout=0.4)
    assert_gradient(model, list(model.parameters()))


def test_reduction_is_checked() -> None:
    with pytest.raises(ValueError, match="`reduction` must be one of mean, sum, got 'none'"):
        build().loss(PAIRS, reduction="none")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("shape", ["lstm", "transformer"])
def test_compiles(shape: str) -> None:
    model = build(shape)
    expected = torch.autograd.grad(model.loss(PAIRS), list(model.parameters()))
    torch._dynamo.reset()
    compiled = torch.compile(model.loss, backend="aot_eager")
    found = torch.autograd.grad(compiled(PAIRS), list(model.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
