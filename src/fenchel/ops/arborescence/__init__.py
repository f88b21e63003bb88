"""Non-projective dependency trees: the best one."""

from .._structure import declare_map
from . import reference

arborescence = declare_map("arborescence", reference.arborescence)
