"""`fenchel demo`: trains a model of English verbs, and shows its outputs on held-out forms."""

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

from .._atomic import write_text
from .._format import percent
from . import _demo_mappings
from ._models import trained

if TYPE_CHECKING:
    from ..seq2seq import Config, Result, Seq2Seq
    from ..seq2seq.evaluation._evaluation import Evaluation

FORMS = {
    "V;PST": "past",
    "V;V.PTCP;PST": "past participle",
    "V;V.PTCP;PRS": "present participle",
    "V;3;SG;PRS": "third person",
}
LANGUAGE = "english"
SINGLE, CORRECT, WRONG = "right, nothing else considered", "right, others considered", "wrong"
SAMPLE_SIZES = {SINGLE: 3, CORRECT: 5, WRONG: 3}
"""How many held-out forms of each kind the table shows."""
MAX_OUTPUTS = 3
"""How many outputs of a form the table shows."""
ONE = 1 - 1e-6
"""From here a probability is one, up to rounding."""
LEGEND = """\
The output mapping is 1.5-entmax, which gives almost every output a probability of exactly zero. A
search can list the others, and prove what it found:
  complete  these are all outputs that the model considers possible; they sum to 100%
  exact     there are others, but none is more probable than the first
  none      neither is proven"""

Form = tuple[str, str]  # lemma and tags


def add(commands: Any, epilog: str) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "demo",
        help="train a model of English verbs in minutes, and explain its outputs",
        description="Trains a small model to inflect English verbs, on a list that comes with the "
        "package, and prints its outputs for held-out forms, with certificates. Takes about two "
        "minutes. The folder gets the model (for predict, evaluate and explain), explain.html, a "
        "page about one of these forms, and mappings.png, a picture of every mapping. If the "
        "folder has a model already, its training is resumed.",
        epilog=epilog,
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo"),
        metavar="FOLDER",
        help="created if it is missing (default: %(default)s)",
    )
    parser.add_argument(
        "--mappings",
        type=_demo_mappings.picture_path,
        metavar="PATH",
        help="only print every mapping of one vector of scores, and draw all mappings to PATH, "
        f"which ends in {', '.join(_demo_mappings.FORMATS)}",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.mappings is not None:
        return _demo_mappings.run(arguments.mappings)
    return run(arguments.output)


def command() -> str:
    """How to call this program again, also if its environment is not on the path."""
    if shutil.which("fenchel"):
        return "fenchel"
    return sys.argv[0] if Path(sys.argv[0]).name == "fenchel" else "python -m fenchel"


def verbs(split: str) -> Path:
    """The file of verbs for training ("train"), or of held-out forms ("dev")."""
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
    from ..seq2seq.decoding._decode import decode
    from ..seq2seq.evaluation._evaluation import evaluate

    folder.mkdir(parents=True, exist_ok=True)
    forms = accepted("dev")
    learn(folder / "model", len(forms))
    models, _, defaults = trained([folder / "model"], "cpu")
    options: dict[str, Any] = {"batch_size": defaults.batch_size, "max_length": defaults.max_length}
    sources = {form: "\t".join((*form, LANGUAGE)) for form in forms}
    pairs = [(sources[form], each) for form in forms for each in forms[form]]
    evaluation = evaluate(models, pairs, "inflection", beam=defaults.beam, **options)
    results = decode(models, list(sources.values()), beam=defaults.beam, **options)
    kinds = by_kind(models[0], dict(zip(forms, results, strict=True)), forms)
    shown = sample(kinds)
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
    form = next((form for form in shown[CORRECT] if found[form].complete), chosen[0])
    page = explain(models, " ".join(form), reference=forms[form][0], max_length=defaults.max_length)
    write_text(folder / "explain.html", page.html())
    _demo_mappings.write(folder / "mappings.png")
    about = f"the {FORMS[form[1]]} of `{form[0]}`"
    page_path = folder / "explain.html"
    print(f"\nOpen {page_path} in a browser: all outputs that it considers for {about}.")
    print(f"Ask it about a verb that does not exist: {command()} explain {model} 'spling V;PST'")
    print(f"It knows {', '.join(f'{tags} ({name})' for tags, name in FORMS.items())}.")
    print(f"The picture of all mappings is in {folder / 'mappings.png'}.")
    return 0


def learn(folder: Path, held_out: int) -> None:
    """Trains the model, or resumes its training."""
    import torch

    from ..seq2seq import train
    from ._progress import Progress

    print(
        f"Training on {len(accepted('train'))} forms of English verbs, for a minute or two; "
        f"{held_out} others are held out.",
        flush=True,
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads do not help a model this small
    try:
        with Progress(every=5) as listener:
            reason = train(config(folder), listener).reason
    finally:
        torch.set_num_threads(threads)
    print(f"{reason[0].upper()}{reason[1:]}; the epoch that is best on the held-out forms is kept.")


def by_kind(
    model: Seq2Seq, results: dict[Form, Result], forms: dict[Form, list[str]]
) -> dict[str, list[Form]]:
    """The forms that the model gets right, with one output or several, and those it gets wrong."""
    from ..seq2seq.decoding._decode import best_texts

    kinds: dict[str, list[Form]] = {kind: [] for kind in SAMPLE_SIZES}
    outputs = best_texts(model, list(results.values()))
    for (form, result), output in zip(results.items(), outputs, strict=True):
        is_single = result.complete and len(result.hypotheses) == 1
        correct = SINGLE if is_single else CORRECT
        kinds[correct if output in forms[form] else WRONG].append(form)
    return kinds


def sample(kinds: dict[str, list[Form]]) -> dict[str, list[Form]]:
    """A random sample of the forms of each kind, with a fixed seed."""
    generator = random.Random(0)
    return {
        kind: sorted(generator.sample(members, min(SAMPLE_SIZES[kind], len(members))))
        for kind, members in kinds.items()
    }


def row(model: Seq2Seq, form: Form, references: list[str], result: Result) -> tuple[str, ...]:
    """The outputs for a form, and the accepted forms if the first output is not one of them."""
    texts = [model.target.decode(each.tokens) for each in result.hypotheses]
    shares = [1.0 if each.probability > ONE else each.probability for each in result.hypotheses]
    shown = [f"{text} {percent(p, digits=0)}" for text, p in zip(texts, shares, strict=True)]
    outputs, rest = ", ".join(shown[:MAX_OUTPUTS]), len(shown) - MAX_OUTPUTS
    if rest > 0:
        outputs += f" and {'' if result.complete else '≥'}{rest} more"
    is_correct = bool(texts) and texts[0] in references
    expected = "" if is_correct else ", ".join(references)
    return form[0], FORMS[form[1]], outputs, result.certificate, expected


def table(groups: dict[str, list[tuple[str, ...]]]) -> str:
    """The rows as text in columns, each group under its title."""
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
    """The accuracy and the certificates on all held-out forms."""
    correct = len(kinds[SINGLE]) + len(kinds[CORRECT])
    accuracy, shares = evaluation.scores["accuracy"], evaluation.sparsity
    return textwrap.fill(
        f"Of the {evaluation.inputs} held-out forms {correct} are right, {accuracy:.2f}%; if "
        "several are accepted, each of them is right. For "
        f"{shares['single_hypothesis']:.2f}% the model considers a single output. A beam search is "
        f"complete for {shares['complete']:.2f}% and exact for {shares['exact']:.2f}%.",
        width=100,
    )
