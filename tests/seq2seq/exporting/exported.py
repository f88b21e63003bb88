"""Models to export, and what their script decodes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fenchel.seq2seq import Characters, Inflection, ModelConfig, Seq2Seq, decode
from fenchel.seq2seq.exporting import _export

SCRIPT = Path(_export.__file__).parents[1] / "resources" / "decode_onnx.py"
LETTERS = "adginrsw"
TARGET_LETTERS = "adinrsq"  # without g and w, which a model may copy


MODELS = {
    "lstm softmax": {"architecture": "lstm", "attention": "softmax", "output": "softmax"},
    "lstm entmax": {"architecture": "lstm", "layers": 2},
    "lstm learnt": {
        "architecture": "lstm",
        "attention": {"mapping": "entmax", "alpha": 1.5, "learned_alpha": True},
        "input_feeding": False,
    },
    "transformer softmax": {
        "architecture": "transformer",
        "attention": "softmax",
        "output": "softmax",
    },
    "transformer entmax": {"architecture": "transformer", "layers": 2},
    "lstm copying": {
        "architecture": "lstm",
        "attention": "softmax",
        "output": "softmax",
        "copy_source": True,
    },
    "transformer copying": {
        "architecture": "transformer",
        "attention": "softmax",
        "output": "sparsemax",
        "copy_source": True,
    },
}


def build(name: str, source=None, target=None) -> Seq2Seq:
    torch.manual_seed(0)
    sizes = {"embedding": 8, "hidden": 8, "layers": 1, "heads": 2, "feedforward": 16}
    config = ModelConfig.model_validate({**sizes, **MODELS[name]})
    source = source or Inflection(["english"], ["PST", "V"], list(LETTERS))
    model = Seq2Seq(config, source, target or Characters(TARGET_LETTERS)).eval()
    with torch.no_grad():
        for each, parameter in model.named_parameters():
            if "encoder" not in each and "alpha" not in each:
                parameter.mul_(4)
    return model


def decoded(folder: Path, texts: list[str], *words: str) -> list[str]:
    """What the script writes, in a process that cannot import fenchel or torch."""
    blocked = "import sys; sys.modules['fenchel'] = sys.modules['torch'] = None; "
    code = f"{blocked}import runpy; sys.argv = {['decode.py', *words]!r}; "
    code += f"runpy.run_path({str(folder / 'decode.py')!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="\n".join(texts).encode(),
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


def check_script(model: Seq2Seq, folder: Path, texts: list[str], beam: int, length: int) -> str:
    """Compares the script's outputs with those of fenchel, and returns their letters."""
    results = decode(model, texts, beam=beam, nbest=beam, max_length=length)
    wanted = [
        (str(number), model.target.decode(each.tokens), each.probability)
        for number, result in enumerate(results, start=1)
        for each in result.hypotheses[:3]
    ]
    found = [line.split("\t") for line in decoded(folder, texts, "--nbest", "3")]
    assert [tuple(line[:2]) for line in found] == [line[:2] for line in wanted]
    assert [float(line[2]) for line in found] == pytest.approx([p for *_, p in wanted], rel=1e-4)
    return "".join(text for _, text, _ in wanted)
