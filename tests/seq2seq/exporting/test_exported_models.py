"""Exported programs have the model's numbers, and the script decodes without fenchel."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from exported import MODELS, build, check_script, decoded

from fenchel.seq2seq import Seq2Seq, decode, export
from fenchel.seq2seq.data._vocabulary import BOS
from fenchel.seq2seq.decoding._decode import best_texts
from fenchel.seq2seq.models._ensemble import Ensemble

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore")  # the exporters' own

TEXTS = ["draw V;PST", "s V", "gin\tV;PST", "wards V;X", "\u00e9a V", "\ufffdqaq\u00e9 V", "w V"]
SIZES = [(1, 1), (1, 6), (2, 3), (5, 9)]


QUICK = ["lstm softmax", "lstm copying"]


NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


@pytest.fixture(scope="module", params=NAMES)
def exported(request, tmp_path_factory) -> tuple[Seq2Seq, Path]:
    model = build(request.param)
    folder = tmp_path_factory.mktemp("exported")
    export(model, folder, beam=4, max_length=6)
    return model, folder


def check_rows(model: Seq2Seq, start, step, state_of) -> None:
    """Compares the probabilities of a program with float64, over inputs of several sizes.

    A mapping may be off by 10⁻⁶, some 16 roundings. How a network amplifies errors is seen in what
    its own roundings, in float32, make of the probabilities.
    """
    wide = copy.deepcopy(model).double()
    worst = own = 0.0
    for batch, size in SIZES:
        torch.manual_seed(batch)
        end = model.source.size
        if model.pointer is not None:  # also tokens of the target's alone, and of neither
            end += model.target.size + 3
        source = torch.randint(3, end, (batch, size))
        lengths = torch.randint(1, size + 1, (batch,))
        source[torch.arange(size) >= lengths[:, None]] = 0
        with torch.no_grad():
            states = [each.start(source, lengths) for each in (model, wide)]
            other = state_of(start(source, lengths), batch)
            tokens = torch.full((batch,), BOS)
            for _ in range(7):
                expected = []
                for place, each in enumerate((model, wide)):
                    p, _, (states[place],) = Ensemble(each).step([states[place]], tokens)
                    expected.append(p)
                found, other = step(tokens, other)
                worst = max(worst, float((found - expected[1]).abs().max()))
                own = max(own, float((expected[0] - expected[1]).abs().max()))
                tokens = expected[1].argmax(-1)
    assert worst <= 1e-6 + 16 * own


def description(folder: Path) -> dict:
    return json.loads((folder / "export.json").read_text("utf-8"))


def empty(folder: Path, batch: int) -> dict[str, torch.Tensor]:
    """The tensors of the state that are empty at first."""
    return {
        each["name"]: torch.zeros([{"batch": batch, "length": 0}.get(d, d) for d in each["dims"]])
        for each in description(folder)["state"]
        if each["empty_at_first"]
    }


def updated(state: dict, found: dict) -> dict:
    return {name: found.get(f"next_{name}", value) for name, value in state.items()}


def test_programs_of_torch_have_the_same_numbers(exported):
    model, folder = exported
    encoder, step = (
        torch.export.load(folder / f"{name}.pt2").module() for name in ("encoder", "step")
    )

    def one(tokens, state):
        found = step(tokens, state)
        return found["probabilities"], updated(state, found)

    state_of = lambda state, batch: {**state, **empty(folder, batch)}  # noqa: E731
    check_rows(model, encoder, one, state_of)


def test_onnx_has_the_same_numbers(exported):
    model, folder = exported
    sessions = {
        name: onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "step")
    }

    def run(name, inputs):
        session = sessions[name]
        known = {each.name for each in session.get_inputs()}
        outputs = [each.name for each in session.get_outputs()]
        values = {key: value.numpy() for key, value in inputs.items() if key in known}
        return dict(zip(outputs, map(torch.from_numpy, session.run(None, values)), strict=True))

    def one(tokens, state):
        found = run("step", {"tokens": tokens, **state})
        return found["probabilities"], updated(state, found)

    start = lambda source, lengths: run("encoder", {"source": source, "lengths": lengths})  # noqa: E731
    state_of = lambda state, batch: {**state, **empty(folder, batch)}  # noqa: E731
    check_rows(model, start, one, state_of)


def test_the_script_decodes_as_fenchel_does(exported):
    model, folder = exported
    letters = check_script(model, folder, TEXTS, beam=4, length=6)
    if model.pointer is not None:
        assert {"w", "\u00e9"} <= set(letters)


@pytest.mark.slow
def test_the_script_decodes_greedily(exported):
    model, folder = exported
    results = decode(model, TEXTS, method="greedy", max_length=6)
    assert decoded(folder, TEXTS, "--greedy") == best_texts(model, results)
