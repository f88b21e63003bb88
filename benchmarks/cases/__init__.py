"""The cases by name: each a title, and a module with a function from options to rows of results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

from ..results import Row
from .options import Options


@dataclass(frozen=True)
class Case:
    """A benchmark: what it measures, where, and how its rows are printed.

    Its module is imported when it runs: a case needs only the packages that it compares with.
    """

    module: str
    title: str
    gpu: bool = False
    pivot_by: tuple[str, ...] = ()
    """The columns that name a line, where the contenders are printed side by side."""

    def rows(self, options: Options) -> Iterator[Row]:
        """The rows, one at a time."""
        yield from import_module(f".{self.module}", __package__).rows(options)


CASES = {
    case.module: case
    for case in (
        Case("mappings", "Mappings, float32, as multiples of torch.softmax on the same scores."),
        Case(
            "calls",
            "The host's time per call on small inputs, float32, beside torch; one thread of a CPU.",
        ),
        Case("losses", "Losses, float32, forward and backward, as multiples of F.cross_entropy."),
        Case(
            "accuracy",
            "Largest errors in float32 against float64: of any entry, and of |sum − 1|.",
        ),
        Case(
            "seq2seq",
            "Training steps of an LSTM model, target words per second, as multiples of softmax's.",
        ),
        Case(
            "sparsemap",
            "SparseMAP to a gap of 1e-6, and marginals beside torch-struct's: instances a second, "
            "float32, batches of 64 with normal scores.",
        ),
        Case(
            "factor_graphs",
            "SparseMAP of factor graphs beside lp-sparsemap and a general solver, one problem at "
            "a time, float64, milliseconds of one thread of the processor.",
        ),
        Case(
            "latent",
            "Training steps with a latent variable, float32, batches of 64: exact expectations "
            "beside one sample per pair and all categories, and the solver's share for bits.",
        ),
        Case(
            "gpu_calls",
            "The host's time per call on small inputs on a GPU, float32, beside torch.",
            gpu=True,
        ),
        Case(
            "gpu_mappings",
            "Mappings on a GPU, as multiples of torch.softmax on the same scores.",
            gpu=True,
            pivot_by=("clock", "pass", "dtype", "shape"),
        ),
        Case(
            "gpu_losses",
            "Losses on a GPU, bfloat16, forward and backward, as multiples of F.cross_entropy.",
            gpu=True,
        ),
        Case(
            "gpu_linear_loss",
            "Losses of a linear layer on a GPU, bfloat16, forward and backward, as multiples of "
            "F.cross_entropy(hidden @ weight.T, target).",
            gpu=True,
        ),
        Case(
            "gpu_attention",
            "Attention with entmax on a GPU, bfloat16, as multiples of cuDNN's softmax attention.",
            gpu=True,
            pivot_by=("pass", "shape", "keys", "queries"),
        ),
        Case(
            "gpu_decoding",
            "Attention of one query to a long cache on a GPU, bfloat16, 32 heads on 8 of size 128, "
            "as multiples of cuDNN's softmax attention.",
            gpu=True,
            pivot_by=("clock", "sequences", "keys", "pattern"),
        ),
        Case(
            "gpu_seq2seq",
            "Training steps of an LSTM model on a GPU, target words per second, as multiples of "
            "softmax's.",
            gpu=True,
        ),
    )
}
