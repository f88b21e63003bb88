"""How DTensor shards the operators: rows stay whole, and batches are sharded as they come."""

from __future__ import annotations

from functools import cache
from typing import Any

from ._operator import ROWWISE


@cache
def register() -> None:
    """Tells DTensor what it may do with each operator on rows; importing it takes a second."""
    from torch.distributed.tensor.experimental import register_sharding

    for operator in ROWWISE:
        register_sharding(operator)(_shardings(operator))


def _shardings(operator: Any) -> Any:
    results = len(operator._schema.returns)

    def strategies(rows: Any, *others: Any) -> list:
        from torch.distributed.tensor import Replicate, Shard

        arguments = (rows, *others)

        def placements(dim: int | None) -> tuple[list, list]:
            def place(value: Any) -> Any:
                if not hasattr(value, "tensor_meta"):
                    return None  # a number
                whole = dim is None or value.ndim < rows.ndim or value.shape[dim] == 1
                return Replicate() if whole else Shard(dim)

            result = Replicate() if dim is None else Shard(dim)
            return [result] * results, [place(value) for value in arguments]

        return [placements(dim) for dim in (None, *range(rows.ndim - 1))]

    return strategies
