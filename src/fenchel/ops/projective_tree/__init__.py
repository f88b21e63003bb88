"""Projective dependency trees: Eisner's algorithm, and inside-outside."""

from .._structure import declare_inference, declare_map
from . import reference

map_inference = declare_map("projective_tree", reference.map_inference)
inference = declare_inference("projective_tree", reference.log_partition)
