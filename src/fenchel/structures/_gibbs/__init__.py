"""The distribution p(y) ∝ exp⟨θ, y⟩ over the members of a structure: samples, entropies, modes."""

from ._entropy import cross_entropy, entropy, kl
from ._k_best import KBest, k_best
from ._sample import sample

__all__ = ["KBest", "cross_entropy", "entropy", "k_best", "kl", "sample"]
