"""Generic checks of arguments: each raises an error that names the argument, what it must be, and
what came. A check of one domain stands beside its owner."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor
from torch.jit._trace import is_tracing

HALF = (torch.bfloat16, torch.float16)
DTYPES = frozenset((*HALF, torch.float32, torch.float64))
REDUCTIONS = ("none", "mean", "sum")


def type_name(value: object) -> str:
    """What a value is, for a message."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return type(value).__name__


def check_dense(name: str, value: Tensor) -> None:
    """A dense tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` must be a torch.Tensor, got {type_name(value)}.")
    if value.is_nested:
        padding = "-torch.inf" if name == "scores" else "0.0"
        raise TypeError(
            f"`{name}` must be a dense tensor, got a nested one; pad it, with "
            f"`torch.nested.to_padded_tensor({name}, {padding})`."
        )
    if value.is_quantized:
        raise TypeError(
            f"`{name}` must be floating point, got quantized {value.dtype}; call `.dequantize()` "
            "first."
        )
    # Inside a backward that it traces, torch.compile does not tell the layout.
    if not torch.compiler.is_compiling() and value.layout is not torch.strided:
        zeros = "" if value.is_mkldnn else "; entries that are not stored become 0"
        raise TypeError(
            f"`{name}` must be a dense tensor, got layout {value.layout}; call `.to_dense()` first"
            f"{zeros}."
        )


def check_float_tensor(name: str, value: Tensor) -> None:
    """A dense tensor of one of the four floating-point types."""
    check_dense(name, value)
    check_float_type(name, value.dtype, "; convert it, for example with `.float()`")


def check_float_type(name: str, value: object, remedy: str = "") -> None:
    """One of the four floating-point types."""
    if value not in DTYPES:
        raise TypeError(
            f"`{name}` must be bfloat16, float16, float32 or float64, got {value}{remedy}."
        )


def check_overwritable(name: str, value: Tensor) -> None:
    """A tensor that a gradient may overwrite."""
    whole = value if value._base is None else value._base
    if whole.is_leaf and whole.requires_grad:
        raise ValueError(
            f"`{name}` must not be a leaf that requires a gradient, or a view of one, when "
            "`inplace` is true: the gradient would overwrite it."
        )


def check_integer(name: str, value: Any) -> None:
    """A Python integer."""
    if type(value) is not int and (not isinstance(value, Integral) or isinstance(value, bool)):
        raise TypeError(f"`{name}` must be an int, got {type_name(value)}.")


def check_dim(name: str, shape: torch.Size, dim: int) -> int:
    """The nonnegative form of `dim`, which must exist and not be empty."""
    if isinstance(dim, (float, Tensor)):
        raise TypeError(
            f"`dim` must be an int, got {type_name(dim)}; the options of a mapping go by their "
            "names, as in `entmax(scores, alpha=1.5)`."
        )
    check_integer("dim", dim)
    n = len(shape)
    if n == 0:
        raise ValueError(f"`{name}` must have at least one dimension, got a scalar.")
    if not -n <= dim < n:
        raise ValueError(f"`dim` must be in [{-n}, {n - 1}], got {dim}.")
    dim = int(dim) % n
    if not shape[dim]:
        raise ValueError(
            f"`{name}` must have at least one entry along `dim`, got shape {tuple(shape)}."
        )
    return dim


def can_read_values(value: Tensor) -> bool:
    """Whether looking at the values costs no device synchronization and breaks no transform."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if is_tracing() or torch._C._len_torch_dispatch_stack():  # as under FakeTensorMode
        return False
    return type(value) in (Tensor, torch.nn.Parameter) and value.device.type == "cpu"


def check_real(
    name: str,
    value: Any,
    *,
    minimum: float = -math.inf,
    above: float = -math.inf,
    maximum: float = math.inf,
) -> None:
    """A finite number, or a floating-point tensor of such, within bounds."""
    if type(value) is float and minimum <= value <= maximum and above < value < math.inf:
        return  # the common case, at the least cost
    if isinstance(value, Tensor):
        check_float_tensor(name, value)
        if not can_read_values(value):
            return
        if not value.numel():
            return
        low, high = (bound.item() for bound in value.detach().aminmax())
        if minimum <= low and above < low and high <= maximum and high < math.inf:
            return
        bad = ~((value >= minimum) & (value > above) & (value <= maximum) & value.isfinite())
        value = value[bad].flatten()[0].item()
    elif isinstance(value, torch.fx.Proxy):
        return  # the graph of PyTorch 2.8 holds the object that has this number
    elif isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` must be a number or a torch.Tensor, got {type_name(value)}.")
    else:
        try:
            value = float(value)
        except OverflowError:
            raise ValueError(
                f"`{name}` must fit into a float, got a larger {type_name(value)}."
            ) from None
        if minimum <= value <= maximum and above < value < math.inf and value > -math.inf:
            return
    bounds = [
        "" if math.isfinite(value) else "finite",
        f"at least {minimum:g}" if minimum > -math.inf else "",
        f"greater than {above:g}" if above > -math.inf else "",
        f"at most {maximum:g}" if maximum < math.inf else "",
    ]
    raise ValueError(
        f"`{name}` must be {' and '.join(b for b in bounds if b) or 'finite'}, got {value:g}."
    )


def check_number(name: str, value: Any, **bounds: float) -> None:
    """A finite Python number within bounds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` must be a number, got {type_name(value)}.")
    check_real(name, value, **bounds)


def check_fraction(name: str, value: Any) -> None:
    """A number in [0, 1)."""
    check_number(name, value, minimum=0)
    if value >= 1:
        raise ValueError(f"`{name}` must be less than 1, got {value:g}.")


def check_size(name: str, value: Any, minimum: int = 1) -> None:
    """A Python integer that is at least so large."""
    check_integer(name, value)
    if value < minimum:
        raise ValueError(f"`{name}` must be at least {minimum}, got {value}.")


def check_same_device(name: str, value: Tensor, device: torch.device, of: str = "scores") -> None:
    """A tensor on the device of another."""
    if value.device != device:
        raise ValueError(
            f"`{name}` must be on the device of `{of}`, {device}; got {value.device}; move it by "
            f"`.to({of}.device)`."
        )


def move_beside(name: str, value: Tensor, scores: Tensor, of: str = "scores") -> Tensor:
    """`value` on the device of the scores, to which a single number on the CPU goes as in torch."""
    if value.device == scores.device:
        return value
    if value.ndim > 0 or value.device.type != "cpu":
        check_same_device(name, value, scores.device, of)
    return value.to(scores.device, non_blocking=True)


def broadcast_per_row(name: str, value: Tensor, shape: torch.Size, dim: int) -> Tensor:
    """`value` as one entry per row: of the rank of `shape`, with `dim` moved last and of size 1."""
    rows = list(shape)
    rows[dim] = 1
    try:
        value = value.broadcast_to(rows)
    except RuntimeError:
        raise ValueError(
            f"`{name}` must broadcast to {tuple(rows)}, one entry per row of scores of shape "
            f"{tuple(shape)}; got shape {tuple(value.shape)}."
        ) from None
    return value.movedim(dim, value.ndim - 1)


def broadcast_to_scores(name: str, value: Tensor, shape: torch.Size) -> Tensor:
    """A floating-point tensor expanded to the shape of the scores."""
    check_float_tensor(name, value)
    try:
        return value.broadcast_to(shape)
    except RuntimeError:
        raise ValueError(
            f"`{name}` must broadcast to the scores' shape {tuple(shape)}, got "
            f"{tuple(value.shape)}."
        ) from None


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """One of a few words."""
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {', '.join(choices)}, got {value!r}.")
