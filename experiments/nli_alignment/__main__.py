"""The command line: `python -m experiments.nli_alignment --data FOLDER --alignment matching`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fenchel import plots

from .. import command, runs, summary
from .data import LABELS, Pair
from .models import MODELS
from .table import table
from .train import load, read_split, train

RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code."""
    return command.run(_parser(), arguments)


def run_train(run: Path | None, data: Path, model: str, alignment: str, **options: Any) -> None:
    """Trains, or resumes."""
    if alignment not in MODELS[model][1]:
        raise ValueError(f"`--alignment` of {model} must be one of {MODELS[model][1]}.")
    name = f"{model}-{alignment}-{options['seed']}"
    folder = run or Path("runs") / data.resolve().name / name
    history = train(folder, data, model=model, alignment=alignment, **options)
    best = max(history, key=lambda record: record["accuracy"])
    print(f"{folder}: best dev accuracy {best['accuracy']:.2f}, in epoch {best['epoch']}")


def run_table(run: Sequence[Path], output: Path) -> None:
    """Gathers runs."""
    found = runs.gather(run)
    summary.save(found, table, output, "Alignments for natural language inference: results")
    print(table(found))


def run_picture(run: Sequence[Path], data: Path, output: Path, pair: int | None) -> None:
    """Draws how several runs align a pair; by default one that all of them classify rightly."""
    pairs = read_split(data, "dev", "trial")
    models = {folder.name: load(folder) for folder in run}
    if pair is not None and not 1 <= pair <= len(pairs):
        raise ValueError(f"`--pair` must be from 1 to {len(pairs)}, got {pair}.")
    place = _illustrative(models, pairs) if pair is None else pair - 1
    panels = _panels(models, pairs[place])
    plots.plot_alignments(panels).savefig(output, dpi=110)
    print(f"pair {place + 1}, {LABELS[pairs[place].label]}: {output}")


def _panels(models: dict[str, Any], pair: Pair) -> list[plots.Alignment]:
    """The alignments of a pair; where directions differ both, the words that choose as rows.
    Attentions over the premise share a panel."""
    premise, hypothesis = pair.premise, pair.hypothesis
    panels, attentions = [], {}
    for name, (network, vocabulary) in models.items():
        with torch.no_grad():
            found = network(vocabulary.batch([pair]))[1]
        if found.rows.shape[2] == 1:
            attentions[name] = found.rows[0, :, 0]
        elif found.rows is found.columns:
            panels.append(plots.Alignment(name, found.rows[0], premise, hypothesis))
        else:
            paths = [(kept.codes[0], kept.weights[0]) for kept in found.posteriors]
            there, back = paths or [(), ()]
            columns = found.columns[0].mT
            panels += [
                plots.Alignment(f"{name}, premise", found.rows[0], premise, hypothesis, *there),
                plots.Alignment(f"{name}, hypothesis", columns, hypothesis, premise, *back),
            ]
    if attentions:
        weights = torch.stack(list(attentions.values()))
        panels.append(plots.Alignment("premise", weights, list(attentions), premise))
    return panels


def _illustrative(models: dict[str, Any], pairs: Sequence[Pair]) -> int:
    """A pair of 7 to 12 words each, of different lengths, that all models classify rightly; if
    there is none the first."""
    for place, pair in enumerate(pairs):
        sizes = len(pair.premise), len(pair.hypothesis)
        if not (7 <= min(sizes) < max(sizes) <= 12):
            continue
        with torch.no_grad():
            given = (network(words.batch([pair]))[0] for network, words in models.values())
            if all(int(scores.argmax()) == pair.label for scores in given):
                return place
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.nli_alignment")
    commands = parser.add_subparsers(required=True)
    data = "folder of *train* and *dev* or *trial*, .txt or .tsv as SICK's, .jsonl as SNLI's"

    one = commands.add_parser("train", help="train, or resume a run that was killed (default)")
    one.set_defaults(command=run_train)
    one.add_argument("--data", type=Path, required=True, help=data)
    one.add_argument("--model", choices=MODELS, default="esim")
    kinds = "; ".join(f"of {name} {', '.join(names)}" for name, (_, names) in MODELS.items())
    one.add_argument("--alignment", default="softmax", help=f"{kinds} (default: softmax)")
    one.add_argument("--run", type=Path, help="folder of the run (default: under runs/DATA)")
    one.add_argument("--epochs", type=command.count, default=20, help="in all (default: 20)")
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--optimizer", choices=("adam", "sgd"), default="adam")
    one.add_argument(
        "--lr", type=command.number, default=1e-3, help="learning rate (default: 0.001)"
    )
    one.add_argument("--batch", type=command.count, default=32, help="pairs per step (default: 32)")
    one.add_argument("--hidden", type=int, default=300, help="width (default: 300)")
    one.add_argument("--dropout", type=float, default=0.1)
    one.add_argument("--vectors", type=Path, help="word vectors, as GloVe's (default: trained)")
    one.add_argument("--threads", type=command.count, help="of the CPU (default: all)")

    one = commands.add_parser("table", help="gather runs beside the papers' figures")
    one.set_defaults(command=run_table)
    one.add_argument("run", type=Path, nargs="+", help="folders of runs")
    one.add_argument("--output", type=Path, default=RESULTS, help=f"default: {RESULTS.name}/ here")

    one = commands.add_parser("picture", help="draw how runs align a pair of sentences")
    one.set_defaults(command=run_picture)
    one.add_argument("run", type=Path, nargs="+", help="folders of runs")
    one.add_argument("--data", type=Path, required=True, help=data)
    one.add_argument("--output", type=Path, default=Path("alignments.png"))
    one.add_argument(
        "--pair", type=int, help="of the dev data, from 1 (default: one classified rightly)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
