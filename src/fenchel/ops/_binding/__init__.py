"""The binding: eager calls of small inputs in C++, with their autograd; optional.

It is compiled against one PyTorch and one Python, and loaded with these alone. Without it the same
kernels are called through ctypes or Triton, and autograd functions are written in Python. The
binding holds no kernel: it gets the addresses of the library's functions, and for a GPU it repeats
the launches that `replay` has noted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from .. import _native, _triton

BUILT_FOR = ("2.11", "2.13")
"""The versions of PyTorch that the sources are written for, as `binding.cmake` says."""
INTERFACE = 2
"""Of the functions that the binding has; `module.cpp` states the same, and both go up together."""
FILE = Path(__file__).parent / f"torch-{torch.__version__}{EXTENSION_SUFFIXES[0]}"
"""The binding for the PyTorch and the Python that run; it may not exist."""
DEVICE = "cuda"
"""The kind of device on which launches are repeated."""


class Kernels(NamedTuple):
    """What a mapping is solved with: y, its Jacobian times a vector, and times its derivative in
    the parameter.

    On a GPU these are functions of (scores, parameter, option) and of (y, v, parameter, option),
    with the parameter a number or one per row, (..., 1).
    """

    solve: _native.NativeFunction
    jvp: _native.NativeFunction
    parameter_vjp: _native.NativeFunction | None = None
    gpu_solve: Callable[..., Tensor] | None = None
    gpu_jvp: Callable[..., Tensor] | None = None
    gpu_parameter_vjp: Callable[..., Tensor] | None = None


class LossKernels(NamedTuple):
    """The losses of class indices with the states of their rows, and their gradients from these.

    On a GPU these are functions of (scores, target, alpha, ignore_index) and of (scores, state,
    target, weight, alpha, _), with one weight for all rows.
    """

    loss: _native.NativeFunction
    gradient: _native.NativeFunction
    gpu_loss: Callable[..., tuple[Tensor, Tensor]]
    gpu_gradient: Callable[..., Tensor]


def _load(file: Path) -> tuple[Any, str]:
    """The binding, and a sentence about what was found."""
    if _native.setting("FENCHEL_BINDING", "on", "off") == "off":
        return None, "switched off by FENCHEL_BINDING=off; unset FENCHEL_BINDING to use it"
    if _native.LIBRARY is None:
        return None, "without the native library; that comes first"
    if ".".join(torch.__version__.split(".")[:2]) not in BUILT_FOR:
        return None, (
            f"for torch {' and '.join(BUILT_FOR)} and not for {torch.__version__}, small calls "
            "take longer"
        )
    if not file.exists():
        return None, (
            f"not built for torch {torch.__version__} and this Python, small calls take longer; "
            "install fenchel from its sources with `pip install --no-build-isolation .`"
        )
    spec = spec_from_file_location(f"{__name__}.compiled", file)
    assert spec is not None
    assert spec.loader is not None
    try:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        return None, f"not loaded, small calls take longer; build it again ({error})"
    if getattr(module, "interface", None) != INTERFACE:
        return None, "of other sources than these, small calls take longer; build it again"
    return module, f"loaded, for torch {torch.__version__}"


_COMPILED, STATUS = _load(FILE)


def register_node(result: Tensor) -> None:
    """Makes what PyTorch calls the binding's part of a graph an instance of its class of nodes."""
    node = result.grad_fn
    if node is not None and not isinstance(node, Node):
        Node.register(type(node))


def bind_solver(
    kernels: Kernels,
    rule: Callable[..., Any],
    parameter: str | float,
    *,
    option: str | None = None,
    minimum: float = -math.inf,
    above: float = -math.inf,
    max_option: float = math.inf,
    is_part: bool = False,
    takes_half: bool = True,
) -> Callable[..., Any] | None:
    """A function (mapping, scores, dim) that returns ŷ, or None if the call is not a direct one;
    None if there is no binding.

    Args:
        kernels: its kernels.
        rule: (mapping, y, parameter, grad, needs) → the gradients in scores and parameter; for
            whatever the kernels do not do, such as second derivatives.
        parameter: the name of the mapping's field, or the number that stands for it.
        option: the name of a field that is always a number.
        minimum, above: what the parameter must be at least, and what it must be greater than.
        max_option: what the option must be at most.
        is_part: whether the parameter must be at most d.
        takes_half: whether the kernels of a GPU get rows of half precision as they are.
    """
    if _COMPILED is None:
        return None
    vjp = kernels.parameter_vjp
    return _COMPILED.solver(
        solve=kernels.solve.entry,
        jvp=kernels.jvp.entry,
        parameter_vjp=None if vjp is None else vjp.entry,
        rule=rule,
        parameter=parameter,
        option=option,
        minimum=max(minimum, math.nextafter(above, math.inf)),
        max_option=max_option,
        is_part=is_part,
        replayed=_replayed(takes_half, *kernels[3:]),
    )


def bind_class_loss(
    kernels: LossKernels, rule: Callable[..., Any], parameter: str | float
) -> Callable[..., Any] | None:
    """A function (mapping, scores, target, dim, reduction, ignore_index) that returns the mean or
    sum of the losses, or None if the call is not a direct one; None if there is no binding.

    Args:
        kernels: its kernels.
        rule: (mapping, scores, state, target, grad, count, ignore_index) → the gradient; as above.
        parameter: the name of the mapping's field, or the number that stands for it.
    """
    if _COMPILED is None:
        return None
    return _COMPILED.class_loss(
        loss=kernels.loss.entry,
        gradient=kernels.gradient.entry,
        rule=rule,
        parameter=parameter,
        replayed=_replayed(False, kernels.gpu_loss, kernels.gpu_gradient),
    )


def _replayed(
    takes_half: bool, *operations: Callable[..., Any] | None
) -> tuple[str, bool, list[Callable[..., Any] | None]] | None:
    """The operations of a GPU as the binding takes them; None if Triton's kernels are not used."""
    if not _triton.AVAILABLE:
        return None
    return DEVICE, takes_half, [None if one is None else _noted(one) for one in operations]


def _noted(operation: Callable[..., Any]) -> Callable[..., Any]:
    """`replay.noted` of an operation; only where there is a GPU is it imported."""

    def note(*arguments: Any) -> Any:
        from .replay import noted

        return noted(operation, *arguments)

    return note
