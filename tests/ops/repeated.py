"""Compares attention to a cache by a program with the same call without programs, whose launches
are compared with Triton's own.

    python tests/ops/repeated.py CASE

prints how many launches were compared: by new kernels, by known ones, and by programs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from stand_in import Allocations, Comparison, Noted, main
from test_triton_cached_attention import Case

from fenchel.ops._triton import program
from fenchel.ops._triton.program import Programs
from fenchel.ops._triton.recorder import Recorder
from fenchel.ops.cached_attention import triton as cached

SIZES = {"s": 2100, "d": 16, "e": 16, "dtype": torch.bfloat16}


class NoPrograms(Programs):
    def keep(self, *_: Any) -> None:
        pass


def num_programs() -> int:
    return len(cached._PROGRAMS._all)


def noted(comparison: Comparison, given: list[Any]) -> list[Noted]:
    """The launches of a call, with what it allocated by numbers and offsets."""
    with Allocations() as allocations, comparison.gpu.notes() as made:
        results = cached.cached_attention(*given)
    allocated = [x.data_ptr() for x in allocations.tensors]
    assert [x.data_ptr() for x in results] == allocated[:2], (allocated, results)
    return [allocations.placed(x) for x in made]


def without_programs(comparison: Comparison, given: list[Any]) -> list[Noted]:
    kept, cached._PROGRAMS = cached._PROGRAMS, NoPrograms()
    try:
        return noted(comparison, given)
    finally:
        cached._PROGRAMS = kept


def compare(comparison: Comparison, given: list[Any]) -> None:
    """A call that a program does."""
    gpu = comparison.gpu
    before = comparison.num_new, comparison.num_known, gpu.num_asked, num_programs()
    made = noted(comparison, given)
    assert (comparison.num_new, comparison.num_known, gpu.num_asked, num_programs()) == before
    assert len(made) == (4 if given[1].shape[2] < 32 * 64 else 6)
    assert made == without_programs(comparison, given)
    comparison.count_repeated(made)


def check(
    comparison: Comparison, change: Callable[[Case], Any] | None = None, **other: Any
) -> None:
    """The first call makes a program, which two others repeat."""
    before = num_programs()
    for call in range(3):
        case = Case(**(SIZES | other))
        if change is not None:
            change(case)
        given = case.arguments()
        if call:
            compare(comparison, given)
        else:
            cached.cached_attention(*given)
            assert num_programs() == before + 1


def moved(x: torch.Tensor, offset: int = 1) -> torch.Tensor:
    """The same so many entries behind the start of some memory."""
    memory = x.new_empty(x.numel() + offset)
    return memory[offset:].view(x.shape).copy_(x)


def move(case: Case, *names: str) -> None:
    for name in names:
        setattr(case, name, moved(getattr(case, name)))


def tensors(comparison: Comparison) -> None:
    """Other tensors, numbers and places in memory."""
    check(comparison)
    check(comparison, scale=0.3)
    check(comparison, gamma=2.0)
    check(comparison, s=200)
    check(comparison, lambda x: move(x, "key"))
    check(comparison, lambda x: move(x, "starts", "stops", "diagonal"))


def sizes(comparison: Comparison) -> None:
    check(comparison, b=2, h=4, g=2, s=2112)
    check(comparison, b=1, h=1, s=2048)
    check(comparison, t=3, s=4200, softcap=2.0)
    check(comparison, alpha=2.0, dtype=torch.float32)
    check(comparison, s=1, h=1)


def strides(comparison: Comparison) -> None:
    def transpose(case: Case) -> None:
        case.key = case.key.transpose(1, 2).contiguous().transpose(1, 2)

    def expand(case: Case) -> None:
        case.key = case.key[:, :1, :1].expand_as(case.key)
        case.value = case.value[:1, :1].expand_as(case.value)

    def rows(case: Case) -> None:
        case.starts, case.stops, case.diagonal = (
            x.expand(2, 1).contiguous() for x in (case.starts, case.stops, case.diagonal)
        )

    for change in (transpose, expand, rows):
        check(comparison, change, b=2, h=4, g=2)
    for name in ("query", "value"):
        check(comparison, lambda x, name=name: move(x, name))


def no_programs(comparison: Comparison) -> None:
    """What a program cannot repeat, and calls that look alike after it."""

    def never(change: Callable[[Case], Any], **other: Any) -> None:
        before = num_programs()
        for _ in range(3):
            case = Case(**(SIZES | other))
            change(case)
            cached.cached_attention(*case.arguments())
            assert num_programs() == before

    def one_place(case: Case) -> None:
        case.value = case.key

    never(one_place)
    never(lambda x: setattr(x, "alpha", x.rows(1.5, 2.0)))
    never(lambda x: setattr(x, "query", torch.randn(1, 2, 1, 32, dtype=x.query.dtype)[..., ::2]))
    before = num_programs()
    with Recorder():
        cached.cached_attention(*Case(**SIZES).arguments())
    assert num_programs() == before
    check(comparison)
    case = Case(**SIZES)
    one_place(case)
    compare(comparison, case.arguments())
    # Four sequences, of which three fit into the memory of a part.
    given = Case(**(SIZES | {"b": 4, "h": 64, "g": 64, "s": 1})).arguments()
    given[1:3] = (x.expand(-1, -1, 5200 * 64, -1) for x in given[1:3])
    given[3] = given[3].expand(-1, -1, -1, 5200, -1)
    before = num_programs()
    with comparison.gpu.notes() as made:
        cached.cached_attention(*given)
    assert (len(made), num_programs()) == (12, before)


def devices(comparison: Comparison) -> None:
    """A device and a stream of their own, and the CPU."""
    gpu = comparison.gpu
    check(comparison)
    gpu.streams = 0x2000
    compare(comparison, Case(**SIZES).arguments())
    gpu.device = 1
    check(comparison)
    gpu.device = 0
    compare(comparison, Case(**SIZES).arguments())
    torch.use_deterministic_algorithms(True)
    compare(comparison, Case(**SIZES).arguments())
    torch.use_deterministic_algorithms(False)
    for places in (gpu.pinned, gpu.on_host):
        for i in range(7):
            given = Case(**SIZES).arguments()
            places.add(given[i].data_ptr())
            if places is gpu.pinned:
                cached.cached_attention(*given)
                continue
            with comparison.refused():
                cached.cached_attention(*given)
        places.clear()
    compare(comparison, Case(**SIZES).arguments())


def threads(comparison: Comparison) -> None:
    """Programs of two sizes by several threads at once, while the oldest are forgotten."""
    program._MAX_PROGRAMS = 2
    check(comparison)
    check(comparison, s=200)
    errors: list[BaseException] = []
    repeated: list[list[Noted]] = []
    start = threading.Barrier(4)

    cases = [[Case(**(SIZES | {"s": s})).arguments() for s in (2100, 200)] for _ in range(4)]
    expected = [[without_programs(comparison, given) for given in pair] for pair in cases]

    def work(worker: int) -> None:
        try:
            start.wait()
            for call in range(200):
                i = call % 2
                if worker == 3 and call % 50 == 0:
                    cached.cached_attention(*Case(**(SIZES | {"s": 2100 - call})).arguments())
                made = noted(comparison, cases[worker][i])
                assert made == expected[worker][i]
                assert num_programs() <= 2
                repeated.append(made)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    if errors:
        raise errors[0]
    assert num_programs() == 2
    for made in repeated:
        comparison.count_repeated(made)


CASES = {one.__name__: one for one in (tensors, sizes, strides, no_programs, devices, threads)}

if __name__ == "__main__":
    main(CASES)
