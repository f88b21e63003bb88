"""Dependency parsing with a limit on the number of children, as a factor graph."""
