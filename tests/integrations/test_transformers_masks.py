"""What a light mask says is what the mask of transformers says, and in fewer numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

from transformers import masking_utils as masks

from fenchel.integrations.transformers._light import has_order, has_window, is_lengths
from fenchel.integrations.transformers._masks import light_mask

WINDOW = 3
CONFIG = SimpleNamespace(sliding_window=WINDOW, attention_chunk_size=None)
FUNCTIONS = {
    "full": masks.causal_mask_function,
    "sliding": masks.sliding_window_causal_mask_function(WINDOW),
}
# T, S, the place of the first query, the place of the first key
SIZES = {
    "training": (6, 6, 0, 0),
    "one token": (1, 6, 5, 0),
    "several tokens": (3, 6, 3, 0),
    "empty static cache": (4, 9, 0, 0),
    "static cache": (3, 9, 2, 0),
    "static cache, one token": (1, 9, 4, 0),
    "full sliding cache": (2, 4, 7, 5),
    "full sliding cache, one token": (1, 3, 7, 5),
}
PADDING = {"none": (0, 0), "left": (2, 0), "right": (0, 2), "both": (1, 1)}


def padding_mask(side: str, places: int) -> Tensor | None:
    left, right = PADDING[side]
    if side == "none":
        return None
    mask = torch.ones(2, places, dtype=torch.bool)
    mask[0, :left], mask[0, places - right :] = False, False
    return mask


def written_out(light: Tensor, num_queries: int, num_keys: int) -> Tensor:
    """All that each query sees, (B, T, S), as the table of light masks reads."""
    queries, keys = torch.arange(num_queries)[:, None], torch.arange(num_keys)[None]
    if light.dtype == torch.bool:
        return light[:, 0]
    assert has_order(light)
    if is_lengths(light):
        width, present = num_queries, keys < light[:, 0]
    else:
        width = light.shape[-1]
        present = torch.nn.functional.pad(light[:, 0].bool(), (0, num_keys - width))
    distance = queries + width - num_queries - keys
    seen = (distance >= 0) & (distance < (WINDOW if has_window(light) else num_keys))
    return present & seen


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("side", PADDING)
@pytest.mark.parametrize("pattern", FUNCTIONS)
@pytest.mark.parametrize("offset_is_tensor", [False, True])
def test_causal_masks(size: str, side: str, pattern: str, offset_is_tensor: bool) -> None:
    num_queries, num_keys, first_query, first_key = SIZES[size]
    window = WINDOW if pattern == "sliding" else None
    arguments: dict[str, Any] = {
        "batch_size": 2,
        "q_length": num_queries,
        "kv_length": num_keys,
        "q_offset": torch.tensor(first_query) if offset_is_tensor else first_query,
        "kv_offset": first_key,
        "mask_function": FUNCTIONS[pattern],
        "attention_mask": padding_mask(side, first_query + num_queries),
    }
    light = light_mask(**arguments, local_size=window, config=CONFIG)
    expected = masks.sdpa_mask(**arguments, allow_is_causal_skip=False)
    assert expected is not None
    found = written_out(light, num_queries, num_keys)
    assert torch.equal(found.expand(2, -1, -1), expected[:, 0])
    assert light.shape[2] == 1
    if num_queries > 1 and side in ("none", "right") and num_queries == num_keys:
        assert light.numel() == 2 or light.stride(3) == 0


@pytest.mark.parametrize("side", PADDING)
def test_masks_that_are_not_causal(side: str) -> None:
    padding = padding_mask(side, 6)
    options: dict[str, Any] = {"mask_function": masks.bidirectional_mask_function}
    light = light_mask(2, 4, 6, **options, attention_mask=padding, allow_is_bidirectional_skip=True)
    assert light.shape == (1 if padding is None else 2, 1, 4, 6)
    assert light.stride(2) == 0
    if padding is None:
        assert light.stride(3) == 0
        assert bool(light.all())
    elif side == "right":
        assert light.stride(3) == 0
        assert light[:, :, :1, :1].tolist() == [[[[4]]], [[[6]]]]
    else:
        assert torch.equal(light[:, :, :1], padding[:, None, None])


def test_packed_sequences_are_offsets() -> None:
    places = torch.tensor([[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]])
    numbers = masks.find_packed_sequence_indices(places)
    assert numbers is not None
    for function in FUNCTIONS.values():
        packed = masks.and_masks(function, masks.packed_sequence_mask_function(numbers))
        light = light_mask(2, 5, 5, mask_function=packed, allow_is_causal_skip=False)
        assert light.shape == (1, 1, 11, 1)
        assert light.unique().tolist() == [0, 3, 5, 6, 10]


@pytest.mark.parametrize(
    "arguments",
    [
        {"mask_function": masks.and_masks(masks.causal_mask_function), "use_vmap": True},
        {
            "mask_function": masks.or_masks(masks.causal_mask_function),
            "allow_is_causal_skip": False,
        },
        {"allow_is_causal_skip": False},
        {
            "mask_function": masks.chunked_causal_mask_function(2, torch.zeros(2, dtype=torch.int)),
            "local_size": 2,
        },
        {
            "mask_function": masks.sliding_window_bidirectional_mask_function(WINDOW),
            "local_size": WINDOW,
            "allow_is_bidirectional_skip": True,
        },
    ],
    ids=["a function of a user", "blocks", "wanted", "chunks", "a window to both sides"],
)
def test_what_nothing_shorter_says_is_written_out(arguments: dict[str, Any]) -> None:
    light = light_mask(2, 6, 6, **arguments, config=CONFIG)
    arguments = {"allow_is_causal_skip": False, **arguments, "allow_is_bidirectional_skip": False}
    expected = masks.sdpa_mask(2, 6, 6, **arguments)
    assert torch.equal(light, expected)
