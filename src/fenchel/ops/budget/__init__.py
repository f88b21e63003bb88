"""Choices of at most, or exactly, k of d entries: the best, the log-partition, and marginals."""

from .._structure import declare_inference, declare_map
from . import reference

budget = declare_map("budget", reference.budget)
counts = declare_inference("counts", reference.log_partition)
