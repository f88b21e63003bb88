"""Morphological inflection: `python -m experiments.inflection --help`."""
