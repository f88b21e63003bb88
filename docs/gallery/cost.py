"""How cost grows with size.

Exact sparse mappings are often said to need a sort. These need one pass and a few candidates, so
time grows with the length of a row as softmax's does. Measured where this page was built, on one
core: medians of calls that take turns, so that what else runs there slows all of them alike.
"""

import time
from collections.abc import Callable
from statistics import median

import torch
from matplotlib.figure import Figure

import fenchel

ROWS = 32
MAPPINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "torch.softmax": lambda scores: scores.softmax(-1),
    "entmax, α = 1.5": fenchel.entmax,
    "sparsemax": fenchel.sparsemax,
    "fusedmax": fenchel.fusedmax,
    "torch.sort": lambda scores: scores.sort(-1).values,
}


def seconds(scores: torch.Tensor, rounds: int = 11) -> dict[str, float]:
    """The median time of each mapping; in a round each is called once."""
    times: dict[str, list[float]] = {name: [] for name in MAPPINGS}
    for _ in range(rounds):
        for name, function in MAPPINGS.items():
            begin = time.perf_counter()
            function(scores)
            times[name].append(time.perf_counter() - begin)
    return {name: median(each) for name, each in times.items()}


def picture() -> Figure:
    torch.manual_seed(0)
    lengths = [2**power for power in range(8, 17, 2)]
    found = [seconds(torch.randn(ROWS, length)) for length in lengths]
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for index, name in enumerate(MAPPINGS):
        line = [1e6 * times[name] / ROWS for times in found]
        style = ":" if name == "torch.sort" else "-"
        axes.loglog(lengths, line, marker="o", color=f"C{index}", linestyle=style, label=name)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="entries of a row", ylabel="microseconds per row")
    axes.legend()
    return figure


if __name__ == "__main__":
    picture().savefig("cost.svg")
