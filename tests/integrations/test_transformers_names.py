"""Names of attention implementations, and models that learn their alpha."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import transformers
from tiny_models import DECODER, TRUTH, build, register_truth, tokens

from fenchel import Entmax
from fenchel.integrations.transformers import learn_alpha, register

NAME = "fenchel_entmax"


@pytest.fixture(autouse=True)
def _registered() -> None:
    register()


def learned_llama(alpha: float = 1.5) -> Any:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**DECODER, attn_implementation=NAME)
    return learn_alpha(transformers.LlamaForCausalLM, alpha)(config).eval()


def alphas(model: torch.nn.Module) -> dict[str, Tensor]:
    return {k: p for k, p in model.named_parameters() if k.endswith("alpha_logit")}


def test_importing_the_package_does_not_import_transformers() -> None:
    code = "import sys, fenchel, fenchel.integrations; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_registering_again_changes_nothing() -> None:
    ids = tokens(1, 6)
    before = build("llama", NAME)(ids).logits
    register()
    torch.testing.assert_close(build("llama", NAME)(ids).logits, before)
    switch = transformers.ContinuousBatchingManager.switch_to_cb_friendly_attn
    register()
    assert transformers.ContinuousBatchingManager.switch_to_cb_friendly_attn is switch


def test_alpha_may_move_from_one() -> None:
    model, ids = build("llama", "eager"), tokens(1, 8)
    softmax = model(ids).logits
    register("fenchel_moving", Entmax(1.0))
    model.set_attn_implementation("fenchel_moving")
    torch.testing.assert_close(model(ids).logits, softmax, rtol=1e-4, atol=1e-4)
    for alpha in (1.1, 1.5):
        register("fenchel_moving", Entmax(alpha))
        register_truth(alpha)
        expected = build("llama", TRUTH)(ids).logits
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["my_flash", "sdpa_entmax", "flex_attention_2", "a/b", "paged|a"])
def test_names_of_other_implementations(name: str) -> None:
    with pytest.raises(ValueError, match=r"`name` must not contain '.+', got "):
        register(name, Entmax())


def test_arguments_that_do_not_fit() -> None:
    with pytest.raises(TypeError, match="`name` and `mapping` must be given together"):
        register("fenchel_x")
    with pytest.raises(TypeError, match="`name` must be a str, got int"):
        register(3, Entmax())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`name` must not be empty"):
        register("", Entmax())
    for alpha in (1, 2.0):
        with pytest.raises(ValueError, match="`alpha` must be between 1 and 2 to be learnt"):
            learn_alpha(transformers.LlamaForCausalLM, alpha)


OTHERS = ["Bloom", "CodeGen", "DebertaV2", "Falcon", "GPTJ", "GPTNeo", "Longformer", "XLNet"]


@pytest.mark.parametrize("family", OTHERS)
def test_models_whose_attention_is_their_own_refuse(family: str) -> None:
    config = getattr(transformers, f"{family}Config")(attn_implementation=NAME)
    model_class = getattr(transformers, f"{family}Model")
    with pytest.raises(ValueError, match=r"Model does not use transformers' `AttentionInterface`"):
        model_class(config)


SMALL = {
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "vocab_size": 20,
}
PARTLY = {
    "BigBirdPegasus": SMALL,
    "PegasusX": SMALL,
    "LongT5": {"d_model": 8, "d_ff": 8, "num_layers": 1, "vocab_size": 20},
    "Informer": {**SMALL, "prediction_length": 2},
}


@pytest.mark.parametrize("family", PARTLY)
def test_models_with_some_attention_of_their_own_refuse(family: str) -> None:
    model_class = getattr(transformers, f"{family}Model")
    config_class = getattr(transformers, f"{family}Config")
    refusal = r"has \w+Attention, which does not use transformers' `AttentionInterface`"
    with pytest.raises(ValueError, match=refusal):
        model_class(config_class(**PARTLY[family], attn_implementation=NAME))
    model = model_class(config_class(**PARTLY[family]))
    with pytest.raises(ValueError, match=refusal):
        model.set_attn_implementation(NAME)


def test_the_attention_that_is_built_decides() -> None:
    options = {**PARTLY["Informer"], "attention_type": "full", "attn_implementation": NAME}
    assert transformers.InformerModel(transformers.InformerConfig(**options)) is not None


@pytest.mark.parametrize("family", ["Git", "SamVision"])
def test_models_with_a_table_of_attention_refuse(family: str) -> None:
    config = getattr(transformers, f"{family}Config")(attn_implementation=NAME)
    with pytest.raises(ValueError, match=r"does not use transformers' `AttentionInterface`"):
        getattr(transformers, f"{family}Model")(config)


def llava_config() -> Any:
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    text = {"model_type": "llama", "hidden_size": 8, "vocab_size": 20, **sizes}
    vision = {"model_type": "clip_vision_model", "hidden_size": 8, "image_size": 16, **sizes}
    return transformers.LlavaConfig(text_config=text, vision_config={**vision, "patch_size": 8})


def test_a_part_of_a_larger_model_is_named() -> None:
    config = llava_config()
    config._attn_implementation = {"text_config": NAME}
    model = transformers.LlavaForConditionalGeneration(config)
    assert model.config.text_config._attn_implementation == NAME
    assert model.config.vision_config._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", [None, {"text_config": NAME}])
def test_the_parts_that_are_named_learn(name: Any) -> None:
    config = llava_config()
    config._attn_implementation = name
    model = learn_alpha(transformers.LlavaForConditionalGeneration)(config)
    assert len(alphas(model)) == (2 if name is None else 1)
    with pytest.raises(ValueError, match='`attn_implementation="sdpa"` would not use the α'):
        model.set_attn_implementation("sdpa")
    assert model.config.text_config._attn_implementation == NAME


def test_models_whose_attention_is_their_own_learn_no_alpha() -> None:
    config = transformers.GPTJConfig(vocab_size=9, n_embd=8, n_head=2, n_layer=1, rotary_dim=4)
    with pytest.raises(ValueError, match="GPTJModel does not use transformers' `AttentionInterf"):
        learn_alpha(transformers.GPTJModel)(config)


def test_other_implementations_are_chosen_as_before() -> None:
    sizes = {"vocab_size": 9, "hidden_size": 8, "n_head": 2, "n_layer": 1}
    assert transformers.BloomModel(transformers.BloomConfig(**sizes)) is not None
    with pytest.raises(ValueError, match="does not support an attention implementation"):
        transformers.BloomModel(transformers.BloomConfig(**sizes, attn_implementation="sdpa"))


def test_only_classes_of_models_learn_an_alpha() -> None:
    for other in (transformers.AutoModelForCausalLM, torch.nn.Linear):
        with pytest.raises(TypeError, match=rf"such as LlamaForCausalLM, got {other.__name__}\."):
            learn_alpha(other)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="got a model; give LlamaForCausalLM itself"):
        learn_alpha(build("llama", NAME))  # type: ignore[arg-type]


def test_other_mappings() -> None:
    register("fenchel_of_a_test", "fusedmax")
    assert bool(build("llama", "fenchel_of_a_test")(tokens(1, 5)).logits.isfinite().all())


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


@pytest.mark.parametrize(
    ("family", "side"),
    [
        ("llama", None),
        ("mistral", "left"),
        pytest.param("bert", None, marks=pytest.mark.slow),
        pytest.param("bert", "left", marks=pytest.mark.slow),
        pytest.param("t5", None, marks=pytest.mark.slow),
    ],
)
def test_compile(family: str, side: str | None) -> None:
    torch._dynamo.reset()
    model, ids = build(family, NAME), tokens(2, 9)
    options: dict[str, Any] = {"decoder_input_ids": ids[:, :4]} if family == "t5" else {}
    if family != "bert":
        options["use_cache"] = False
    mask = None
    if side == "left":
        mask = torch.ones_like(ids)
        mask[0, :3] = 0
    expected = model(ids, attention_mask=mask, **options).logits
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    found = compiled(ids, attention_mask=mask, **options).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    found.square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


@pytest.mark.slow
def test_a_tensor_of_alpha_changes_without_another_compilation() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    alpha, ids = torch.tensor(1.1), tokens(2, 8)
    register("fenchel_moving", Entmax(alpha))
    model = build("llama", "fenchel_moving")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for number in (1.1, 1.5, 1.9):
        alpha.fill_(number)
        register_truth(number)
        expected = build("llama", TRUTH)(ids).logits
        found = compiled(ids, use_cache=False).logits
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
