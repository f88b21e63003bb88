"""Models of every family on a GPU: the fused kernels run, and are as exact as attention that is
written out in float64 between layers of the same type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")
pytest.importorskip("entmax")

from tiny_models import TRUTH, VOCABULARY, build, register_truth, tokens
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from fenchel.attention import _attention
from fenchel.integrations.transformers import learn_alpha, register
from fenchel.ops import attention as ops

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DEVICE = "cuda"
FAMILIES = ("llama", "qwen3", "mistral", "gemma2", "gpt_oss", "bert", "t5")
DECODERS = FAMILIES[:5]
FLOOR = {torch.float32: 1e-5, torch.bfloat16: 2.0**-8}
"""Of an error relative to the truth's size."""
FACTOR = 2
"""How many times the error of written out attention is allowed besides."""
NEW = 6


@pytest.fixture(autouse=True)
def _registered() -> None:
    register()
    register_truth()


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A call for each that the fused operator had; another way is an error."""
    calls: list[int] = []
    plain = ops.attention

    def spy(*given: Any) -> Any:
        assert given[0].device.type == DEVICE
        calls.append(1)
        return plain(*given)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("attention is not fused")

    monkeypatch.setattr(ops, "attention", spy)
    monkeypatch.setattr(_attention, "attention_in_blocks", refuse)
    monkeypatch.setattr(_attention, "dense", refuse)
    yield calls
    assert calls


def three(family: str, dtype: torch.dtype) -> tuple[PreTrainedModel, ...]:
    """One model with fused attention; with written out attention; and that in float64."""
    found = build(family, "fenchel_entmax").to(dtype).to(DEVICE)
    plain = build(family, TRUTH).to(dtype).to(DEVICE)
    return found, plain, build(family, TRUTH).to(dtype).double()


def assert_as_exact(found: Tensor, plain: Tensor, truth: Tensor, scale: Tensor | None = None):
    """The error is at most that of written out attention, up to the factor and the floor."""
    floor = FLOOR[found.dtype]
    assert found.dtype == plain.dtype
    error, allowed = ((x.detach().cpu().double() - truth).norm() for x in (found, plain))
    size = truth.norm() if scale is None else scale
    assert error <= FACTOR * allowed + floor * size, (error, allowed, size)


def padding(ids: Tensor, side: str) -> Tensor | None:
    if side == "none":
        return None
    mask = torch.ones_like(ids)
    mask[0, -4:], mask[1, -1:] = 0, 0
    return mask if side == "right" else mask.flip(1)


def logits_of(model: PreTrainedModel, ids: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
    """The logits of the tokens that are there."""
    given = {"input_ids": ids, "attention_mask": mask, **options}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = ids.flip(1)[:, :7]
    moved = {name: x.to(model.device) if isinstance(x, Tensor) else x for name, x in given.items()}
    found = model(**moved).logits
    whole = mask is None or model.config.is_encoder_decoder
    return found.flatten(0, 1) if whole else found[moved["attention_mask"].bool()]


@pytest.mark.parametrize("dtype", FLOOR)
@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits(family: str, side: str, dtype: torch.dtype, fused: list[int]) -> None:
    ids = tokens(3, 9)
    assert_as_exact(*(logits_of(x, ids, padding(ids, side)) for x in three(family, dtype)))


def assert_same_gradients(models: tuple[PreTrainedModel, ...], ids: Tensor) -> None:
    for model in models:
        logits = logits_of(model, ids, None)
        torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)[
            :, 3
        ].mean().backward()
    found, plain, truth = ({n: p.grad for n, p in x.named_parameters()} for x in models)
    scale = torch.stack([x.norm() for x in truth.values() if x is not None]).max()
    for name, gradient in found.items():
        if truth[name] is None:
            assert gradient is None, name
        else:
            assert_as_exact(gradient, plain[name], truth[name], scale)


@pytest.mark.parametrize("dtype", FLOOR)
@pytest.mark.parametrize("family", FAMILIES[:-1])
def test_gradients(family: str, dtype: torch.dtype, fused: list[int]) -> None:
    assert_same_gradients(three(family, dtype), tokens(3, 9))


@pytest.mark.parametrize("dtype", FLOOR)
def test_gradients_of_a_position_bias(dtype: torch.dtype) -> None:
    """The fused operator has none of a mask, so that attention runs in blocks."""
    assert_same_gradients(three("t5", dtype), tokens(3, 9))


@pytest.mark.parametrize("family", ["llama"])
def test_long_rows(family: str, fused: list[int]) -> None:
    """From 512 tokens on there are other kernels."""
    assert_same_gradients(three(family, torch.bfloat16), tokens(1, 600))


@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_packed_sequences(family: str, fused: list[int]) -> None:
    ids, lengths = tokens(1, 17), [7, 1, 9]
    ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    options: dict[str, Any] = {
        "position_ids": torch.cat([torch.arange(length) for length in lengths])[None],
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": 9,
        "max_length_k": 9,
        "use_cache": False,
    }
    found, plain, truth = three(family, torch.float32)
    packed = logits_of(found, ids, None, **options)
    parts = ids.split(lengths, dim=1)
    alone = [torch.cat([logits_of(model, x, None) for x in parts]) for model in (plain, truth)]
    assert_as_exact(packed, *alone)
    if family != "gpt_oss":  # whose masks do not depend on position_ids
        by_places = {name: options[name] for name in ("position_ids", "use_cache")}
        assert_as_exact(logits_of(found, ids, None, **by_places), *alone)


def prompts() -> dict[str, Tensor]:
    """Padded on the left."""
    ids = tokens(3, 7)
    mask = torch.ones_like(ids)
    mask[0, :3], mask[2, :1] = 0, 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def generate(model: PreTrainedModel, **options: Any) -> tuple[Tensor, Tensor]:
    """The sequences, and the logits that their new tokens were chosen by."""
    found = model.generate(
        **{name: x.to(model.device) for name, x in prompts().items()},
        do_sample=False,
        min_new_tokens=NEW,
        max_new_tokens=NEW,
        return_dict_in_generate=True,
        output_logits=True,
        **options,
    )
    return found.sequences.cpu(), torch.stack(found.logits, 1).to(model.dtype)


def forced(model: PreTrainedModel, sequences: Tensor) -> Tensor:
    """The logits of the new tokens of those sequences, all at once."""
    if model.config.is_encoder_decoder:
        given = {**prompts(), "decoder_input_ids": sequences[:, :-1]}
    else:
        mask = torch.nn.functional.pad(prompts()["attention_mask"], (0, NEW - 1), value=1)
        places = (mask.cumsum(1) - 1).clamp(min=0)
        given = {"input_ids": sequences[:, :-1], "attention_mask": mask, "position_ids": places}
    moved = {name: x.to(model.device) for name, x in given.items()}
    return model(**moved, use_cache=False).logits[:, -NEW:]


@pytest.mark.parametrize("dtype", FLOOR)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", [*DECODERS, "t5"])
@torch.no_grad()
def test_generate(family: str, cache: str, dtype: torch.dtype, fused: list[int]) -> None:
    """Layers with a window have sliding caches of either kind."""
    found, plain, truth = three(family, dtype)
    options = {"cache_implementation": cache, "disable_compile": True}
    sequences, logits = generate(found, **options)
    assert_as_exact(logits, forced(plain, sequences), forced(truth, sequences))
    if dtype == torch.float32:
        assert sequences.tolist() == generate(truth, use_cache=False)[0].tolist()


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_continuous_batching(family: str, fused: list[int]) -> None:
    own = [[5, 9, 3, 8, 2, 7, 1], [11, 4], [6, 6, 20, 13, 2]]
    model, _, truth = three(family, torch.float32)
    found = model.generate_batch(
        own,
        generation_config=GenerationConfig(
            do_sample=False, max_new_tokens=NEW, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=8, page_size=4, max_batch_tokens=16, use_cuda_graph=False
        ),
    )
    by_prompt = {tuple(each.prompt_ids): each.generated_tokens for each in found.values()}
    for prompt in own:
        ids = torch.tensor([prompt])
        alone = truth.generate(ids, do_sample=False, max_new_tokens=NEW, use_cache=False)
        assert by_prompt[tuple(prompt)] == alone[0, len(prompt) :].tolist()
    assert model.config._attn_implementation == "fenchel_entmax"


@pytest.mark.parametrize("family", ["llama"])
def test_learned_alpha(family: str, fused: list[int]) -> None:
    softmax = build(family, "fenchel_entmax")
    model = learn_alpha(type(softmax), 1.3)(softmax.config).to(DEVICE)
    ids = torch.randint(1, VOCABULARY, (2, 9), device=DEVICE)
    model(ids, labels=ids).loss.backward()
    logits = [p.grad for n, p in model.named_parameters() if n.endswith("alpha_logit")]
    assert len(logits) == 2
    assert all(bool((x != 0).all()) for x in logits)
