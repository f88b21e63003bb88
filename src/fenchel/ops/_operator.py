"""Declares an operator with PyTorch's dispatcher: its schema, its shapes, its kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import _native

_LIBRARY = torch.library.Library("fenchel", "DEF")


def _in_float64(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The reference in double precision, rounded at the end to the type that came in."""

    def run(rows: Tensor, *arguments: Any) -> Any:
        dtype = rows.dtype
        wide = dtype if rows.device.type == "mps" else torch.float64  # MPS has no float64

        def widen(value: Any) -> Any:
            floating = isinstance(value, Tensor) and value.is_floating_point()
            return value.to(wide) if floating else value

        out = reference(widen(rows), *(widen(a) for a in arguments))
        return tuple(o.to(dtype) for o in out) if isinstance(out, tuple) else out.to(dtype)

    return run


def like(rows: Tensor, *_: Any) -> Tensor:
    """The shape of a result that has the rows' own."""
    return torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)


def declare(
    schema: str,
    *,
    fake: Callable[..., Any] = like,
    reference: Callable[..., Any],
    native: Callable[..., Any],
) -> Callable[..., Any]:
    """Registers `fenchel::schema` and returns the operator.

    Args:
        schema: name, arguments and results; the first argument holds the rows (..., d).
        fake: the shapes of the results, for tracing.
        reference: plain PyTorch in float64, for every device.
        native: the C++ kernel, for contiguous float32 or float64 tensors on the CPU.
    """
    name = schema.split("(")[0]
    _LIBRARY.define(schema)
    fallback = _in_float64(reference)
    _LIBRARY.impl(name, fallback, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fenchel::{name}", fake, lib=_LIBRARY)
    if _native.LIBRARY is not None:

        def cpu(rows: Tensor, *arguments: Any) -> Any:
            if rows.shape[-1] > _native.LONGEST_ROW:
                return fallback(rows, *arguments)
            return native(
                *(
                    value.contiguous() if isinstance(value, Tensor) else value
                    for value in (rows, *arguments)
                )
            )

        _LIBRARY.impl(name, cpu, "CPU")
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.fenchel, packet), overload or "default")


def declare_with(
    parameter: str, schema: str, results: str = "Tensor", **kernels: Any
) -> Callable[..., Any]:
    """An operator whose last argument is a number or a tensor with one value per row (..., 1).

    Args:
        parameter: the argument's name.
        schema: name and other arguments, as in "entmax(Tensor scores".
        results: the result types.
        kernels: as for `declare`.
    """
    name, _, arguments = schema.partition("(")
    scalar = declare(f"{name}({arguments}, float {parameter}) -> {results}", **kernels)
    tensor = declare(f"{name}.Tensor({arguments}, Tensor {parameter}) -> {results}", **kernels)

    def call(*arguments: Any) -> Any:
        return (tensor if isinstance(arguments[-1], Tensor) else scalar)(*arguments)

    return call
