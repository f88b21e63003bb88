"""The pages of a cache."""

PAGE = 64
"""Keys that have a bound together."""


def num_pages(keys: int) -> int:
    """How many pages hold so many keys."""
    return -(-keys // PAGE)
