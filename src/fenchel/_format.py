"""Numbers as text for a reader."""

from __future__ import annotations


def percent(p: float, digits: int = 1) -> str:
    """A probability in percent; only 0 is shown as 0%, and only 1 as 100%.

    >>> [percent(p) for p in (0, 1e-9, 0.664, 0.99999, 1)]
    ['0%', '<0.1%', '66.4%', '>99.9%', '100%']
    >>> [percent(p, digits=0) for p in (0, 0.001, 0.664, 0.998, 1)]
    ['0%', '<1%', '66%', '>99%', '100%']
    """
    if p in (0, 1):
        return f"{p:.0%}"
    smallest = 10.0 ** -(digits + 2)
    if p < smallest:
        return f"<{smallest:.{digits}%}"
    if p > 1 - smallest:
        return f">{1 - smallest:.{digits}%}"
    return f"{p:.{digits}%}"
