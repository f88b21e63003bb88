"""`fenchel evaluate`: the scores of a model's outputs, their sparsity and their certificates."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._atomic import check_writable, write_text
from .._choices import MEASURES, REFERENCES, TASKS
from ._decoding import add_length_power, check_method
from ._inputs import (
    STANDARD_INPUT,
    add_columns,
    check_language,
    check_no_columns,
    columns_of,
    has_tables,
    language_of_files,
)
from ._models import add_ensemble, add_limits, add_search, trained

if TYPE_CHECKING:
    from ..seq2seq import Seq2Seq
    from ..seq2seq.data._readers import Malformed, Pair
    from ..seq2seq.evaluation._evaluation import Evaluation


def add(commands: Any, epilog: str) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "evaluate",
        help="score a trained model on files, with its sparsity and certificates",
        description="Decodes files and measures the outputs. Each task has measures of its own: "
        "accuracy and edit distance for inflection (by language, and on average), BLEU and chrF by "
        "sacrebleu for translation, ROUGE for summarization, and for text accuracy and error rates "
        "that suit the tokens. WER, PER and CER count the edits of words, of symbols between "
        "spaces and of characters, per hundred of the references. Also prints how sparse the model "
        "is: the mean numbers of nonzeros in attention and output when it is given the references, "
        "and the shares of inputs with a single hypothesis, with a proof that no output is more "
        "probable (exact), and with a proof that all outputs were found (complete).",
        epilog=epilog,
    )
    add_ensemble(parser)
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="tables like those the model was trained on, or a file of sources and one of "
        "references if it was trained on parallel text; for inflection lines `lemma TAB form TAB "
        "tags`; plain or gzip; - is standard input",
    )
    parser.add_argument("--task", choices=TASKS, help="default: the task of the model")
    parser.add_argument(
        "--measures",
        type=_measures,
        metavar="NAME,…",
        help=f"of {', '.join(MEASURES)}; default: the model's `evaluation.measures`",
    )
    parser.add_argument(
        "--references",
        choices=REFERENCES,
        help="any: an input with several references, on as many lines, counts once, and each of "
        "them is right; each: every line counts by itself; default: the model's "
        "`evaluation.references`",
    )
    parser.add_argument(
        "--language",
        help="the language of inflection files; default: the model's, or the file names if the "
        "model has several",
    )
    add_columns(parser, "the model's, or the ending of the file's name")
    add_search(parser)
    add_limits(parser)
    add_length_power(parser)
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


def _measures(text: str) -> list[str]:
    """The type of an option for names of measures."""
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in MEASURES:
            raise argparse.ArgumentTypeError(f"must be of {', '.join(MEASURES)}, got {name!r}.")
    return names


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from ..seq2seq._files import write_json
    from ..seq2seq.config._data import EvaluationConfig
    from ..seq2seq.data._readers import Malformed
    from ..seq2seq.evaluation._evaluation import evaluate
    from ..seq2seq.models._folder import section

    check_method(parser, arguments)
    if arguments.json_to:
        arguments.json_to.parent.mkdir(parents=True, exist_ok=True)
    for path in filter(None, (arguments.output, arguments.json_to)):
        check_writable(path)
    folders = (arguments.model, *arguments.ensemble)
    models, config, defaults = trained(folders, arguments.device)
    own_task = config.get("data", {}).get("task")
    task = arguments.task or own_task
    if task not in TASKS:
        parser.error(f"add `--task`: {arguments.model} does not name its task.")
    check_language(parser, arguments, task == "inflection")
    settings = EvaluationConfig()
    if task == own_task:
        settings = section(arguments.model, config, "evaluation", EvaluationConfig)
    malformed = Malformed(skip=not arguments.strict)
    pairs = _pairs(parser, arguments, config, models[0], task, malformed)
    if malformed.count:
        print(f"note: {malformed}", file=sys.stderr)
    evaluation = evaluate(
        models,
        pairs,
        task,
        measures=arguments.measures or settings.measures,
        references=arguments.references or settings.references,
        batch_size=arguments.batch_size or defaults.batch_size,
        method=arguments.method,
        beam=arguments.beam or defaults.beam,
        max_length=arguments.max_length or defaults.max_length,
        length_power=arguments.length_power,
    )
    if arguments.output:
        write_text(arguments.output, "".join(f"{line}\n" for line in evaluation.outputs))
    if arguments.json_to:
        write_json(arguments.json_to, evaluation.to_json())
    found = json.dumps(evaluation.to_json(), ensure_ascii=False, indent=2)
    print(found if arguments.json else table(evaluation))
    return 0


def _pairs(
    parser: argparse.ArgumentParser,
    arguments: argparse.Namespace,
    config: dict[str, Any],
    model: Seq2Seq,
    task: str,
    malformed: Malformed,
) -> list[Pair]:
    from ..seq2seq.config._data import ParallelFiles
    from ..seq2seq.data._readers import inflections, parallel, tables

    files = ["/dev/stdin" if file == STANDARD_INPUT else file for file in arguments.files]
    if task == "inflection":
        check_no_columns(parser, arguments)
        return list(inflections(files, malformed, language_of_files(parser, arguments, model)))
    if has_tables(config, arguments):
        return [
            pair
            for file in files
            for pair in tables([file], columns_of(config, arguments, file), malformed)
        ]
    if len(files) != 2:
        parser.error(f"{task} takes two files, sources and references; or a table, with --columns.")
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
