"""Keys and values of earlier positions: a cache that grows in place, with bounds of its keys."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

import torch
from torch import Tensor
from torch.jit._trace import is_tracing

from .. import _checks
from .._transforms import is_transformed
from ..ops.cached_attention import PAGE, num_pages

_PLAIN = (Tensor, torch.nn.Parameter)
_LEAST = 16
"""Keys that a new room has place for, at least."""
_LOCK = Lock()
"""Held while a room that several caches may share is written to."""


def _is_writable(x: Tensor) -> bool:
    """Outside of inference mode, a tensor from within is not."""
    return torch.is_inference_mode_enabled() or not x.is_inference()


class _Room:
    """Memory for keys and values, (batch, key_heads, capacity, d) each, filled from the front."""

    def __init__(self, key: Tensor, value: Tensor, filled: int) -> None:
        self.key, self.value, self.filled = key, value, filled
        self.bounds: Tensor | None = None
        """The smallest and the largest entries of each page of keys, (2, batch, key_heads, pages,
        d), of the first `bounded` keys."""
        self.bounded = 0
        self._known = self._version()
        """The version of the keys that the bounds belong to."""

    def _version(self) -> int | None:
        """How often the keys were written to, where PyTorch counts it."""
        return None if self.key.is_inference() else self.key._version

    def _check_bounds(self) -> None:
        """Forgets bounds if others have written to the keys."""
        if self._version() != self._known:
            self.bounded, self._known = 0, self._version()

    def write(self, first: int, later: KeysValues) -> int:
        """Writes keys and values behind the first ones, and returns where they end."""
        self._check_bounds()
        end = first + later.length
        self.key[:, :, first:end] = later.key
        self.value[:, :, first:end] = later.value
        self.filled, self._known = end, self._version()
        return end

    @property
    def capacity(self) -> int:
        return self.key.shape[2]

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        return self.key, self.value

    def is_open(self, length: int, capacity: int) -> bool:
        """Whether it can grow from that length to that capacity."""
        has_room = self.filled == length and capacity <= self.capacity
        return has_room and _is_writable(self.key)

    def copy(self, length: int, capacity: int) -> _Room:
        """The first keys and values in a room of their own."""
        key, value = (x.new_zeros(*x.shape[:2], capacity, x.shape[3]) for x in self.tensors)
        key[:, :, :length] = self.key[:, :, :length]
        value[:, :, :length] = self.value[:, :, :length]
        room = _Room(key, value, length)
        self._check_bounds()
        if self.bounds is not None:
            pages = num_pages(length)
            room.bounds = room._new_bounds()
            room.bounds[..., :pages, :] = self.bounds[..., :pages, :]
            room.bounded = min(self.bounded, length)
        return room

    def _new_bounds(self) -> Tensor:
        shape = (2, *self.key.shape[:2], num_pages(self.capacity), self.key.shape[3])
        return self.key.new_zeros(shape)

    def select(self, index: Tensor, length: int) -> _Room:
        """The first keys and values of some sequences, with as much room."""
        key, value = (x.index_select(0, index) for x in self.tensors)
        room = _Room(key, value, length)
        self._check_bounds()
        if self.bounds is not None:
            room.bounds = self.bounds.index_select(1, index)
            room.bounded = min(self.bounded, length)
        return room

    def page_bounds(self) -> Tensor:
        """The bounds of all keys; only pages with new keys are read."""
        self._check_bounds()
        if self.bounds is None or not _is_writable(self.bounds):
            self.bounds, self.bounded = self._new_bounds(), 0
        if self.bounded < self.filled:
            first, whole = self.bounded // PAGE, self.filled // PAGE
            parts = [(slice(first, whole), self.key[:, :, first * PAGE : whole * PAGE])]
            parts.append((slice(whole, whole + 1), self.key[:, :, whole * PAGE : self.filled]))
            for pages, keys in parts:
                if keys.shape[2]:
                    paged = keys.unflatten(2, (pages.stop - pages.start, -1))
                    self.bounds[0, :, :, pages] = paged.amin(3)
                    self.bounds[1, :, :, pages] = paged.amax(3)
            self.bounded = self.filled
        return self.bounds


class KeysValues:
    """Keys and values of a memory, for many calls of `attend`: a cache.

    Args:
        key: (batch, key_heads, S, d).
        value: (batch, key_heads, S, e).
    Raises:
        TypeError, ValueError: for tensors of other kinds or shapes.

    A cache never changes. `append` returns a longer one, which shares its memory: new keys are
    written behind those that are there, into room that doubles when it is full. So n steps of
    decoding copy each key a constant number of times, and memory is at most twice what is filled.
    To append to the same cache a second time copies it. The tensors that a cache is made of are its
    own from then on: it may keep them or copy them, so do not write to them, nor to `key` and
    `value`.

    `attend` with sparsemax or entmax reads the pages of 64 keys that may have weight. For that the
    cache keeps the smallest and the largest entries of the keys of each page.

    Where gradients of keys or values are wanted, `append` concatenates.

    >>> cache = KeysValues(torch.zeros(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
    >>> longer = cache.append(cache)
    >>> longer.length, cache.length, longer.key.shape
    (6, 3, torch.Size([1, 2, 6, 4]))
    """

    def __init__(self, key: Tensor, value: Tensor) -> None:
        for name, x in (("key", key), ("value", value)):
            _checks.check_float_tensor(name, x)
            if x.ndim != 4:
                raise ValueError(
                    f"`{name}` must have shape (batch, key_heads, S, d), got {tuple(x.shape)}."
                )
        _checks.check_same_device("value", value, key.device, "key")
        if key.shape[:3] != value.shape[:3]:
            raise ValueError(
                f"`value` must have the shape of `key`, {tuple(key.shape)}, but for the last "
                f"dimension; got {tuple(value.shape)}."
            )
        self.key, self.value = key, value
        self._room: _Room | None = None

    @classmethod
    def _of(cls, room: _Room, length: int) -> KeysValues:
        """The first keys and values of a room."""
        cache = cls.__new__(cls)
        cache.key, cache.value = room.key[:, :, :length], room.value[:, :, :length]
        cache._room = room
        return cache

    @property
    def length(self) -> int:
        """How many keys each sequence has."""
        return self.key.shape[2]

    def __len__(self) -> int:
        """How many sequences there are."""
        return self.key.shape[0]

    def __getitem__(self, sequences: slice) -> KeysValues:
        """The caches of some sequences, which are not copied."""
        if not isinstance(sequences, slice):
            raise TypeError(
                f"`sequences` must be a slice, got {_checks.type_name(sequences)}; for a tensor of "
                "indices there is `index_select`, and the tensors are `key` and `value`."
            )
        if sequences.indices(len(self)) == (0, len(self), 1):
            return self
        return KeysValues(self.key[sequences], self.value[sequences])

    __iter__ = None

    @property
    def _tensors(self) -> tuple[Tensor, Tensor]:
        return self.key, self.value

    def __repr__(self) -> str:
        batch, heads, length, size = self.key.shape
        return f"KeysValues(batch={batch}, key_heads={heads}, length={length}, size={size})"

    def append(self, later: KeysValues) -> KeysValues:
        """These keys and values, followed by later ones, for decoding step by step.

        Raises:
            TypeError, ValueError: if `later` has other types, devices or shapes.
        """
        self._check(later)
        if not self.length and self._room is None:
            return later
        if is_followed((*self._tensors, *later._tensors)):
            return KeysValues(
                torch.cat([self.key, later.key], 2), torch.cat([self.value, later.value], 2)
            )
        with _LOCK:
            room = self._own_room(self.length + later.length)
            return KeysValues._of(room, room.write(self.length, later))

    def reserve(self, capacity: int) -> KeysValues:
        """The same with room for so many keys, so that `append` copies nothing until then."""
        _checks.check_size("capacity", capacity)
        if is_followed(self._tensors):
            return self
        with _LOCK:
            return KeysValues._of(self._own_room(max(capacity, self.length)), self.length)

    def index_select(self, dim: int, index: Tensor) -> KeysValues:
        """The caches of some sequences, in the order of the index, as for a tensor; `dim` is 0."""
        if dim != 0:
            raise ValueError(f"`dim` must be 0, the dimension of the sequences; got {dim}.")
        if self._room is None or is_followed(self._tensors):
            return KeysValues(self.key.index_select(0, index), self.value.index_select(0, index))
        return KeysValues._of(self._room.select(index, self.length), self.length)

    @staticmethod
    def join(caches: Iterable[KeysValues]) -> KeysValues:
        """The caches of all sequences, one after the other.

        Raises:
            TypeError: if they are no caches, or differ in the types of their numbers.
            ValueError: if there are none, or if they differ in heads, lengths or sizes.
        """
        caches = list(caches)
        if not caches:
            raise ValueError("`caches` must not be empty.")
        first = caches[0]
        for each in caches:
            if not isinstance(each, KeysValues):
                raise TypeError(f"`caches` must be of KeysValues, got {_checks.type_name(each)}.")
            for name in ("key", "value"):
                kinds = [getattr(x, name).dtype for x in (first, each)]
                if kinds[0] != kinds[1]:
                    raise TypeError(
                        f"`caches` must have one type of `{name}`, got {kinds[0]} and {kinds[1]}."
                    )
            if [x.shape[1:] for x in each._tensors] != [x.shape[1:] for x in first._tensors]:
                raise ValueError(
                    f"`caches` must have the same heads, lengths and sizes, got {first} and {each}."
                )
        return KeysValues(
            torch.cat([each.key for each in caches]), torch.cat([each.value for each in caches])
        )

    def all_pages(self, num_queries: int) -> Tensor:
        """How many pages are read where nothing is skipped, (batch, key_heads)."""
        count = num_pages(self.length) if num_queries else 0
        return torch.full(self.key.shape[:2], count, dtype=torch.int32, device=self.key.device)

    def pages(self) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values as whole pages of 64, of which the last may hold anything behind its
        keys, and the bounds of the keys, (2, batch, key_heads, pages, d)."""
        end = num_pages(self.length) * PAGE
        with _LOCK:
            room = self._room
            if room is None or room.capacity < end:
                room = _Room(self.key, self.value, self.length)
                if end > self.length:
                    room = room.copy(self.length, end)
                    if not any(x.requires_grad for x in self._tensors):
                        self.key, self.value = (x[:, :, : self.length] for x in room.tensors)
                self._room = room
            return room.key[:, :, :end], room.value[:, :, :end], room.page_bounds()

    def for_reading(self) -> tuple[Tensor, Tensor]:
        """Keys and values that a backward pass may use after more were written behind them."""
        if self._room is None or is_followed(self._tensors):
            return self._tensors
        return self.key.data, self.value.data

    def _own_room(self, capacity: int) -> _Room:
        """A room whose last keys are these, with place for so many."""
        room, length = self._room, self.length
        if room is not None and room.is_open(length, capacity):
            return room
        twice = 2 * length if room is not None else 0
        capacity = max(capacity, twice, _LEAST)
        capacity = capacity if capacity <= PAGE else num_pages(capacity) * PAGE
        return (room or _Room(self.key, self.value, length)).copy(length, capacity)

    def _check(self, later: KeysValues) -> None:
        """What `append` can take."""
        if not isinstance(later, KeysValues):
            raise TypeError(f"`later` must be a KeysValues, got {_checks.type_name(later)}.")
        for name in ("key", "value"):
            own, new = getattr(self, name), getattr(later, name)
            if new.dtype != own.dtype:
                raise TypeError(f"`later.{name}` must have type {own.dtype}, got {new.dtype}.")
            _checks.check_same_device(f"later.{name}", new, own.device, name)
            if new.shape[:2] != own.shape[:2] or new.shape[3] != own.shape[3]:
                batch, heads, _, size = own.shape
                raise ValueError(
                    f"`later.{name}` must have shape ({batch}, {heads}, S, {size}), got "
                    f"{tuple(new.shape)}."
                )


def is_followed(tensors: tuple[Tensor, ...]) -> bool:
    """Whether there is more to these tensors than their values: a gradient, a graph or a trace."""
    wants_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return (
        wants_gradient
        or torch.compiler.is_compiling()
        or is_transformed()
        or is_tracing()
        or any(type(x) not in _PLAIN for x in tensors)
    )
