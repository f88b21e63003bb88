"""Bad input: the kind of error and its text, before anything is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fenchel
from fenchel import mappings
from fenchel.mappings import AbstractMapping

SCORES = torch.randn(3, 5)

BAD_SCORES = {
    "list": ([1.0, 2.0], -1, TypeError, "`scores` must be a torch.Tensor, got list."),
    "integers": (torch.ones(3, 4, dtype=torch.int64), -1, TypeError, "got torch.int64; convert it"),
    "complex": (torch.ones(3, dtype=torch.complex64), -1, TypeError, "got torch.complex64"),
    "boolean": (torch.ones(3, dtype=torch.bool), -1, TypeError, "got torch.bool"),
    "sparse": (
        torch.eye(3).to_sparse(),
        -1,
        TypeError,
        r"got layout torch.sparse_coo; call `.to_de",
    ),
    "sparse zeros": (
        torch.eye(3).to_sparse(),
        -1,
        TypeError,
        "`.to_dense\\(\\)` first; entries that are not stored become 0.",
    ),
    "mkldnn": (torch.eye(3).to_mkldnn(), -1, TypeError, "call `.to_dense\\(\\)` first.$"),
    "nested": (
        torch.nested.nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged),
        -1,
        TypeError,
        "got a nested one; pad it, with `torch.nested.to_padded_tensor\\(scores, -torch.inf\\)`.",
    ),
    "empty": (
        torch.empty(3, 0),
        -1,
        ValueError,
        r"at least one entry along `dim`, got shape \(3, 0\)",
    ),
    "dim": (torch.ones(3, 4), 2, ValueError, r"`dim` must be in \[-2, 1\], got 2."),
    "negative dim": (torch.ones(3, 4), -3, ValueError, r"`dim` must be in \[-2, 1\], got -3."),
    "float dim": (torch.ones(3, 4), 1.0, TypeError, "`dim` must be an int, got float."),
}


@pytest.mark.parametrize("case", BAD_SCORES)
def test_scores_and_dim(mapping: AbstractMapping, case: str) -> None:
    scores, dim, error, text = BAD_SCORES[case]
    for call in (mapping, mapping.max, mapping.support):
        with pytest.raises(error, match=text):
            call(scores, dim)


@pytest.mark.parametrize(
    "name", ["entmax", "normmax", "pnormmax", "fusedmax", "oscarmax", "ksubset"]
)
@pytest.mark.parametrize("option", [1.5, torch.tensor(1.5)])
def test_the_second_argument_is_the_dimension(name: str, option: object) -> None:
    function = getattr(fenchel, name)
    torch.testing.assert_close(function(SCORES.T, 0), function(SCORES).T)
    with pytest.raises(TypeError, match=r"`dim` must be an int, got .*go by their names"):
        function(SCORES, option)


BAD_OPTIONS = [
    (lambda: fenchel.entmax(SCORES, alpha=0), ValueError, "`alpha` must be greater than 0, got 0."),
    (
        lambda: fenchel.entmax(SCORES, alpha=float("nan")),
        ValueError,
        "`alpha` must be finite and greater than 0, got nan.",
    ),
    (
        lambda: fenchel.entmax(SCORES, alpha=float("inf")),
        ValueError,
        "`alpha` must be finite and greater than 0, got inf.",
    ),
    (
        lambda: fenchel.entmax(SCORES, alpha=10**400),
        ValueError,
        "`alpha` must fit into a float, got a larger int.",
    ),
    (
        lambda: fenchel.entmax(SCORES, alpha="1.5"),
        TypeError,
        "`alpha` must be a number or a torch.Tensor, got str",
    ),
    (
        lambda: fenchel.entmax(SCORES, alpha=True),
        TypeError,
        "`alpha` must be a number .*, got bool",
    ),
    (
        lambda: fenchel.entmax(SCORES, alpha=torch.tensor([[1.5], [-0.9], [2.0]])),
        ValueError,
        "`alpha` must be greater than 0, got -0.9.",
    ),
    (
        lambda: fenchel.entmax(SCORES, alpha=torch.full((3, 5), 1.5)),
        ValueError,
        r"`alpha` must broadcast to \(3, 1\), one entry per row .* \(3, 5\); got shape \(3, 5\).",
    ),
    (
        lambda: fenchel.entmax(SCORES, alpha=torch.full((4, 1), 1.5)),
        ValueError,
        r"`alpha` must broadcast to \(3, 1\)",
    ),
    (
        lambda: fenchel.entmax(SCORES, alpha=torch.tensor(2)),
        TypeError,
        "`alpha` must be .*got torch.int64",
    ),
    (
        lambda: fenchel.normmax(SCORES, alpha=1.0),
        ValueError,
        "`alpha` must be greater than 1, got 1.",
    ),
    (
        lambda: fenchel.pnormmax(SCORES, p=1.0),
        ValueError,
        "`p` must be greater than 1 and at most 2, got 1.",
    ),
    (lambda: fenchel.pnormmax(SCORES, p=2.5), ValueError, "`p` must be .* at most 2, got 2.5."),
    (
        lambda: fenchel.pnormmax(SCORES, p=torch.tensor(1.5)),
        TypeError,
        "`p` must be a number, got Tensor.",
    ),
    (lambda: fenchel.fusedmax(SCORES, lam=-0.1), ValueError, "`lam` must be at least 0, got -0.1."),
    (lambda: fenchel.oscarmax(SCORES, lam=-1), ValueError, "`lam` must be at least 0, got -1."),
    (lambda: fenchel.ksubset(SCORES, k=-1), ValueError, "`k` must be at least 0, got -1."),
    (
        lambda: fenchel.ksubset(SCORES, k=6),
        ValueError,
        "`k` must be at least 0 and at most 5, got 6 for rows of 5 entries.",
    ),
    (
        lambda: fenchel.sparsemax(SCORES, gamma=0),
        ValueError,
        "`gamma` must be greater than 0, got 0.",
    ),
    (
        lambda: fenchel.sparsemax(SCORES, gamma=torch.ones(3, 5)),
        ValueError,
        r"`gamma` must broadcast to \(3, 1\)",
    ),
    (lambda: fenchel.General(3), TypeError, "`omega` must be a function, got int."),
    (lambda: fenchel.General(torch.sum, tol=0), ValueError, "`tol` must be greater than 0, got 0."),
    (
        lambda: fenchel.General(torch.sum, on_failure="ignore"),
        ValueError,
        "`on_failure` must be one of raise, warn, got 'ignore'.",
    ),
]


@pytest.mark.parametrize("case", range(len(BAD_OPTIONS)))
def test_options(case: int) -> None:
    call, error, text = BAD_OPTIONS[case]
    with pytest.raises(error, match=text):
        call()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_scores() -> None:
    scores = torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.quint8)
    with pytest.raises(
        TypeError, match=r"got quantized torch.quint8; call `.dequantize\(\)` first."
    ):
        fenchel.sparsemax(scores)


@pytest.mark.parametrize("name", ["alpha", "gamma", "k"])
@pytest.mark.parametrize("shape", [(), (3, 1)])
def test_parameters_on_another_device(name: str, shape: tuple[int, ...]) -> None:
    family: Any = fenchel.Ksubset if name == "k" else fenchel.Entmax
    elsewhere = torch.full(shape, 1.5, device="meta")
    mapping = family(**{name: elsewhere})
    for call in (mapping, mapping.max, mapping.support):
        with pytest.raises(
            ValueError, match=f"`{name}` must be on the device of `scores`, cpu; got meta; move it"
        ):
            call(SCORES)
    assert mapping(SCORES.to("meta")).device.type == "meta"
    here = family(**{name: torch.full(shape, 1.5)})
    if shape == ():  # a number, as in torch
        assert here(SCORES.to("meta")).device.type == "meta"
    else:
        with pytest.raises(ValueError, match=f"`{name}` must be on the device of `scores`, meta"):
            here(SCORES.to("meta"))


def test_a_target_on_another_device() -> None:
    target = torch.zeros(3, dtype=torch.int64, device="meta")
    with pytest.raises(ValueError, match="`target` must be on the device of `scores`, cpu; got m"):
        fenchel.fenchel_young_loss("softmax", SCORES, target)
    with pytest.raises(ValueError, match="`target` must be on the device of `hidden`, cpu; got m"):
        fenchel.linear_fenchel_young_loss("softmax", SCORES, torch.randn(4, 5), target)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_tensor_parameters_are_numbers_in_their_range(value: float) -> None:
    bad = torch.tensor([[1.5], [value], [2.0]])
    family: Any
    for family, name in (
        (fenchel.Entmax, "alpha"),
        (fenchel.Softmax, "gamma"),
        (fenchel.Ksubset, "k"),
    ):
        with pytest.raises(ValueError, match=f"`{name}` must be .*, got {value:g}"):
            family(**{name: bad})(SCORES)
    alpha = torch.tensor(1.5)
    mapping = fenchel.Entmax(alpha)
    alpha.fill_(value)  # as an optimizer may
    for call in (mapping, mapping.max):
        with pytest.raises(ValueError, match=f"`alpha` must be .*, got {value:g}"):
            call(SCORES)


BAD_TARGETS = [
    ([0, 1, 2], TypeError, "`target` must be a torch.Tensor, got list."),
    (torch.tensor([0, 1, 2]).to_sparse(), TypeError, "`target` must be a dense tensor, got layout"),
    (torch.tensor([0, 1]), ValueError, r"`target` must have shape \(3,\), .* got \(2,\)."),
    (
        torch.tensor([0, 1, 5]),
        ValueError,
        r"`target` must be in \[0, 4\] or equal `ignore_index` \(-100\), got 5",
    ),
    (torch.tensor([0, 1, -1]), ValueError, r"`target` must be in .*, got -1."),
    (
        torch.tensor([0.0, 1.0, 2.0]),
        ValueError,
        r"must have the scores' shape \(3, 5\), got \(3,\); class",
    ),
    (torch.ones(3, 5, dtype=torch.bool), TypeError, "`target` must hold integer class indices"),
    (
        torch.ones(3, 5, dtype=torch.complex64),
        TypeError,
        "`target` must hold integer class indices",
    ),
]


@pytest.mark.parametrize("case", range(len(BAD_TARGETS)))
def test_targets(case: int) -> None:
    target, error, text = BAD_TARGETS[case]
    for mapping in (fenchel.Softmax(), fenchel.Sparsemax(), fenchel.Fusedmax()):
        with pytest.raises(error, match=text):
            fenchel.fenchel_young_loss(mapping, SCORES, target)


def test_loss_options() -> None:
    target = torch.tensor([0, 1, 2])
    with pytest.raises(
        ValueError, match="`reduction` must be one of none, mean, sum, got 'average'"
    ):
        fenchel.fenchel_young_loss(fenchel.Softmax(), SCORES, target, reduction="average")
    with pytest.raises(ValueError, match="`target` must be floating point for ksubset"):
        fenchel.fenchel_young_loss(fenchel.Ksubset(2), SCORES, target)
    with pytest.raises(TypeError, match="`scores` must be bfloat16"):
        fenchel.fenchel_young_loss(fenchel.Softmax(), SCORES.long(), target)


def test_scalars_have_no_dimension_to_map() -> None:
    with pytest.raises(ValueError, match="`scores` must have at least one dimension"):
        mappings.get("sparsemax")(torch.tensor(1.0))
