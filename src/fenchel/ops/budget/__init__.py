"""Choices of at most, or exactly, k of d entries: sorting, and a dynamic program."""

from .._structure import declare_inference, declare_map
from . import reference

map_inference = declare_map("budget", reference.map_inference)
inference = declare_inference("budget", reference.log_partition)
