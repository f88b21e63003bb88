"""The folder of an exported model."""

from __future__ import annotations

import io
from collections.abc import Collection
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ..._atomic import atomic_folder, atomic_write, write_text
from .._checks import check_search_size
from .._files import write_json
from ..data._vocabulary import BOS, EOS, PAD, UNK
from ..models._folder import VOCABULARY, save_vocabularies
from ..models._model import Seq2Seq
from ._onnx import quiet, to_onnx
from ._programs import Programs, programs

FORMATS = ("onnx", "pt2")
DESCRIPTION, SCRIPT, README = "export.json", "decode.py", "README.md"
SCRIPT_KINDS = (
    *("characters", "words", "symbols", "subwords", "inflection"),
    *("normalized", "featured"),
)
"""The vocabularies that the script knows."""


def export(
    model: Seq2Seq,
    folder: str | Path,
    *,
    formats: Collection[str] = FORMATS,
    beam: int = 5,
    max_length: int = 100,
) -> list[Path]:
    """Writes a model as programs that decode without fenchel.

    Args:
        model: on the CPU.
        folder: created if it is missing; files in it are replaced at the end, so that an error
            leaves it as it was.
        formats: "onnx" for ONNX files and a script that decodes with them, "pt2" for programs of
            `torch.export`.
        beam, max_length: the script's defaults, as for `search`.
    Returns:
        The files: encoder and step in each format, vocabulary.json, export.json (names and shapes
        of the state), README.md and, with ONNX and vocabularies that it knows, decode.py.
    Raises:
        TypeError, ValueError: for other formats or sizes, or if ONNX has no operation for it.
        ModuleNotFoundError: if the packages onnx and onnxscript are missing.
        NotADirectoryError: if the folder is something else.

    >>> import tempfile
    >>> from fenchel.seq2seq import Characters, ModelConfig
    >>> letters = Characters("abc")
    >>> model = Seq2Seq(ModelConfig(embedding=4, hidden=4, layers=1), letters, letters)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in export(model, folder, formats=["pt2"])]
    ['encoder.pt2', 'step.pt2', 'vocabulary.json', 'export.json', 'README.md']
    """
    unknown = sorted(set(formats) - set(FORMATS))
    if unknown or not formats:
        raise ValueError(f"`formats` must be some of {', '.join(FORMATS)}, got {list(formats)}.")
    check_search_size("beam", beam)
    check_search_size("max_length", max_length)
    if "onnx" in formats:
        for name in ("onnx", "onnxscript"):
            if find_spec(name) is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    was_training = model.training
    try:
        with atomic_folder(Path(folder)) as new:
            written = _write(model.eval(), new, formats, beam, max_length)
    finally:
        model.train(was_training)
    return [Path(folder, each.name) for each in written]


def _write(
    model: Seq2Seq, path: Path, formats: Collection[str], beam: int, max_length: int
) -> list[Path]:
    """Writes all files, as `export` describes them, to a folder that exists."""
    parts = programs(model)
    written = _write_programs(parts, path, formats)
    save_vocabularies(path, model.source, model.target)
    write_json(path / DESCRIPTION, _description(model, parts, beam, max_length))
    written += [path / VOCABULARY, path / DESCRIPTION]
    resources = files("fenchel.seq2seq") / "resources"
    if "onnx" in formats and not unknown_kinds(model):
        write_text(path / SCRIPT, (resources / "decode_onnx.py").read_text("utf-8"))
        written.append(path / SCRIPT)
    names = {each.name for each in written}
    absent = [f"`{name}`" for name in ("encoder.onnx", "encoder.pt2", SCRIPT) if name not in names]
    lines = (resources / "export.md").read_text("utf-8").splitlines(keepends=True)
    is_told = SCRIPT in names
    kept = [
        line
        for line in lines
        if not any(name in line for name in absent) and (is_told or SCRIPT not in line)
    ]
    write_text(path / README, "".join(kept))
    return [*written, path / README]


def unknown_kinds(model: Seq2Seq) -> list[str]:
    """The kinds of a model's vocabularies that the script does not know."""
    kinds = set[str]()
    for vocabulary in (model.source.to_json(), model.target.to_json()):
        kinds.add(vocabulary["kind"])
        while "base" in vocabulary:
            vocabulary = vocabulary["base"]
            kinds.add(vocabulary["kind"])
    return sorted(kinds - set(SCRIPT_KINDS))


def _write_programs(parts: Programs, path: Path, formats: Collection[str]) -> list[Path]:
    """Writes the encoder and the step."""
    dims = {name: torch.export.Dim(name) for name in ("batch", "source", "length")}

    def shapes(names: Any) -> dict[int, Any]:
        return {i: dims[name] for i, name in enumerate(names) if isinstance(name, str)}

    given = [each.name for each in parts.state if not each.is_empty_at_first]
    updated = [f"next_{each.name}" for each in parts.state if each.is_updated]
    jobs = {
        "encoder": (
            parts.encoder,
            parts.encoder_example,
            {"source": shapes(("batch", "source")), "lengths": shapes(("batch",))},
            (["source", "lengths"], given),
        ),
        "step": (
            parts.step,
            parts.step_example,
            {
                "tokens": shapes(("batch",)),
                "state": {each.name: shapes(each.dims) for each in parts.state},
            },
            (
                ["tokens", *(each.name for each in parts.state)],
                ["probabilities", "attention", *updated],
            ),
        ),
    }
    written = []
    for name, (module, example, dynamic, names) in jobs.items():
        with torch.no_grad(), quiet():
            program = torch.export.export(module, example, dynamic_shapes=dynamic)
        contents = {}
        if "pt2" in formats:
            buffer = io.BytesIO()
            with quiet():
                torch.export.save(program, buffer)
            contents["pt2"] = buffer.getvalue()
        if "onnx" in formats:
            contents["onnx"] = to_onnx(program, *names)
        for kind, data in contents.items():
            written.append(path / f"{name}.{kind}")
            with atomic_write(written[-1]) as new:
                new.write_bytes(data)
    return written


def _description(model: Seq2Seq, parts: Programs, beam: int, max_length: int) -> dict[str, Any]:
    """What a program must know that decodes with the files."""
    return {
        "format": 1,
        "fenchel": __version__,
        "model": model.config.model_dump(mode="json"),
        "tokens": {"padding": PAD, "begin": BOS, "end": EOS, "unknown": UNK},
        "sizes": {"source": model.source.size, "target": model.target.size},
        "state": [
            {
                "name": each.name,
                "dims": list(each.dims),
                "dtype": each.dtype,
                "empty_at_first": each.is_empty_at_first,
                "updated": each.is_updated,
            }
            for each in parts.state
        ],
        "search": {"beam": beam, "max_length": max_length},
    }
