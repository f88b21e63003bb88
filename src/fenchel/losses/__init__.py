"""Fenchel-Young losses: of mappings, alone or fused with a linear layer, and of structures."""

from ._fenchel_young import FenchelYoungLoss, fenchel_young_loss
from ._linear import linear_fenchel_young_loss
from ._structured import StructuredLoss, structured_loss

__all__ = [
    "FenchelYoungLoss",
    "StructuredLoss",
    "fenchel_young_loss",
    "linear_fenchel_young_loss",
    "structured_loss",
]
