"""Attention whose weights are any mapping of the scores."""

from ._attention import attention
from ._multihead import KeysValues, MultiHeadAttention

__all__ = ["KeysValues", "MultiHeadAttention", "attention"]
