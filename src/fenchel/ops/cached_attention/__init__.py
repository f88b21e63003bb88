"""Entmax attention to a cache of keys, which reads only pages of keys that may have weight.

A page is `PAGE` keys that follow each other. With the smallest and the largest entry of its keys,
low and high, the product of a query with any of them is at most

    Σᵢ max(qᵢ lowᵢ, qᵢ highᵢ).

Scale, cap and slopes turn this into a bound of the page's scores. The threshold τ of the scores
that have been read is at most that of all, because more scores raise it. So a page whose bound is
below τ has weight zero, and is not read. Bounds have a margin for what products round.

Pages are read so on a CPU; on a GPU the fused kernel of `fenchel::attention` reads all keys.
"""

from .reference import Rows, attend_by_pages
from .sizes import PAGE, num_pages

__all__ = ["PAGE", "Rows", "attend_by_pages", "num_pages"]
