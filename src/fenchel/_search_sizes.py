"""The largest sizes of a search, which the command line checks before it loads any model."""

from __future__ import annotations

_FEWER = "with fewer, a certificate says whether anything was missed"
MAX_SEARCH_SIZES = {
    "beam": (8192, _FEWER),
    "nbest": (8192, _FEWER),
    "limit": (8192, _FEWER),
    "samples": (8192, "draw more with another seed"),
    "max_length": (10_000, "an output that is longer is broken off, and said to be"),
    "batch_size": (65_536, "inputs are decoded in as many batches as they need"),
}
"""The largest sizes, which bound memory and time, and why larger ones are not needed."""


def too_large(name: str, value: int) -> str:
    """Why a size of a search is too large, or an empty text if it is not."""
    largest, remedy = MAX_SEARCH_SIZES[name]
    return f"must be at most {largest}, got {value}; {remedy}." if value > largest else ""
