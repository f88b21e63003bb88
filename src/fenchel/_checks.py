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


def size(name: str, value: Any, least: int = 1) -> None:
    """A Python integer that is at least so large."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be an int, got {kind(value)}.")
    if value < least:
        raise ValueError(f"`{name}` must be at least {least}, got {value}.")


def structure(value: object, base: type) -> None:
    """A structure, an object of their base class."""
    if not isinstance(value, base):
        raise TypeError(
            "`structure` must be a structure, such as `fenchel.Sequence(5, 3)`, or for a function "
            f"that finds the best one `fenchel.Custom(shape, function)`; got {kind(value)}."
        )


def batch_of(name: str, value: Tensor, shape: tuple[int, ...]) -> torch.Size:
    """The dimensions of a tensor before those that one instance has."""
    cut = value.ndim - len(shape)
    if cut < 0 or tuple(value.shape[cut:]) != shape:
        wanted = ", ".join(["...", *map(str, shape)])
        raise ValueError(f"`{name}` must have shape ({wanted}), got {tuple(value.shape)}.")
    return value.shape[:cut]


def additional(pieces: tuple, names: tuple[str, ...], structure: str, scores: Tensor) -> None:
    """Additional scores, one or None for each name, of the scores' type and device."""
    if not names:
        raise ValueError(f"`additional` must be None for {structure}, which has no such scores.")
    if len(pieces) != len(names):
        raise ValueError(
            f"`additional` must be a tensor or a tuple ({', '.join(names)}), some of them None; "
            f"got {len(pieces)} entries."
        )
    for name, piece in zip(names, pieces, strict=True):
        if piece is None:
            continue
        dense_floats(name, piece)
        if piece.dtype != scores.dtype or piece.device != scores.device:
            raise TypeError(
                f"`{name}` must have the type and device of `scores`, {scores.dtype} on "
                f"{scores.device}; got {piece.dtype} on {piece.device}."
            )


def additional_fits(
    name: str, shape: torch.Size, own: list[tuple[int, ...]], batch: torch.Size
) -> int:
    """How many dimensions of an additional score belong to one instance, where those may be any of
    `own` and the others broadcast to the batch."""

    def fits(tail: tuple[int, ...]) -> bool:
        cut = len(shape) - len(tail)
        if cut < 0 or cut > len(batch) or tuple(shape[cut:]) != tail:
            return False
        lead = tuple(shape[:cut])
        return all(a in (1, b) for a, b in zip(lead[::-1], batch[::-1], strict=False))

    found = [tail for tail in own if fits(tail)]
    if len(found) == 1:
        return len(found[0])
    wanted = " or ".join(f"(..., {', '.join(map(str, tail))})" for tail in own)
    if found:
        raise ValueError(
            f"`{name}` of shape {tuple(shape)} can be read as {wanted} with batch dimensions "
            f"{tuple(batch)}; give it all batch dimensions, of size 1 where they are shared."
        )
    raise ValueError(
        f"`{name}` must have shape {wanted}, where ... broadcasts to the batch dimensions "
        f"{tuple(batch)} of `scores`; got {tuple(shape)}."
    )


def lengths(
    value: Any,
    mask: Tensor | None,
    batch: torch.Size,
    sides: tuple[int, ...],
    device: torch.device,
) -> Tensor | None:
    """The sizes of each instance, (B, k) for k sides, from lengths or from a mask; or None."""
    if value is None and mask is None:
        return None
    if value is not None and mask is not None:
        raise ValueError("give `lengths` or `mask`, not both.")
    if not sides:
        raise ValueError("`lengths` and `mask` must be None for this structure, of one size only.")
    if mask is not None:
        value = _lengths_of_mask(mask, batch, sides)
    value = torch.as_tensor(value)
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"`lengths` must hold integers, got {value.dtype}.")
    shape = (*batch, len(sides)) if len(sides) > 1 else tuple(batch)
    if tuple(value.shape) != shape:
        raise ValueError(f"`lengths` must have shape {shape}, got {tuple(value.shape)}.")
    value = value.to(torch.int64).reshape(-1, len(sides))
    if _values_can_be_read(value):
        bad = (value < 1) | (value > torch.tensor(sides))
        if bad.any():
            row, side = bad.nonzero()[0].tolist()
            raise ValueError(
                f"`lengths` must be between 1 and {sides[side]}, got {int(value[row, side])}."
            )
    return value.to(device)


def _lengths_of_mask(mask: Tensor, batch: torch.Size, sides: tuple[int, ...]) -> Tensor:
    if len(sides) > 1:
        raise ValueError("`mask` must be None for this structure; give `lengths`.")
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        found = mask.dtype if isinstance(mask, Tensor) else kind(mask)
        raise TypeError(f"`mask` must be a boolean torch.Tensor, got {found}.")
    if tuple(mask.shape) != (*batch, *sides):
        raise ValueError(f"`mask` must have shape {(*batch, *sides)}, got {tuple(mask.shape)}.")
    if _values_can_be_read(mask) and (mask[..., 1:] & ~mask[..., :-1]).any():
        raise ValueError(
            "`mask` must be true on the first positions of each instance and false behind them; to "
            "forbid others, set their scores to −inf."
        )
    return mask.sum(-1)


def indicators(value: Any, shape: torch.Size) -> None:
    """What a structure's own argmax returned."""
    if not isinstance(value, Tensor):
        raise TypeError(f"`argmax` must return a torch.Tensor, got {kind(value)}.")
    if value.shape != shape:
        raise ValueError(
            f"`argmax` must return indicators of the scores' shape {tuple(shape)}, got "
            f"{tuple(value.shape)}."
        )


def start(previous: Any, problem: Any) -> None:
    """The problem of an earlier result, whose structures must be ones of the problem at hand."""
    if previous.structure is not problem.structure and previous.structure != problem.structure:
        raise ValueError(
            f"`start` must be a result for the same structure, {problem.structure}; got one for "
            f"{previous.structure}."
        )
    if previous.scores.shape != problem.scores.shape:
        raise ValueError(
            f"`start` must be a result for scores of shape {tuple(problem.scores.shape)}, batch "
            f"dimensions flattened; got one for {tuple(previous.scores.shape)}."
        )
    before, now = previous.lengths, problem.lengths
    if (before is None) != (now is None) or (before is not None and not before.equal(now)):
        raise ValueError("`start` must be a result for the same `lengths`.")


def structure_target(value: Any, batch: torch.Size, positions: int | None, scores: Any) -> bool:
    """Codes (..., positions) (returns True) or indicators (..., *shape) (returns False) for scores
    (B, *shape); `positions` is None where structures have no codes."""
    if not isinstance(value, Tensor):
        raise TypeError(f"`target` must be a torch.Tensor, or a pair of them; got {kind(value)}.")
    if value.device != scores.device:
        raise ValueError(
            f"`target` must be on the device of `scores`, {scores.device}; got {value.device}."
        )
    coded = not value.is_floating_point() and positions is not None
    shape = (*batch, positions) if coded else (*batch, *scores.shape[1:])
    if tuple(value.shape) != shape:
        what = "integer codes" if coded else "indicators"
        raise ValueError(f"`target` must have shape {shape} as {what}, got {tuple(value.shape)}.")
    return coded


def codes(value: Tensor, bad: Tensor) -> None:
    """Codes of which none is bad."""
    if _values_can_be_read(value) and bad.any():
        found = int(value[bad].flatten()[0])
        raise ValueError(
            "`target` must hold codes of the structure, −1 for none; it has no option "
            f"{found} at that position."
        )


def vertex(name: str, value: Tensor, coded: bool) -> None:
    """Indicators of zeros and ones, from which the additional parts of a structure follow."""
    if coded and (not _values_can_be_read(value) or ((value == 0) | (value == 1)).all()):
        return
    raise ValueError(
        f"`{name}` must be codes, or zeros and ones of a structure of the library, where there are "
        "additional scores; for others give a pair, with the additional scores' own target."
    )


def like_additional(value: Any, batch: torch.Size, additional: Tensor) -> Tensor:
    """The target (B, …) of additional scores (B or 1, …)."""
    if not isinstance(value, Tensor):
        raise TypeError(f"`target` must be a torch.Tensor, or a pair of them; got {kind(value)}.")
    shape = (*batch, *additional.shape[1:])
    if tuple(value.shape) != shape:
        raise ValueError(
            f"`target` must have shape {shape} for the additional scores, got {tuple(value.shape)}."
        )
    return value.reshape(-1, *additional.shape[1:])


def cost(value: Any, batch: torch.Size, shape: torch.Size) -> Tensor:
    """What each part costs, (B, *shape), from a tensor that broadcasts to (*batch, *shape)."""
    dense_floats("cost", value)
    whole = (*batch, *shape[1:])
    try:
        return value.broadcast_to(whole).reshape(shape)
    except RuntimeError:
        raise ValueError(
            f"`cost` must broadcast to the scores' shape {whole}, got {tuple(value.shape)}."
        ) from None


def estimator(value: object, bases: tuple[type, ...]) -> None:
    """What computes an expectation over a latent variable."""
    if not isinstance(value, bases):
        raise TypeError(
            "`mapping` must be a mapping, a structure or an estimator, such as "
            "`fenchel.Sparsemax()`, `fenchel.Bits(8)` or "
            f"`fenchel.latent.estimators.ScoreFunction()`; got {kind(value)}."
        )


def distribution(value: object, structures: type | tuple[type, ...], example: str) -> None:
    """A mapping onto the simplex, or one of these structures, that turns scores into a
    distribution."""
    total = getattr(value, "total", None)
    if isinstance(value, structures) or total == 1.0:
        return
    if total is None and not hasattr(value, "omega"):
        raise TypeError(
            f"`over` must be a mapping, such as `fenchel.Softmax()`, or {example}; got "
            f"{kind(value)}."
        )
    raise ValueError(f"`over` must sum to one to be a distribution; {kind(value)} does not.")


def losses(value: Any, pairs: int, name: str = "loss_fn") -> None:
    """What a user's function returned for so many pairs of an item and an outcome."""
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` must return a torch.Tensor, got {kind(value)}.")
    if not value.is_floating_point():
        raise TypeError(f"`{name}` must return floating-point values, got {value.dtype}.")
    if tuple(value.shape) != (pairs,):
        raise ValueError(
            f"`{name}` must return one value per pair, shape ({pairs},); got {tuple(value.shape)}. "
            "Sum over the other dimensions."
        )


def posterior_alone(mapping: object) -> None:
    """No mapping beside a posterior, which has one already."""
    if mapping is not None:
        raise TypeError(
            "`mapping` must be None where a `Posterior` is given, which is a distribution already; "
            f"got {kind(mapping)}."
        )


def broadcasts(name: str, value: Tensor, shape: torch.Size) -> Tensor:
    """A floating-point tensor expanded to the shape of the scores."""
    dense_floats(name, value)
    try:
        return value.broadcast_to(shape)
    except RuntimeError:
        raise ValueError(
            f"`{name}` must broadcast to the scores' shape {tuple(shape)}, got "
            f"{tuple(value.shape)}."
        ) from None


def top_k_of(value: object, bases: tuple[type, ...]) -> None:
    """A mapping that gives nothing below a score that gets nothing, or bits."""
    if not isinstance(value, bases):
        raise TypeError(
            "`over` must be softmax, sparsemax or entmax, such as `fenchel.Sparsemax()`, or "
            f"`fenchel.Bits(8)`; got {kind(value)}."
        )


def fraction(name: str, value: Any) -> None:
    """A number in [0, 1)."""
    number(name, value, least=0)
    if value >= 1:
        raise ValueError(f"`{name}` must be less than 1, got {value:g}.")


def baseline(value: object, base: type) -> None:
    """A baseline, or None."""
    if value is not None and not isinstance(value, base):
        raise TypeError(
            "`baseline` must be None or a baseline, such as "
            f"`fenchel.latent.estimators.MovingAverage()`; got {kind(value)}."
        )


def predictions(value: Any, items: int) -> Tensor:
    """A baseline network's answer, one number for each item, (B)."""
    if not isinstance(value, Tensor) or value.numel() != items or value.ndim > 2:
        found = tuple(value.shape) if isinstance(value, Tensor) else kind(value)
        raise ValueError(
            f"a baseline's `network` must return shape ({items},) or ({items}, 1), one value per "
            f"item; got {found}."
        )
    return value.reshape(items)


def context(value: Tensor | None, problem: Any) -> Tensor:
    """What a baseline sees of each item, (B, F): a tensor (..., F), or else the scores."""
    if value is None:
        return problem.scores.flatten(1).detach()
    dense_floats("context", value)
    if value.ndim == 0 or value.shape[:-1] != problem.batch:
        wanted = ", ".join([*map(str, problem.batch), "F"])
        raise ValueError(f"`context` must have shape ({wanted}), got {tuple(value.shape)}.")
    return value.reshape(len(problem.scores), -1).detach()


def sampled_prior(structure: object, bases: tuple[type, ...]) -> None:
    """A structure over which the library samples a prior."""
    if not isinstance(structure, bases):
        raise ValueError(
            "`scores` must be over categories or bits (`Bits`, `Budget`), for which a prior can be "
            f"sampled; got {kind(structure)}."
        )
