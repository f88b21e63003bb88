"""Attention implementations by name."""

from __future__ import annotations

import functools
from typing import Any

from ...mappings import AbstractMapping
from ...mappings._entmax import Entmax
from ...mappings._registry import resolve
from ...mappings._sparsemax import Sparsemax
from ._attention import attention_with
from ._modules import own_attention, takes_other_names

ENTMAX = "fenchel_entmax"
_BUILT_IN: dict[str, AbstractMapping] = {
    ENTMAX: Entmax(1.5),
    "fenchel_sparsemax": Sparsemax(),
}
_MEANT_FOR_OTHERS = ("flash", "sdpa", "flex_attention", "eager", "/", "|")
_names: set[str] = set()


def is_registered(name: str | None) -> bool:
    """Whether `register` made this attention implementation."""
    return name is not None and name.removeprefix("paged|") in _names


def register(name: str | None = None, mapping: AbstractMapping | str | None = None) -> None:
    """Makes `attn_implementation=name` mean attention with this mapping, in every model.

    Without arguments the names are `"fenchel_entmax"`, with α = 1.5, and `"fenchel_sparsemax"`. A
    name that is registered again means the new mapping from the next call on, so α may change in
    the course of training.

    Args:
        name: of the attention implementation.
        mapping: any mapping, or the name of a registered one. A tensor among its parameters
            broadcasts against (batch, heads, queries, 1).
    Raises:
        TypeError: if only one of them is given.
        ValueError: for an empty name, or one that transformers takes to be that of another
            implementation.
        ImportError: if transformers is not installed.

    >>> register()
    >>> from fenchel import Entmax
    >>> register("fenchel_entmax_1.25", Entmax(1.25))
    """
    if (name is None) != (mapping is None):
        raise TypeError("`name` and `mapping` must be given together, or neither.")
    chosen = _BUILT_IN if name is None else {name: resolve(mapping)}  # type: ignore[arg-type]
    for each in chosen:
        _check_name(each)
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ImportError(
            "this needs transformers; install it with `pip install 'fenchel[transformers]'`."
        ) from error
    from ._masks import light_mask

    for each, meaning in chosen.items():
        forward = attention_with(meaning)
        for full in (each, f"paged|{each}"):
            AttentionInterface.register(full, forward)
            AttentionMaskInterface.register(full, light_mask)
        _names.add(each)
    _allow_in_continuous_batching()
    _refuse_in_other_models()


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"`name` must be a str, got {type(name).__name__}.")
    if not name:
        raise ValueError("`name` must not be empty.")
    for part in _MEANT_FOR_OTHERS:
        if part in name:
            raise ValueError(f"`name` must not contain {part!r}, got {name!r}.")


@functools.cache
def _allow_in_continuous_batching() -> None:
    """Lets continuous batching run our implementations.

    It knows a fixed list of names. For any other it changes to softmax attention, if that of
    `flash_attn` is installed, or else raises an error.
    """
    from transformers import ContinuousBatchingManager

    switch = ContinuousBatchingManager.switch_to_cb_friendly_attn

    @functools.wraps(switch)
    def switch_unless_registered(self: Any, model: Any, *options: Any, **named: Any) -> None:
        if not is_registered(model.config._attn_implementation):
            switch(self, model, *options, **named)

    ContinuousBatchingManager.switch_to_cb_friendly_attn = switch_unless_registered


@functools.cache
def _refuse_in_other_models() -> None:
    """Lets a model refuse our names if its attention, or part of it, is its own.

    Such a model would run softmax, and misread our masks. A part that is a model with a
    configuration of its own is asked by itself.
    """
    from transformers import PreTrainedModel

    find, finish = PreTrainedModel.get_correct_attn_implementation, PreTrainedModel.post_init

    @functools.wraps(find)
    def find_or_refuse(
        self: Any, requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        _check_attention(self, requested_attention)
        return find(self, requested_attention, is_init_check)

    @functools.wraps(finish)
    def finish_or_refuse(self: Any) -> None:
        _check_attention(self, self.config._attn_implementation)
        finish(self)

    PreTrainedModel.get_correct_attn_implementation = find_or_refuse
    PreTrainedModel.post_init = finish_or_refuse


def _check_attention(model: Any, name: str | None) -> None:
    """Checks that the attention of a model, as far as it is built, can have this name."""
    if not is_registered(name):
        return
    kind, reason = type(model), None
    is_theirs = kind.__module__.startswith("transformers.")
    if is_theirs and not (kind._can_set_attn_implementation() and takes_other_names(kind)):
        reason = "does not use transformers' `AttentionInterface`, so"
    elif (own := own_attention(model)) is not None:
        reason = f"has {own}, which does not use transformers' `AttentionInterface`, so"
    if reason is not None:
        raise ValueError(
            f'{kind.__name__} {reason} it cannot take `attn_implementation="{name}"`. If it is '
            f'part of a larger model, name the parts that can, such as `{{"text_config": '
            f'"{name}"}}`.'
        )
