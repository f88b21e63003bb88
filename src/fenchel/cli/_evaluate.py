"""`fenchel evaluate`: the scores of a model's outputs, their sparsity and their certificates."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._atomic import check_writable, write_text
from .._choices import TASKS
from ._models import add_ensemble, add_limits, add_search, trained

if TYPE_CHECKING:
    from ..seq2seq.data._readers import Malformed, Pair
    from ..seq2seq.decoding._evaluation import Evaluation


def add(commands: Any, epilog: str) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "evaluate",
        help="score a trained model on files, with its sparsity and certificates",
        description="Decodes files and scores the outputs: accuracy and edit distance for "
        "inflection (by language, and on average), BLEU and chrF by sacrebleu for translation, "
        "ROUGE for summarization. An inflection with several accepted forms, on several lines, "
        "counts once, and each of its forms is correct. Also prints how sparse the model is: the "
        "mean numbers of nonzeros in attention and output when it is given the references, and the "
        "shares of inputs with a single hypothesis, with a proof that no output is more probable "
        "(exact), and with a proof that all outputs were found (complete).",
        epilog=epilog,
    )
    add_ensemble(parser)
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="for inflection, files of lines `lemma TAB form TAB tags`; otherwise one file of "
        "sources and one of references; plain or gzip",
    )
    parser.add_argument("--task", choices=TASKS, help="default: the task of the model")
    parser.add_argument(
        "--language",
        help="the language of inflection files; default: the model's, or the file names if the "
        "model has several",
    )
    add_search(parser)
    add_limits(parser)
    parser.add_argument("--strict", action="store_true", help="a malformed line is an error")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--json-to", type=Path, metavar="PATH", help="also write JSON to PATH")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="also write the outputs to PATH, one per line; malformed pairs have no line",
    )
    parser.set_defaults(run=lambda arguments: _run(parser, arguments))


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from ..seq2seq._files import write_json
    from ..seq2seq.data._inflection import only_language
    from ..seq2seq.data._readers import Malformed
    from ..seq2seq.decoding._evaluation import evaluate

    if arguments.json_to:
        arguments.json_to.parent.mkdir(parents=True, exist_ok=True)
    for path in filter(None, (arguments.output, arguments.json_to)):
        check_writable(path)
    folders = (arguments.model, *arguments.ensemble)
    models, config, defaults = trained(folders, arguments.device)
    task = arguments.task or config.get("data", {}).get("task")
    if task not in TASKS:
        parser.error(f"add `--task`: {arguments.model} does not name its task.")
    if task != "inflection" and len(arguments.files) != 2:
        parser.error(f"{task} takes two files, sources and references.")
    malformed = Malformed(skip=not arguments.strict)
    language = arguments.language or only_language(models[0].source)
    pairs = _pairs(task, arguments.files, language, malformed)
    if malformed.count:
        print(f"note: {malformed}", file=sys.stderr)
    evaluation = evaluate(
        models,
        pairs,
        task,
        batch_size=arguments.batch_size or defaults.batch_size,
        method=arguments.method,
        beam=arguments.beam or defaults.beam,
        max_length=arguments.max_length or defaults.max_length,
    )
    if arguments.output:
        write_text(arguments.output, "".join(f"{line}\n" for line in evaluation.outputs))
    if arguments.json_to:
        write_json(arguments.json_to, evaluation.to_json())
    found = json.dumps(evaluation.to_json(), ensure_ascii=False, indent=2)
    print(found if arguments.json else table(evaluation))
    return 0


def _pairs(
    task: str, files: Sequence[str], language: str | None, malformed: Malformed
) -> list[Pair]:
    from ..seq2seq.config._schema import ParallelFiles
    from ..seq2seq.data._readers import inflections, parallel

    if task == "inflection":
        return list(inflections(files, malformed, language))
    return list(parallel([ParallelFiles(source=files[0], target=files[1])], malformed))


def table(evaluation: Evaluation) -> str:
    """The scores, also by language if there are several, and the sparsity, in columns."""
    lines = []
    if len(evaluation.languages) > 1:
        width = max(map(len, evaluation.languages))
        for language, scores in evaluation.languages.items():
            shown = "  ".join(f"{name} {value:6.2f}" for name, value in scores.items())
            lines.append(f"{language:<{width}}  {shown}")
        lines.append("")
    labels = {
        "attention_nonzeros": "nonzeros in attention, mean",
        "output_nonzeros": "nonzeros in output, mean",
        "single_hypothesis": "inputs with one hypothesis, %",
        "exact": "inputs certified exact, %",
        "complete": "inputs with all probability found, %",
    }
    counts = {"pairs": evaluation.pairs, "inputs": evaluation.inputs}
    rows = {**counts, **evaluation.scores}
    rows |= {labels[name]: value for name, value in evaluation.sparsity.items()}
    width = max(map(len, rows))
    for name, value in rows.items():
        digits = 0 if name in counts else 2
        lines.append(f"{name:<{width}}  {value:8.{digits}f}")
    return "\n".join(lines)
