"""What holds for every registered structure, against all its members."""

from __future__ import annotations

import brute
import pytest
import torch

import exact
from conftest import identify
from fenchel import (
    Custom,
    DependencyTree,
    Matching,
    Sequence,
    log_partition,
    map_inference,
    marginals,
    structures,
)
from fenchel.structures._coded import CodedStructure

EXAMPLES = {identify(structure): structure for structure in structures.examples()}
TRACTABLE = {k: s for k, s in EXAMPLES.items() if s.name not in ("matching", "custom")}
every = pytest.mark.parametrize("structure", EXAMPLES.values(), ids=EXAMPLES.keys())
tractable = pytest.mark.parametrize("structure", TRACTABLE.values(), ids=TRACTABLE.keys())
coded = pytest.mark.parametrize(
    "structure", [s for s in EXAMPLES.values() if isinstance(s, CodedStructure)], ids=identify
)


def small(structure: structures.AbstractStructure) -> bool:
    return len(exact.members(structure)) <= 64


@every
def test_the_best_structure_is_a_member_and_no_member_is_better(structure) -> None:
    for kind, scores in brute.scores_of_every_kind(structure).items():
        if structure.name == "custom" and "forbidden" in kind:
            continue  # its function does not know −inf
        found = map_inference(structure, scores)
        values = brute.values(structure, scores)
        torch.testing.assert_close(found.value, values.max(1).values, rtol=1e-12, atol=1e-12)
        possible = found.value > -torch.inf
        members = exact.members(structure).flatten(1)
        same = (found.indicator.flatten(1).unsqueeze(1) == members).all(-1)
        assert (same.sum(1) == possible).all()
        assert (found.indicator[~possible] == 0).all()
        if found.codes is not None:
            assert (found.codes[~possible] == -1).all()
            assert isinstance(structure, CodedStructure)
            torch.testing.assert_close(structure.indicator(found.codes), found.indicator)


@tractable
def test_log_partition_and_marginals(structure) -> None:
    for kind, scores in brute.scores_of_every_kind(structure).items():
        found = log_partition(structure, scores)
        torch.testing.assert_close(
            found, brute.log_partition(structure, scores), rtol=1e-12, atol=1e-12, msg=kind
        )
        tolerance = 1e-9 if "1e+06" in kind else 1e-12
        expected = brute.marginals(structure, scores)
        torch.testing.assert_close(
            marginals(structure, scores), expected, rtol=1e-8, atol=tolerance, msg=kind
        )


@tractable
def test_derivatives(structure) -> None:
    if not small(structure):
        return
    scores = torch.randn(2, *structure.shape, dtype=torch.float64, requires_grad=True)
    for function in (log_partition, marginals):
        assert torch.autograd.gradcheck(lambda x, f=function: f(structure, x), scores)
        assert torch.autograd.gradgradcheck(lambda x, f=function: f(structure, x), scores)


@tractable
def test_derivatives_of_large_scores_are_those_of_the_sum_over_members(structure) -> None:
    for scale in (30.0, 1000.0):
        scores = scale * torch.randn(4, *structure.shape, dtype=torch.float64)
        weights = torch.randn_like(scores)
        grads = []
        for solve in (marginals, brute.marginals):
            x = scores.clone().requires_grad_()
            (grad,) = torch.autograd.grad((solve(structure, x) * weights).sum(), x)
            grads.append(grad)
        torch.testing.assert_close(grads[0], grads[1], rtol=1e-7, atol=1e-9)


@tractable
def test_forbidden_parts_have_finite_derivatives(structure) -> None:
    scores = brute.scores_of_every_kind(structure)["forbidden"].requires_grad_()
    value = log_partition(structure, scores)
    (u,) = torch.autograd.grad(value.sum(), scores)
    torch.testing.assert_close(u, brute.marginals(structure, scores.detach()))
    (second,) = torch.autograd.grad(
        (marginals(structure, scores) * torch.randn_like(u)).sum(), scores
    )
    assert second.isfinite().all()
    assert (second[scores == -torch.inf] == 0).all()


@every
def test_the_value_of_the_best_has_it_as_gradient(structure) -> None:
    scores = torch.randn(3, *structure.shape, dtype=torch.float64, requires_grad=True)
    found = map_inference(structure, scores)
    (grad,) = torch.autograd.grad(found.value.sum(), scores)
    torch.testing.assert_close(grad, found.indicator)


@every
def test_any_batch_any_strides_any_type(structure) -> None:
    shape = structure.shape
    scores = torch.randn(*shape, 2, 3, dtype=torch.float64)
    scores = scores.movedim((-2, -1), (0, 1))
    best = map_inference(structure, scores)
    for i in range(2):
        for j in range(3):
            one = map_inference(structure, scores[i, j])
            assert one.value.shape == ()
            torch.testing.assert_close(one.value, best.value[i, j])
            torch.testing.assert_close(one.indicator, best.indicator[i, j])
    nothing = map_inference(structure, scores[:, :0])
    assert nothing.indicator.shape == (2, 0, *shape)
    assert nothing.value.shape == (2, 0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rounded = map_inference(structure, scores.to(dtype))
        assert rounded.indicator.dtype == rounded.value.dtype == dtype
        exact = map_inference(structure, scores.to(dtype).double())
        torch.testing.assert_close(rounded.value.double(), exact.value, rtol=1e-2, atol=1e-2)
    if identify(structure) in TRACTABLE:
        u = marginals(structure, scores)
        torch.testing.assert_close(u[1, 2], marginals(structure, scores[1, 2]))
        assert marginals(structure, scores[:, :0]).shape == (2, 0, *shape)
        narrow = scores.float()
        near = marginals(structure, narrow.double()).float()
        torch.testing.assert_close(marginals(structure, narrow), near, rtol=1e-6, atol=1e-7)


@coded
def test_nan_stays_in_its_instance(structure) -> None:
    clean = torch.randn(3, *structure.shape, dtype=torch.float64)
    for wrong in (torch.nan, torch.inf):
        scores = clean.clone()
        scores[1].view(-1)[-1] = wrong
        best = map_inference(structure, scores)
        assert best.value[1].isnan()
        assert best.indicator[1].isnan().all()
        assert (best.codes[1] == -1).all()
        torch.testing.assert_close(
            best.indicator[::2], map_inference(structure, clean[::2]).indicator
        )
        if identify(structure) in TRACTABLE:
            value, u = log_partition(structure, scores), marginals(structure, scores)
            assert value[1].isnan()
            assert u[1].isnan().all()
            torch.testing.assert_close(u[::2], marginals(structure, clean[::2]))
            torch.testing.assert_close(value[::2], log_partition(structure, clean[::2]))


@coded
def test_lengths_make_smaller_structures(structure) -> None:
    max_lengths = structure.max_lengths
    lengths = torch.cartesian_prod(*(torch.arange(1, side + 1) for side in max_lengths))
    lengths = lengths.reshape(-1, len(max_lengths))
    scores = torch.randn(len(lengths), *structure.shape, dtype=torch.float64)
    corners = [resized(structure, sizes) for sizes in lengths.tolist()]
    given = lengths if len(max_lengths) > 1 else lengths[:, 0]
    scores.requires_grad_()
    best = map_inference(structure, scores, lengths=given)
    inner = (
        marginals(structure, scores, lengths=given) if identify(structure) in TRACTABLE else None
    )
    weights = torch.randn_like(scores)
    for k, corner in enumerate(corners):
        cut = tuple(slice(side) for side in corner.shape) if corner else ()
        if corner is None:  # fewer entries than must be chosen
            assert best.value[k] == -torch.inf
            continue
        own = scores[(k, *cut)].detach().requires_grad_()
        expected = map_inference(corner, own)
        torch.testing.assert_close(best.value[k], expected.value)
        torch.testing.assert_close(best.indicator[(k, *cut)], expected.indicator)
        assert best.indicator[k].sum() == expected.indicator.sum()
        if inner is not None:
            u = marginals(corner, own)
            torch.testing.assert_close(inner[(k, *cut)], u)
            torch.testing.assert_close(inner[k].sum(), u.sum())
            (grad,) = torch.autograd.grad((inner[k] * weights[k]).sum(), scores, retain_graph=True)
            (expected_grad,) = torch.autograd.grad((u * weights[(k, *cut)]).sum(), own)
            torch.testing.assert_close(grad[(k, *cut)], expected_grad)
            torch.testing.assert_close(grad.abs().sum(), expected_grad.abs().sum())
    if len(max_lengths) == 1:
        mask = torch.arange(max_lengths[0]) < lengths
        torch.testing.assert_close(map_inference(structure, scores, mask=mask).value, best.value)


def resized(structure, sizes: list[int]):
    options = dict(vars(structure))
    if structure.name == "budget":
        if options["exact"] and sizes[0] < options["k"]:
            return None
        options["k"] = min(options["k"], sizes[0])
    names = {"sequence": ("length",), "dependency_tree": ("n",), "matching": ("rows", "columns")}
    for name, size in zip(names.get(structure.name, ("d",)), sizes, strict=True):
        options[name] = size
    return structures.get(structure.name, **options)


def test_nothing_behind_the_end_counts() -> None:
    scores = torch.randn(2, 4, 4, dtype=torch.float64)
    scores[1, 2:] = torch.nan
    scores[1, :, 2:] = torch.inf
    for structure in (Sequence(4, 4), DependencyTree(4), DependencyTree(4, projective=True)):
        sizes = [4, 2]
        values = scores.clone()
        if structure.name == "sequence":
            values[1, :2, 2:] = 0.0
        assert map_inference(structure, values, lengths=sizes).value.isfinite().all()
        assert log_partition(structure, values, lengths=sizes).isfinite().all()
        assert marginals(structure, values, lengths=sizes).isfinite().all()
    assert map_inference(Matching(4, 4), scores, lengths=[[4, 4], [2, 2]]).value.isfinite().all()


def test_a_matching_has_no_log_partition() -> None:
    for function in (log_partition, marginals):
        with pytest.raises(
            NotImplementedError, match="of a matching is intractable: it is a permanent"
        ):
            function(Matching(2, 2), torch.zeros(2, 2))
    own = Custom((2,), lambda scores: torch.ones_like(scores))
    with pytest.raises(
        NotImplementedError, match="custom has no log-partition; use MAP inference or"
    ):
        log_partition(own, torch.zeros(2))


def test_registry() -> None:
    assert structures.get("dependency_tree", n=3, projective=True) == DependencyTree(3, True)
    with pytest.raises(ValueError, match="a structure must be one of bits, budget, choice, custom"):
        structures.get("graph")
    with pytest.raises(TypeError, match="sequence has no option `n`; it takes length, tags"):
        structures.get("sequence", n=3)
    with pytest.raises(ValueError, match="a structure named 'matching' is already registered"):
        type("Other", (structures.AbstractStructure,), {"name": "matching"})


@coded
def test_codes_that_are_structures(structure) -> None:
    members = torch.tensor(brute.list_codes(structure))
    assert structure.is_valid(members, None).all()
    assert sorted(map(tuple, exact.codes(structure).tolist())) == sorted(
        map(tuple, members.tolist())
    )
    candidates = torch.randint(-1, max(structure.shape), (300, structure.positions))
    candidates = candidates[
        structure.part_indices(candidates).amax(1) < torch.Size(structure.shape).numel()
    ]
    if structure.options_dim is None:
        candidates = candidates.clamp(max=1).abs()
    elif structure.name != "matching":
        candidates = candidates.clamp(0, structure.shape[structure.options_dim] - 1)
    else:
        candidates = candidates.clamp(max=structure.columns - 1)
    listed = (candidates.unsqueeze(1) == members).all(2).any(1)
    assert structure.is_valid(candidates, None).equal(listed)


@coded
def test_codes_of_shorter_instances(structure) -> None:
    full = torch.tensor(structure.max_lengths)
    for sizes in (full, (full - 1).clamp(min=1)):
        small = resized(structure, sizes.tolist())
        if small is None:
            continue
        members = exact.codes(small)
        padding = structure.positions - small.positions
        codes = torch.nn.functional.pad(members, (0, padding), value=7)
        lengths = sizes.expand(len(codes), -1)
        masked = structure.mask_padding(codes, lengths)
        assert (masked[:, small.positions :] == -1).all()
        assert structure.is_valid(masked, lengths).all()
        y = structure.indicator(masked)
        assert (y * ~structure.length_mask(lengths) == 0).all()
        corner = (slice(None), *(slice(side) for side in small.shape))
        torch.testing.assert_close(y[corner], exact.members(small))
