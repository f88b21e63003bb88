"""Projective dependency trees: the best one."""

from .._structure import declare_map
from . import reference

eisner = declare_map("eisner", reference.eisner)
