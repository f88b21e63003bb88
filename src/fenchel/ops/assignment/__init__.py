"""Matchings of rows with columns: the best one."""

from .._structure import declare_map
from . import reference

assignment = declare_map("assignment", reference.assignment)
