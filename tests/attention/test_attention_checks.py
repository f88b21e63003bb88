"""Wrong arguments of attention get an error that names them, and the remedy where there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attention_problems import vectors
from fenchel import Entmax
from fenchel.attention import attention

LENGTHS = torch.tensor([3, 7])
ENDS = torch.tensor([0, 2, 5])
KEY_ENDS = torch.tensor([0, 3, 7])


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"causal": "lower"}, ValueError, '"upper_left" or "lower_right", got \'lower\''),
        ({"causal": 1}, ValueError, "`causal` must be False, True"),
        ({"window": 1.5}, TypeError, "`window` must be an int, got float; a pair"),
        ({"window": True}, TypeError, "`window` must be an int, got bool"),
        ({"window": -1}, ValueError, "`window` must be at least 0; got -1"),
        ({"window": 0, "causal": True}, ValueError, "at least 1, the query's own place, when"),
        ({"window": (1, 2, 3)}, ValueError, r"an int or a pair \(left, right\), got \(1, 2, 3\)"),
        (
            {"window": (-1, 0)},
            ValueError,
            "the left side of .* 0; None is for no bound; got -1",
        ),
        ({"window": (0, "a")}, TypeError, "the right side of `window` must be an int, got str"),
        ({"key_lengths": [3, 7]}, TypeError, "`key_lengths` must be an int32 or int64 .* got list"),
        ({"key_lengths": LENGTHS.float()}, TypeError, "`key_lengths` .* got torch.float32"),
        (
            {"key_lengths": LENGTHS[None, :, None]},
            ValueError,
            r"must have shape \(2,\), one length",
        ),
        ({"key_lengths": LENGTHS + 1}, ValueError, "must be from 0 to 7, the padded length; got 8"),
        ({"query_lengths": LENGTHS}, ValueError, "`query_lengths` must be from 0 to 5, .* got 7"),
        ({"key_lengths": LENGTHS.to("meta")}, ValueError, "`key_lengths` must be on the device of"),
        (
            {"key_lengths": LENGTHS, "cu_seqlens_q": ENDS},
            ValueError,
            "`key_lengths` is for padded sequences and `cu_seqlens_q` for packed ones",
        ),
        ({"cu_seqlens_k": ENDS}, ValueError, "`cu_seqlens_q` must be given with `cu_seqlens_k`"),
        ({"cu_seqlens_q": ENDS}, ValueError, "`cu_seqlens_k` must be given where .* 5 and 7"),
        (
            {"cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS[:2]},
            ValueError,
            "must have as many entries, got 3 and 2",
        ),
        (
            {"cu_seqlens_q": ENDS + 1, "cu_seqlens_k": KEY_ENDS},
            ValueError,
            r"`cu_seqlens_q` must start with 0, .* end at 5 at most; got \[1, 3, 6\]",
        ),
        (
            {"cu_seqlens_q": ENDS, "cu_seqlens_k": torch.tensor([0, 4, 3])},
            ValueError,
            "`cu_seqlens_k` must start with 0, never decrease",
        ),
        (
            {"cu_seqlens_q": ENDS[:1], "cu_seqlens_k": ENDS[:1]},
            ValueError,
            r"`cu_seqlens_q` must have shape \(n \+ 1,\)",
        ),
        (
            {"alibi": torch.rand(3)},
            ValueError,
            r"`alibi` must broadcast to \(2, 4\), one",
        ),
        ({"alibi": torch.rand(4, device="meta")}, ValueError, "`alibi` .* device of `query`, cpu"),
        ({"scale": torch.rand(4, 1, 1, device="meta")}, ValueError, "`scale` .* device of `query`"),
        ({"alibi": "steep"}, TypeError, "`alibi` must be a number or a torch.Tensor, got str"),
        ({"sinks": torch.rand(4, 1, 1)}, ValueError, "`sinks` must broadcast to"),
        ({"sinks": torch.tensor([0, 1, 2, 3])}, TypeError, "`sinks` must be bfloat16"),
        ({"softcap": -1.0}, ValueError, "`softcap` must be at least 0, got -1"),
        ({"softcap": torch.ones(1)}, TypeError, "`softcap` must be a number, got Tensor"),
        (
            {"scale": torch.rand(4)},
            ValueError,
            r"`scale` .*shape \(4,\). One per head has shape",
        ),
        ({"scale": "big"}, TypeError, "`scale` must be a number or a torch.Tensor, got str"),
        ({"scale": float("nan")}, ValueError, "`scale` must be finite, got nan"),
        ({"dropout": 1.5}, ValueError, "`dropout` must be at least 0 and at most 1"),
        (
            {"mapping": Entmax(torch.full((3, 1, 1), 1.5))},
            ValueError,
            r"`alpha` must broadcast to \(2, 4, 5, 1\), one entry per query; .*\(3, 1, 1\)",
        ),
        (
            {"mapping": Entmax(gamma=torch.ones(5))},
            ValueError,
            r"`gamma` must broadcast to .*One per head has shape \(4, 1, 1\)",
        ),
    ],
)
@pytest.mark.parametrize("weights", [False, True])
def test_errors_name_the_argument(
    options: dict[str, Any], kind: type[Exception], message: str, weights: bool
) -> None:
    with pytest.raises(kind, match=message):
        attention(*vectors(), **{"mapping": "entmax", "weights": weights, **options})


def test_heads_that_are_no_multiple() -> None:
    query, key, value = vectors(heads=3, groups=2)
    with pytest.raises(ValueError, match="must be a multiple of those of the keys; got query"):
        attention(query, key, value, "entmax")
    with pytest.raises(ValueError, match="must agree in all dimensions but their last two"):
        attention(query, key[:, :1], value[:1].expand(3, 2, 7, 2), "entmax")


def test_a_parameter_that_has_left_its_range() -> None:
    gamma = torch.ones(4, 1, 1)
    mapping = Entmax(gamma=gamma)
    gamma[2] = -1.0
    with pytest.raises(ValueError, match="`gamma` must be greater than 0, got -1"):
        attention(*vectors(), mapping)


@pytest.mark.parametrize("mapping", ["softmax", "sparsemax"])
def test_booleans_of_numpy(mapping: str) -> None:
    inputs = vectors()
    expected = attention(*inputs, mapping, causal=True, weights=True)
    found = attention(*inputs, mapping, causal=np.True_, weights=np.True_)  # type: ignore[arg-type]
    for new, old in zip(found, expected, strict=True):
        torch.testing.assert_close(new, old)
    torch.testing.assert_close(attention(*inputs, mapping, causal=np.True_), expected[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("mapping", ["softmax", "sparsemax"])
def test_weights_are_asked_for_by_a_boolean(mapping: str) -> None:
    with pytest.raises(TypeError, match="`weights` must be True or False, got str"):
        attention(*vectors(), mapping, weights="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("mapping", ["softmax", "sparsemax"])
def test_heads_and_sequences_that_do_not_fit(mapping: str) -> None:
    query, key, value = vectors()
    with pytest.raises(ValueError, match=r"must have at least one head, .* got query \(2, 0, 5"):
        attention(query[:, :0], key[:, :0], value[:, :0], mapping)
    with pytest.raises(ValueError, match="must have at least one head"):
        attention(query[:, :0], key[:, :1], value[:, :1], mapping)
    with pytest.raises(ValueError, match=r"as many sequences, .* as `query\[None\]`"):
        attention(query[0], key[0], value[0], mapping, key_lengths=torch.tensor([3]))
    lengths = torch.tensor([3])
    alone = attention(query[:1], key[:1], value[:1], mapping, key_lengths=lengths)
    found = attention(query[0][None], key[0][None], value[0][None], mapping, key_lengths=lengths)
    torch.testing.assert_close(found, alone)
