"""Perturbed optimizers in forward mode and under torch.func."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from perturbed import seeded
from torch import Tensor
from torch.autograd import forward_ad

from conftest import identify
from fenchel import Choice, Custom, Matching, Sequence, structured_loss
from fenchel.structures import AbstractStructure, Perturbed

ORACLE = Custom((3,), lambda scores: torch.nn.functional.one_hot(scores.argmax(), 3).to(scores))
every = pytest.mark.parametrize(
    "structure", [Choice(3), Matching(2, 3), Sequence(3, 2), ORACLE], ids=identify
)
noises = pytest.mark.parametrize("noise", ["gaussian", "gumbel"])


def functions(
    structure: AbstractStructure, noise: str = "gaussian"
) -> dict[str, Callable[[Tensor], Tensor]]:
    """The marginals, their maximum and the loss, with the same noise at each call."""
    perturbed = seeded(structure, samples=9, noise=noise)

    def restart(scores: Tensor) -> Tensor:
        assert perturbed.generator is not None
        perturbed.generator.manual_seed(0)
        return scores

    target = structure.best_vertices(structure.problem(torch.randn(2, *structure.shape).double()))
    return {
        "marginals": lambda x: perturbed(restart(x)),
        "maximum": lambda x: perturbed.max(restart(x)),
        "loss": lambda x: structured_loss(perturbed, restart(x), target.indicator),
    }


def along(jacobian: Tensor, tangent: Tensor) -> Tensor:
    """A Jacobian (…, *shape) times a tangent of that shape."""
    return (jacobian * tangent).flatten(jacobian.ndim - tangent.ndim).sum(-1)


@every
@noises
def test_forward_mode_is_the_transpose_of_backward(
    structure: AbstractStructure, noise: str
) -> None:
    scores, tangent = torch.randn(2, 2, *structure.shape).double().unbind()
    for function in functions(structure, noise).values():
        value, found, *_ = torch.func.jvp(function, (scores,), (tangent,))
        wanted = along(torch.autograd.functional.jacobian(function, scores), tangent)
        assert found.abs().max() > 0
        torch.testing.assert_close((value, found), (function(scores), wanted))
        with forward_ad.dual_level():
            dual = function(forward_ad.make_dual(scores, tangent))
            torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, wanted)


def test_jacobians_of_both_modes() -> None:
    scores = torch.randn(2, 2, 3).double()
    function = functions(Matching(2, 3))["marginals"]
    by_columns = torch.func.jacfwd(function, randomness="same")(scores)
    torch.testing.assert_close(by_columns, torch.func.jacrev(function)(scores))


def test_extra_scores_have_tangents() -> None:
    scores, transitions = torch.randn(3, 2).double(), torch.randn(2, 2).double()
    tangents = torch.randn(3, 2).double(), torch.randn(2, 2).double()
    perturbed = seeded(Sequence(3, 2), samples=9)

    def marginals(scores: Tensor, transitions: Tensor) -> tuple[Tensor, Tensor]:
        assert perturbed.generator is not None
        perturbed.generator.manual_seed(0)
        return perturbed(scores, transitions)

    found = torch.func.jvp(marginals, (scores, transitions), tangents)[1]
    rows = torch.autograd.functional.jacobian(marginals, (scores, transitions))
    wanted = tuple(sum(along(x, v) for x, v in zip(row, tangents, strict=True)) for row in rows)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", ["marginals", "maximum", "loss"])
def test_second_derivatives_are_an_error_in_every_mode(name: str) -> None:
    scores, tangent = torch.randn(2, 2, 3).double().unbind()
    function = functions(Choice(3))[name]

    def slope(scores: Tensor) -> Tensor:
        return torch.func.jvp(function, (scores,), (tangent,))[1].sum()

    def gradient(scores: Tensor) -> Tensor:
        return torch.func.grad(lambda x: function(x).square().sum())(scores)

    for second in (
        lambda: torch.func.grad(slope)(scores),
        lambda: torch.func.grad(lambda x: gradient(x).sum())(scores),
        lambda: torch.func.jvp(gradient, (scores,), (tangent,)),
    ):
        with pytest.raises(NotImplementedError, match="a Perturbed has first derivatives only"):
            second()


@noises
def test_vmap_has_noise_of_its_own_for_each(noise: str) -> None:
    perturbed = Perturbed(Matching(3, 3), samples=5, noise=noise)
    scores = torch.zeros(4, 3, 3)
    found = torch.vmap(perturbed, randomness="different")(scores)
    assert found.shape == scores.shape
    assert not found[0].equal(found[1])
    same = torch.vmap(perturbed, randomness="same")(scores)
    assert same[0].equal(same[1])
