"""The ONNX files of exported programs."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..models import _exported  # noqa: F401  declares the operator

MAX_BYTES = (1 << 31) - 1
"""The largest size of a file of protocol buffers."""


def to_onnx(
    program: torch.export.ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]
) -> bytes:
    """The ONNX file of a program.

    Args:
        program: of `torch.export`.
        inputs, outputs: names in the file, in the order of the program's.
    Raises:
        ValueError: if ONNX has no such operation, or the file would be too large.
    """
    with quiet():
        try:
            exported = torch.onnx.export(
                program,
                (),
                input_names=list(inputs),
                output_names=list(outputs),
                custom_translation_table={
                    torch.ops.fenchel.bidirectional_lstm.default: _translation()
                },
                dynamo=True,
                verbose=False,
                external_data=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            raise ValueError(f"the model cannot be exported to ONNX: {_reason(error)}") from None
    assert exported is not None
    proto = exported.model_proto
    if proto.ByteSize() > MAX_BYTES:
        raise ValueError("the model is too large for one ONNX file; export it with --format pt2.")
    return proto.SerializeToString()


def _reason(error: BaseException) -> str:
    """The first line of what the exporter was told."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().splitlines()[0]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what the exporters say about packages and attributes that are not needed."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _translation() -> Callable[..., Any]:
    """How ONNX computes the encoder's LSTM: by its own operator."""
    import onnxscript

    op: Any = onnxscript.opset18

    def reordered(weight: Any) -> Any:
        """The gates of PyTorch are input, forget, cell, output; ONNX has another order."""
        i, f, g, o = op.Split(weight, axis=0, num_outputs=4)
        return op.Concat(i, o, f, g, axis=0)

    def stacked(forward: Any, backward: Any) -> Any:
        return op.Concat(op.Unsqueeze(forward, [0]), op.Unsqueeze(backward, [0]), axis=0)

    def bidirectional_lstm(x: Any, weights: Sequence[Any], hidden: int) -> tuple[Any, Any, Any]:
        parts = [reordered(weight) for weight in weights]
        biases = (op.Concat(*parts[first : first + 2], axis=0) for first in (2, 6))
        y, h, c = op.LSTM(
            op.Transpose(x, perm=[1, 0, 2]),
            stacked(parts[0], parts[4]),
            stacked(parts[1], parts[5]),
            stacked(*biases),
            direction="bidirectional",
            hidden_size=hidden,
        )
        return op.Reshape(op.Transpose(y, perm=[2, 0, 1, 3]), [0, 0, -1]), h, c

    return bidirectional_lstm
