"""Matchings of rows with columns: the algorithm of Jonker and Volgenant."""

from .._structure import declare_map
from . import reference

map_inference = declare_map("matching", reference.map_inference)
