"""The command line: `python -m experiments.dependency_parsing --data FOLDER --loss LOSS`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fenchel import plots

from .. import command, runs, summary
from . import predictions, sweep, table
from .conllu import Sentence, read_conllu, write_conllu
from .model import Encoder, Parser
from .train import encoded, load, parse, parses, read_split, train

RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code."""
    return command.run(_parser(), arguments)


def run_train(run: Path | None, data: Path, loss: str, seed: int, **options: float) -> None:
    """Trains, or resumes."""
    folder = run or Path("runs") / data.resolve().name / f"{loss}-{seed}"
    history = train(folder, data, loss=loss, seed=seed, **options)  # type: ignore[arg-type]
    best = max(history, key=lambda record: record["uas"])
    print(f"{folder}: best dev UAS {best['uas']:.2f}, in epoch {best['epoch']}")


def run_parse(run: Path, input: Path, output: Path) -> None:
    """Replaces the heads in a CoNLL-U file."""
    parser, encode = load(run)
    sentences = read_conllu(input)
    codes: list[list[int]] = [[] for _ in sentences]
    with torch.no_grad():
        for chosen, batch in encoded(encode, sentences):
            for index, code in zip(chosen, parse(parser, batch).tolist(), strict=True):
                codes[index] = code[: len(sentences[index].words)]
    write_conllu(output, sentences, codes)


def run_sweep(run: Path | None, data: Path, **options: Any) -> None:
    """Tunes the learning rate of each loss, and trains with several seeds."""
    folder = run or Path("runs") / data.resolve().name
    sweep.Sweep(folder, data, **options).run()


def run_table(run: Sequence[Path], output: Path) -> None:
    """Gathers runs."""
    found = runs.gather(run)
    summary.save(found, table.page, output, "Dependency parsing: results")
    predictions.save(run, output)
    table.draw(found, output)
    print(table.table(found))


def run_picture(run: Path, data: Path, output: Path, sentence: int | None) -> None:
    """Draws the parses of an ambiguous sentence."""
    parser, encode = load(run)
    sentences = read_split(data, "dev")
    if sentence is None:
        sentence = _ambiguous(parser, encode, sentences) + 1
    if not 1 <= sentence <= len(sentences):
        raise ValueError(f"`--sentence` must be from 1 to {len(sentences)}, got {sentence}.")
    chosen = sentences[sentence - 1]
    with torch.no_grad():
        posterior = parses(parser, encode([chosen]))
    figure = plots.plot_parses(chosen.words, posterior.codes[0], posterior.weights[0], chosen.code)
    figure.savefig(output, dpi=110)
    print(f"sentence {sentence}, {int(posterior.support_size)} parses: {output}")


def _ambiguous(parser: Parser, encode: Encoder, sentences: Sequence[Sentence]) -> int:
    """A sentence of eight words or few more, with few parses, the right one among them but not the
    heaviest; if there is none, the one with the fewest parses above one."""
    ranks = {}
    with torch.no_grad():
        for chosen, batch in encoded(encode, sentences):
            posterior = parses(parser, batch)
            right = (posterior.codes == batch.trees.unsqueeze(1)).all(-1)
            found = (right & (posterior.weights > 0)).any(-1)
            first = right.gather(1, posterior.weights.argmax(-1, keepdim=True)).squeeze(-1)
            for place, index in enumerate(chosen):
                trees, words = int(posterior.support_size[place]), int(batch.lengths[place])
                is_ambiguous = bool(found[place] and not first[place])
                ranks[index] = (trees == 1, not is_ambiguous, words < 8, max(trees, 3), words)
    return min(ranks, key=ranks.__getitem__)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.dependency_parsing")
    commands = parser.add_subparsers(required=True)

    one = commands.add_parser("train", help="train, or resume a run that was killed (default)")
    one.set_defaults(command=run_train)
    one.add_argument("--data", type=Path, required=True, help="folder of *train* and *dev*.conllu")
    one.add_argument("--loss", choices=table.LOSSES, default="margin_sparsemap")
    one.add_argument("--run", type=Path, help="folder of the run (default: runs/DATA/LOSS-SEED)")
    one.add_argument("--epochs", type=command.count, default=30, help="in all (default: 30)")
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--lr", type=command.number, default=1e-3, help="of Adam (default: 0.001)")
    one.add_argument(
        "--batch", type=command.count, default=16, help="sentences per step (default: 16)"
    )
    one.add_argument("--threads", type=command.count, help="of the CPU (default: all)")

    one = commands.add_parser("sweep", help="tune the learning rate on dev, then train seeds")
    one.set_defaults(command=run_sweep)
    one.add_argument("--data", type=Path, required=True, help="also *covered-test.conllu, if any")
    one.add_argument("--run", type=Path, help="folder of the runs (default: runs/DATA)")
    one.add_argument("--losses", nargs="+", choices=table.LOSSES, default=list(table.LOSSES))
    one.add_argument("--rates", type=command.number, nargs="+", default=list(sweep.RATES))
    one.add_argument("--tuning-seeds", type=int, nargs="+", default=[1], help="(default: 1)")
    one.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    one.add_argument("--epochs", type=command.count, default=30)
    one.add_argument("--batch", type=command.count, default=16)
    one.add_argument("--jobs", dest="num_parallel", metavar="N", type=command.count, default=1)

    one = commands.add_parser("parse", help="CoNLL-U in, CoNLL-U out")
    one.set_defaults(command=run_parse)
    one.add_argument("--run", type=Path, required=True)
    one.add_argument("--input", type=Path, required=True)
    one.add_argument("--output", type=Path, required=True)

    one = commands.add_parser(
        "table", help="gather runs beside the paper's figures, and the predictions of the best"
    )
    one.set_defaults(command=run_table)
    one.add_argument("run", type=Path, nargs="+", help="folders of runs")
    one.add_argument("--output", type=Path, default=RESULTS, help=f"default: {RESULTS.name}/ here")

    one = commands.add_parser("picture", help="draw an ambiguous sentence with its few parses")
    one.set_defaults(command=run_picture)
    one.add_argument("--run", type=Path, required=True)
    one.add_argument("--data", type=Path, required=True)
    one.add_argument("--output", type=Path, default=Path("parses.png"))
    one.add_argument(
        "--sentence", type=command.count, help="of the dev data, from 1 (default: an ambiguous one)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
