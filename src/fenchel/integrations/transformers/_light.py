"""What light masks say.

A layer need not know whether it has order or a window: eager attention has what its mask says, and
so have ours. What `light_mask` returns has four dimensions, because models pass such a mask on as
it is. Its dtype says that queries see no later keys, and whether there is the window of the
configuration besides:

    order    and window
    int8     int16       (B or 1, 1, 1, width)  1 for those of the first `width` keys that are
                                                there, one number in memory if they all are; the
                                                last of them stands at the last query
    int32    int64       (B or 1, 1, 1, 1)      how many keys each sequence has, the first at the
                                                first query
    int32    int64       (1, 1, n + 1, 1)       where n sequences start, and where the last one
                                                ends, for the rows of the batch one behind the other

A mask with a row for each query has its own order, or none:

    int32    (B, 1, T, S)  how many keys each sequence has: one number for each in memory
    boolean  (B, 1, T, S)  all that each query sees: one row for each sequence in memory if all its
                           queries see the same, and one number for all if nothing is hidden
"""

from __future__ import annotations

import torch
from torch import Tensor

WITH_WINDOW = {torch.int8: torch.int16, torch.int32: torch.int64}


def has_order(mask: Tensor | None) -> bool:
    """Whether this is a light mask by which queries see no later keys."""
    if mask is None:
        return False
    is_keys = mask.dtype in (torch.int8, torch.int16) and mask.shape[2] == 1
    return is_keys or (mask.dtype in (torch.int32, torch.int64) and mask.shape[3] == 1)


def has_window(mask: Tensor) -> bool:
    """Whether a light mask with order has a window too."""
    return mask.dtype in WITH_WINDOW.values()


def is_lengths(mask: Tensor | None) -> bool:
    """Whether this is a light mask of lengths or offsets, with order or without."""
    if mask is None:
        return False
    return mask.dtype == torch.int32 or (mask.dtype == torch.int64 and has_order(mask))
