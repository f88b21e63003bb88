"""Dependency trees: the algorithm of Chu, Liu and Edmonds, and the matrix-tree theorem."""

from .._structure import declare_inference, declare_map
from . import reference

map_inference = declare_map("tree", reference.map_inference)
inference = declare_inference("tree", reference.log_partition, reference.marginals)
