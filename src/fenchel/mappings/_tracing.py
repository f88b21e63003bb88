"""Mappings in graphs: torch.compile, torch.export, torch.jit.trace, ONNX, and DTensor."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._checks import HALF
from ..ops import _sharding
from ..ops._operator import refuse_onnx
from ._protocols import HasGroups, HasKernels, HasParameter

if TYPE_CHECKING:
    from ._base import AbstractMapping


def to_solver_type(scores: Tensor, mapping: AbstractMapping) -> Tensor:
    """Scores in a type that the mapping's solver takes."""
    if isinstance(mapping, HasKernels) or scores.dtype not in HALF:
        return scores
    return scores.float()


def check_exportable(mapping: AbstractMapping) -> bool:
    """Whether the ONNX exporter is at work; raises if it cannot hold the mapping."""
    exporting = torch.onnx.is_in_onnx_export()
    if exporting and isinstance(mapping, HasGroups):
        refuse_onnx(mapping.name)
    return exporting


def varying(scores: Tensor, parameter: Tensor | None, mapping: AbstractMapping) -> Tensor | None:
    """The parameter of a mapping under torch.compile: a number that changes from call to call
    becomes a tensor, or else every value of it would be compiled anew."""
    from torch.fx.experimental.symbolic_shapes import has_static_value  # half a second

    if parameter is None and isinstance(mapping, HasParameter):
        value = getattr(mapping, mapping.parameter)
        if not has_static_value(value):
            ones = scores.new_ones((*scores.shape[:-1], 1), dtype=torch.float64)
            return ones * value  # a product is what the compiler turns into tensors
    return parameter


def _change(value: Tensor) -> Tensor:
    """Zero, with the derivative of the value."""
    return torch.where(value.isfinite(), value - value.detach(), 0.0)


def traced_solution(scores: Tensor, parameter: Tensor | None, mapping: AbstractMapping) -> Tensor:
    """ŷ(scores) in operations that torch.jit.trace records, with the first derivative.

    They are the same whether or not a gradient is asked for, as the tracer checks.
    """
    fixed = mapping.at(None if parameter is None else parameter.detach())
    y = fixed.rounded(scores.detach())
    if check_exportable(mapping):
        return y
    wide = torch.promote_types(y.dtype, torch.float32)
    result = y + fixed.jvp(y.to(wide), _change(scores).to(wide))
    if parameter is not None and isinstance(fixed, HasParameter):
        result = result + fixed.parameter_jvp(y) * _change(parameter)
    return result.to(y.dtype)


def traced_value(
    scores: Tensor, parameter: Tensor | None, target: Tensor | None, mapping: AbstractMapping
) -> Tensor:
    """max_Ω(scores), less the target's score if given, in the same way."""
    fixed = mapping.at(None if parameter is None else parameter.detach())
    value, y = fixed.solve_max(to_solver_type(scores.detach(), mapping), target)
    if check_exportable(mapping):
        return value
    change = _change(scores)
    value = value + (y * change).sum(-1)
    if target is not None:
        value = value - change.gather(-1, target).squeeze(-1)
    if parameter is not None and isinstance(fixed, HasParameter):
        value = value - fixed.parameter_omega(y) * _change(parameter).squeeze(-1)
    return value


def register_sharding(scores: Tensor) -> None:
    """Lets DTensor know the operators before the first of its tensors meets them."""
    if type(scores) is not Tensor and "torch.distributed.tensor" in sys.modules:
        _sharding.register()
