"""Attention of a trained model on validation sentences, as pictures."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from fenchel import plots
from fenchel.seq2seq import decode, load

from .. import command, files

MAX_WORDS = 12
"""The most words of a sentence, so that a picture can be read."""


def draw(folder: Path, sentences: str, output: Path, count: int) -> list[Path]:
    """Draws the attention of a model on the first short sentences of a file.

    Returns:
        The pictures' paths.
    """
    model = load(folder, command.device())
    short = (line for line in files.lines(sentences) if 0 < len(line.split()) <= MAX_WORDS)
    texts = list(islice(short, count))
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
