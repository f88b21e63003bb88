"""A cache that grows in place holds what concatenation would, and its bounds hold its keys."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel.attention import KeysValues

SHAPE = (2, 3)


def pair(length: int, dtype: torch.dtype = torch.float32) -> KeysValues:
    return KeysValues(
        torch.randn(*SHAPE, length, 4).to(dtype), torch.randn(*SHAPE, length, 5).to(dtype)
    )


def grown(sizes: list[int], dtype: torch.dtype = torch.float32) -> tuple[KeysValues, Tensor]:
    """A cache that grew by these sizes, and all its keys."""
    parts = [pair(size, dtype) for size in sizes]
    cache = parts[0]
    for part in parts[1:]:
        cache = cache.append(part)
    return cache, torch.cat([part.key for part in parts], 2)


@pytest.mark.parametrize("sizes", [[3, 1, 1], [0, 5, 0, 64, 1], [1] * 70, [63, 2, 127, 1, 300]])
def test_holds_what_came(sizes: list[int]) -> None:
    parts = [pair(size) for size in sizes]
    cache = parts[0]
    for part in parts[1:]:
        cache = cache.append(part)
    assert cache.length == sum(sizes)
    assert torch.equal(cache.key, torch.cat([part.key for part in parts], 2))
    assert torch.equal(cache.value, torch.cat([part.value for part in parts], 2))


def test_grows_in_place_with_bounded_room() -> None:
    cache, places = pair(1), set()
    for _ in range(500):
        cache = cache.append(pair(1))
        places.add(cache.key.data_ptr())
    assert len(places) <= 7
    room = cache.key.untyped_storage().nbytes() // (4 * 4 * 6)
    assert room <= 2 * cache.length


def test_a_cache_never_changes() -> None:
    first = pair(3)
    second = first.append(pair(2))
    before = second.key.clone()
    one, other = second.append(pair(1)), second.append(pair(1))
    assert (first.length, second.length) == (3, 5)
    assert torch.equal(second.key, before)
    assert torch.equal(one.key[:, :, :5], other.key[:, :, :5])
    assert not torch.equal(one.key[:, :, 5:], other.key[:, :, 5:])


def test_reserved_room_is_not_copied() -> None:
    cache = pair(3).reserve(200)
    place = cache.key.data_ptr()
    for _ in range(197):
        cache = cache.append(pair(1))
    assert cache.key.data_ptr() == place
    assert cache.append(pair(1)).key.data_ptr() == place or cache.length == 200


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_bounds_are_those_of_each_page(dtype: torch.dtype) -> None:
    cache, _ = grown([50], dtype)
    for size in (1, 13, 1, 100, 64, 7):
        cache = cache.append(pair(size, dtype))
        key, value, bounds = cache.pages()
        assert key.shape[2] == value.shape[2] == -(-cache.length // 64) * 64
        assert bounds.dtype == dtype
        for i, page in enumerate(cache.key.split(64, 2)):
            assert torch.equal(bounds[0, :, :, i], page.amin(2))
            assert torch.equal(bounds[1, :, :, i], page.amax(2))


def test_bounds_hold_shorter_caches_too() -> None:
    short, _ = grown([70, 3])
    longer = short.append(pair(5))
    longer.pages()
    _, _, bounds = short.pages()
    last = short.key[:, :, 64:]
    assert (bounds[0, :, :, 1] <= last.amin(2)).all()
    assert (bounds[1, :, :, 1] >= last.amax(2)).all()


def test_bounds_of_whole_pages_need_no_copy() -> None:
    cache = pair(128)
    key, _, _ = cache.pages()
    assert key.data_ptr() == cache.key.data_ptr()
    longer = cache.append(pair(1))
    _, _, bounds = longer.pages()
    assert torch.equal(bounds[0, :, :, 2], longer.key[:, :, 128])


@pytest.mark.parametrize("length", [128, 130])
def test_bounds_follow_keys_that_are_overwritten(length: int) -> None:
    cache = pair(length)
    cache.pages()
    cache.key[0, 0, 3] = 100.0
    for each in (cache, cache.index_select(0, torch.tensor([0, 1])), cache.append(pair(1))):
        _, _, bounds = each.pages()
        assert bounds[1, 0, 0, 0].eq(100).all()
    cache.key[0, 0, 3] = -100.0
    longer = cache.append(pair(1))
    assert longer.pages()[2][0, 0, 0, 0].eq(-100).all()


def test_sequences_are_selected_and_joined() -> None:
    cache, key = grown([60, 10])
    cache.pages()
    index = torch.tensor([1, 1, 0])
    moved = cache.index_select(0, index)
    assert torch.equal(moved.key, key[index])
    new = moved.append(KeysValues(torch.randn(3, 3, 1, 4), torch.randn(3, 3, 1, 5)))
    _, _, bounds = new.pages()
    assert torch.equal(bounds[1, :, :, 1], new.key[:, :, 64:].amax(2))
    assert torch.equal(cache.key, key)
    parts = [cache[:1], cache[1:]]
    assert [len(part) for part in parts] == [1, 1]
    assert torch.equal(KeysValues.join(parts).key, key)
    assert torch.equal(KeysValues.join(iter(parts)).value, cache.value)
    assert cache[:] is cache
    assert cache[0:2] is cache


def test_only_caches_of_one_length_are_joined() -> None:
    with pytest.raises(
        ValueError, match=r"same heads, lengths and sizes, got .*length=2.*length=3"
    ):
        KeysValues.join([pair(2), pair(3)])
    with pytest.raises(ValueError, match="`caches` must not be empty"):
        KeysValues.join([])
    with pytest.raises(TypeError, match=r"one type of `key`, got torch.float32 and torch.float16"):
        KeysValues.join([pair(2), pair(2, torch.float16)])
    with pytest.raises(TypeError, match="`caches` must be of KeysValues, got Tensor"):
        KeysValues.join([torch.zeros(2)])  # type: ignore[list-item]


def test_gradients_pass_through() -> None:
    first, second = pair(2), pair(3)
    first.key.requires_grad_()
    second.value.requires_grad_()
    cache = first.append(second)
    (cache.key.square().sum() + cache.value.square().sum()).backward()
    torch.testing.assert_close(first.key.grad, 2 * first.key)
    torch.testing.assert_close(second.value.grad, 2 * second.value)


def test_grows_after_inference_mode() -> None:
    with torch.inference_mode():
        cache = pair(2).append(pair(1))
        cache.pages()
    longer = cache.append(pair(1))
    assert torch.equal(longer.key[:, :, :3], cache.key)
    with torch.inference_mode():
        longer.pages()
    _, _, bounds = longer.append(pair(1)).append(pair(64)).pages()
    assert (bounds[0] <= bounds[1]).all()


def test_a_shorter_cache_is_selected_with_room() -> None:
    short = pair(3).append(pair(2))
    short.append(pair(1))
    moved = short.index_select(0, torch.tensor([1, 0]))
    longer = moved.append(pair(1))
    assert longer.key.data_ptr() == moved.key.data_ptr()
    assert torch.equal(longer.key[:, :, :5], short.key.flip(0))


def test_compiles() -> None:
    @torch.compile(fullgraph=True, backend="eager")
    def run(key: Tensor) -> Tensor:
        return KeysValues(key, key).append(KeysValues(key, key)).key

    key = torch.randn(1, 1, 2, 3)
    assert torch.equal(run(key), torch.cat([key, key], 2))


def test_errors_name_the_argument() -> None:
    cache = pair(2)

    def later(*shape: int, **options: Any) -> KeysValues:
        return KeysValues(torch.zeros(*shape, 4, **options), torch.zeros(*shape, 5, **options))

    with pytest.raises(TypeError, match="`later` must be a KeysValues, got Tensor"):
        cache.append(torch.zeros(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"`later.key` must have type torch.float32, got torch.fl"):
        cache.append(later(2, 3, 1, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"`later.key` must have shape \(2, 3, S, 4\), got \(1, 3"):
        cache.append(later(1, 3, 1))
    with pytest.raises(ValueError, match=r"`later.key` must be on the device of `key`, cpu"):
        cache.append(later(2, 3, 1, device="meta"))
    with pytest.raises(ValueError, match=r"`key` must have shape \(batch, key_heads, S, d\), got"):
        KeysValues(torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"`value` must have the shape of `key`, \(2, 3, 2, 4\),"):
        KeysValues(cache.key, cache.value[:, :, :1])
    with pytest.raises(ValueError, match="`dim` must be 0, the dimension of the sequences; got 1"):
        cache.index_select(1, torch.tensor([0]))
    with pytest.raises(TypeError, match="`sequences` must be a slice, got int; for a tensor of"):
        cache[0]  # type: ignore[index]
    with pytest.raises(ValueError, match="`capacity` must be"):
        cache.reserve(0)


def test_an_empty_cache_keeps_its_room() -> None:
    cache = pair(0).reserve(100)
    for _ in range(3):
        longer = cache.append(pair(30))
        if cache.length:
            assert longer.key.data_ptr() == cache.key.data_ptr()
        cache = longer
    assert cache.length == 90


def test_threads_may_append_to_one_cache() -> None:
    for _ in range(20):
        base = pair(5).reserve(4000)
        parts = [pair(900) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(base.append, parts))
        for cache, part in zip(found, parts, strict=True):
            assert torch.equal(cache.key[:, :, 5:], part.key)
            assert torch.equal(cache.value[:, :, 5:], part.value)
