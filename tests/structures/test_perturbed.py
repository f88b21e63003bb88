"""Perturbed optimizers against all members, closed forms and finite differences."""

from __future__ import annotations

from collections.abc import Callable

import gibbs
import pytest
import torch
from perturbed import assert_mean, best, derivatives, maximum_of_two, points, seeded
from torch import Tensor

import exact
from conftest import identify
from fenchel import (
    Bits,
    Choice,
    Custom,
    DependencyTree,
    FactorGraph,
    Matching,
    Sequence,
    StructuredLoss,
    log_partition,
    map_inference,
    marginals,
    structured_loss,
    structures,
)
from fenchel.structures import AbstractStructure, Perturbed, Xor
from fenchel.structures._gibbs import _scores

EXAMPLES = list(structures.examples())
every = pytest.mark.parametrize("structure", EXAMPLES, ids=identify)
noises = pytest.mark.parametrize("noise", ["gaussian", "gumbel"])
TWO = torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0]]).double()


def best_of_two(scores: Tensor) -> Tensor:
    return TWO.to(scores)[(scores @ TWO.to(scores).T).argmax(-1)]


def random_scores(structure: AbstractStructure, batch: int = 3) -> Tensor:
    return torch.randn(batch, *structure.shape, dtype=torch.float64)


def jacobians(perturbed: Perturbed, theta: Tensor, copies: int) -> Tensor:
    """Independent estimates (copies, D, D) of the Jacobian of the marginals at θ."""
    scores = theta.detach().expand(copies, *theta.shape).clone().requires_grad_()
    u = perturbed(scores).flatten(1)
    rows = [torch.autograd.grad(x.sum(), scores, retain_graph=True)[0] for x in u.unbind(1)]
    return torch.stack(rows, 1).reshape(copies, theta.numel(), theta.numel())


@every
@noises
def test_means_over_all_members(structure: AbstractStructure, noise: str) -> None:
    scores = random_scores(structure)
    perturbed = seeded(structure, sigma=0.7, samples=50, noise=noise)
    y, value = best(structure, points(perturbed, scores))
    torch.testing.assert_close(perturbed(scores), y.mean(0))
    points(perturbed, scores)  # the seed again
    torch.testing.assert_close(perturbed.max(scores), value.mean(0))
    points(perturbed, scores)
    found = perturbed.sample(scores, 50)
    codes = structure.codes_of(y) if hasattr(structure, "codes_of") else y  # type: ignore[attr-defined]
    torch.testing.assert_close(found, codes.transpose(0, 1))


@noises
def test_noise_has_mean_zero_and_its_score(noise: str) -> None:
    perturbed = seeded(Bits(1), samples=100_000, noise=noise)
    z = points(perturbed, torch.zeros(1, 1).double()).requires_grad_()
    density = perturbed.density
    assert_mean(z.detach(), torch.zeros(1, 1).double())
    (slope,) = torch.autograd.grad(density.log_density(z).sum(), z)
    torch.testing.assert_close(density.score(z.detach()), -slope)
    assert_mean(-slope, torch.zeros(1, 1).double())
    shift = torch.tensor(0.8)
    ratio = density.log_density(z) - density.log_density(z + shift)
    assert_mean(ratio.detach(), density.kl(shift).double())


def test_a_choice_with_gumbel_noise_is_softmax() -> None:
    theta, sigma = torch.randn(4).double().requires_grad_(), 0.6
    value = sigma * (theta / sigma).logsumexp(0)
    gradient, hessian = derivatives(value, theta)
    one = Perturbed(Choice(4), sigma, samples=1, noise="gumbel")
    many = theta.detach().expand(50_000, 4)
    assert_mean(one.max(many), value.detach())
    assert_mean(one(many), gradient)
    assert_mean(jacobians(one, theta, 50_000), hessian)
    assert_mean(jacobians(Perturbed(Choice(4), sigma, 2, "gumbel"), theta, 50_000), hessian)


def test_bits_with_gaussian_noise_have_a_closed_form() -> None:
    theta, sigma = torch.randn(3).double().requires_grad_(), 1.3
    zero = torch.zeros(3).double()
    pairs = [(torch.eye(3).double()[i], zero) for i in range(3)]
    value = torch.stack([maximum_of_two(theta, a, b, sigma) for a, b in pairs]).sum()
    gradient, hessian = derivatives(value, theta)
    perturbed = Perturbed(Bits(3), sigma, samples=4)
    many = theta.detach().expand(20_000, 3)
    assert_mean(perturbed.max(many), value.detach())
    assert_mean(perturbed(many), gradient)
    assert_mean(jacobians(perturbed, theta, 20_000), hessian)


@pytest.mark.parametrize(
    ("structure", "members"),
    [
        (Matching(2, 2), torch.stack([torch.eye(2), torch.eye(2).flip(0)]).double()),
        (Custom((3,), best_of_two), TWO),
        (Custom((3,), best_of_two, batched=True), TWO),
    ],
    ids=["matching", "custom", "batched"],
)
def test_two_members_have_a_closed_form(structure: AbstractStructure, members: Tensor) -> None:
    theta = torch.randn(structure.shape).double().requires_grad_()
    value = maximum_of_two(theta, members[0], members[1], 0.8)
    gradient, hessian = derivatives(value, theta)
    perturbed = Perturbed(structure, 0.8, samples=3)
    many = theta.detach().expand(5_000, *theta.shape)
    assert_mean(perturbed.max(many), value.detach())
    assert_mean(perturbed(many), gradient)
    assert_mean(jacobians(perturbed, theta, 5_000), hessian)


@every
@noises
def test_the_gradient_of_the_maximum_by_differences(
    structure: AbstractStructure, noise: str
) -> None:
    scores = random_scores(structure, 2).requires_grad_()
    perturbed = seeded(structure, samples=7, noise=noise)

    def maximum(scores: Tensor) -> Tensor:
        points(perturbed, scores.detach())
        return perturbed.max(scores)

    assert torch.autograd.gradcheck(maximum, [scores])


@pytest.mark.parametrize("form", gibbs.FORMS)
def test_extra_scores(form: str) -> None:
    structure = Sequence(4, 3)
    scores = random_scores(structure, 2).requires_grad_()
    extra = gibbs.extra_scores(structure, form, requires_grad=True)
    given = [piece for piece in extra if piece is not None]
    perturbed = seeded(structure, samples=20)

    def call(method: Callable[..., Tensor], scores: Tensor, given: tuple[Tensor, ...]) -> Tensor:
        assert perturbed.generator is not None
        perturbed.generator.manual_seed(0)
        rest = iter(given)
        pieces = tuple(None if piece is None else next(rest) for piece in extra)
        return method(scores, pieces, lengths=[4, 2])

    def maximum(scores: Tensor, *given: Tensor) -> Tensor:
        return call(perturbed.max, scores, given)

    assert torch.autograd.gradcheck(maximum, [scores, *given])
    u, v = call(perturbed, scores, tuple(given))
    found = torch.autograd.grad(maximum(scores, *given).sum(), [scores, *given])
    torch.testing.assert_close(u, found[0])
    used = [piece.sum(0) for piece in v if piece is not None]
    torch.testing.assert_close(used, list(found[1:]))
    derivative = torch.autograd.grad(
        u.square().sum() + sum(x.sum() for x in used), [scores, *given]
    )
    assert all(x.isfinite().all() for x in derivative)
    assert (derivative[0][1, 2:] == 0).all()


def test_the_jacobian_in_extra_scores_is_unbiased() -> None:
    """A chain of two positions with one forbidden tag has two members."""
    copies = 10_000
    scores = torch.tensor([[0.0, -torch.inf], [0.5, -0.2]]).double().expand(copies, 2, 2)
    transitions = torch.randn(2, 2).double()
    each = transitions.expand(copies, 1, 2, 2).clone().requires_grad_()
    u, _ = Perturbed(Sequence(2, 2), 0.9, samples=5)(scores, each)
    (found,) = torch.autograd.grad(u[:, 1, 0].sum(), each)
    theta = torch.cat([scores[0, 1], transitions[0]]).requires_grad_()  # what the two differ in
    members = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]]).double()
    _, hessian = derivatives(maximum_of_two(theta, members[0], members[1], 0.9), theta)
    assert_mean(found[:, 0, 0], hessian[0, 2:])
    assert_mean(found[:, 0, 1], torch.zeros(2).double())


def test_small_noise_is_map_inference_and_a_large_one_forgets_the_scores() -> None:
    structure = DependencyTree(4)
    scores = random_scores(structure)
    found = Perturbed(structure, sigma=1e-9, samples=2)(scores)
    torch.testing.assert_close(found, map_inference(structure, scores).indicator)
    found = Perturbed(structure, sigma=1e9, samples=4000)(scores)
    assert (found - found.mean(0)).abs().max() < 0.1


@every
def test_forbidden_parts_and_no_structure(structure: AbstractStructure) -> None:
    if isinstance(structure, Custom):
        return  # whose oracle decides
    scores = random_scores(structure, 6)
    scores[torch.rand(scores.shape) < 0.3] = -torch.inf
    scores[0] = -torch.inf
    scores[1] = torch.nan
    scores.requires_grad_()
    perturbed = Perturbed(structure, samples=8)
    u, value = perturbed(scores), perturbed.max(scores)
    best = map_inference(structure, scores)
    assert u[1].isnan().all()
    assert value.isfinite().equal(best.value.isfinite())
    rest = torch.arange(6) != 1
    assert (u[rest][scores[rest] == -torch.inf] == 0).all()
    (gradient,) = torch.autograd.grad(u[rest].square().sum(), scores)
    assert (gradient[rest][scores[rest] == -torch.inf] == 0).all()
    assert gradient[rest].isfinite().all()


@pytest.mark.parametrize("structure", [Matching(3, 4), DependencyTree(4), Bits(4)], ids=identify)
def test_lengths(structure: AbstractStructure) -> None:
    scores = random_scores(structure, 2).requires_grad_()
    highest = torch.tensor(structure.max_lengths)
    lengths = torch.stack([highest, highest - 1]).squeeze(-1)
    inside = structure.length_mask(lengths.reshape(2, -1))
    u = Perturbed(structure, samples=30)(scores, lengths=lengths)
    (gradient,) = torch.autograd.grad(u.square().sum(), scores)
    assert (u[~inside] == 0).all()
    assert (gradient[~inside] == 0).all()
    assert (gradient[inside] != 0).any()


@every
@pytest.mark.parametrize("batch", [(), (0,), (2, 0), (2, 2)])
def test_batches_and_types(structure: AbstractStructure, batch: tuple[int, ...]) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        scores = torch.randn(*batch, *structure.shape, dtype=dtype, requires_grad=True)
        perturbed = Perturbed(structure, samples=3)
        u, value = perturbed(scores), perturbed.max(scores)
        assert u.shape == scores.shape
        assert value.shape == batch
        assert u.dtype == value.dtype == dtype
        (u.square().sum() + value.sum()).backward()
        assert perturbed.sample(scores, 5).shape[: len(batch) + 1] == (*batch, 5)
        loss = structured_loss(perturbed, scores, u.detach().round(), reduction="sum")
        assert loss.dtype == dtype


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def oracle(scores: Tensor) -> Tensor:
        sizes.append(scores.numel())
        return best_of_two(scores)

    monkeypatch.setattr(_scores, "MAX_NUMBERS", 100)
    perturbed = seeded(Custom((3,), oracle, batched=True), samples=100)
    scores = torch.randn(4, 3).double()
    found, again = perturbed(scores), perturbed(scores.requires_grad_())
    assert sum(sizes) == 2 * 100 * scores.numel()
    assert max(sizes) <= 100
    assert (found - again).abs().max() < 0.5


def test_the_same_seed_gives_the_same_noise() -> None:
    scores = torch.randn(5, 3, 3)
    first, second = seeded(Matching(3, 3), samples=4), seeded(Matching(3, 3), samples=4)
    once, again = first(scores), first(scores)
    assert not once.equal(again)
    assert second(scores).equal(once)
    torch.manual_seed(3)
    default = Perturbed(Matching(3, 3), samples=4)(scores)
    torch.manual_seed(3)
    assert Perturbed(Matching(3, 3), samples=4)(scores).equal(default)


def test_a_graph_has_the_marginals_of_its_relaxation() -> None:
    graph = FactorGraph((2, 3))
    graph.add(Xor(), graph.variables)
    scores = torch.randn(2, 3).double().requires_grad_()
    perturbed = seeded(graph, sigma=0.5, samples=3000, noise="gumbel")
    u = perturbed(scores)
    assert (u - (scores / 0.5).softmax(-1)).abs().max() < 0.05
    value = perturbed.max(scores)
    wanted = 0.5 * (scores / 0.5).logsumexp(-1).sum()
    assert (value - wanted).abs() < 0.05
    (gradient,) = torch.autograd.grad(u[0, 0], scores)
    p = (scores.detach() / 0.5).softmax(-1)[0]
    assert (gradient[0] - (torch.eye(3)[0] - p) * p[0] / 0.5).abs().max() < 0.2


def test_perturbed_marginals_are_close_to_those_of_a_gibbs_distribution() -> None:
    structure = Sequence(5, 3)
    scores = random_scores(structure)
    found = Perturbed(structure, samples=2000, noise="gumbel")(scores)
    assert (found - marginals(structure, scores)).abs().max() < 0.06  # without transitions: equal


def test_transforms_of_gradients() -> None:
    scores = random_scores(Matching(3, 3))
    perturbed = seeded(Matching(3, 3), samples=6)

    def maximum(scores: Tensor) -> Tensor:
        points(perturbed, scores.detach())
        return perturbed.max(scores).sum()

    def mean(scores: Tensor) -> Tensor:
        points(perturbed, scores.detach())
        return perturbed(scores)

    torch.testing.assert_close(torch.func.grad(maximum)(scores), mean(scores))
    leaf = scores.clone().requires_grad_()
    rows = torch.autograd.functional.jacobian(mean, leaf)
    torch.testing.assert_close(torch.func.jacrev(mean, chunk_size=None)(scores), rows)


def test_second_derivatives_are_an_error() -> None:
    scores = torch.randn(3, requires_grad=True)
    perturbed = Perturbed(Choice(3), samples=5)
    for value in (perturbed(scores).square().sum(), perturbed.max(scores)):
        (gradient,) = torch.autograd.grad(value, scores, create_graph=True)
        with pytest.raises(NotImplementedError, match="a Perturbed has first derivatives only"):
            torch.autograd.grad(gradient.sum(), scores)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Perturbed(3), TypeError, "`structure` must be a structure"),  # type: ignore[arg-type]
        (lambda: Perturbed(Bits(2), sigma=0), ValueError, "`sigma` must be greater than 0, got 0"),
        (lambda: Perturbed(Bits(2), samples=0), ValueError, "`samples` must be at least 1, got 0"),
        (lambda: Perturbed(Bits(2), noise="cauchy"), ValueError, "`noise` must be"),
        (lambda: Perturbed(Bits(2), generator=0), TypeError, "a torch.Generator, got int"),  # type: ignore[arg-type]
        (lambda: Perturbed(Bits(2)).sample(torch.zeros(2), 0), ValueError, "`n` must be at least"),
        (
            lambda: structured_loss(Perturbed(Bits(2)), torch.zeros(2), torch.zeros(2), kind="crf"),
            ValueError,
            r"`kind` must be None for a Perturbed, got 'crf'; .* give its structure, Bits\(d=2\)",
        ),
        (lambda: StructuredLoss(1.5), TypeError, "`structure` must be a structure"),  # type: ignore[arg-type]
    ],
)
def test_bad_input(make: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_samples_are_members() -> None:
    for structure in EXAMPLES:
        codes = Perturbed(structure).sample(random_scores(structure, 1), 20)[0]
        members = exact.codes(structure)
        same = (codes.flatten(1).unsqueeze(1) == members.flatten(1)).all(-1)
        assert same.any(1).all()


def test_messages_name_it() -> None:
    own = Custom((2,), lambda scores: torch.ones_like(scores))
    for structure in (Matching(2, 2), own):
        for call in (structures.sample, log_partition_of):
            with pytest.raises(NotImplementedError, match=r"`fenchel\.structures\.Perturbed`"):
                call(structure, torch.zeros(structure.shape), 3)
    perturbed = Perturbed(Bits(2))
    for function in (map_inference, marginals):
        with pytest.raises(TypeError, match=r"got a Perturbed; call it: `perturbed\(scores\)`"):
            function(perturbed, torch.zeros(2))  # type: ignore[arg-type]


def log_partition_of(structure: AbstractStructure, scores: Tensor, n: int) -> Tensor:
    return log_partition(structure, scores)
