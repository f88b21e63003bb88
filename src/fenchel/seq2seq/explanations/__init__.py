"""Explanations: all that a model considers for one input, and a page that shows it."""
