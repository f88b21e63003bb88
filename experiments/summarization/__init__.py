"""Summarization: `python -m experiments.summarization --help`."""
