"""Non-projective dependency trees: the best one, the log-partition, and marginals."""

from .._structure import declare_inference, declare_map
from . import matrix_tree, reference

arborescence = declare_map("arborescence", reference.arborescence)
trees = declare_inference("trees", matrix_tree.log_partition, matrix_tree.marginals)
