"""Attention as a function: scores, a mapping of them, and the weighted mean of the values."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.jit._trace import is_tracing

from .. import _checks
from .._transforms import is_transformed
from ..mappings import AbstractMapping
from ..mappings._registry import resolve
from ..mappings._softmax import Softmax
from ._arguments import inputs_of, pattern_of
from ._blocks import attention_in_blocks
from ._checks import check_mask, check_pattern, check_vectors, check_weights
from ._dense import dense
from ._direct import direct_attention
from ._fused import fused_attention, is_fused
from ._problem import Inputs, Setting, is_autocast, without_autocast
from ._softmax import softmax_attention

_PLAIN = (Tensor, torch.nn.Parameter)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: AbstractMapping | str = "softmax",
    mask: Tensor | None = None,
    scale: float | Tensor | None = None,
    *,
    causal: bool | str = False,
    window: int | tuple[int | None, int | None] | None = None,
    query_lengths: Tensor | None = None,
    key_lengths: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    alibi: float | Tensor | None = None,
    softcap: float = 0.0,
    sinks: float | Tensor | None = None,
    dropout: float = 0.0,
    weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """For each query the mean of the values, weighted by a mapping of its scores with the keys.

        output = ŷ(cap(scale · query keyᵀ) − alibi · distance + mask) value

    What overlaps with `torch.nn.functional.scaled_dot_product_attention` means the same. Softmax is
    computed by it wherever it can do what is asked for.

    Args:
        query: (..., H, T, D), floating point; fewer dimensions are fine. The first of three counts
            heads, or sequences where lengths are given.
        key: (..., G, S, D). H is a multiple of G; heads h·H/G to (h + 1)·H/G − 1 of the query
            share head h of the keys, which are not repeated. Other dimensions broadcast. It has the
            type of the query.
        value: (..., G, S, E), of any floating-point type.
        mapping: a mapping, or the name of a registered one. A tensor among its parameters
            broadcasts against (..., T, 1), so that (H, 1, 1) holds one value per head, and
            receives a gradient. On a GPU a tensor of α must be above 1.
        mask: broadcasts to (..., H, T, S). Boolean: true where a query may attend. Floating
            point: added to the scores, −inf where a query must not attend; receives a gradient.
        scale: the factor of the scores, 1/√D by default; a number, or a tensor that broadcasts
            against (..., T, 1) and receives a gradient.
        causal: whether a query attends only to keys up to its own place. True or "upper_left":
            query t stands at key t. "lower_right": the last query stands at the last key, as with
            a cache of earlier keys.
        window: how far a query sees from its place. An int w: the w keys that end at its place if
            causal, else w keys to each side and that between them. A pair (left, right): so many to
            each side besides its own, None for no bound. Places are as for `causal`.
        query_lengths, key_lengths: integers, (...), how many queries and keys each padded sequence
            has. What is behind them is not attended to, and attends to nothing.
        cu_seqlens_q, cu_seqlens_k: integers, (n + 1,), for n sequences packed one behind the other:
            where each starts, and where the last ends. A query sees keys of its own sequence only.
            Those of the keys are those of the queries by default.
        alibi: the slopes of a bias −slope · |distance| in places; broadcast to (..., H).
        softcap: above 0, scores are softcap · tanh(score / softcap).
        sinks: one more score that takes weight but has no value; broadcast to (..., H).
        dropout: the probability of setting a weight to zero; the others are scaled up, as in torch.
            `torch.manual_seed` makes it reproducible.
        weights: whether to return the weights, too; they are those before dropout.
    Returns:
        (..., H, T, E) in the type of the values, and if asked for the weights, (..., H, T, S), in
        that of the query. A query that may attend to nothing gets weights and an output of zeros.
    Raises:
        TypeError, ValueError: for arguments of the wrong kind, shape or value. Values of tensors on
            a GPU are not looked at.

    Memory beyond the arguments and the result has a bound that does not depend on T and S: scores
    are computed for a block of queries at a time, and again in the backward pass. On a GPU a fused
    kernel does so for sparsemax and for entmax with α > 1. With `weights`, in a compiled graph on
    the CPU, and where derivatives of derivatives or torch.func are used, the scores are stored.
    Softmax on a GPU or in a compiled graph has the memory of torch's kernels.

    A number that is not finite spoils only the queries that see it, so padding may hold anything.
    Softmax on a GPU or in a compiled graph has torch's behaviour instead, unless lengths are given.

    >>> query, key = torch.tensor([[2.0, 0.0]]), torch.tensor([[2.0, 0.0], [1.0, 1.0], [-2.0, 0.0]])
    >>> attention(query, key, torch.eye(3), "entmax", weights=True)
    (tensor([[0.9330, 0.0670, 0.0000]]), tensor([[0.9330, 0.0670, 0.0000]]))
    >>> x = torch.randn(2, 8, 100, 16)  # 8 heads, of which each four share keys
    >>> attention(x, x[:, :2], x[:, :2], "sparsemax", causal=True, window=32).shape
    torch.Size([2, 8, 100, 16])

    References: niculae2017regularized, peters2019sparse.
    """
    mapping = resolve(mapping)
    has_lengths = query_lengths is not None or key_lengths is not None
    is_plain = not has_lengths and window is cu_seqlens_q is cu_seqlens_k is alibi is sinks is None
    if (
        is_plain
        and type(softcap) is type(dropout) is float
        and softcap == dropout == 0
        and (weights is True or (weights is False and type(mapping) is not Softmax))
    ):
        pair = direct_attention(query, key, value, mapping, mask, scale, causal)
        if pair is not None:
            return pair if weights else pair[0]
    check_pattern(causal, window)
    check_weights(weights)
    _checks.check_number("dropout", dropout, minimum=0, maximum=1)
    _checks.check_number("softcap", softcap, minimum=0)
    if scale is not None:
        _checks.check_real("scale", scale)
    layout = check_vectors(query, key, value, has_lengths)
    if mask is not None:
        check_mask(mask, (*layout.batch, query.shape[-2], key.shape[-2]), query)
    if is_plain and softcap == 0 and not weights and not _is_transformed():
        found = softmax_attention(query, key, value, mapping, mask, scale, causal, dropout, layout)
        if found is not None:
            return found
    if is_autocast(query.device):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = (
            x if x.dtype == torch.float64 else x.to(dtype) for x in (query, key, value)
        )
    with without_autocast(query.device):
        setting = Setting(
            mapping,
            pattern_of(
                layout,
                query,
                key,
                causal,
                window,
                (query_lengths, key_lengths),
                (cu_seqlens_q, cu_seqlens_k),
            ),
            default_scale(query, scale),
            softcap,
            dropout,
        )
        inputs = inputs_of(layout, query, key, value, mapping, mask, scale, alibi, sinks)
        if weights:
            output, y = dense(inputs, setting)
            return layout.merge(output), layout.merge(y)
        return layout.merge(_outputs(inputs, setting))


def default_scale(query: Tensor, scale: float | Tensor | None) -> float:
    """The scale as a number, 1 if it is a tensor."""
    if scale is None:
        return query.shape[-1] ** -0.5 if query.shape[-1] else 1.0
    return 1.0 if isinstance(scale, Tensor) else float(scale)


def _is_transformed() -> bool:
    return is_transformed()


# torch.compile takes the answer as a constant of its graph.
_is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _outputs(inputs: Inputs, setting: Setting) -> Tensor:
    """The outputs (B, G, R, T, E), without storing the scores where nothing else is asked for."""
    is_compiling = torch.compiler.is_compiling()
    is_followed = _is_transformed() or (not is_compiling and _is_traced(inputs))
    if not is_followed and is_fused(inputs, setting):
        return fused_attention(inputs, setting)
    if is_followed or is_compiling:
        return dense(inputs, setting)[0]
    return attention_in_blocks(inputs, setting)


def _is_traced(inputs: Inputs) -> bool:
    """Whether there is more to these tensors than their values, or less: a trace, a subclass, or
    shapes alone."""
    tensors = [x for x in inputs if x is not None]
    return is_tracing() or any(type(x) not in _PLAIN or x.is_meta for x in tensors)
