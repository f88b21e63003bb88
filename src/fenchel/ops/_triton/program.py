"""Launches that are repeated with other tensors: all that is the same is worked out once."""

from collections.abc import Sequence
from operator import itemgetter
from threading import Lock

import torch
from torch import Tensor

from .launcher import Launched

_MAX_PROGRAMS = 256
"""How many programs are kept of an operation."""


class Program:
    """Launches whose tensors are those of a call, at any place in memory, or parts of a buffer.

    Args:
        launched: what an earlier call launched.
        addresses: of that call's tensors.
        buffer: the memory that the call worked in.
    Raises:
        ValueError: if some tensor is none of these, or if no kernel was compiled.
    """

    def __init__(
        self, launched: Sequence[Launched], addresses: Sequence[int], buffer: Tensor
    ) -> None:
        places = {address: place for place, address in enumerate(addresses)}
        if len(places) < len(addresses):
            raise ValueError("two tensors are in one place")
        first, size = buffer.data_ptr(), buffer.nbytes
        constants: list[int | float | None] = []
        offsets: list[int] = []
        found = []
        for launch in launched:
            if launch.known is None:
                raise ValueError("a kernel is not compiled")
            row: list[tuple[bool, int]] = []
            for word, argument in zip(launch.words, launch.arguments, strict=True):
                if not isinstance(argument, Tensor):
                    row.append((True, len(constants)))
                    constants.append(word)
                elif word in places:
                    row.append((False, places[word]))
                elif first <= word < first + size:
                    row.append((False, len(addresses) + len(offsets)))
                    offsets.append(word - first)
                else:
                    raise ValueError("a tensor is from elsewhere")
            found.append((launch, row))
        self.buffer_size = buffer.numel()
        self._constants, self._offsets = constants, offsets
        start = len(self._constants)
        self._launches = [
            (
                *launch.known[:3],
                (*launch.grid, 1, 1)[:3],
                itemgetter(*(place if fixed else start + place for fixed, place in row)),
                launch.values,
            )
            for launch, row in found
        ]
        self._kept = [launch.known for launch in launched]

    def __call__(self, device: int, addresses: Sequence[int], buffer: Tensor) -> None:
        """Launches all on that device, which must be the current one."""
        first = buffer.data_ptr()
        table = [*self._constants, *addresses, *(first + x for x in self._offsets)]
        stream = torch._C._cuda_getCurrentRawStream(device)
        for run, function, metadata, (x, y, z), words, values in self._launches:
            run(x, y, z, stream, function, metadata, None, None, None, *words(table), *values)


class Programs:
    """Programs by what tells calls apart; the oldest are forgotten."""

    def __init__(self) -> None:
        self._all: dict[tuple, Program] = {}
        self._lock = Lock()

    def get(self, key: tuple) -> Program | None:
        return self._all.get(key)

    def keep(
        self, key: tuple, launched: Sequence[Launched], addresses: Sequence[int], buffer: Tensor
    ) -> None:
        """Keeps a call's launches as a program, if they can be one."""
        try:
            program = Program(launched, addresses, buffer)
        except ValueError:
            return
        with self._lock:
            while len(self._all) >= _MAX_PROGRAMS:
                del self._all[next(iter(self._all))]
            self._all[key] = program


def signature(tensors: Sequence[Tensor]) -> tuple[tuple, list[int]]:
    """What a program depends on of tensors, and their addresses."""
    addresses = [x.data_ptr() for x in tensors]
    key = tuple(
        (x.shape, x.stride(), x.dtype, x.get_device(), address & 15 == 0)
        for x, address in zip(tensors, addresses, strict=True)
    )
    return key, addresses
