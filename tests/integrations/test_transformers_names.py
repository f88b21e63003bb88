"""Names of attention implementations, what they refuse, and their compilation."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from tiny_models import TRUTH, alphas, build, register_truth, tokens

from fenchel import Entmax
from fenchel.integrations.transformers import learn_alpha, register

NAME = "fenchel_entmax"


@pytest.fixture(autouse=True)
def _registered() -> None:
    register()


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
