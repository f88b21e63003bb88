"""Choices of at most, or exactly, k of d entries: the best one."""

from .._structure import declare_map
from . import reference

budget = declare_map("budget", reference.budget)
