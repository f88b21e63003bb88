"""Generation with every cache is generation without one, and continuous batching is sparse too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

from tiny_models import DECODERS, TRUTH, build, register_truth, tokens
from transformers import CompileConfig, ContinuousBatchingConfig, GenerationConfig, PreTrainedModel
from transformers.generation.continuous_batching import continuous_api

from fenchel.integrations.transformers import learn_alpha, register

NEW = 8
PROMPTS = [[5, 9, 3, 8, 2, 7, 1], [11, 4], [6, 6, 20, 13, 2]]


@pytest.fixture(autouse=True)
def _registered() -> None:
    register()
    register_truth()


def prompts() -> dict[str, Tensor]:
    """Padded on the left."""
    ids = tokens(3, 7)
    mask = torch.ones_like(ids)
    mask[0, :3], mask[2, :1] = 0, 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def generate(model: PreTrainedModel, **options: Any) -> tuple[Tensor, Tensor]:
    """The new tokens, and the logits that they were chosen by."""
    found = model.generate(
        **prompts(),
        do_sample=False,
        min_new_tokens=NEW,
        max_new_tokens=NEW,
        return_dict_in_generate=True,
        output_logits=True,
        **options,
    )
    return found.sequences[:, -NEW:], torch.stack(found.logits, 1)


@pytest.mark.parametrize("family", [*DECODERS, "t5", "nllb_moe"])
@pytest.mark.parametrize("cache", [None, "dynamic", "static"])
def test_a_cache_changes_nothing(family: str, cache: str | None) -> None:
    model = build(family, "fenchel_entmax")
    expected, logits = generate(build(family, TRUTH), use_cache=False)
    options: dict[str, Any] = {"use_cache": False}
    if cache is not None:
        options = {"cache_implementation": cache, "disable_compile": True}
    found, ours = generate(model, **options)
    assert found.tolist() == expected.tolist()
    torch.testing.assert_close(ours, logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_prompt_may_be_read_in_pieces(family: str, cache: str) -> None:
    model = build(family, "fenchel_entmax")
    expected, logits = generate(build(family, TRUTH), use_cache=False)
    options = {"cache_implementation": cache, "disable_compile": True, "prefill_chunk_size": 3}
    found, ours = generate(model, **options)
    assert found.tolist() == expected.tolist()
    torch.testing.assert_close(ours, logits, rtol=1e-4, atol=1e-4)


def test_beams() -> None:
    options = {"do_sample": False, "num_beams": 3, "max_new_tokens": NEW}
    found = build("llama", "fenchel_entmax").generate(**prompts(), **options)
    expected = build("llama", TRUTH).generate(**prompts(), use_cache=False, **options)
    assert found.tolist() == expected.tolist()


def test_compiled_steps_with_a_static_cache() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = build("llama", "fenchel_entmax")
    expected, _ = generate(build("llama", TRUTH), use_cache=False)
    config = CompileConfig(backend="aot_eager", mode=None, fullgraph=True)  # type: ignore[arg-type]
    config._compile_all_devices = True  # type: ignore[assignment]
    found, _ = generate(model, cache_implementation="static", compile_config=config)
    assert found.tolist() == expected.tolist()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def in_continuous_batches(model: PreTrainedModel) -> list[list[int]]:
    generation = GenerationConfig(
        do_sample=False, max_new_tokens=NEW, eos_token_id=-1, pad_token_id=0
    )
    batching = ContinuousBatchingConfig(
        num_blocks=8, page_size=4, max_batch_tokens=16, use_cuda_graph=False
    )
    found = model.generate_batch(
        PROMPTS, generation_config=generation, continuous_batching_config=batching
    )
    by_prompt = {tuple(each.prompt_ids): each.generated_tokens for each in found.values()}
    return [by_prompt[tuple(prompt)] for prompt in PROMPTS]


def one_by_one(model: PreTrainedModel) -> list[list[int]]:
    found = [
        model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=NEW, use_cache=False)
        for prompt in PROMPTS
    ]
    return [ids[0, len(prompt) :].tolist() for ids, prompt in zip(found, PROMPTS, strict=True)]


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_continuous_batching_is_sparse(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where transformers prefers another implementation for it."""
    monkeypatch.setattr(continuous_api, "is_flash_attn_3_available", lambda **_: True)
    expected = one_by_one(build(family, TRUTH))
    assert expected != one_by_one(build(family, "eager"))
    model = build(family, "fenchel_entmax")
    assert in_continuous_batches(model) == expected
    assert model.config._attn_implementation == "fenchel_entmax"


def test_continuous_batching_of_other_implementations_is_as_before() -> None:
    expected = one_by_one(build("llama", "eager"))
    model = build("llama", "eager")
    assert in_continuous_batches(model) == expected
    with pytest.raises(ValueError, match="is not supported for continuous batching"):
        in_continuous_batches(build("llama", TRUTH))


def test_continuous_batching_with_a_learned_alpha() -> None:
    register_truth(1.2)
    expected = one_by_one(build("llama", TRUTH))
    softmax = build("llama", "eager")
    softmax.set_attn_implementation("fenchel_entmax")
    model = learn_alpha(type(softmax), 1.2)(softmax.config).eval()
    model.load_state_dict(softmax.state_dict(), strict=False)
    assert in_continuous_batches(model) == one_by_one(model) == expected


def test_continuous_batching_by_the_paged_name() -> None:
    expected = one_by_one(build("llama", TRUTH))
    with pytest.warns(FutureWarning, match="prefix is no longer needed"):
        model = build("llama", "paged|fenchel_entmax")
    assert in_continuous_batches(model) == expected
