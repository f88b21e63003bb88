"""How cost grows with size.

Exact sparse mappings are often said to need a sort. These need one pass and a few candidates, so
time grows with the length of a row as softmax's does. Measured where this page was built.
"""

import time
from collections.abc import Callable

import torch
from matplotlib.figure import Figure

import fenchel

MAPPINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "torch.softmax": lambda scores: scores.softmax(-1),
    "entmax, α = 1.5": fenchel.entmax,
    "sparsemax": fenchel.sparsemax,
    "fusedmax": fenchel.fusedmax,
    "torch.sort": lambda scores: scores.sort(-1).values,
}


def seconds(function: Callable[[torch.Tensor], torch.Tensor], scores: torch.Tensor) -> float:
    """The fastest of some calls."""
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        function(scores)
        times.append(time.perf_counter() - begin)
    return min(times)


def picture() -> Figure:
    torch.manual_seed(0)
    lengths = [2**power for power in range(8, 18, 3)]
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for index, (name, function) in enumerate(MAPPINGS.items()):
        rows = [torch.randn(8, length) for length in lengths]
        line = [1e6 * seconds(function, scores) / 8 for scores in rows]
        style = ":" if name == "torch.sort" else "-"
        axes.loglog(lengths, line, marker="o", color=f"C{index}", linestyle=style, label=name)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="entries of a row", ylabel="microseconds per row")
    axes.legend()
    return figure


if __name__ == "__main__":
    picture().savefig("cost.svg")
