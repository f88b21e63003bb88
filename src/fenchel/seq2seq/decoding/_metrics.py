"""Measures of outputs against references: accuracy, error rates, edit distance, BLEU, chrF, ROUGE.

A measure takes the outputs, and for each of them the references that it may agree with. Where it
compares with one reference alone, that is the nearest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..data._copying import CopyingTarget
from ..data._normalized import Normalized
from ..data._vocabulary import Characters, Symbols, Vocabulary

ROUGE = {"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeL"}
"""The names of rouge_score."""

References = Sequence[Sequence[str]]
Compare = Callable[[Sequence[str], References], float]
Split = Callable[[str], Sequence[str]]


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """The smallest number of insertions, deletions and substitutions between two sequences.

    >>> edit_distance("drawed", "drawn"), edit_distance("b ɔ̃".split(), "b o".split())
    (2, 1)
    """
    if a == b:  # most outputs are right
        return 0
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def accuracy(outputs: Sequence[str], references: References) -> float:
    """The share of outputs that equal a reference, in percent.

    >>> accuracy(["drawn", "drawed"], [["drawn"], ["drew", "drawn"]])
    50.0
    """
    correct = sum(a in each for a, each in zip(outputs, references, strict=True))
    return 100 * correct / len(outputs)


def edits(outputs: Sequence[str], references: References, split: Split) -> tuple[int, int]:
    """The edits between outputs and their nearest references, and the length of these.

    Of references equally near, the shortest counts.

    >>> edits(["a b", "c"], [["a d b"], ["c", "e"]], str.split)
    (1, 4)
    """
    total = length = 0
    for output, each in zip(outputs, references, strict=True):
        parts = split(output)
        nearest = min((edit_distance(parts, split(text)), len(split(text))) for text in each)
        total, length = total + nearest[0], length + nearest[1]
    return total, length


def error_rate(split: Split) -> Compare:
    """The number of edits per hundred parts of the references; it may exceed 100."""

    def rate(outputs: Sequence[str], references: References) -> float:
        total, length = edits(outputs, references, split)
        return 100 * total / max(length, 1)

    return rate


def mean_edits(split: Split) -> Compare:
    """The mean number of edits of an output."""
    return lambda outputs, references: edits(outputs, references, split)[0] / len(outputs)


def _streams(references: References) -> list[list[Any]]:
    """The references as sacrebleu takes them: the first of each output, the second, and so on, and
    None where an output has fewer."""
    most = max(map(len, references))
    return [[(each[i] if i < len(each) else None) for each in references] for i in range(most)]


def bleu(outputs: Sequence[str], references: References) -> float:
    """BLEU by sacrebleu, with its default options.

    >>> bleu(["the tree of life ."], [["the tree of life ."]])
    100.0

    References: post2018call.
    """
    import sacrebleu

    return round(sacrebleu.corpus_bleu(outputs, _streams(references)).score, 2)


def chrf(outputs: Sequence[str], references: References) -> float:
    """chrF by sacrebleu, with its default options.

    References: post2018call.
    """
    import sacrebleu

    return round(sacrebleu.corpus_chrf(outputs, _streams(references)).score, 2)


class _Tokenizer:
    """Words of any script, in lower case; the tokenizer of rouge_score knows only a to z."""

    def tokenize(self, text: str) -> list[str]:
        return re.findall(r"\w+", text.lower())


def rouge(name: str) -> Compare:
    """The mean F-measure of "ROUGE-1", "ROUGE-2" or "ROUGE-L" by rouge_score, in percent.

    >>> rouge("ROUGE-1")(["a tree"], [["the tree"]])
    50.0
    """

    def mean(outputs: Sequence[str], references: References) -> float:
        from rouge_score.rouge_scorer import RougeScorer

        scorer = RougeScorer([ROUGE[name]], tokenizer=_Tokenizer())
        total = sum(
            max(scorer.score(text, output)[ROUGE[name]].fmeasure for text in each)
            for output, each in zip(outputs, references, strict=True)
        )
        return round(100 * total / len(outputs), 2)

    return mean


@dataclass(frozen=True)
class Measure:
    """A measure of outputs.

    Args:
        compare: outputs with the references of each.
        is_error: whether lower is better.
    """

    compare: Compare
    is_error: bool = False


def _split_by(target: Vocabulary) -> Vocabulary:
    """The vocabulary that splits text, inside of one that normalizes it or is copied into."""
    if isinstance(target, CopyingTarget):
        return target.known
    return target.base if isinstance(target, Normalized) else target


def measures(target: Vocabulary) -> dict[str, Measure]:
    """All measures by name, for outputs of a vocabulary.

    The words of a text stand between spaces. `Symbols` stand between spaces themselves: all symbols
    of a text form one word, so that WER is the share of wrong outputs, and edits are of symbols.

    >>> known = measures(Symbols(["a", "b"]))
    >>> [known[name].compare(["a b"], [["a a"]]) for name in ("WER", "PER", "edit_distance")]
    [100.0, 50.0, 1.0]
    """
    has_symbols = isinstance(_split_by(target), Symbols)
    words: Split = (lambda text: [text]) if has_symbols else str.split
    known = {
        "accuracy": Measure(accuracy),
        "WER": Measure(error_rate(words), is_error=True),
        "PER": Measure(error_rate(str.split), is_error=True),
        "CER": Measure(error_rate(tuple), is_error=True),
        "edit_distance": Measure(mean_edits(str.split if has_symbols else tuple), is_error=True),
        "BLEU": Measure(bleu),
        "chrF": Measure(chrf),
    }
    return known | {name: Measure(rouge(name)) for name in ROUGE}


def default_measures(task: str, target: Vocabulary) -> tuple[str, ...]:
    """The names of a task's measures; for the task text those of the target's tokens."""
    if task in TASK_MEASURES:
        return TASK_MEASURES[task]
    known = _split_by(target)
    if isinstance(known, Symbols):
        return ("accuracy", "WER", "PER")
    if isinstance(known, Characters):
        return ("accuracy", "CER", "edit_distance")
    return ("accuracy", "WER", "BLEU", "chrF")


TASK_MEASURES = {
    "inflection": ("accuracy", "edit_distance"),
    "translation": ("BLEU", "chrF"),
    "summarization": tuple(ROUGE),
}
"""The measures of the tasks that name them."""


def default_references(task: str) -> str:
    """Whether a task accepts any of a source's references, or counts each."""
    return "any" if task in ("inflection", "text") else "each"
