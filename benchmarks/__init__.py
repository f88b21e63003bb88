"""Measurements of fenchel beside torch and other packages: `python -m benchmarks CASE`."""
