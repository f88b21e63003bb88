"""Translation: `python -m experiments.translation --help`."""
