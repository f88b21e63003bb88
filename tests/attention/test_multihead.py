"""The layer of heads agrees with torch's own, with its cache, and learns alpha."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel import Entmax, mappings
from fenchel.attention import KeysValues, MultiHeadAttention, attention


def test_agrees_with_torchs_layer() -> None:
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    ours = MultiHeadAttention(8, 2)
    nn.init.normal_(theirs.in_proj_bias)
    with torch.no_grad():
        for linear, rows in ((ours.query, slice(0, 8)), (ours.key_value, slice(8, 24))):
            linear.weight.copy_(theirs.in_proj_weight[rows])
            linear.bias.copy_(theirs.in_proj_bias[rows])
        ours.output.load_state_dict(theirs.out_proj.state_dict())
    query, memory = torch.randn(3, 4, 8), torch.randn(3, 5, 8)
    hidden = torch.rand(3, 5) > 0.6
    hidden[:, 0] = False
    expected, expected_weights = theirs(
        query, memory, memory, key_padding_mask=hidden, average_attn_weights=False
    )
    kept = ~hidden[:, None, None]
    output, weights = ours(query, memory, kept, weights=True)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights, expected_weights)
    torch.testing.assert_close(ours(query, memory, kept), expected)


@pytest.mark.parametrize("mapping", ["softmax", "entmax", "fusedmax"])
def test_the_cache_gives_what_the_whole_gives(mapping: str) -> None:
    layer = MultiHeadAttention(6, 3, mapping).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    whole = layer(x, causal=True)
    cache = layer.project(x[:, :0])
    for place in range(5):
        new = x[:, place : place + 1]
        cache = cache.append(layer.project(new))
        assert isinstance(cache, KeysValues)
        torch.testing.assert_close(layer.attend(new, cache), whole[:, place : place + 1])


def test_gradients(mapping: mappings.AbstractMapping) -> None:
    if mapping.name == "general":
        pytest.skip("differences of an iterative solution are too rough")
    layer = MultiHeadAttention(4, 2, mapping).double()
    x = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    inputs = (x, *layer.parameters())

    def run(x: Tensor, *_: Tensor) -> Tensor:
        return layer(x)

    assert torch.autograd.gradcheck(run, inputs, atol=1e-4, rtol=1e-3, fast_mode=True)


def test_each_head_learns_its_alpha() -> None:
    layer = MultiHeadAttention(4, 2, Entmax(1.3, gamma=0.5), learned_alpha=True).double()
    mapping = layer.mapping
    assert isinstance(mapping, Entmax)
    torch.testing.assert_close(
        mapping.alpha, torch.full((2, 1, 1), 1.3, dtype=torch.float64), atol=1e-6, rtol=0
    )
    assert mapping.gamma == 0.5
    fixed = MultiHeadAttention(4, 2, Entmax(1.3, gamma=0.5)).double()
    fixed.load_state_dict(layer.state_dict(), strict=False)
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(x), fixed(x), atol=1e-6, rtol=1e-6)

    logit = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def run(logit: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"alpha_logit": logit}, (x,))

    (gradient,) = torch.autograd.grad(run(logit).square().sum(), logit)
    step = 1e-6
    for head in range(2):
        move = torch.zeros(2, dtype=torch.float64)
        move[head] = step
        higher, lower = run(logit + move).square().sum(), run(logit - move).square().sum()
        torch.testing.assert_close(gradient[head], (higher - lower) / (2 * step), rtol=1e-4, atol=0)


def test_each_head_learns_from_its_own_alpha() -> None:
    start = torch.tensor([1.2, 1.7])
    layer = MultiHeadAttention(8, 2, Entmax(nn.Parameter(start.view(2, 1, 1))), learned_alpha=True)
    torch.testing.assert_close(layer.mapping.alpha.flatten(), start)  # type: ignore[attr-defined]
    assert layer.alpha_logit is not None
    assert layer.alpha_logit.shape == (2,)
    layer(torch.randn(1, 3, 8)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    message = r"`alpha` must broadcast to \(2, 1, 1\), one for each head, .* got shape \(2,\)"
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(8, 2, Entmax(start), learned_alpha=True)
    with pytest.raises(ValueError, match="`alpha` must have a value from which it is learnt"):
        MultiHeadAttention(8, 2, Entmax(start.to("meta")), learned_alpha=True)


def test_repr_shows_what_is_in_use() -> None:
    layer = MultiHeadAttention(8, 4, Entmax(1.3, gamma=2.0), True, dropout=0.1, key_heads=2)
    assert "dim=8, heads=4, key_heads=2, learned_alpha=True, dropout=0.1\n" in repr(layer)
    assert "Entmax(gamma=2.0, alpha=learned)" in repr(layer)
    layer = MultiHeadAttention(8, 4, alibi=True, sinks=True, scale=0.5, softcap=3.0)
    assert "dim=8, heads=4, alibi=True, sinks=True, scale=0.5, softcap=3.0\n" in repr(layer)
    layer = MultiHeadAttention(8, 4, scale=torch.ones(4, 1, 1))
    assert "scale=(4, 1, 1)\n" in repr(layer)


def test_scale_softcap_and_query_lengths() -> None:
    layer = MultiHeadAttention(6, 3, "entmax", scale=0.3, softcap=2.0).double()
    x, lengths = torch.randn(2, 5, 6, dtype=torch.float64), torch.tensor([3, 5])
    rows = layer.query(x).unflatten(-1, (3, 2)).transpose(1, 2)
    options: dict[str, Any] = {"query_lengths": lengths, "key_lengths": lengths}
    memory = layer.project(x)
    expected = attention(
        rows, memory.key, memory.value, "entmax", scale=0.3, softcap=2.0, **options
    )
    assert isinstance(expected, Tensor)
    expected = layer.output(expected.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, **options), expected)
    torch.testing.assert_close(layer.attend(x, memory, **options), expected)
    learned = MultiHeadAttention(6, 3, "entmax", scale=nn.Parameter(torch.full((3, 1, 1), 0.3)))
    fixed = MultiHeadAttention(6, 3, "entmax", scale=torch.full((3, 1, 1), 0.3))
    assert "scale" in dict(learned.named_parameters())
    assert "scale" in dict(fixed.named_buffers())
    with pytest.raises(ValueError, match="`softcap` must be at least 0"):
        MultiHeadAttention(6, 3, softcap=-1.0)
    with pytest.raises(TypeError, match=r"`scale` must be a number or a torch.Tensor"):
        MultiHeadAttention(6, 3, scale="big")  # type: ignore[arg-type]


def test_what_a_mapping_learns_is_the_layers() -> None:
    alpha = nn.Parameter(torch.tensor([1.2, 1.8]).view(2, 1, 1))
    layer = MultiHeadAttention(4, 2, Entmax(alpha))
    assert any(parameter is alpha for parameter in layer.parameters())
    layer(torch.randn(1, 3, 4)).square().sum().backward()
    assert alpha.grad is not None
    shared = MultiHeadAttention(4, 2, layer.given)
    assert any(parameter is alpha for parameter in shared.parameters())


def test_several_positions_follow_a_cache() -> None:
    layer = MultiHeadAttention(6, 3, "entmax", alibi=True, sinks=True).double()
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    cache = layer.project(x[:, :4]).append(layer.project(x[:, 4:]))
    for window in (None, 3):
        later = layer.attend(x[:, 4:], cache, causal="lower_right", window=window)
        torch.testing.assert_close(later, layer(x, causal=True, window=window)[:, 4:])


def test_padded_and_packed_sequences_are_those_alone() -> None:
    layer = MultiHeadAttention(6, 3, "sparsemax", alibi=True).double()
    x, lengths = torch.randn(2, 5, 6, dtype=torch.float64), torch.tensor([3, 5])
    alone = [layer(x[i : i + 1, :n], causal=True)[0] for i, n in enumerate(lengths.tolist())]
    padded = layer(x, causal=True, key_lengths=lengths)
    torch.testing.assert_close(padded[0, :3], alone[0])
    torch.testing.assert_close(padded[1], alone[1])
    ends = torch.tensor([0, 3, 8])
    packed = layer(torch.cat([x[0, :3], x[1]])[None], causal=True, cu_seqlens=ends)
    torch.testing.assert_close(packed[0], torch.cat(alone))


def test_heads_that_share_keys() -> None:
    layer = MultiHeadAttention(8, 4, "entmax", key_heads=2)
    assert layer.key_value.out_features == 8
    assert layer.project(torch.randn(1, 3, 8)).key.shape == (1, 2, 3, 2)
    assert "key_heads=2" in repr(layer)
    wide = MultiHeadAttention(8, 4, "entmax")
    with torch.no_grad():
        wide.query.load_state_dict(layer.query.state_dict())
        wide.output.load_state_dict(layer.output.state_dict())
        for ours, theirs in zip(
            layer.key_value.parameters(), wide.key_value.parameters(), strict=True
        ):
            per_head = ours.unflatten(0, (2, 2, 2)).repeat_interleave(2, 1)
            theirs.copy_(per_head.flatten(0, 2))
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(layer(x, causal=True), wide(x, causal=True))


def test_sinks_are_learnt_and_slopes_are_not() -> None:
    layer = MultiHeadAttention(4, 2, "entmax", alibi=True, sinks=True)
    assert layer.alibi is not None
    assert layer.alibi.tolist() == [2.0**-4, 2.0**-8]
    assert "alibi" not in layer.state_dict()
    layer(torch.randn(1, 3, 4)).square().sum().backward()
    assert layer.sinks is not None
    assert layer.sinks.grad is not None
    _, weights = layer(torch.randn(1, 3, 4), weights=True)
    assert (weights.sum(-1) < 1).all()


def deferred(**options: Any) -> MultiHeadAttention:
    """A layer without values, then with those that memory happens to hold."""
    with torch.device("meta"):
        layer = MultiHeadAttention(8, 2, alibi=True, sinks=True, learned_alpha=True, **options)
    layer = layer.to_empty(device="cpu")
    for x in (*layer.parameters(), *layer.buffers()):
        x.detach().fill_(torch.nan)
    return layer


@pytest.mark.parametrize("alpha", [1.2, torch.tensor([1.2, 1.7]).view(2, 1, 1)])
def test_deferred_initialization(alpha: float | Tensor) -> None:
    layer = deferred(mapping=Entmax(alpha))
    layer.reset_parameters()
    expected = MultiHeadAttention(8, 2, Entmax(alpha), alibi=True, sinks=True, learned_alpha=True)
    assert sorted(layer.state_dict()) == sorted(expected.state_dict())
    for name in ("alibi", "sinks", "alpha_logit"):
        torch.testing.assert_close(getattr(layer, name), getattr(expected, name))
    assert layer(torch.randn(1, 3, 8)).isfinite().all()


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_is_all_that_a_layer_needs(assign: bool) -> None:
    given = MultiHeadAttention(8, 2, "entmax", alibi=True, sinks=True, learned_alpha=True)
    layer = deferred(mapping="entmax")
    if assign:
        layer.to("meta")
    layer.load_state_dict(given.state_dict(), assign=assign)
    x = torch.randn(1, 3, 8)
    assert torch.equal(layer(x), given(x))


def test_dropout_is_for_training() -> None:
    layer = MultiHeadAttention(4, 2, "entmax", dropout=0.5)
    x = torch.randn(1, 3, 4)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_without_bias() -> None:
    layer = MultiHeadAttention(4, 2, bias=False)
    assert sorted(layer.state_dict()) == ["key_value.weight", "output.weight", "query.weight"]
    assert not layer(torch.zeros(1, 2, 4)).any()


@pytest.mark.slow
def test_compiles() -> None:
    layer = MultiHeadAttention(8, 2, "entmax", learned_alpha=True)
    x = torch.randn(2, 3, 8)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    compiled(x).sum().backward()
    assert layer.alpha_logit is not None
    assert layer.alpha_logit.grad is not None


def test_errors_name_the_argument() -> None:
    with pytest.raises(ValueError, match=r"`dim` must be a multiple of `heads` \(3\), got 8"):
        MultiHeadAttention(8, 3)
    with pytest.raises(ValueError, match="`heads` must be a positive int, got 0"):
        MultiHeadAttention(8, 0)
    with pytest.raises(ValueError, match=r"`heads` must be a multiple of `key_heads` \(3\), got 8"):
        MultiHeadAttention(8, 8, key_heads=3)
    with pytest.raises(ValueError, match="`learned_alpha` is for entmax, got sparsemax"):
        MultiHeadAttention(8, 2, "sparsemax", learned_alpha=True)
    with pytest.raises(ValueError, match="`alpha` must be between 1 and 2 to be learnt, got 2"):
        MultiHeadAttention(8, 2, Entmax(2.0), learned_alpha=True)
    layer = MultiHeadAttention(8, 2)
    with pytest.raises(ValueError, match=r"`query` must have shape \(batch, T, 8\), got \(3, 8\)."):
        layer(torch.randn(3, 8))
    with pytest.raises(
        ValueError, match=r"`memory` must have shape \(batch, T, 8\), got \(1, 3, 7"
    ):
        layer(torch.randn(1, 3, 8), torch.randn(1, 3, 7))
