"""Experiments of the papers, one folder each: `python -m experiments.inflection --help`."""
