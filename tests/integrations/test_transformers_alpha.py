"""Models of transformers whose heads learn their alpha."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import transformers
from tiny_models import DECODER, TRUTH, alphas, build, register_truth, tokens

from fenchel.integrations.transformers import learn_alpha, register

NAME = "fenchel_entmax"


@pytest.fixture(autouse=True)
def _registered() -> None:
    register()


def learned_llama(alpha: float = 1.5) -> Any:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**DECODER, attn_implementation=NAME)
    return learn_alpha(transformers.LlamaForCausalLM, alpha)(config).eval()


def test_each_head_learns_its_alpha() -> None:
    model, ids = learned_llama(1.3), tokens(2, 8)
    register_truth(1.3)
    expected = build("llama", TRUTH)(ids).logits
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    found = alphas(model)
    assert len(found) == 2
    for logit in found.values():
        assert logit.shape == (4,)
        assert logit.unique().numel() == 4


def test_learning_needs_no_name(tmp_path: Path) -> None:
    learning, ids = learn_alpha(transformers.LlamaForCausalLM, 1.3), tokens(2, 8)
    learned_llama(1.3).save_pretrained(tmp_path)
    for model in (
        learning(transformers.LlamaConfig(**DECODER)),
        learning.from_pretrained(tmp_path),
    ):
        assert model.config._attn_implementation == NAME
        model(ids, labels=ids).loss.backward()
        assert all(bool((logit.grad != 0).any()) for logit in alphas(model).values())


def test_a_configuration_is_left_as_it_was() -> None:
    learning, ids = learn_alpha(transformers.LlamaForCausalLM), tokens(2, 8)
    config = transformers.LlamaConfig(**DECODER)
    model = learning(config)
    other = transformers.LlamaForCausalLM(config)
    assert other.config._attn_implementation == "sdpa"
    with pytest.raises(ValueError, match="A configuration from which a model was made names that"):
        learning(config)
    other.set_attn_implementation("eager")
    assert model.config._attn_implementation == NAME
    model(ids, labels=ids).loss.backward()
    assert all(bool((logit.grad != 0).any()) for logit in alphas(model).values())


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_other_implementations_do_not_learn(name: str) -> None:
    learning = learn_alpha(transformers.LlamaForCausalLM)
    with pytest.raises(ValueError, match=rf'`attn_implementation="{name}"` would not use the α'):
        learning(transformers.LlamaConfig(**DECODER, attn_implementation=name))
    model = learned_llama()
    with pytest.raises(ValueError, match='choose `attn_implementation="fenchel_entmax"`'):
        model.set_attn_implementation(name)
    assert model.config._attn_implementation == NAME


def test_the_gradient_of_alpha() -> None:
    model, ids = learned_llama(1.3), tokens(2, 8)
    model(ids, labels=ids).loss.backward()
    logit = alphas(model)["model.layers.1.self_attn.alpha_logit"]
    losses = []
    for step in (-1e-2, 1e-2):
        with torch.no_grad():
            logit[2] += step
            losses.append(model(ids, labels=ids).loss.item())
            logit[2] -= step
    assert logit.grad is not None
    slope = (losses[1] - losses[0]) / 2e-2
    assert logit.grad[2].item() == pytest.approx(slope, rel=5e-2, abs=1e-4)


def test_alpha_is_learnt_in_double_precision() -> None:
    module = learned_llama(1.3).double().model.layers[0].self_attn
    attend = transformers.AttentionInterface()[NAME]
    query, key, value = torch.randn(3, 2, 4, 6, 4, dtype=torch.float64)

    def output(logit: Tensor) -> Tensor:
        return torch.func.functional_call(
            Attending(module, attend), {"module.alpha_logit": logit}, (query, key, value)
        )

    logit = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(output, logit)


class Attending(torch.nn.Module):
    """A layer's attention alone."""

    def __init__(self, module: torch.nn.Module, attend: Any) -> None:
        super().__init__()
        self.module, self.attend = module, attend

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.attend(self.module, *tensors, None)[0]


@pytest.mark.parametrize("family", ["bert", "layoutlm", "splinter", "t5"])
def test_learned_alpha_of_other_families(family: str) -> None:
    given = build(family, NAME)
    model: Any = learn_alpha(type(given))(given.config)
    assert len(alphas(model)) == (6 if family == "t5" else 2)
    ids = tokens(1, 5)
    options = {"decoder_input_ids": ids} if family == "t5" else {}
    model(ids, **options).logits.square().sum().backward()
    assert all(bool((logit.grad != 0).any()) for logit in alphas(model).values())


def swin() -> tuple[Any, Tensor]:
    sizes = {"image_size": 32, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 4]}
    config = transformers.SwinConfig(**sizes, window_size=4, attn_implementation=NAME)
    return learn_alpha(transformers.SwinModel)(config), torch.randn(2, 3, 32, 32)


def bart() -> tuple[Any, Tensor]:
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 29}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 4}
    config = transformers.BartConfig(**sizes, **heads, attn_implementation=NAME)
    return learn_alpha(transformers.BartModel)(config), tokens(2, 5)


@pytest.mark.parametrize(("make", "heads"), [(swin, [2, 4]), (bart, [2, 4, 4])])
def test_layers_with_numbers_of_heads_of_their_own(make: Any, heads: list[int]) -> None:
    model, inputs = make()
    model(inputs).last_hidden_state.square().sum().backward()
    assert [len(logit) for logit in alphas(model).values()] == heads
    assert all(bool((logit.grad != 0).all()) for logit in alphas(model).values())


def test_a_logit_for_another_number_of_heads() -> None:
    model = learned_llama()
    model.model.layers[0].self_attn.alpha_logit = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match="has 4 heads, but `alpha_logit` is for 1"):
        model(tokens(1, 4))


@pytest.mark.parametrize("how", ["pickle", "torch.save", "deepcopy"])
def test_a_model_with_a_learned_alpha_is_copied(how: str) -> None:
    model, ids, file = learned_llama(1.3), tokens(1, 6), io.BytesIO()
    if how == "deepcopy":
        again = copy.deepcopy(model)
    elif how == "pickle":
        again = pickle.loads(pickle.dumps(model))
    else:
        torch.save(model, file)
        file.seek(0)
        again = torch.load(file, weights_only=False)
    assert type(again) is type(model)
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert all(a is not b for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_weights_of_a_learned_alpha() -> None:
    found = learned_llama(1.9)(tokens(1, 6), output_attentions=True).attentions
    assert len(found) == 2
    assert bool((found[0] == 0).any())


def test_a_learned_alpha_is_saved_and_loaded(tmp_path: Path) -> None:
    model, ids = learned_llama(), tokens(1, 6)
    with torch.no_grad():
        for logit in alphas(model).values():
            logit.normal_()
    model.save_pretrained(tmp_path)
    learning = learn_alpha(transformers.LlamaForCausalLM)
    again = learning.from_pretrained(tmp_path, attn_implementation=NAME)
    assert again.config._attn_implementation == NAME
    torch.testing.assert_close(again(ids).logits, model(ids).logits)
    for logit, other in zip(alphas(model).values(), alphas(again).values(), strict=True):
        assert torch.equal(logit, other)
    half: Any = learning.from_pretrained(tmp_path, attn_implementation=NAME, dtype=torch.bfloat16)
    assert {logit.dtype for logit in alphas(half).values()} == {torch.float32}
    assert half(ids).logits.dtype == torch.bfloat16


def test_a_softmax_checkpoint_starts_to_learn(tmp_path: Path) -> None:
    build("llama", "eager").save_pretrained(tmp_path)
    learning = learn_alpha(transformers.LlamaForCausalLM, 1.2)
    model, report = learning.from_pretrained(
        tmp_path, attn_implementation=NAME, output_loading_info=True
    )
    assert not report["missing_keys"]
    for logit in alphas(model).values():
        torch.testing.assert_close(1 + logit.sigmoid(), torch.full((4,), 1.2))
    register_truth(1.2)
    ids = tokens(1, 6)
    expected = build("llama", TRUTH)(ids).logits
    torch.testing.assert_close(model.eval()(ids).logits, expected, rtol=1e-4, atol=1e-4)


def test_a_model_is_loaded_with_a_name(tmp_path: Path) -> None:
    model, ids = build("gpt_oss", NAME), tokens(1, 6)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=NAME)
    torch.testing.assert_close(again(ids).logits, model(ids).logits)


def test_a_learned_alpha_needs_entmax() -> None:
    model = learned_llama()
    model.set_attn_implementation("fenchel_sparsemax")
    with pytest.raises(ValueError, match=r"`learn_alpha` is for entmax.* is sparsemax"):
        model(tokens(1, 4))
