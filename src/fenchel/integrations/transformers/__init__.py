"""Sparse attention for the models of transformers, by the name of an attention implementation.

Only calls need transformers, not this import.

>>> from transformers import LlamaConfig, LlamaForCausalLM
>>> from fenchel.integrations.transformers import register
>>> register()
>>> config = LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1,
...                      intermediate_size=8, vocab_size=10, attn_implementation="fenchel_entmax")
>>> LlamaForCausalLM(config)(torch.tensor([[1, 2, 3]])).logits.shape
torch.Size([1, 3, 10])
"""

from ._alpha import learn_alpha
from ._names import register

__all__ = ["learn_alpha", "register"]
