"""Sequences of tags: the best one, the log-partition, and marginals."""

from .._structure import declare_inference, declare_map
from . import reference

viterbi = declare_map("viterbi", reference.viterbi)
chain = declare_inference("chain", reference.log_partition)
