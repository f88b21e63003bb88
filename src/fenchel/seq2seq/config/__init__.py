"""Configurations: every key of a model and its training, and the files that set them."""
