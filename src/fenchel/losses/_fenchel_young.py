"""The Fenchel-Young loss of any mapping."""

from __future__ import annotations

from torch import Tensor, nn

from .. import _checks
from ..mappings import AbstractMapping
from ..mappings._checks import check_ignore_index, check_smoothing
from ..mappings._registry import resolve
from ..nn import Mapping, as_module


def fenchel_young_loss(
    mapping: AbstractMapping | str,
    scores: Tensor,
    target: Tensor,
    dim: int = -1,
    reduction: str = "mean",
    ignore_index: int | None = -100,
    inplace: bool = False,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The loss max_Ω(θ) + Ω(y) − <θ, y>, whose gradient in the scores θ is ŷ(θ) − y.

    It is nonnegative, convex in θ, and zero exactly where ŷ(θ) = y. For softmax it is the
    cross-entropy, `F.cross_entropy`.

    Args:
        mapping: gives ŷ, Ω and γ; or the name of a registered one.
        scores: θ, floating point, any shape; −inf deletes a class.
        target: class indices, of the scores' shape without `dim`, or distributions y of the
            scores' shape. Indices never become a one-hot matrix.
        dim: the dimension of the classes.
        reduction: "none", "mean" or "sum" over the rows.
        ignore_index: rows with this index count for nothing: neither in the loss, nor in the
            mean, nor in the gradient. If all rows are ignored the mean is NaN, as in torch. None
            ignores no row.
        inplace: whether backward may write the gradient over the scores, which saves a tensor of
            their size. Autograd tells if anything else still needs them. Softmax, sparsemax and
            entmax do it; the other mappings ignore it.
        label_smoothing: ε in [0, 1]; the target becomes (1 − ε)y + εu, with u uniform over the
            classes of the row that are not deleted. Softmax, sparsemax and entmax need no tensor
            of distributions for that. The loss is that of `F.cross_entropy` less the entropy of
            the smoothed target, which is a constant.
    Returns:
        A scalar, or with "none" one loss per row. A row whose target class is deleted has the loss
        +inf, as in torch. Half precision is rounded once, after the reduction; under autocast the
        loss is float32. Both as in `F.cross_entropy`.
    Raises:
        TypeError, ValueError: for targets of the wrong kind, shape or value.

    One pass over the scores forward and one backward. Softmax, sparsemax and entmax keep four
    numbers per row between them, the other mappings their solution.

    >>> import torch
    >>> from fenchel import Sparsemax
    >>> scores = torch.tensor([[2.0, 1.5, -1.0], [0.0, 3.0, 0.5]])
    >>> fenchel_young_loss(Sparsemax(), scores, torch.tensor([0, 1]), reduction="none")
    tensor([0.0625, 0.0000])

    References: blondel2020learning.
    """
    return resolve(mapping).loss(
        scores, target, dim, reduction, ignore_index, inplace, label_smoothing
    )


class FenchelYoungLoss(nn.Module):
    """`fenchel_young_loss` as a module.

    Args:
        mapping: as for the function; its tensors become parameters and buffers, as those of
            `fenchel.nn.Mapping`, which may be given itself.
        dim, reduction, ignore_index, inplace, label_smoothing: as for the function.

    >>> from fenchel import Entmax
    >>> loss = FenchelYoungLoss(Entmax(1.5))
    >>> loss(torch.tensor([[2.0, 1.5, -1.0], [0.0, 3.0, 0.5]]), torch.tensor([0, 1]))
    tensor(0.0922)
    """

    def __init__(
        self,
        mapping: AbstractMapping | Mapping | str,
        dim: int = -1,
        reduction: str = "mean",
        ignore_index: int | None = -100,
        inplace: bool = False,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        _checks.check_integer("dim", dim)
        _checks.check_choice("reduction", reduction, _checks.REDUCTIONS)
        check_ignore_index(ignore_index)
        self.mapping = as_module(mapping, dim)
        check_smoothing(label_smoothing, self.mapping.mapping)
        self.dim = dim
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.inplace = inplace
        self.label_smoothing = label_smoothing

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        return self.mapping.mapping.loss(
            scores,
            target,
            self.dim,
            self.reduction,
            self.ignore_index,
            self.inplace,
            self.label_smoothing,
        )

    def extra_repr(self) -> str:
        smoothing = f", label_smoothing={self.label_smoothing:g}" if self.label_smoothing else ""
        return f"dim={self.dim}, reduction={self.reduction!r}{smoothing}"
