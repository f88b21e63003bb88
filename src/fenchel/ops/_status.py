"""Which fast kernels are in use."""

from __future__ import annotations

from . import _binding, _native, _triton


def kernels() -> dict[str, str]:
    """Which fast kernels are in use, for a log or a report of results.

    Returns:
        "native", the C++ library for the CPU, and "triton", the kernels for a GPU: what is loaded,
        or why the slower references are used instead, and the remedy. "binding", which makes small
        calls cheaper: whether it is in use, and if not, why; results are the same.

    >>> import fenchel
    >>> sorted(fenchel.kernels())
    ['binding', 'native', 'triton']
    """
    return {"native": _native.STATUS, "binding": _binding.STATUS, "triton": _triton.STATUS}
