"""Grapheme-to-phoneme conversion: `python -m experiments.grapheme_to_phoneme --help`."""
