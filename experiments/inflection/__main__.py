"""Morphological inflection: CoNLL-SIGMORPHON 2018 task 1, all languages by one model.

    python -m experiments.inflection run DATA --setting medium
    python -m experiments.inflection predict DATA --model runs/inflection/medium-1.5-1.5-0 \
        --output predictions

`run` trains a model for each pair of an output α and an attention α, evaluates it on the dev files,
and writes a table beside the paper's figures. What is trained or evaluated already is kept, so the
same command goes on where it was stopped. `predict` writes the covered test files, filled in.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fenchel.seq2seq import load

from .. import command, files, jobs, recipe, tables
from ..predict import best_texts
from . import paper
from .data import covered, languages, unpacked

CONFIG = Path(__file__).with_name("config.yaml")
ALPHAS = (1.0, 1.5, 2.0)
SETTINGS = ("low", "medium", "high")
VALIDATE_EVERY = {"low": 10, "medium": 4, "high": 1}
"""Epochs between validations; the paper's are 10 for medium and 1 for high."""
Point = tuple[float, float]
"""The α of the output, and that of the attention."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns its exit code."""
    return command.run_subcommand(_parser(), argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.inflection",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shared = [recipe.data_options("inflection"), recipe.training_options()]
    run = commands.add_parser("run", parents=shared, help="train, evaluate, and write the table")
    run.add_argument("--setting", choices=SETTINGS, default="medium")
    run.add_argument(
        "--points",
        type=_points,
        default=list(itertools.product(ALPHAS, ALPHAS)),
        metavar="OUTPUT:ATTENTION,…",
        help="pairs of α, such as 1:1,1.5:1.5 (default: all of 1, 1.5 and 2)",
    )
    run.add_argument("--languages", nargs="+", help="default: all that there are")
    run.add_argument(
        "--no-predictions", action="store_true", help="leave out the covered test files"
    )
    run.set_defaults(run=_run)
    predict = commands.add_parser("predict", help="fill in the covered test files")
    predict.add_argument("data", type=Path)
    predict.add_argument("--model", type=Path, nargs="+", required=True, help="several: ensemble")
    predict.add_argument("--setting", choices=SETTINGS, default="medium")
    predict.add_argument(
        "--output", type=Path, required=True, help="a folder, or an archive .tar.gz"
    )
    predict.add_argument("--beam", type=command.count, default=5)
    predict.add_argument("--batch-size", type=command.count, default=1024)
    predict.add_argument("--languages", nargs="+", help="default: all that there are")
    predict.set_defaults(run=_predict)
    return parser


def _points(text: str) -> list[Point]:
    try:
        pairs = [tuple(float(alpha) for alpha in pair.split(":")) for pair in text.split(",")]
        return [(output, attention) for output, attention in pairs]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected 1.5:1.5,2:1 or the like, got {text!r}."
        ) from None


def _run(arguments: argparse.Namespace) -> int:
    data = unpacked(arguments.data, arguments.output / "data")
    chosen = arguments.languages or languages(data, arguments.setting)
    train = [str(data / f"{language}-train-{arguments.setting}") for language in chosen]
    dev = [str(data / f"{language}-dev") for language in chosen]
    todo, ensembles = [], []
    for output, attention in arguments.points:
        folders = []
        for seed in arguments.seeds:
            name = f"{arguments.setting}-{output:g}-{attention:g}-{seed}"
            folder = arguments.output / name
            folders.append(folder)
            values = {
                "data.train": train,
                "data.validation": dev,
                "model.output": recipe.mapping(output),
                "model.attention": recipe.mapping(attention),
                "training.seed": seed,
                "training.validate_every": VALIDATE_EVERY[arguments.setting],
            }
            words = recipe.overrides(values, arguments)
            then = _prediction(arguments, folder, [folder])
            todo.append(recipe.training_job(folder, CONFIG, words, dev, then))
        if len(folders) > 1:
            name = f"{arguments.setting}-{output:g}-{attention:g}-ensemble"
            ensemble = arguments.output / name
            then = _prediction(arguments, ensemble, folders)
            ensembles.append(_ensemble(ensemble, folders, dev, then))
    succeeded = recipe.run(todo, arguments) and recipe.run(ensembles, arguments)
    _report(arguments)
    return 0 if succeeded else 1


def _prediction(
    arguments: argparse.Namespace, folder: Path, models: list[Path]
) -> dict[Path, list[str]]:
    """The command that fills in the covered test files, if they are wanted, by the archive that it
    writes."""
    if arguments.no_predictions:
        return {}
    output = recipe.predictions(folder, ".tar.gz")
    words = ["predict", str(arguments.data), "--setting", arguments.setting]
    words += ["--output", str(output), "--model", *map(str, models)]
    if arguments.languages:
        words += ["--languages", *arguments.languages]
    return {output: ["experiments.inflection", *words]}


def _ensemble(
    folder: Path, models: list[Path], dev: list[str], then: dict[Path, list[str]]
) -> jobs.Job:
    """The evaluation of models together, unless that has been done."""
    result = folder / recipe.EVALUATION
    first, *others = map(str, models)
    more = [word for other in others for word in ("--ensemble", other)]
    evaluate = ["fenchel", "evaluate", first, *dev, *more, "--json-to", str(result)]
    is_done = all(path.exists() for path in (result, *then))
    commands = [] if is_done else [evaluate, *then.values()]
    return jobs.Job(folder.name, commands, folder / "job.log")


def _report(arguments: argparse.Namespace) -> None:
    """Writes the table of all that has been evaluated."""
    setting = arguments.setting
    rows: list[list[Any]] = []
    results: list[dict[str, Any]] = []
    for point in arguments.points:
        for seed in (*map(str, arguments.seeds), "ensemble"):
            folder = arguments.output / f"{setting}-{point[0]:g}-{point[1]:g}-{seed}"
            found = recipe.evaluation(folder)
            if found is None:
                continue
            took = tables.training(folder) if seed != "ensemble" else {}
            table = paper.ENSEMBLE if seed == "ensemble" else paper.AVERAGE
            published = None if arguments.languages else table.get(setting, {}).get(point)
            results.append(
                {"point": point, "seed": seed, "paper": published, "training": took, **found}
            )
            scores, sparsity = found["scores"], found["sparsity"]
            rows.append(
                [
                    f"{point[0]:g}", f"{point[1]:g}", seed, scores["accuracy"], published,
                    scores["edit_distance"], sparsity["attention_nonzeros"],
                    sparsity["output_nonzeros"], sparsity["single_hypothesis"],
                    sparsity["complete"], sparsity["exact"], took.get("epochs"),
                    took.get("minutes"),
                ]
            )  # fmt: skip
    columns = (
        "output α", "attention α", "seed", "dev accuracy", "paper, test", "edit distance",
        "attention nonzeros", "output nonzeros", "one hypothesis, %", "complete, %",
        "exact, %", "epochs", "minutes",
    )  # fmt: skip
    title = f"# Inflection, {setting}: accuracy averaged over languages\n\n"
    if setting in paper.CERTAINTY:
        single, certified = paper.CERTAINTY[setting]
        title += (
            f"The paper's best model has one hypothesis for {single}% of the validation set, and "
            f"all of the probability in the beam for {certified}%.\n\n"
        )
    text = title + tables.markdown(columns, rows)
    tables.write(arguments.output, f"results-{setting}", text, {"results": results})


def _predict(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        data = unpacked(arguments.data, Path(folder))
        chosen = arguments.languages or languages(data, arguments.setting)
        sources = {name: covered(data, name) for name in chosen}
    models = [load(folder, command.device()) for folder in arguments.model]
    texts = [text for name in chosen for text in sources[name]]
    outputs = iter(best_texts(models, texts, batch_size=arguments.batch_size, beam=arguments.beam))
    filled = {}
    for name in chosen:
        parts = (text.split("\t") for text in sources[name])
        lines = (f"{lemma}\t{next(outputs)}\t{tags}\n" for lemma, tags, _ in parts)
        filled[f"{name}-{arguments.setting}-out"] = "".join(lines).encode()
    files.write_all(arguments.output, filled)
    print(f"{len(texts)} predictions for {len(chosen)} languages are in {arguments.output}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
