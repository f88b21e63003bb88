"""Fenchel inside other libraries: one package for each, imported by itself, with an extra."""
