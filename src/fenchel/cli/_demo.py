"""`fenchel demo`: learns to inflect English verbs, and shows what it says of forms held out."""

from __future__ import annotations

import argparse
import random
import shlex
import shutil
import sys
import textwrap
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _tour
from ._models import trained

if TYPE_CHECKING:
    from ..seq2seq import Config, Result, Seq2Seq
    from ..seq2seq.decoding._evaluation import Evaluation

FORMS = {
    "V;PST": "past",
    "V;V.PTCP;PST": "past participle",
    "V;V.PTCP;PRS": "present participle",
    "V;3;SG;PRS": "third person",
}
LANGUAGE = "english"
RIGHT_ALONE, RIGHT, WRONG = "right, nothing else considered", "right, others considered", "wrong"
DRAWN = {RIGHT_ALONE: 3, RIGHT: 5, WRONG: 3}
"""How many held-out forms of each kind the table shows."""
LEGEND = """\
The model's outputs are 1.5-entmax, which gives almost everything a probability of exactly zero, so
that a search can list what is left, and prove what it found:
  complete  these are all outputs that the model considers possible; they sum to 100%
  exact     there are others, but none is more probable than the first
  none      neither is proven"""

Form = tuple[str, str]  # lemma and tags


def add(commands: Any, epilog: str) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "demo",
        help="train a model of English verbs in minutes, and explain what it says",
        description="Trains a small model to inflect English verbs, on a list that ships with the "
        "package, and prints what it says of forms that it has not seen, with certificates. "
        "Takes about two minutes. The folder gets the model (for predict, evaluate and explain), "
        "explain.html, a page about one of these forms, and mappings.png, the picture of every "
        "mapping. Given again, it goes on with the model in the folder.",
        epilog=epilog,
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo"),
        metavar="FOLDER",
        help="made if it is missing (default: %(default)s)",
    )
    parser.add_argument(
        "--mappings",
        type=_tour.picture_path,
        metavar="PATH",
        help="instead of all this, print every mapping of one vector of scores, and draw them all "
        f"to PATH, which ends in {', '.join(_tour.FORMATS)}",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.mappings is not None:
        return _tour.run(arguments.mappings)
    return run(arguments.output)


def command() -> str:
    """What to type to call this program again, be it in an environment that is not on the path."""
    if shutil.which("fenchel"):
        return "fenchel"
    return sys.argv[0] if Path(sys.argv[0]).name == "fenchel" else "python -m fenchel"


def verbs(split: str) -> Path:
    """The file of verbs to learn from ("train"), or of those held out ("dev")."""
    return Path(str(files("fenchel.seq2seq") / "resources" / f"english-{split}.tsv"))


def config(folder: Path) -> Config:
    """A small model with 1.5-entmax attention and outputs."""
    from ..seq2seq import Config

    return Config.model_validate(
        {
            "model": {"embedding": 64, "hidden": 192, "layers": 1, "dropout": 0.5},
            "data": {
                "task": "inflection",
                "train": [str(verbs("train"))],
                "validation": [str(verbs("dev"))],
                "language": LANGUAGE,
            },
            "training": {
                "folder": str(folder),
                "batch_size": 64,
                "learning_rate": 0.005,
                "min_lr_ratio": 0.0,
                "lr_patience": 1,
                "epochs": 28,
                "early_stopping_patience": 28,
                "minutes": 2.5,
                "device": "cpu",
            },
        }
    )


def accepted(split: str) -> dict[Form, list[str]]:
    """The accepted forms of each lemma and tags."""
    found: dict[Form, list[str]] = {}
    for line in verbs(split).read_text(encoding="utf-8").splitlines():
        lemma, form, tags = line.split("\t")
        found.setdefault((lemma, tags), []).append(form)
    return found


def run(folder: Path) -> int:
    """Trains, prints the table, and writes the page and the picture."""
    from ..seq2seq import explain
    from ..seq2seq._files import write_text
    from ..seq2seq.decoding._evaluation import decode, evaluate

    folder.mkdir(parents=True, exist_ok=True)
    forms = accepted("dev")
    learn(folder / "model", len(forms))
    models, _, plan = trained([folder / "model"], "cpu")
    options: dict[str, Any] = {"batch_size": plan.batch_size, "max_length": plan.max_length}
    sources = {form: "\t".join((*form, LANGUAGE)) for form in forms}
    pairs = [(sources[form], each) for form in forms for each in forms[form]]
    evaluation = evaluate(models, pairs, "inflection", beam=plan.beam, **options)
    results = decode(models, list(sources.values()), beam=plan.beam, **options)
    kinds = by_kind(models[0], dict(zip(forms, results, strict=True)), forms)
    shown = drawn(kinds)
    chosen = [form for group in shown.values() for form in group]
    texts = [sources[form] for form in chosen]
    found = dict(zip(chosen, decode(models, texts, method="exhaustive", **options), strict=True))
    groups = {
        f"{kind} ({len(group)} of {len(kinds[kind])}, drawn at random):": [
            row(models[0], form, forms[form], found[form]) for form in group
        ]
        for kind, group in shown.items()
    }
    print(f"\n{table(groups)}\n\n{LEGEND}\n\n{summary(evaluation, kinds)}")
    model = shlex.quote(str(folder / "model"))
    print(f"The same figures: {command()} evaluate {model} {shlex.quote(str(verbs('dev')))}")
    form = next((form for form in shown[RIGHT] if found[form].complete), chosen[0])
    page = explain(models, " ".join(form), reference=forms[form][0], max_length=plan.max_length)
    write_text(folder / "explain.html", page.html())
    _tour.write(folder / "mappings.png")
    about = f"the {FORMS[form[1]]} of `{form[0]}`"
    print(f"\nOpen {folder / 'explain.html'} in a browser: all that it considers for {about}.")
    print(f"Ask it about a verb that does not exist: {command()} explain {model} 'spling V;PST'")
    print(f"It knows {', '.join(f'{tags} ({name})' for tags, name in FORMS.items())}.")
    print(f"The picture of all mappings is in {folder / 'mappings.png'}.")
    return 0


def learn(folder: Path, held_out: int) -> None:
    """Trains the model, or goes on with it."""
    import torch

    from ..seq2seq import train
    from ._progress import Progress

    print(
        f"Learning from {len(accepted('train'))} forms of English verbs, for a minute or two; "
        f"{held_out} others are held out.",
        flush=True,
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model gains nothing by more, and a busy machine loses
    try:
        with Progress(every=5) as listener:
            reason = train(config(folder), listener).reason
    finally:
        torch.set_num_threads(threads)
    print(f"{reason[0].upper()}{reason[1:]}; of all epochs the best on the held-out forms is kept.")


def by_kind(
    model: Seq2Seq, results: dict[Form, Result], forms: dict[Form, list[str]]
) -> dict[str, list[Form]]:
    """The forms that the model gets right, considering one output or several, or wrong."""
    from ..seq2seq.decoding._evaluation import best_texts

    kinds: dict[str, list[Form]] = {kind: [] for kind in DRAWN}
    outputs = best_texts(model, list(results.values()))
    for (form, result), output in zip(results.items(), outputs, strict=True):
        alone = result.complete and len(result.hypotheses) == 1
        right = RIGHT_ALONE if alone else RIGHT
        kinds[right if output in forms[form] else WRONG].append(form)
    return kinds


def drawn(kinds: dict[str, list[Form]]) -> dict[str, list[Form]]:
    """A few forms of each kind, at random, but the same ones for the same kinds."""
    generator = random.Random(0)
    return {
        kind: sorted(generator.sample(members, min(DRAWN[kind], len(members))))
        for kind, members in kinds.items()
    }


def row(model: Seq2Seq, form: Form, references: list[str], result: Result) -> tuple[str, ...]:
    """What the model considers for a form, and the accepted ones if its first is none of them."""
    outputs = [(model.target.decode(each.tokens), each.probability) for each in result.hypotheses]
    said = ", ".join(f"{text} {_percent(p)}" for text, p in outputs[:3])
    if len(outputs) > 3:
        said += f" and {'' if result.complete else '≥'}{len(outputs) - 3} more"
    certificate = "complete" if result.complete else "exact" if result.exact else "none"
    right = bool(outputs) and outputs[0][0] in references
    return form[0], FORMS[form[1]], said, certificate, "" if right else ", ".join(references)


def table(groups: dict[str, list[tuple[str, ...]]]) -> str:
    """Rows in columns, each group under its title."""
    head = ("verb", "form", "what the model considers", "certificate", "accepted")
    rows = [head, *(row for group in groups.values() for row in group)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{word:<{width}}" for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    printed = [lines[0], "─" * max(map(len, lines))]
    rest = iter(lines[1:])
    for title, group in groups.items():
        printed += ["", title, *(next(rest) for _ in group)]
    return "\n".join(printed)


def summary(evaluation: Evaluation, kinds: dict[str, list[Form]]) -> str:
    """How good, how sparse and how certain the model is on all that was held out."""
    right = len(kinds[RIGHT_ALONE]) + len(kinds[RIGHT])
    accuracy, shares = evaluation.scores["accuracy"], evaluation.sparsity
    return textwrap.fill(
        f"Of the {evaluation.inputs} held-out forms {right} are right, {accuracy:.2f}%; where "
        "several are accepted, any of them is (while the model learns, each counts by itself). For "
        f"{shares['single_hypothesis']:.2f}% it considers a single output. A beam search is "
        f"complete for {shares['complete']:.2f}% and exact for {shares['exact']:.2f}%.",
        width=100,
    )


def _percent(p: float) -> str:
    """Rounded, but neither to nothing nor to all; a rounding short of one is one.

    >>> [_percent(p) for p in (0.0, 0.001, 0.664, 0.998, 1 - 1e-7)]
    ['0%', '<1%', '66%', '>99%', '100%']
    """
    if 0 < p < 0.01:
        return "<1%"
    return ">99%" if 0.99 < p < 1 - 1e-6 else f"{p:.0%}"
