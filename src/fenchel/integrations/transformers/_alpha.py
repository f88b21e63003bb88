"""Models whose heads learn how sparse they are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from ... import _checks
from ...attention._alpha import learned
from ...mappings import AbstractMapping
from ...mappings._entmax import Entmax

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
        A subclass of the same name. Its models use the α that they learn with every attention
        implementation that `register` made from an `Entmax`, and ignore it with others, such as
        `"sdpa"`.
    Raises:
        ValueError: if `alpha` is not between 1 and 2, or, for a model, if it has no attention.

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
    start = math.log(alpha - 1) - math.log(2 - alpha)
    base: Any = model_class

    class LearnedAlpha(base):
        _keep_in_fp32_modules_strict = (*(base._keep_in_fp32_modules_strict or ()), "alpha_logit")
        _keys_to_ignore_on_load_missing = (
            *(base._keys_to_ignore_on_load_missing or ()),
            r"alpha_logit$",
        )

        def __init__(self, *inputs: Any, **options: Any) -> None:
            super().__init__(*inputs, **options)
            for module in _attention_modules(self):
                logits = torch.full((module.config.num_attention_heads,), start)
                module.alpha_logit = nn.Parameter(logits.float())

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


def _attention_modules(model: nn.Module) -> list[Any]:
    """The modules that call an attention implementation: they say whether they are causal."""
    found = [module for module in model.modules() if "is_causal" in vars(module)]
    if not found:
        raise ValueError(f"{type(model).__name__} has no attention to learn an `alpha` for.")
    return found


def with_learned_alpha(module: nn.Module, mapping: AbstractMapping) -> Entmax | None:
    """The mapping with the α that the module learns; None if it learns none."""
    logit: Tensor | None = getattr(module, "alpha_logit", None)
    if logit is None:
        return None
    if not isinstance(mapping, Entmax):
        raise ValueError(
            f"`learn_alpha` is for entmax, and this model's attention is {mapping.name}; choose "
            '`attn_implementation="fenchel_entmax"`.'
        )
    return learned(mapping, logit.float()[:, None, None])
