"""Small random models of each family, and attention with every score and mask written out, from
which the truth is computed: nothing in it is fenchel's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import entmax
import torch
import transformers
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask
from transformers.modeling_outputs import MaskedLMOutput

TRUTH = "written_out"
VOCABULARY = 29
SHARED: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 12,
    "initializer_range": 0.6,  # scores so far apart that entmax is sparse
    "pad_token_id": 0,
    "bos_token_id": 1,
    "tie_word_embeddings": False,
    "eos_token_id": None,
}
DECODER = {**SHARED, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64}
MIXED = ["sliding_attention", "full_attention"]


def llama() -> PreTrainedModel:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER))


def qwen2() -> PreTrainedModel:
    options = {"use_sliding_window": True, "sliding_window": 4, "layer_types": MIXED[::-1]}
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**DECODER, **options))


def qwen3() -> PreTrainedModel:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**DECODER))


def qwen2_moe() -> PreTrainedModel:
    """It does not pass its window on to attention."""
    options = {
        "use_sliding_window": True,
        "sliding_window": 4,
        "layer_types": MIXED,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
    }
    return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(**DECODER, **options))


def mistral() -> PreTrainedModel:
    return transformers.MistralForCausalLM(transformers.MistralConfig(**DECODER, sliding_window=4))


def gemma2() -> PreTrainedModel:
    options = {"sliding_window": 4, "layer_types": MIXED, "attn_logit_softcapping": 1.5}
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**DECODER, **options))


def gpt_oss() -> PreTrainedModel:
    options = {
        "sliding_window": 4,
        "layer_types": MIXED,
        "num_local_experts": 2,
        "num_experts_per_tok": 2,  # all, so that rounding chooses no other
        "experts_implementation": "eager",
    }
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**DECODER, **options))
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    return model


def bert() -> PreTrainedModel:
    options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return transformers.BertForMaskedLM(transformers.BertConfig(**SHARED, **options))


def layoutlm() -> PreTrainedModel:
    """Its layers do not say that they have no order, and it makes its own mask."""
    options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return transformers.LayoutLMForMaskedLM(transformers.LayoutLMConfig(**SHARED, **options))


class SplinterWithLogits(transformers.SplinterPreTrainedModel):
    """Its layers do not say that they have no order."""

    def __init__(self, config: transformers.SplinterConfig) -> None:
        super().__init__(config)
        self.splinter = transformers.SplinterModel(config)
        self.head = torch.nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> MaskedLMOutput:
        found = self.splinter(input_ids, attention_mask=attention_mask)
        return MaskedLMOutput(logits=self.head(found.last_hidden_state))


def splinter() -> PreTrainedModel:
    options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return SplinterWithLogits(transformers.SplinterConfig(**SHARED, **options))


def t5() -> PreTrainedModel:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=16,
        d_kv=4,
        d_ff=12,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=10,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=None,
    )
    model = transformers.T5ForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        if name.endswith((".q.weight", "relative_attention_bias.weight")):
            torch.nn.init.normal_(parameter, std=0.6)
    return model


def nllb_moe() -> PreTrainedModel:
    """The layers of its decoder do not say that they have order: its mask does."""
    config = transformers.NllbMoeConfig(
        vocab_size=VOCABULARY,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=12,
        decoder_ffn_dim=12,
        encoder_sparse_step=0,
        decoder_sparse_step=0,
        max_position_embeddings=64,
        init_std=0.6,
        decoder_start_token_id=1,
        pad_token_id=0,
        eos_token_id=None,
    )
    return transformers.NllbMoeForConditionalGeneration(config)


DECODERS: dict[str, Callable[[], PreTrainedModel]] = {
    make.__name__: make for make in (llama, qwen2, qwen3, qwen2_moe, mistral, gemma2, gpt_oss)
}
ENCODERS: dict[str, Callable[[], PreTrainedModel]] = {
    make.__name__: make for make in (bert, layoutlm, splinter)
}
FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    **DECODERS,
    **ENCODERS,
    "t5": t5,
    "nllb_moe": nllb_moe,
}


def build(family: str, implementation: str) -> PreTrainedModel:
    """The same random model for each implementation, to be evaluated."""
    torch.manual_seed(1)
    model = FAMILIES[family]().eval()
    model.set_attn_implementation(implementation)
    return model


def tokens(rows: int, length: int) -> Tensor:
    torch.manual_seed(2)
    return torch.randint(1, VOCABULARY, (rows, length))


def truth_with(alpha: float | Tensor) -> Callable[..., tuple[Tensor, Tensor]]:
    """Entmax attention by the book: in float64, with a bisection of another package."""

    def forward(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        position_bias: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        dtype = query.dtype
        query, key, value = (x.double() for x in (query, key, value))
        key, value = (
            x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value)
        )
        scores = scaling * query @ key.mT
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if position_bias is not None:
            scores = scores + position_bias
        if attention_mask is not None:
            scores = scores + attention_mask.clamp(min=-1e4)  # a row may have nothing else
        if s_aux is not None:
            sinks = s_aux.double()[None, :, None, None].expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, sinks], -1)
        weights: Any = entmax.entmax_bisect(scores, alpha, n_iter=60)
        weights = weights[..., : key.shape[2]]
        output = (weights @ value).transpose(1, 2)
        return output.to(dtype), weights.to(dtype)

    return forward


def register_truth(alpha: float | Tensor = 1.5) -> None:
    AttentionInterface.register(TRUTH, truth_with(alpha))
    AttentionMaskInterface.register(TRUTH, eager_mask)


def alphas(model: torch.nn.Module) -> dict[str, Tensor]:
    """The parameters from which heads have their alpha."""
    return {k: p for k, p in model.named_parameters() if k.endswith("alpha_logit")}
