"""SparseMAP and the losses of structured prediction, over any structure."""

from ._losses import StructuredLoss, structured_loss
from ._posterior import Posterior
from ._solve import sparsemap

__all__ = ["Posterior", "StructuredLoss", "sparsemap", "structured_loss"]
