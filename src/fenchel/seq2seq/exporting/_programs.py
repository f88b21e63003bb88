"""A model as two modules of tensors alone: the encoder, and one step of decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...attention import KeysValues
from ..data._vocabulary import BOS, UNK
from ..models._model import Seq2Seq
from ..models._state import State

SIZES = (
    {"batch": 3, "source": 5, "length": 2},
    {"batch": 4, "source": 8, "length": 6},
)
"""Two examples: what differs between them is a dynamic dimension."""


@dataclass(frozen=True)
class StateTensor:
    """A tensor of the state.

    Args:
        name: its name.
        dims: a number, or the name of a dynamic dimension: batch, source, or length, the number
            of tokens so far. A tensor with a dimension of length is empty at first; the encoder
            gives all others.
        dtype: of its values, such as "float32".
        is_updated: whether a step returns a new one.
    """

    name: str
    dims: tuple[int | str, ...]
    dtype: str
    is_updated: bool

    @property
    def is_empty_at_first(self) -> bool:
        """Whether there is nothing in it before the first token."""
        return "length" in self.dims


def _flat(state: State) -> dict[str, Tensor]:
    """The tensors of a state; a cache has two."""
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        if isinstance(value, KeysValues):
            found |= {f"{name}_key": value.key, f"{name}_value": value.value}
        else:
            found[name] = value
    return found


def _nested(tensors: dict[str, Tensor], names: list[str]) -> State:
    """The state of these tensors."""
    return {
        name: tensors[name]
        if name in tensors
        else KeysValues(tensors[f"{name}_key"], tensors[f"{name}_value"])
        for name in names
    }


class Encoder(nn.Module):
    """The state before the first token, without what is empty then, by name."""

    def __init__(self, model: Seq2Seq, names: list[str]) -> None:
        super().__init__()
        self.model, self._names = model, names

    def forward(self, source: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """Of token ids (batch, source), padded with 0, and their lengths (batch,)."""
        state = _flat(self.model.start(source, lengths))
        return {name: state[name] for name in self._names}


class Step(nn.Module):
    """The probabilities of the next token, the attention, with one more head for what is copied,
    and what changes of the state."""

    def __init__(self, model: Seq2Seq, names: list[str], updated: list[str]) -> None:
        super().__init__()
        self.model, self._names, self._updated = model, names, updated

    def forward(self, tokens: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Of the last tokens (batch,), and the state by name."""
        scores, attention, after = self.model.step(_nested(state, self._names), tokens)
        p = self.model.probabilities(scores)
        if self.model.pointer is not None:
            copied = p[:, None, self.model.pointer.size :].to(attention.dtype)
            p, attention = self.model.pointer.merge(p, after), torch.cat([attention, copied], 1)
        tensors = _flat(after)
        return {
            "probabilities": p,
            "attention": attention,
            **{f"next_{name}": tensors[name] for name in self._updated},
        }


@dataclass(frozen=True)
class Programs:
    """The modules, their state, and examples of their arguments."""

    encoder: Encoder
    step: Step
    state: tuple[StateTensor, ...]
    encoder_example: tuple[Tensor, ...]
    step_example: tuple[Any, ...]


def programs(model: Seq2Seq) -> Programs:
    """The encoder and the step of a model.

    Which dimensions are dynamic, and what a step changes, is found by running two examples.
    """
    runs = [_run(model, **sizes) for sizes in SIZES]
    tensors: list[StateTensor] = []
    for name, value in runs[0].state.items():
        dims = tuple(
            _dim(*sizes) for sizes in zip(*(r.state[name].shape for r in runs), strict=True)
        )
        dtype = str(value.dtype).removeprefix("torch.")
        tensors.append(StateTensor(name, dims, dtype, name in runs[0].updated))
    given = [each.name for each in tensors if not each.is_empty_at_first]
    first = runs[0]
    return Programs(
        Encoder(model, given),
        Step(model, first.names, [each.name for each in tensors if each.is_updated]),
        tuple(tensors),
        (first.source, first.lengths),
        (first.tokens, first.state),
    )


@dataclass(frozen=True)
class _Run:
    source: Tensor
    lengths: Tensor
    tokens: Tensor
    names: list[str]
    state: dict[str, Tensor]
    updated: set[str]


@torch.no_grad()
def _run(model: Seq2Seq, batch: int, source: int, length: int) -> _Run:
    """An example: the state after some tokens."""
    device = next(model.parameters()).device
    ids = torch.full((batch, source), UNK, device=device)
    lengths = torch.full((batch,), source, device=device)
    tokens = torch.full((batch,), BOS, device=device)
    state, updated = model.start(ids, lengths), set[str]()
    for _ in range(length):
        before = _flat(state)
        _, _, state = model.step(state, tokens)
        tokens = torch.full_like(tokens, UNK)
        updated |= {name for name, value in _flat(state).items() if value is not before[name]}
    # A cache has room behind its end, which would be part of the strides.
    tensors = {name: value.contiguous().clone() for name, value in _flat(state).items()}
    return _Run(ids, lengths, tokens, list(state), tensors, updated)


def _dim(first: int, second: int) -> int | str:
    """The name of a dimension that has these sizes in the two examples, or its fixed size."""
    if first == second:
        return first
    for name in SIZES[0]:
        if (first, second) == (SIZES[0][name], SIZES[1][name]):
            return name
    raise ValueError(f"a state of the model has a dimension of {first} and {second} values.")
