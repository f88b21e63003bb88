"""Sparse attention on a GPU against softmax attention and AdaSplash: time, memory, first call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic, perf_counter

import torch
from torch import Tensor

from .. import _gpu, processes
from ..correctness import relative_error
from ..results import Row
from . import gpu_vectors
from .gpu_attention_problems import (
    ADASPLASH_2,
    BOTH,
    CUDNN,
    FENCHEL,
    FORWARD,
    OTHER_ALPHAS,
    PROBLEMS,
    Entry,
    Problem,
)
from .gpu_vectors import Vectors
from .options import Options

ROUNDS, LONG_ROUNDS = 11, 5
"""Rounds, and those from LONG on."""
LONG = 65536
SECONDS = 300
"""After which other packages are skipped."""
COMPILE_SECONDS = 60
"""Spent at most on compiling all kernels beforehand, in several processes."""
WAIT_CYCLES = 10_000_000
TOLERANCE = 0.02
"""On fenchel's relative error in bfloat16, of the output and of each gradient."""
MAX_FIRST_SECONDS = 10.0
MAX_ALPHA_RATIO = 1.3
"""On the time of another α, as a multiple of that of 1.5."""
FIRST_CALL = PROBLEMS[0]


def _run(entry: Entry, problem: Problem, pass_: str) -> Callable[..., tuple[Tensor, ...]]:
    """The output, and the gradients in queries, keys and values if they are asked for."""

    def run(query: Tensor, key: Tensor, value: Tensor, cotangent: Tensor) -> tuple[Tensor, ...]:
        output = entry.function(query, key, value, problem.causal)
        if pass_ == FORWARD:
            return (output,)
        return output, *torch.autograd.grad(output, (query, key, value), cotangent)

    return run


def _contender(entry: Entry, problem: Problem, pass_: str, known: dict) -> _gpu.Contender:
    """`known` keeps the exact answers for the first inputs of a race."""
    run = _run(entry, problem, pass_)
    heads = [(0, 0), (-1, -1)]
    tolerance = TOLERANCE if entry.library == "fenchel" else _gpu.BASELINES_TOLERANCE

    def check(*inputs: Tensor) -> float:
        """The largest error of the output and the gradients, on a few heads and queries."""
        if "places" not in known:
            known["places"] = gpu_vectors.checked(problem.length, inputs[0].device)
        places, errors = known["places"], []
        vectors = gpu_vectors.at(Vectors(*inputs), places)
        found = run(*vectors)
        for head in heads:
            alpha = entry.alpha_of(head[1])
            if (alpha, head) not in known:
                of_head = Vectors(*(x[head] for x in vectors))
                known[alpha, head] = gpu_vectors.exact(alpha, problem.causal, of_head, places)
            for what, actual, expected in zip(
                ("output", "gradient of queries", "gradient of keys", "gradient of values"),
                found,
                known[alpha, head],
                strict=False,
            ):
                of_head = actual[head].detach()
                of_head = of_head[places] if what in ("output", "gradient of queries") else of_head
                errors.append(relative_error(what, of_head, expected, tolerance))
        return max(errors)

    return _gpu.Contender(entry.library, entry.mapping, run, check, entry.slow)


def _met(result: _gpu.Result, pairs: list[tuple[float | None, float | None]]) -> bool | None:
    """Whether what is measured is within its targets; None where nothing can be compared."""
    if result.timing is None:
        return False if any(target is not None for _, target in pairs) else None
    known = [measured <= target for measured, target in pairs if target and measured is not None]
    return all(known) if known else None


def _over(result: _gpu.Result, other: _gpu.Result | None) -> float | None:
    if other is None or other.timing is None or result.timing is None:
        return None
    return result.seconds / other.seconds


def _race(problem: Problem, pass_: str, rounds: int, deadline: float | None) -> Iterator[Row]:
    """One row per contender; other packages only where a deadline is given."""
    known: dict = {}
    entries = problem.entries()
    if deadline is None:
        entries = tuple(entry for entry in entries if entry.library != "adasplash")
    contenders = [_contender(entry, problem, pass_, known) for entry in entries]
    for place, entry in enumerate(entries):
        if entry.is_optional and deadline is not None:
            contenders[place] = _gpu.in_time(deadline, contenders[place])
    found = _gpu.race(contenders, partial(problem.fresh, pass_), rounds, wait_cycles=WAIT_CYCLES)
    results = dict(zip(entries, found, strict=True))
    tensor = 2 * torch.Size(problem.shape).numel() / _gpu.MIB
    held = tensor if pass_ == FORWARD else 4 * tensor
    for contender, (entry, result) in zip(contenders, results.items(), strict=True):
        is_ours = entry is FENCHEL and problem.others is not OTHER_ALPHAS
        is_alpha = entry in OTHER_ALPHAS and entry.library == "fenchel" and pass_ == BOTH
        target = problem.targets.get(pass_) if is_ours else None
        rival_target = 1.0 if is_ours and problem.beats_adasplash and pass_ == BOTH else None
        alpha_target = MAX_ALPHA_RATIO if is_alpha else None
        limit = problem.max_workspace_mib if is_ours and pass_ == BOTH else None
        workspace = None if result.peak is None else result.peak - held
        columns = _gpu.columns(contender, result, results[CUDNN].seconds)
        to_rival = _over(result, results.get(ADASPLASH_2))
        to_ours = _over(result, results[FENCHEL]) if problem.others is OTHER_ALPHAS else None
        yield {
            "pass": pass_,
            "shape": "x".join(map(str, problem.shape)),
            "keys": problem.keys,
            "queries": problem.queries,
            **columns,
            "target": target,
            "to adasplash 2": to_rival,
            "adasplash target": rival_target,
            "to α = 1.5": to_ours,
            "α target": alpha_target,
            "workspace MiB": workspace,
            "workspace target MiB": limit,
            "met": _met(
                result,
                [
                    (columns["ratio"], target),
                    (to_rival, rival_target),
                    (to_ours, alpha_target),
                    (workspace, limit),
                ],
            ),
            "error": result.error,
            "note": result.note,
        }


def _first_call() -> Row:
    """A call of fenchel in a new process, when nothing is compiled."""
    found = processes.measure(_command(FIRST_CALL, FENCHEL), empty_cache=True)
    seconds = found if isinstance(found, float) else None
    return {
        "pass": "first call",
        "shape": "x".join(map(str, FIRST_CALL.shape)),
        "keys": FIRST_CALL.keys,
        "queries": FIRST_CALL.queries,
        "library": FENCHEL.library,
        "mapping": FENCHEL.mapping,
        "µs": seconds and seconds * 1e6,
        "first call s": seconds,
        "first call target s": MAX_FIRST_SECONDS,
        "met": seconds is not None and seconds <= MAX_FIRST_SECONDS,
        "note": None if seconds else found,
    }


def _command(problem: Problem, entry: Entry) -> list[str]:
    """Runs `main` in a new process."""
    places = PROBLEMS.index(problem), problem.entries().index(entry)
    return [sys.executable, "-m", __name__, *map(str, places)]


def _compile() -> None:
    """Fills Triton's cache by calls in several processes, one for each shape and entry."""
    commands = {
        (problem.shape, problem.causal, entry): _command(problem, entry)
        for problem in PROBLEMS
        for entry in problem.entries()
        if entry.compiles
    }
    processes.run_all(list(commands.values()), COMPILE_SECONDS)


def main(arguments: list[str]) -> None:
    """Prints the seconds of the first call of an entry; both by their places.

    Gradients are those of a number, as in training: `torch.autograd.grad` with a cotangent imports
    sympy at its first call, for up to 3 seconds.
    """
    problem = PROBLEMS[int(arguments[0])]
    entry = problem.entries()[int(arguments[1])]
    query, key, value, cotangent = problem.fresh(BOTH)
    torch.cuda.synchronize()
    start = perf_counter()
    output = entry.function(query, key, value, problem.causal)
    (output * cotangent).sum().backward()
    torch.cuda.synchronize()
    print(perf_counter() - start)
    _run(entry, problem, FORWARD)(*problem.fresh(FORWARD))
    torch.cuda.synchronize()


def rows(options: Options) -> Iterator[Row]:
    """The first call, then one row per contender, problem and pass."""
    deadline = None if options.quick else monotonic() + SECONDS
    if not options.quick:
        yield _first_call()
        _compile()
    for problem in PROBLEMS[:1] if options.quick else PROBLEMS:
        rounds = LONG_ROUNDS if problem.length >= LONG or options.quick else ROUNDS
        for pass_ in (BOTH, FORWARD):
            yield from _race(problem, pass_, rounds, deadline)


if __name__ == "__main__":
    main(sys.argv[1:])
