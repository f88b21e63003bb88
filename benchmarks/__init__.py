"""Measurements of fenchel beside torch and its rivals: `python -m benchmarks CASE`."""
