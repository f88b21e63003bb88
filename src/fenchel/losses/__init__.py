"""The Fenchel-Young loss of any mapping, by itself or fused with the linear layer before it."""

from ._fenchel_young import FenchelYoungLoss, fenchel_young_loss
from ._linear import linear_fenchel_young_loss

__all__ = ["FenchelYoungLoss", "fenchel_young_loss", "linear_fenchel_young_loss"]
