"""Names of attention implementations, and models that learn their alpha."""

from __future__ import annotations

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
    for alpha in (1, 2.0):
        with pytest.raises(ValueError, match="`alpha` must be between 1 and 2 to be learnt"):
            learn_alpha(transformers.LlamaForCausalLM, alpha)


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


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_learned_alpha_of_other_families(family: str) -> None:
    given = build(family, NAME)
    model: Any = learn_alpha(type(given))(given.config)
    assert len(alphas(model)) == (2 if family == "bert" else 6)
    ids = tokens(1, 5)
    options = {"decoder_input_ids": ids} if family == "t5" else {}
    model(ids, **options).logits.square().sum().backward()
    assert all(bool((logit.grad != 0).any()) for logit in alphas(model).values())


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
    [("llama", None), ("mistral", "left"), pytest.param("t5", None, marks=pytest.mark.slow)],
)
def test_compile(family: str, side: str | None) -> None:
    torch._dynamo.reset()
    model, ids = build(family, NAME), tokens(2, 9)
    options: dict[str, Any] = {"decoder_input_ids": ids[:, :4]} if family == "t5" else {}
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
