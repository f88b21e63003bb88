"""Projective dependency trees: the best one, the log-partition, and marginals."""

from .._structure import declare_inference, declare_map
from . import reference

eisner = declare_map("eisner", reference.eisner)
spans = declare_inference("spans", reference.log_partition)
