"""Transformers trained on short sequences and tested on long ones, by attention."""
