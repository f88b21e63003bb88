"""Attention of a trained model on validation sentences, as pictures."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from fenchel import plots
from fenchel.seq2seq import load
from fenchel.seq2seq.config._schema import ParallelFiles
from fenchel.seq2seq.data._readers import Malformed, parallel
from fenchel.seq2seq.decoding._evaluation import decode
from fenchel.seq2seq.training._distributed import device_of

LONGEST = 12
"""The most words of a sentence, so that a picture can be read."""


def draw(folder: Path, files: dict[str, str], into: Path, most: int) -> list[Path]:
    """Draws the attention of a model on the first short sentences; returns the pictures."""
    model = load(folder, device_of("auto"))
    pairs = parallel([ParallelFiles(**files)], Malformed())
    short = [source for source, _ in pairs if len(source.split()) <= LONGEST]
    texts = list(islice(short, most))
    into.mkdir(parents=True, exist_ok=True)
    written = []
    for place, result in enumerate(decode([model], texts, attention=True, nbest=1)):
        best = result.hypotheses[0]
        if best.attention is None:
            continue
        source = model.source.tokens(model.source.encode(texts[place]))
        target = [*model.target.tokens(best.tokens), "</s>"][: len(best.attention)]
        figure = plots.plot_attention(best.attention[:, :, : len(source)], source, target)
        path = into / f"{folder.name}-{place}.svg"
        figure.savefig(path)
        written.append(path)
    return written
