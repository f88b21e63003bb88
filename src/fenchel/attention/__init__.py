"""Attention whose weights are any mapping of the scores."""

from ._attend import attend
from ._attention import attention
from ._cache import KeysValues
from ._multihead import MultiHeadAttention

__all__ = ["KeysValues", "MultiHeadAttention", "attend", "attention"]
