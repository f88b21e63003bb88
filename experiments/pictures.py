"""Attention of a trained model on sentences, as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fenchel import plots
from fenchel.seq2seq import decode, load

from . import command


def draw(folder: Path, texts: Sequence[str], output: Path) -> list[Path]:
    """Draws the attention of a model on texts.

    Returns:
        The pictures' paths.
    """
    model = load(folder, command.device())
    output.mkdir(parents=True, exist_ok=True)
    written = []
    for place, result in enumerate(decode([model], texts, attention=True, nbest=1)):
        best = result.hypotheses[0]
        if best.attention is None:
            continue
        source = model.source.tokens(model.source.encode(texts[place]))
        target = [*model.target.tokens(best.tokens), "</s>"][: len(best.attention)]
        figure = plots.plot_attention(best.attention[:, :, : len(source)], source, target)
        path = output / f"{folder.name}-{place}.svg"
        figure.savefig(path)
        written.append(path)
    return written
