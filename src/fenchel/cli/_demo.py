"""`fenchel demo`: learns to inflect English verbs, and shows what it says of forms held out."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _tour

if TYPE_CHECKING:
    from ..seq2seq import Config, Result, Seq2Seq

FORMS = {
    "V;PST": "past",
    "V;V.PTCP;PST": "past participle",
    "V;V.PTCP;PRS": "present participle",
    "V;3;SG;PRS": "third person",
}
SHOWN = (
    ("draw", "V;V.PTCP;PST"),
    ("throw", "V;V.PTCP;PST"),
    ("speak", "V;V.PTCP;PST"),
    ("fling", "V;PST"),
    ("weep", "V;PST"),
    ("learn", "V;V.PTCP;PST"),
    ("show", "V;V.PTCP;PST"),
    ("kneel", "V;V.PTCP;PST"),
    ("beg", "V;V.PTCP;PRS"),
    ("pedal", "V;PST"),
    ("picnic", "V;PST"),
    ("try", "V;3;SG;PRS"),
    ("recognize", "V;V.PTCP;PRS"),
)
"""The held-out inputs of the table."""
REFERENCE = "drawn"
"""What the first of them should be."""
LEGEND = """\
Each line is a verb form, often irregular, that the model has never seen, then what it considers
possible, with probabilities, and a ✓ where the first is right. Its output mapping is 1.5-entmax,
which gives almost everything a probability of exactly zero, so that a search can prove things:
  complete  these are all outputs that the model considers possible; they sum to 100%
  exact     there are more, but none is more probable than the first"""


def add(commands: Any, epilog: str) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "demo",
        help="train a model of English verbs in minutes, and explain what it says",
        description="Trains a small model to inflect English verbs, on a list that ships with the "
        "package, and prints what it says of forms that it has not seen, with certificates. "
        "Takes about two minutes. The folder gets the model (for predict and explain), "
        "explain.html, a page about the past participle of `draw`, and mappings.png, the picture "
        "of every mapping. Given again, it goes on with the model in the folder.",
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
    return Path(str(files("fenchel.seq2seq") / "data" / f"english-{split}.tsv"))


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
                "language": "english",
            },
            "training": {
                "folder": str(folder),
                "batch_size": 64,
                "learning_rate": 0.005,
                "floor": 0.0,
                "patience": 1,
                "epochs": 28,
                "stop_after": 28,
                "minutes": 2.5,
                "device": "cpu",
            },
        }
    )


def accepted(split: str) -> dict[tuple[str, str], set[str]]:
    """The accepted forms of each lemma and tags."""
    found: dict[tuple[str, str], set[str]] = {}
    for line in verbs(split).read_text(encoding="utf-8").splitlines():
        lemma, form, tags = line.split("\t")
        found.setdefault((lemma, tags), set()).add(form)
    return found


def run(folder: Path) -> int:
    """Trains, prints the table, and writes the page and the picture."""
    import torch

    from ..seq2seq import explain, load, train
    from ..seq2seq._evaluation import decode
    from ..seq2seq._files import write_text
    from ._progress import Progress

    folder.mkdir(parents=True, exist_ok=True)
    forms = accepted("dev")
    count = len(accepted("train"))
    print(
        f"Learning from {count} forms of English verbs, for a minute or two; {len(forms)} others "
        "are held out."
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model gains nothing by more, and a busy machine loses
    try:
        with Progress(every=5) as listener:
            train(config(folder / "model"), listener)
    finally:
        torch.set_num_threads(threads)
    model = load(folder / "model")
    results = decode([model], [f"{lemma}\t{tags}" for lemma, tags in forms])
    found = dict(zip(forms, results, strict=True))
    print(f"\n{table(model, found, forms)}\n\n{LEGEND}\n\n{summary(model, found, forms)}")
    lemma, tags = SHOWN[0]
    page = explain(model, f"{lemma} {tags}", reference=REFERENCE)
    write_text(folder / "explain.html", page.html())
    _tour.write(folder / "mappings.png")
    print(f"\nOpen {folder / 'explain.html'} in a browser: all that the model thinks of `{lemma}`.")
    print(f"Ask it more: {command()} explain {folder / 'model'} 'sing V;PST' --html page.html")
    print(f"It knows {', '.join(f'{tags} ({name})' for tags, name in FORMS.items())}.")
    print(f"The picture of all mappings is in {folder / 'mappings.png'}.")
    return 0


def table(model: Seq2Seq, found: dict[Any, Result], forms: dict[Any, set[str]]) -> str:
    """What the model says of the inputs to show, in columns."""
    rows = [("verb", "form", "what the model says", "", "certificate")]
    for key in SHOWN:
        outputs = _outputs(model, found[key])
        right = "✓" if outputs and outputs[0][0] in forms[key] else ""
        said = ", ".join(f"{text} {_percent(p)}" for text, p in outputs[:3])
        more = f" and {len(outputs) - 3} more" if len(outputs) > 3 else ""
        certificate = "complete" if found[key].complete else "exact" if found[key].exact else "–"
        rows.append((key[0], FORMS[key[1]], said + more, right, certificate))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(f"{word:<{width}}" for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "─" * max(map(len, lines)), *lines[1:]])


def summary(model: Seq2Seq, found: dict[Any, Result], forms: dict[Any, set[str]]) -> str:
    """How good, how sparse and how certain the model is on all that was held out."""
    first = [_outputs(model, found[key])[:1] for key in forms]
    right = sum(
        bool(one) and one[0][0] in forms[key] for key, one in zip(forms, first, strict=True)
    )
    shares = [
        right,
        sum(result.complete and len(result.hypotheses) == 1 for result in found.values()),
        sum(result.complete for result in found.values()),
        sum(result.exact for result in found.values()),
    ]
    accuracy, single, complete, exact = (_percent(share / len(found)) for share in shares)
    return (
        f"Of {len(found)} held-out forms {accuracy} are right. For {single} the model considers "
        f"a single output;\n{complete} are complete, and {exact} exact."
    )


def _outputs(model: Seq2Seq, result: Result) -> Sequence[tuple[str, float]]:
    return [(model.target.decode(each.tokens), each.probability) for each in result.hypotheses]


def _percent(p: float) -> str:
    """Rounded, but neither to nothing nor to all; a rounding short of one is one.

    >>> [_percent(p) for p in (0.0, 0.001, 0.664, 0.998, 1 - 1e-7)]
    ['0%', '<1%', '66%', '>99%', '100%']
    """
    if 0 < p < 0.01:
        return "<1%"
    return ">99%" if 0.99 < p < 1 - 1e-6 else f"{p:.0%}"
