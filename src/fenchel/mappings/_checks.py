"""Mappings and their losses."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from .._checks import (
    can_read_values,
    check_dense,
    check_float_tensor,
    check_integer,
    check_number,
    check_real,
    check_same_device,
    type_name,
)

NO_INDEX = -(2**63)
"""What kernels take for no `ignore_index`; no class has it."""


def check_mapping(value: object, base: type) -> None:
    """A mapping, an object of their base class."""
    if isinstance(value, base):
        return
    is_module = isinstance(getattr(value, "mapping", None), base)
    raise TypeError(
        "`mapping` must be a mapping, such as `fenchel.Entmax(1.5)`; got "
        + (
            "a module of one: give its attribute `mapping`."
            if is_module
            else type_name(value) + "."
        )
    )


def check_subset_size(k: float | Tensor, d: int) -> None:
    """A number of entries that a row of d can hold."""
    try:
        check_real("k", k, minimum=0, maximum=d)
    except ValueError as error:
        raise ValueError(f"{str(error)[:-1]} for rows of {d} entries.") from None


def check_ignore_index(ignore_index: Any) -> None:
    """The class index of rows that count for nothing, or None for no such index."""
    if ignore_index is not None:
        try:
            check_integer("ignore_index", ignore_index)
        except TypeError as error:
            raise TypeError(f"{str(error)[:-1]}; None ignores no index.") from None


def check_smoothing(label_smoothing: Any, mapping: Any) -> None:
    """The weight of the uniform distribution, for a mapping onto distributions."""
    check_number("label_smoothing", label_smoothing, minimum=0, maximum=1)
    if label_smoothing and mapping.total != 1.0:
        raise ValueError(
            f"`label_smoothing` must be 0 for {mapping.name}, whose solutions do not sum to one; "
            f"got {label_smoothing:g}."
        )


def check_target(
    target: Tensor,
    shape: tuple[int, ...],
    device: torch.device,
    dim: int,
    ignore_index: int | None,
    of: str = "scores",
) -> bool:
    """Class indices (returns True) or distributions (returns False) that fit scores of that shape
    on the device of a tensor `of` the user's."""
    check_ignore_index(ignore_index)
    check_dense("target", target)
    check_same_device("target", target, device, of)
    if target.is_floating_point():
        check_float_tensor("target", target)
        if target.shape != shape:
            raise ValueError(
                f"a floating-point `target` must have the scores' shape {tuple(shape)}, "
                f"got {tuple(target.shape)}; class indices must be integers."
            )
        return False
    if target.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        raise TypeError(
            f"`target` must hold integer class indices or floating-point distributions, "
            f"got {target.dtype}."
        )
    rows, classes = (*shape[:dim], *shape[dim + 1 :]), shape[dim]
    if tuple(target.shape) != rows:
        raise ValueError(
            f"`target` must have shape {rows}, the scores' without `dim`, "
            f"got {tuple(target.shape)}."
        )
    if can_read_values(target):
        bad = (target < 0) | (target >= classes)
        if not bad.any():
            return True
        if ignore_index is not None:
            bad &= target != ignore_index
        if bad.any():
            other = "" if ignore_index is None else f" or equal `ignore_index` ({ignore_index})"
            raise ValueError(
                f"`target` must be in [0, {classes - 1}]{other}, got "
                f"{int(target[bad].flatten()[0])}."
            )
    return True


def check_linear(
    mapping: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, chunk: Any
) -> None:
    """A linear layer into the classes of a mapping whose parameters are numbers."""
    for name, value in (("hidden", hidden), ("weight", weight), ("bias", bias)):
        if value is None:
            continue
        check_float_tensor(name, value)
        check_same_device(name, value, hidden.device, "hidden")
        if value.dtype != hidden.dtype and not torch.is_autocast_enabled(hidden.device.type):
            raise TypeError(
                f"`{name}` must have the type of `hidden`, {hidden.dtype}; got {value.dtype}."
            )
    fits = hidden.ndim > 0 and weight.ndim == 2 and weight.shape[1] == hidden.shape[-1]
    if not fits or weight.numel() == 0:
        raise ValueError(
            "`weight` must have shape (classes, D), neither of them zero, for `hidden` of shape "
            f"(..., D); got {tuple(weight.shape)} for {tuple(hidden.shape)}."
        )
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(
            f"`bias` must have shape ({weight.shape[0]},), one per class; got {tuple(bias.shape)}."
        )
    if chunk is not None and (type(chunk) is bool or not isinstance(chunk, Integral) or chunk < 1):
        raise ValueError(f"`chunk` must be a positive int or None, got {chunk!r}.")
    if mapping.total != 1.0:
        raise ValueError(f"`mapping` must sum to one for class indices; {mapping.name} does not.")
    for name, value in vars(mapping).items():
        if isinstance(value, Tensor):
            raise ValueError(f"`{name}` of the mapping must be a number here, got a tensor.")
