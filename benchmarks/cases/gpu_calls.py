"""The host's time per call on small inputs on a GPU: `calls` for CUDA tensors."""

from __future__ import annotations

from collections.abc import Iterator

from ..results import Row
from .calls import on_device
from .options import Options


def rows(options: Options) -> Iterator[Row]:
    """Mappings, losses and the profile."""
    yield from on_device("cuda", options)
