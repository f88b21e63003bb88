"""Models of every family with sparse attention: what they compute, and its gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import transformers
from tiny_models import DECODERS, FAMILIES, SHARED, TRUTH, build, register_truth, tokens
from transformers import PreTrainedModel

from fenchel import Entmax
from fenchel.attention import attention
from fenchel.integrations.transformers import _attention, register


@pytest.fixture(autouse=True)
def _registered() -> None:
    register()
    register_truth()


def arguments(model: PreTrainedModel, ids: Tensor, mask: Tensor | None) -> dict[str, Any]:
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = ids.flip(1)[:, :7]
    return given


def loss_of(model: PreTrainedModel, ids: Tensor, mask: Tensor | None) -> Tensor:
    """A loss that counts the tokens that are there."""
    logits = model(**arguments(model, ids, mask)).logits
    if mask is not None and not model.config.is_encoder_decoder:
        logits = logits[mask.bool()]
    return torch.log_softmax(logits, -1)[..., 3].mean()


def padding(ids: Tensor, side: str) -> Tensor | None:
    if side == "none":
        return None
    mask = torch.ones_like(ids)
    mask[0, -4:], mask[1, -1:] = 0, 0
    return mask if side == "right" else mask.flip(1)


def assert_same_losses_and_gradients(
    family: str, name: str, ids: Tensor, mask: Tensor | None
) -> None:
    found, truth = build(family, name), build(family, TRUTH)
    losses = [loss_of(model, ids, mask) for model in (found, truth)]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-6)
    for loss in losses:
        loss.backward()
    gradients = {name: x.grad for name, x in truth.named_parameters() if x.grad is not None}
    scale = max(float(gradient.abs().max()) for gradient in gradients.values())
    for parameter, ours in found.named_parameters():
        if parameter in gradients:
            torch.testing.assert_close(
                ours.grad, gradients[parameter], rtol=1e-3, atol=1e-5 * scale, msg=parameter
            )
        else:
            assert ours.grad is None, parameter


@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("family", FAMILIES)
def test_losses_and_gradients(family: str, side: str) -> None:
    ids = tokens(3, 9)
    assert_same_losses_and_gradients(family, "fenchel_entmax", ids, padding(ids, side))


@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("family", ["mistral", "bert"])
def test_layers_that_do_not_say_whether_they_have_order(family: str, side: str) -> None:
    """Their masks do."""
    model, ids = build(family, "fenchel_entmax"), tokens(3, 9)
    expected = loss_of(model, ids, padding(ids, side))
    for module in model.modules():
        if "is_causal" in vars(module):
            del module.is_causal
    torch.testing.assert_close(loss_of(model, ids, padding(ids, side)), expected)


def test_attention_to_an_image_has_no_order() -> None:
    options = {"cross_attention_layers": [0], "num_hidden_layers": 1, "num_key_value_heads": 2}
    config = transformers.models.mllama.MllamaTextConfig(**{**SHARED, **options})
    outputs = []
    for name in ("fenchel_entmax", TRUTH):
        config._attn_implementation = name
        torch.manual_seed(3)
        layer = transformers.models.mllama.modeling_mllama.MllamaTextCrossAttention(config, 0)
        outputs.append(layer(torch.randn(2, 5, 16), torch.randn(2, 7, 16))[0])
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "bert", "t5"])
def test_sparsemax(family: str) -> None:
    register_truth(2.0)
    assert_same_losses_and_gradients(family, "fenchel_sparsemax", tokens(2, 9), None)


@pytest.mark.parametrize("alpha", [1.0, 1.25])
def test_any_alpha(alpha: float) -> None:
    register("fenchel_of_a_test", Entmax(alpha))
    register_truth(max(alpha, 1 + 1e-6))
    assert_same_losses_and_gradients("llama", "fenchel_of_a_test", tokens(2, 9), None)


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_sparse_and_not_softmax(family: str) -> None:
    ids = tokens(2, 9)
    model = build(family, "fenchel_entmax")
    found = model(**arguments(model, ids, None)).logits
    softmax = build(family, "eager")
    assert not torch.allclose(found, softmax(**arguments(model, ids, None)).logits, atol=1e-2)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("by", ["position_ids", "cu_seq_lens"])
def test_packed_sequences_do_not_see_each_other(family: str, by: str) -> None:
    if (family, by) == ("gpt_oss", "position_ids"):
        pytest.skip("the masks of this model do not depend on position_ids")
    ids, lengths = tokens(1, 17), [7, 1, 9]
    ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    places = torch.cat([torch.arange(length) for length in lengths])[None]
    options: dict[str, Any] = {"position_ids": places}
    if by == "cu_seq_lens":
        options |= {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
        options |= {"max_length_q": 9, "max_length_k": 9}
    model = build(family, "fenchel_entmax")
    packed = model(ids, use_cache=False, **options).logits
    alone = [model(part).logits for part in ids.split(lengths, dim=1)]
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=1e-4, atol=1e-4)


def test_packed_sequences_with_a_cache() -> None:
    ids, lengths = tokens(1, 12), [7, 5]
    ends = torch.tensor([0, 7, 12], dtype=torch.int32)
    places = torch.cat([torch.arange(length) for length in lengths])[None]
    options = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 7, "max_length_k": 7}
    model = build("llama", "fenchel_entmax").train()
    packed = model(ids, position_ids=places, use_cache=True, **options).logits
    alone = [model(part).logits for part in ids.split(lengths, dim=1)]
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=1e-4, atol=1e-4)


def test_packed_rows_of_a_batch() -> None:
    ids, places = tokens(2, 9), torch.arange(9).repeat(2, 1)
    places[0, 5:] -= 5
    places[1, 2:] -= 2
    options = {"position_ids": places, "use_cache": False, "output_attentions": True}
    found, truth = (build("mistral", name)(ids, **options) for name in ("fenchel_entmax", TRUTH))
    torch.testing.assert_close(found.logits, truth.logits, rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(found.attentions, truth.attentions, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("inputs", ["none", "right", "packed"])
def test_no_mask_is_written_out(family: str, inputs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[Tensor | None] = []

    def spy(query: Any, key: Any, value: Any, mapping: Any, mask: Any, *rest: Any, **named: Any):
        masks.append(mask)
        return attention(query, key, value, mapping, mask, *rest, **named)

    monkeypatch.setattr(_attention, "attention", spy)
    ids = tokens(3, 9)
    options: dict[str, Any] = {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5]])}
    if inputs != "packed":
        options = {"attention_mask": padding(ids, inputs)}
    build(family, "fenchel_entmax")(ids, use_cache=False, **options)
    assert masks == [None, None]


def test_a_mask_of_four_dimensions_is_taken_as_it_is() -> None:
    ids = tokens(1, 6)
    seen = torch.ones(6, 6, dtype=torch.bool).tril()
    seen[4, 1] = seen[5, 2] = False
    added = torch.zeros(6, 6).masked_fill(~seen, torch.finfo(torch.float32).min)
    model, truth = build("llama", "fenchel_entmax"), build("llama", TRUTH)
    expected = truth(ids, attention_mask=added[None, None]).logits
    for mask in (seen, added):
        found = model(ids, attention_mask=mask[None, None]).logits
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_decoder_may_look_both_ways() -> None:
    models = [build("llama", name) for name in ("fenchel_entmax", TRUTH)]
    for model in models:
        model.config.is_causal = False
    found, truth = (model(tokens(2, 6)).logits for model in models)
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["mistral", "qwen2_moe"])
def test_the_window_limits(family: str) -> None:
    model = build(family, "fenchel_entmax")
    ids = tokens(1, 12)
    weights = model(ids, output_attentions=True).attentions[0]
    places = torch.arange(12)
    distance = places[:, None] - places
    assert bool((weights[..., (distance < 0) | (distance >= 4)] == 0).all())
    assert bool((weights[..., distance == 3] > 0).any())


@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_a_window_that_the_model_ignores(side: str) -> None:
    """It stands in the configuration, but the mask was asked for without it."""
    ids = tokens(3, 9)
    mask = padding(ids, side)
    found, truth = build("llama", "fenchel_entmax"), build("llama", TRUTH)
    for model in (found, truth):
        model.config.sliding_window = 3
    options = {"attention_mask": mask, "use_cache": False}
    seen = torch.ones_like(ids).bool() if mask is None else mask.bool()
    ours, theirs = (model(ids, **options).logits[seen] for model in (found, truth))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("places", [None, torch.tensor([[0, 1, 2, 3, 0, 1]])])
def test_layers_have_the_order_of_their_mask(places: Tensor | None) -> None:
    model, ids = build("llama", "fenchel_entmax"), tokens(2, 6)
    options = {"position_ids": places, "use_cache": False}
    expected = model(ids, **options).logits
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    torch.testing.assert_close(model(ids, **options).logits, expected)


def test_keys_that_a_model_chooses() -> None:
    forward = _attention.attention_with(Entmax())
    vectors = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match="Linear chooses keys for each query"):
        forward(torch.nn.Linear(1, 1), vectors, vectors, vectors, None, indices=torch.zeros(1))


def test_the_softcap_acts() -> None:
    ids = tokens(1, 8)
    model = build("gemma2", "fenchel_entmax")
    capped = model(ids).logits
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    assert not torch.allclose(model(ids).logits, capped, atol=1e-3)


def test_sinks_take_weight() -> None:
    model = build("gpt_oss", "fenchel_entmax")
    totals = model(tokens(1, 8), output_attentions=True).attentions[1].sum(-1)
    assert bool((totals < 0.99).any())


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "bert"])
def test_weights_are_given_where_they_are_asked_for(family: str) -> None:
    ids = tokens(2, 7)
    found, truth = (
        build(family, name)(ids, output_attentions=True).attentions
        for name in ("fenchel_entmax", TRUTH)
    )
    assert len(found) == len(truth) == 2
    for ours, theirs in zip(found, truth, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert bool((ours == 0).any())


def test_dropout_acts_in_training_alone() -> None:
    model, ids = build("llama", "fenchel_entmax"), tokens(1, 8)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    still = model(ids).logits
    torch.testing.assert_close(model(ids).logits, still)
    model.train()
    assert not torch.allclose(model(ids).logits, model(ids).logits)
    model(ids).logits.sum().backward()


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "t5"])
@torch.no_grad()
def test_half_precision(family: str) -> None:
    model, ids = build(family, "fenchel_entmax"), tokens(2, 7)
    expected = model(**arguments(model, ids, None)).logits
    found = model.bfloat16()(**arguments(model, ids, padding(ids, "none"))).logits
    assert found.dtype == torch.bfloat16
    error = (found.float() - expected).abs().mean() / expected.abs().mean()
    assert error.item() < 0.2


def test_gradient_checkpointing() -> None:
    model, ids = build("llama", "fenchel_entmax"), tokens(2, 7)
    loss_of(model, ids, None).backward()
    expected = model.model.layers[0].self_attn.q_proj.weight.grad.clone()
    model.zero_grad()
    model.gradient_checkpointing_enable()
    loss_of(model.train(), ids, None).backward()
    torch.testing.assert_close(model.model.layers[0].self_attn.q_proj.weight.grad, expected)


def test_some_models_return_no_weights() -> None:
    """As with transformers' own implementations that are not eager."""
    sizes = {"vocab_size": 29, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    for name in ("sdpa", "fenchel_entmax"):
        config = transformers.GPT2Config(**sizes, attn_implementation=name)
        found = transformers.GPT2Model(config)(tokens(1, 4), output_attentions=True)
        assert found.attentions == ()
