"""What leaves PyTorch: ONNX by both exporters, TorchScript, and exported programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fenchel
from fenchel import mappings

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore")  # the exporters' own


class Model(nn.Module):
    """A linear layer and what is made of its scores."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(9, 9), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


class Scores(Model):
    """The same of the scores themselves."""

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


TARGET = torch.tensor([0, 3, 2, 8])
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": fenchel.softmax,
    "sparsemax": fenchel.sparsemax,
    "entmax-1.3": lambda x: fenchel.entmax(x, alpha=1.3),
    "entmax-dim": lambda x: fenchel.entmax(x, alpha=1.5, dim=0, gamma=0.7),
    "normmax": fenchel.normmax,
    "pnormmax": fenchel.pnormmax,
    "ksubset": lambda x: fenchel.ksubset(x, k=2.5),
    "loss": lambda x: fenchel.Entmax(1.3).loss(x, TARGET, reduction="none"),
    "value": fenchel.Normmax().max,
}
EXPORTERS = [False, pytest.param(True, marks=pytest.mark.slow)]


def to_onnx(model: nn.Module, x: Tensor, path: Path, dynamo: bool, dynamic: bool = False) -> None:
    model.eval()
    if dynamo:
        sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
        options = {"dynamic_shapes": (sizes,)} if dynamic else {}
        torch.onnx.export(model, (x,), str(path), dynamo=True, verbose=False, **options)
    else:
        axes = {"x": {0: "rows", 1: "d"}} if dynamic else None
        options = {"input_names": ["x"], "dynamic_axes": axes, "opset_version": 17}
        torch.onnx.export(model, (x,), str(path), dynamo=False, **options)


def run(path: Path, *inputs: Tensor) -> list[Tensor]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return [torch.from_numpy(session.run(None, {name: x.numpy()})[0]) for x in inputs]


@pytest.mark.parametrize("dynamo", EXPORTERS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_onnx_gives_the_same_numbers(name: str, dynamo: bool, tmp_path: Path) -> None:
    model, x = Model(FUNCTIONS[name]), torch.randn(4, 9)
    to_onnx(model, x, tmp_path / "model.onnx", dynamo)
    (got,) = run(tmp_path / "model.onnx", x)
    torch.testing.assert_close(got, model(x).detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dynamo", EXPORTERS)
@pytest.mark.parametrize("name", ["sparsemax", "entmax-1.3"])
def test_onnx_takes_any_batch_and_length(name: str, dynamo: bool, tmp_path: Path) -> None:
    function = FUNCTIONS[name]
    to_onnx(Scores(function), torch.randn(4, 9), tmp_path / "model.onnx", dynamo, dynamic=True)
    ahead = torch.zeros(3, 10_000)
    ahead[:, 0] = torch.tensor([0.1, 0.7, 5.0])
    rows = [torch.randn(3, 7), 5 * torch.randn(1, 300), torch.randn(5, 300).round(), ahead]
    for x, got in zip(rows, run(tmp_path / "model.onnx", *rows), strict=True):
        torch.testing.assert_close(got, function(x.double()).float(), rtol=0, atol=3e-6)


@pytest.mark.parametrize("dynamo", EXPORTERS)
def test_onnx_keeps_the_contract(dynamo: bool, tmp_path: Path) -> None:
    x = torch.randn(5, 9)
    x[0, 2:5], x[1], x[2, 1], x[3, [0, 4]] = -torch.inf, -torch.inf, torch.nan, torch.inf
    to_onnx(Scores(fenchel.sparsemax), x, tmp_path / "model.onnx", dynamo)
    (got,) = run(tmp_path / "model.onnx", x)
    torch.testing.assert_close(got, fenchel.sparsemax(x), rtol=0, atol=1e-6, equal_nan=True)


class Learned(nn.Module):
    """Entmax whose α is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor([[1.0], [1.3], [1.5], [2.0]]))

    def forward(self, x: Tensor) -> Tensor:
        return fenchel.entmax(x, alpha=self.alpha)


@pytest.mark.parametrize("dynamo", EXPORTERS)
def test_onnx_of_a_learned_alpha(dynamo: bool, tmp_path: Path) -> None:
    model, x = Learned(), torch.randn(4, 9)
    to_onnx(model, x, tmp_path / "model.onnx", dynamo)
    (got,) = run(tmp_path / "model.onnx", x)
    torch.testing.assert_close(got, model(x).detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dynamo", EXPORTERS)
@pytest.mark.parametrize("name", ["fusedmax", "oscarmax"])
def test_onnx_refuses_what_has_no_fixed_steps(name: str, dynamo: bool, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=f"{name} cannot be exported to ONNX"):
        to_onnx(Model(mappings.get(name)), torch.randn(2, 9), tmp_path / "model.onnx", dynamo)


@pytest.mark.parametrize("name", [*FUNCTIONS, "fusedmax", "oscarmax", "learned"])
def test_traced_modules_have_gradients(name: str, tmp_path: Path) -> None:
    x = torch.randn(4, 9)
    if name == "learned":
        model: nn.Module = Learned()
    else:
        model = Model(FUNCTIONS[name] if name in FUNCTIONS else mappings.get(name))
    torch.jit.save(torch.jit.trace(model, (x,)), tmp_path / "model.pt")
    loaded = torch.jit.load(tmp_path / "model.pt")
    y, expected = loaded(x), model(x)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-6)
    weights = torch.randn_like(y)
    (y * weights).sum().backward()
    (expected * weights).sum().backward()
    for got, wanted in zip(loaded.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-4, atol=1e-5)


def test_a_traced_mapping_needs_only_pytorch() -> None:
    graph = str(torch.jit.trace(FUNCTIONS["entmax-1.3"], (torch.randn(4, 9),)).graph)
    assert "fenchel::" not in graph


@pytest.mark.parametrize("name", ["sparsemax", "loss"])
def test_exported_programs_keep_the_operator_elsewhere(name: str, tmp_path: Path) -> None:
    model, x = Model(FUNCTIONS[name]), torch.randn(4, 9)
    program = torch.export.export(model, (x,))
    assert any("fenchel" in str(node.target) for node in program.graph.nodes)
    torch.export.save(program.run_decompositions(), tmp_path / "model.pt2")
    torch.save((x, model(x).detach()), tmp_path / "expected.pt")
    code = (
        "import sys, torch, fenchel; folder = sys.argv[1]\n"
        "x, expected = torch.load(folder + '/expected.pt')\n"
        "got = torch.export.load(folder + '/model.pt2').module()(x)\n"
        "torch.testing.assert_close(got, expected)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
