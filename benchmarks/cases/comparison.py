"""The columns that compare fenchel's time with torch's and another package's."""

from __future__ import annotations

from collections.abc import Mapping

from ..results import Row
from ..timing import Timing


def comparison(timings: Mapping[str, Timing], target: float | None) -> Row:
    """Microseconds, ratios to torch, and whether fenchel's ratio is within the target."""
    torch, fenchel = timings["torch"], timings["fenchel"]
    ratio = fenchel.median / torch.median
    return {
        "torch µs": torch.median * 1e6,
        "fenchel µs": fenchel.median * 1e6,
        "quartiles µs": f"{fenchel.lower * 1e6:.0f}–{fenchel.upper * 1e6:.0f}",
        "ratio": ratio,
        "target": target,
        "met": None if target is None else ratio <= target,
        **{
            f"{name} ratio": timing.median / torch.median
            for name, timing in timings.items()
            if name not in ("torch", "fenchel")
        },
    }
