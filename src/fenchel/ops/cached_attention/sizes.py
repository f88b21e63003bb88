"""The pages of a cache, and what the kernels of cached attention need besides."""

PAGE = 64
"""Keys that have a bound together."""
MAX_ROWS = 64
"""Queries, of all heads that share keys, that the kernels take together."""


def num_pages(keys: int) -> int:
    """How many pages hold so many keys."""
    return -(-keys // PAGE)
