"""Sequences of tags: the best one."""

from .._structure import declare_map
from . import reference

viterbi = declare_map("viterbi", reference.viterbi)
