"""Bytes that a call allocates and keeps, in multiples of its output."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# The profiler announces each start and stop on stderr otherwise.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile


def saved(function: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """What is kept for backward, the input aside; 1.0 is exactly the output."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = x.detach().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        y = function(x)
    kept.pop(x.untyped_storage().data_ptr(), None)
    return sum(kept.values()) / y.untyped_storage().nbytes()


def peak(function: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The most that PyTorch's allocator holds at once during a forward call."""
    x = x.detach().requires_grad_()
    function(x)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        y = function(x)
    engine: Any = profiler.profiler
    events = engine.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events)
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most / y.untyped_storage().nbytes()
