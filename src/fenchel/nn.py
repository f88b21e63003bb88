"""A mapping as a module, so that what it learns is a parameter of the model that holds it.

>>> import fenchel
>>> fenchel.nn.Mapping("sparsemax", dim=0)
Mapping(Sparsemax(gamma=1.0), dim=0)
"""

from __future__ import annotations

from dataclasses import fields

from torch import Tensor, nn

from . import _checks
from .mappings import AbstractMapping
from .mappings._registry import resolve

__all__ = ["Mapping"]


class Mapping(nn.Module):
    """ŷ of the scores along a dimension, with the mapping's tensors as parameters and buffers.

    Args:
        mapping: a mapping, or the name of a registered one. Of its fields an `nn.Parameter` becomes
            a parameter of that name, any other tensor a buffer and a module a submodule; they go
            wherever the module goes.
        dim: the dimension that is mapped.
    Raises:
        TypeError, ValueError: for arguments of the wrong kind or value, and at a call on the CPU
            for a parameter that has left its range; `torch.nn.utils.parametrize` keeps it there.

    >>> from fenchel import Entmax
    >>> alpha = nn.Parameter(torch.tensor(1.5))
    >>> layer = nn.Sequential(nn.Linear(3, 4), Mapping(Entmax(alpha)))
    >>> [name for name, _ in layer.named_parameters()]
    ['0.weight', '0.bias', '1.alpha']
    >>> layer(torch.randn(2, 3)).shape
    torch.Size([2, 4])
    """

    def __init__(self, mapping: AbstractMapping | str, dim: int = -1) -> None:
        super().__init__()
        _checks.check_integer("dim", dim)
        self.dim = dim
        given = resolve(mapping)
        values = {field.name: getattr(given, field.name) for field in fields(given) if field.init}
        self._tensors = tuple(name for name, value in values.items() if isinstance(value, Tensor))
        for name in self._tensors:
            value = values.pop(name)
            if not value.is_leaf:
                raise ValueError(
                    f"`{name}` must be no result of a computation, which the module could not do "
                    "again: give an nn.Parameter, and let `torch.nn.utils.parametrize` compute it."
                )
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value)
        for name, value in values.items():
            if isinstance(value, nn.Module):  # as a regularizer of `General` may be
                self.add_module(name, value)
        self._kind, self._numbers = type(given), values
        self._given = None if self._tensors else given

    @property
    def mapping(self) -> AbstractMapping:
        """The mapping with the tensors that the module has now."""
        if self._given is not None:
            return self._given
        tensors = {name: getattr(self, name) for name in self._tensors}
        return self._kind.of(**self._numbers, **tensors)

    def forward(self, scores: Tensor) -> Tensor:
        return self.mapping(scores, self.dim)

    def extra_repr(self) -> str:
        options = self._numbers | {name: getattr(self, name) for name in self._tensors}
        inside = ", ".join(
            f"{name}={_checks.type_name(value)}{tuple(value.shape)}"
            if name in self._tensors
            else f"{name}={value!r}"
            for name, value in options.items()
        )
        return f"{self._kind.__name__}({inside}), dim={self.dim}"


def as_module(mapping: AbstractMapping | Mapping | str, dim: int = -1) -> Mapping:
    """The module of a mapping, or the one given."""
    return mapping if isinstance(mapping, Mapping) else Mapping(mapping, dim)
