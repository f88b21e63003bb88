"""Every check of a user's input, with its message: the argument, what it must be, and what came."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)
DTYPES = frozenset((*HALF, torch.float32, torch.float64))
REDUCTIONS = ("none", "mean", "sum")


def kind(value: object) -> str:
    """What a value is, for a message."""
    return type(value).__name__


def mapping(value: object, base: type) -> None:
    """A mapping, an object of their base class."""
    if not isinstance(value, base):
        raise TypeError(
            f"`mapping` must be a mapping, such as `fenchel.Entmax(1.5)`; got {kind(value)}."
        )


def dense_floats(name: str, value: Tensor) -> None:
    """A dense tensor of one of the four floating-point types."""
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` must be a torch.Tensor, got {kind(value)}.")
    # Inside a backward that it traces, torch.compile does not tell the layout.
    if not torch.compiler.is_compiling() and value.layout is not torch.strided:
        raise TypeError(
            f"`{name}` must be a dense tensor, got layout {value.layout}; call `.to_dense()` first."
        )
    if value.dtype not in DTYPES:
        raise TypeError(
            f"`{name}` must be bfloat16, float16, float32 or float64, got {value.dtype}; "
            "convert it, for example with `.float()`."
        )


def overwritable(name: str, value: Tensor) -> None:
    """A tensor that a gradient may overwrite."""
    whole = value if value._base is None else value._base
    if whole.is_leaf and whole.requires_grad:
        raise ValueError(
            f"`{name}` must not be a leaf that requires a gradient, or a view of one, when "
            "`inplace` is true: the gradient would overwrite it."
        )


def dimension(name: str, shape: torch.Size, dim: int) -> int:
    """The nonnegative form of `dim`, which must exist and not be empty."""
    if type(dim) is not int and (not isinstance(dim, Integral) or isinstance(dim, bool)):
        raise TypeError(f"`dim` must be an int, got {kind(dim)}.")
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


def _values_can_be_read(value: Tensor) -> bool:
    """Whether looking at the values costs no device synchronization and breaks no transform."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return value.device.type == "cpu"


def real(
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
) -> None:
    """A finite number, or a floating-point tensor of such, within bounds."""
    if type(value) is float and least <= value <= most and above < value < math.inf:
        return  # the common case, at the least cost
    if isinstance(value, Tensor):
        dense_floats(name, value)
        if not _values_can_be_read(value):
            return
        bad = ~((value >= least) & (value > above) & (value <= most) & value.isfinite())
        if not bad.any():
            return
        value = value[bad].flatten()[0].item()
    elif isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` must be a number or a torch.Tensor, got {kind(value)}.")
    elif least <= float(value) <= most and float(value) > above and math.isfinite(value):
        return
    bounds = [
        f"at least {least:g}" if least > -math.inf else "",
        f"greater than {above:g}" if above > -math.inf else "",
        f"at most {most:g}" if most < math.inf else "",
    ]
    raise ValueError(
        f"`{name}` must be {' and '.join(b for b in bounds if b) or 'finite'}, got {value:g}."
    )


def number(name: str, value: Any, **bounds: float) -> None:
    """A finite Python number within bounds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` must be a number, got {kind(value)}.")
    real(name, value, **bounds)


def per_row(name: str, value: Tensor, shape: torch.Size, dim: int) -> Tensor:
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
    return value.movedim(dim, -1)


def choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """One of a few words."""
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {', '.join(choices)}, got {value!r}.")


def subset_size(k: float | Tensor, d: int) -> None:
    """A number of entries that a row of d can hold."""
    try:
        real("k", k, least=0, most=d)
    except ValueError as error:
        raise ValueError(f"{str(error)[:-1]} for rows of {d} entries.") from None


def target(target: Tensor, scores: Tensor, dim: int, ignore_index: int) -> bool:
    """Class indices (returns True) or distributions (returns False) that fit the scores."""
    if not isinstance(target, Tensor):
        raise TypeError(f"`target` must be a torch.Tensor, got {kind(target)}.")
    if target.is_floating_point():
        dense_floats("target", target)
        if target.shape != scores.shape:
            raise ValueError(
                f"a floating-point `target` must have the scores' shape {tuple(scores.shape)}, "
                f"got {tuple(target.shape)}; class indices must be integers."
            )
        return False
    if target.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        raise TypeError(
            f"`target` must hold integer class indices or floating-point distributions, "
            f"got {target.dtype}."
        )
    shape = (*scores.shape[:dim], *scores.shape[dim + 1 :])
    if tuple(target.shape) != shape:
        raise ValueError(
            f"`target` must have shape {shape}, the scores' without `dim`, "
            f"got {tuple(target.shape)}."
        )
    if _values_can_be_read(target):
        classes = scores.shape[dim]
        bad = ((target < 0) | (target >= classes)) & (target != ignore_index)
        if bad.any():
            raise ValueError(
                f"`target` must be in [0, {classes - 1}] or equal `ignore_index` "
                f"({ignore_index}), got {int(target[bad].flatten()[0])}."
            )
    return True


def linear(mapping: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, chunk: Any) -> None:
    """A linear layer into the classes of a mapping whose parameters are numbers."""
    for name, value in (("hidden", hidden), ("weight", weight), ("bias", bias)):
        if value is None:
            continue
        dense_floats(name, value)
        if value.device != hidden.device:
            raise ValueError(
                f"`{name}` must be on the device of `hidden`, {hidden.device}; got {value.device}."
            )
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


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> None:
    """Queries, keys, values and a mask that fit together."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        dense_floats(name, tensor)
        if tensor.ndim < 2:
            raise ValueError(
                f"`{name}` must have at least two dimensions, got shape {tuple(tensor.shape)}."
            )
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(
            f"`key` must have vectors of the query's size, {query.shape[-1]}; got "
            f"shape {tuple(key.shape)}."
        )
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"`value` must have one row per key, {key.shape[-2]}; got shape {tuple(value.shape)}."
        )
    if mask is None:
        return
    if causal:
        raise ValueError("`mask` must be None when `causal` is true; put both into the mask.")
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        got = mask.dtype if isinstance(mask, Tensor) else kind(mask)
        raise TypeError(f"`mask` must be a boolean or floating-point torch.Tensor, got {got}.")


def heads(dim: Any, heads: Any) -> None:
    """A width that divides into heads."""
    for name, value in (("dim", dim), ("heads", heads)):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"`{name}` must be a positive int, got {value!r}.")
    if dim % heads:
        raise ValueError(f"`dim` must be a multiple of `heads` ({heads}), got {dim}.")


def count(name: str, value: Any) -> None:
    """A positive whole number."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be an int, got {kind(value)}.")
    if value < 1:
        raise ValueError(f"`{name}` must be at least 1, got {value}.")


def decoders(models: Any, protocol: type) -> list[Any]:
    """One model or several, each with what a search needs, as a list."""
    found = list(models) if isinstance(models, list | tuple) else [models]
    for model in found:
        if not isinstance(model, protocol):
            raise TypeError(
                "`models` must be a model, or a list of models, with `start`, `step` and "
                f"`probabilities`; got {kind(model)}."
            )
    if not found:
        raise ValueError("`models` must hold at least one model, got none.")
    return found


def same_vocabularies(models: list[Any]) -> None:
    """Models of an ensemble, which read and write the same tokens; tables have no vocabularies."""
    for side in ("source", "target"):
        known = [m for m in (getattr(model, side, None) for model in models) if m is not None]
        if any(other.to_json() != known[0].to_json() for other in known[1:]):
            raise ValueError(
                f"the models of an ensemble must share their {side} vocabulary; train them on the "
                "same data."
            )


def same_classes(sizes: list[int]) -> None:
    """Models with target vocabularies of one size."""
    if len(set(sizes)) > 1:
        raise ValueError(
            f"the models of an ensemble must share their target vocabulary, got sizes {sizes}."
        )


def sources(source: Tensor, lengths: Tensor) -> None:
    """Tokens of a batch, and how many of each row are not padding."""
    for name, value in (("source", source), ("lengths", lengths)):
        if not isinstance(value, Tensor):
            raise TypeError(f"`{name}` must be a torch.Tensor, got {kind(value)}.")
        if value.dtype != torch.int64:
            raise TypeError(f"`{name}` must be int64, got {value.dtype}; convert it by `.long()`.")
    if source.ndim != 2 or lengths.shape != source.shape[:1]:
        raise ValueError(
            "`source` must have shape (B, S) and `lengths` (B,); "
            f"got {tuple(source.shape)} and {tuple(lengths.shape)}."
        )


def distributions(p: Tensor) -> None:
    """Rows of a model's output that are probabilities; NaN fails every comparison."""
    off = ~((p >= 0).all(-1) & ((p.sum(-1) - 1).abs() <= 1e-3))
    if off.any():
        row = p[off][0]
        what = (
            "NaN" if row.isnan().any() else f"entries from {row.min():g} that sum to {row.sum():g}"
        )
        raise ValueError(
            "a model's `probabilities` must be nonnegative and sum to one in every row; "
            f"got {what}."
        )


def not_empty(name: str, text: str, ids: list[int]) -> None:
    """A text that holds at least one token."""
    if not ids:
        raise ValueError(f"`{name}` must hold at least one token, got {text!r}.")
