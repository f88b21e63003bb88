"""Dependency trees: the algorithm of Chu, Liu and Edmonds, and the Matrix-Tree theorem."""

from .._structure import declare_inference, declare_map
from . import matrix_tree, reference

map_inference = declare_map("tree", reference.map_inference)
inference = declare_inference("tree", matrix_tree.log_partition, matrix_tree.marginals)
