"""Perturbed optimizers: MAP inference of scores with noise, for any structure."""

from ._optimizer import Perturbed

__all__ = ["Perturbed"]
