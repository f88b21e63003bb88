"""lp-sparsemap in a Python of its own, which has it: `python lp_sparsemap.py` answers on its pipes.

Its wheels are for Python 3.8 and 3.9. This file runs there as a script, with no package but NumPy,
and is imported here for `Process`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from time import process_time

VARIABLE = "LP_SPARSEMAP_PYTHON"
"""The environment variable that names the Python."""


class Process:
    """The solver's process; None answers where there is none."""

    def __init__(self):
        python, self._process = os.environ.get(VARIABLE), None
        if python:
            command = [python, str(Path(__file__).resolve())]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def solve(self, problem):
        """The answer of `_solve` to a problem, as `_graph` takes it."""
        if self._process is None:
            return None
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        print(json.dumps(problem), file=to, flush=True)
        return json.loads(back.readline())

    def close(self):
        if self._process is not None:
            self._process.communicate(timeout=60)


def _graph(problem):
    """A tree with at most `limit` children a word, or two sequences with coupled tags."""
    import numpy as np
    from lpsmap import (  # type: ignore[import-not-found]
        Budget,
        DepTree,
        FactorGraph,
        Pair,
        Sequence,
    )

    graph, scores = FactorGraph(), np.array(problem["scores"])
    if "limit" in problem:
        arcs = graph.variable_from(np.ascontiguousarray(scores.T))  # entry (modifier, head)
        graph.add(DepTree(arcs, packed=True))
        for head in range(len(scores)):
            others = [modifier for modifier in range(len(scores)) if modifier != head]
            graph.add(Budget(arcs[others, head], problem["limit"]))
        return graph
    first, second = (graph.variable_from(np.ascontiguousarray(part)) for part in scores)
    for side, tags in enumerate((first, second)):
        graph.add(Sequence(tags, np.array(problem["transitions"][side])))
    graph.add(Pair(first, second, np.array(problem["coupling"])))
    return graph


def _solve(problem):
    """Marginals and the seconds of both passes, with the limits that the package has by default.

    The graph is built outside the clock.
    """
    import numpy as np
    from lpsmap.ad3qp.factor_graph import PFactorGraph  # type: ignore[import-not-found]

    graph, solver = _graph(problem), PFactorGraph()
    offset, variables, scores = graph._make_variables(solver)
    extra = graph._make_factors(solver, offset, variables)
    solver.set_verbosity(0)
    solver.set_eta_ad3(0.1)
    solver.adapt_eta_ad3(True)
    solver.set_max_iterations_ad3(1000)
    solver.set_residual_threshold_ad3(1e-6)
    solver.set_inner_iter(10)
    start = process_time()
    solver.set_log_potentials(np.ascontiguousarray(scores))
    if extra:
        solver.set_all_additionals([np.atleast_1d(x) for x in extra])
    _, u, _, status = solver.solve_qp_ad3()
    middle = process_time()
    solver.jacobian_vec(np.array(problem["cotangent"]), np.empty(len(scores)))
    end = process_time()
    u = np.array(u).reshape(np.array(problem["scores"]).shape)
    u = u.T if "limit" in problem else u
    seconds = {"forward": middle - start, "backward": end - middle}
    return {**seconds, "u": u.tolist(), "status": status}


def _serve():
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        print(json.dumps(_solve(json.loads(line))), flush=True)


if __name__ == "__main__":
    _serve()
