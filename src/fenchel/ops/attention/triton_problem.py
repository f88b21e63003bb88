"""The arguments of fused attention as the kernels take them."""

import torch
import triton
from torch import Tensor

from .._triton.launcher import Launcher, launcher
from .triton_scores import ADDED, DROPOUT, MASKED, PER_ROW, SINKS, SLOPES, SOFTCAP
from .triton_threshold import ANY, FAST


def _kind(alpha: float | Tensor) -> int:
    """How to raise to the power 1/(α − 1)."""
    if isinstance(alpha, Tensor):
        return ANY.value
    power = 1 / (alpha - 1)
    if 0.5 < power < 4.5 and abs(power - round(power)) < 1e-12:
        return round(power)
    return FAST.value if 1 < power < 4.5 else ANY.value


def power_of_two(n: int, least: int = 16) -> int:
    """The smallest one from n on; Triton's own function takes the host ten times as long."""
    return max(least, 1 << (n - 1).bit_length())


def _tile_widths(width: int, value_width: int) -> dict[str, int]:
    """The entries of keys and values in a tile. Both have the same below 64: tiles of two narrow
    widths in one place are more than the ptxas of CUDA 12.8 gets right (it adds to a register of
    their addresses before it sets it)."""
    keys, values = power_of_two(width), power_of_two(value_width)
    return {"BD": max(keys, min(values, 64)), "BE": max(values, min(keys, 64))}


def contiguous(x: Tensor) -> Tensor:
    """The tensor with entries of the last dimension side by side."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


class Problem:
    """The arguments of the operator as the kernels take them."""

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, starts: Tensor, stops: Tensor,
        diagonal: Tensor, alpha: float | Tensor, gamma: float | Tensor, scale: float | Tensor,
        slopes: Tensor | None, sinks: Tensor | None, mask: Tensor | None, seed: Tensor | None,
        softcap: float, dropout: float,
    ) -> None:  # fmt: skip
        self.query, self.key, self.value = map(contiguous, (query, key, value))
        self.batch, self.heads, self.queries, self.width = query.shape
        self.groups, self.keys, self.value_width = value.shape[1:]
        shape, parameters = query.shape[:-1], (alpha, gamma, scale)
        per_row = any(isinstance(x, Tensor) for x in parameters)
        rows = None
        if per_row or slopes is not None or sinks is not None:
            given = (*parameters, *(0.0 if x is None else x for x in (slopes, sinks)))
            rows = torch.stack([
                (x if isinstance(x, Tensor) else starts.new_full((), x, dtype=torch.float32))
                .expand(shape)
                for x in given
            ])  # fmt: skip
        dropout = dropout if seed is not None else 0.0
        added = mask is not None and mask.dtype != torch.bool
        self.constants = {
            "KIND": _kind(alpha),
            "FEATURES": PER_ROW.value * per_row
            + SOFTCAP.value * (softcap > 0)
            + SLOPES.value * (slopes is not None)
            + SINKS.value * (sinks is not None)
            + MASKED.value * (mask is not None and not added)
            + ADDED.value * added
            + DROPOUT.value * (dropout > 0),
            "D": self.width,
            "E": self.value_width,
            **_tile_widths(self.width, self.value_width),
        }
        self.pointers = starts, stops, diagonal, rows, mask, seed
        numbers = [2.0 if isinstance(x, Tensor) else float(x) for x in parameters]
        self.numbers = (*numbers, float(softcap), float(dropout))
        strides = [x.stride()[:3] for x in (self.query, self.key, self.value)]
        batches = [0 if x.shape[0] == 1 else x.stride(0) for x in (starts, stops, diagonal)]
        self.batch_strides = batches[:2]
        self.sizes = (
            self.heads, self.groups, self.queries, self.keys, shape.numel(),
            *(stride for three in strides for stride in three), *batches,
            *(mask.stride() if mask is not None else (0, 0, 0, 0)),
        )  # fmt: skip

    @property
    def widest(self) -> int:
        """The entries of a head, of the keys or of the values."""
        return max(self.width, self.value_width)

    @property
    def all_heads(self) -> int:
        return self.batch * self.heads

    @property
    def vectors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    @property
    def half_kind(self) -> int:
        """The KIND where α is between NARROW and 2: half precision does not show what the short
        logarithm rounds."""
        kind, is_half = self.constants["KIND"], self.query.dtype != torch.float32
        return FAST.value if kind == ANY.value and is_half else kind

    def launcher(self, kernel: triton.JITFunction, **constants: float) -> Launcher:
        """The launcher of a kernel with these constants, and those of the problem."""
        return launcher(kernel, **(self.constants | constants))
