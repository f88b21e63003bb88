"""Models whose heads learn how sparse they are."""

from __future__ import annotations

import copy
import functools
import math
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from ... import _checks
from ._modules import calls_by_name
from ._names import ENTMAX, is_registered, register

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Model = TypeVar("Model", bound="PreTrainedModel")


def learn_alpha(model_class: type[Model], alpha: float = 1.5) -> type[Model]:
    """The class of models that learn an α for each head, in the place of `model_class`.

    Each attention module has one more parameter, `alpha_logit` of shape (heads,), with
    α = 1 + sigmoid(alpha_logit). It is trained, saved and loaded like every other one. A checkpoint
    that has none, such as one with softmax attention, starts with the α given here.

    Args:
        model_class: a class of transformers, such as `LlamaForCausalLM`.
        alpha: where each head starts; between 1 and 2.
    Returns:
        A subclass of the same name. Its models have the attention implementation
        `"fenchel_entmax"` unless they are given another that `register` made from an `Entmax`. If
        parts of a model are named, only these learn.
    Raises:
        TypeError: if `model_class` is not a class of models.
        ValueError: if `alpha` is not between 1 and 2, or, for a model, if it has no attention that
            uses `AttentionInterface`, or is given an implementation that `register` did not make.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1,
    ...                      intermediate_size=8, vocab_size=10)
    >>> model = learn_alpha(LlamaForCausalLM, 1.25)(config)
    >>> 1 + model.model.layers[0].self_attn.alpha_logit.sigmoid()
    tensor([1.2500, 1.2500], grad_fn=<AddBackward0>)

    References: correia2019adaptively.
    """
    _checks.check_number("alpha", alpha, minimum=1, maximum=2)
    if alpha in (1, 2):
        raise ValueError(f"`alpha` must be between 1 and 2 to be learnt, got {alpha}.")
    _check_class(model_class)
    return _learning(model_class, float(alpha))


def _check_class(model_class: Any) -> None:
    from transformers import PreTrainedModel

    if isinstance(model_class, PreTrainedModel):
        name = type(model_class).__name__
        raise TypeError(f"`model_class` must be a class, got a model; give {name} itself.")
    if not isinstance(model_class, type) or not issubclass(model_class, PreTrainedModel):
        got = getattr(model_class, "__name__", type(model_class).__name__)
        raise TypeError(
            "`model_class` must be a class of models of transformers, such as LlamaForCausalLM, "
            f"got {got}."
        )


@functools.cache
def _learning(model_class: Any, alpha: float) -> Any:
    """The class that `learn_alpha` returns: always the same one, so that its models are copied."""
    start = math.log(alpha - 1) - math.log(2 - alpha)

    class LearnedAlpha(model_class):
        _keep_in_fp32_modules_strict = (
            *(model_class._keep_in_fp32_modules_strict or ()),
            "alpha_logit",
        )
        _keys_to_ignore_on_load_missing = (
            *(model_class._keys_to_ignore_on_load_missing or ()),
            r"alpha_logit$",
        )

        def __init__(self, config: Any, *inputs: Any, **options: Any) -> None:
            config = copy.deepcopy(config)  # the attention of other models of it stays as it is
            _choose_entmax(config)
            super().__init__(config, *inputs, **options)
            for module in _attention_modules(self):
                module.alpha_logit = nn.Parameter(torch.full((_num_heads(module),), start).float())

        def set_attn_implementation(self, *names: Any, **options: Any) -> None:
            configs: list[Any] = [x.config for x in self.modules() if hasattr(x, "alpha_logit")]
            before = [config._attn_implementation for config in configs]
            super().set_attn_implementation(*names, **options)
            for config in configs:
                if not is_registered(name := config._attn_implementation):
                    for each, earlier in zip(configs, before, strict=True):
                        each._attn_implementation_internal = earlier
                    raise _refusal(name)

        def __reduce__(self) -> tuple[Any, ...]:
            return _blank, (model_class, alpha), self.__dict__

        def initialize_weights(self) -> None:
            from transformers import initialization

            super().initialize_weights()
            for name, parameter in self.named_parameters():
                if name.endswith("alpha_logit"):
                    initialization.constant_(parameter, start)  # unless it was loaded

    LearnedAlpha.__name__ = model_class.__name__
    LearnedAlpha.__qualname__ = model_class.__qualname__
    LearnedAlpha.__module__ = model_class.__module__
    LearnedAlpha.__doc__ = model_class.__doc__
    return LearnedAlpha


def _blank(model_class: Any, alpha: float) -> Any:
    """A model without its state, which pickle and copy add."""
    learning = _learning(model_class, alpha)
    return learning.__new__(learning)


def _choose_entmax(config: Any) -> None:
    """Gives the configuration a name that `register` made, if it has none."""
    names = _names_in(config)
    if any(is_registered(name) for name in names):
        return
    if names:
        raise _refusal(names[0])
    if not is_registered(ENTMAX):
        register()
    config._attn_implementation = ENTMAX


def _names_in(config: Any) -> list[str]:
    """The attention implementations of a model and its parts, where they are given."""
    parts = (getattr(config, key, None) for key in config.sub_configs)
    inside = [name for part in parts if part is not None for name in _names_in(part)]
    own = config._attn_implementation
    return inside if own is None else [own, *inside]


def _refusal(name: str) -> ValueError:
    return ValueError(
        f'`attn_implementation="{name}"` would not use the α that this model learns; choose '
        f'`attn_implementation="{ENTMAX}"`, or another that `register` made from an `Entmax`. A '
        "configuration from which a model was made names that model's."
    )


def _attention_modules(model: nn.Module) -> list[Any]:
    """The modules that call one of our attention implementations by its name."""
    by_name: list[Any] = [module for module in model.modules() if calls_by_name(type(module))]
    found = [module for module in by_name if is_registered(module.config._attn_implementation)]
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no attention to learn an `alpha` for: none of its modules "
            "uses transformers' `AttentionInterface`."
        )
    return found


def _num_heads(module: Any) -> int:
    """Of queries: a layer's own number, or else that of its model."""
    for owner in (module, getattr(module, "config", None)):
        for name in ("num_attention_heads", "num_heads", "n_heads", "num_head", "n_head"):
            number = getattr(owner, name, None)
            if isinstance(number, int):
                return number
    raise ValueError(f"{type(module).__name__} does not say how many heads it has.")
