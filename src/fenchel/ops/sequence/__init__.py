"""Sequences of tags: Viterbi's algorithm, and forward-backward."""

from .._structure import declare_inference, declare_map
from . import reference

map_inference = declare_map("sequence", reference.map_inference)
inference = declare_inference("sequence", reference.log_partition)
