"""Scores of outputs against references: accuracy, edit distance, BLEU, chrF and ROUGE."""

from __future__ import annotations

import re
from collections.abc import Sequence


def edit_distance(a: str, b: str) -> int:
    """The smallest number of insertions, deletions and substitutions between two texts.

    >>> edit_distance("drawed", "drawn")
    2
    """
    if a == b:  # most outputs are right
        return 0
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def inflection(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The share of correct outputs in percent, and the mean edit distance.

    >>> inflection(["drawn", "drawed"], ["drawn", "drawn"])
    {'accuracy': 50.0, 'edit_distance': 1.0}
    """
    correct = sum(a == b for a, b in zip(outputs, references, strict=True))
    edits = sum(map(edit_distance, outputs, references))
    return {"accuracy": 100 * correct / len(references), "edit_distance": edits / len(references)}


def translation(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF by sacrebleu, with its default options.

    >>> translation(["the tree of life ."], ["the tree of life ."])["BLEU"]
    100.0

    References: post2018call.
    """
    import sacrebleu

    return {
        "BLEU": round(sacrebleu.corpus_bleu(outputs, [references]).score, 2),
        "chrF": round(sacrebleu.corpus_chrf(outputs, [references]).score, 2),
    }


class _Tokenizer:
    """Words of any script, in lower case; the tokenizer of rouge_score knows only a to z."""

    def tokenize(self, text: str) -> list[str]:
        return re.findall(r"\w+", text.lower())


def summarization(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The mean F-measures of ROUGE-1, ROUGE-2 and ROUGE-L by rouge_score, in percent.

    >>> summarization(["a tree"], ["the tree"])["ROUGE-1"]
    50.0
    """
    from rouge_score.rouge_scorer import RougeScorer

    names = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
    scorer = RougeScorer(list(names), tokenizer=_Tokenizer())
    scores = [scorer.score(r, o) for o, r in zip(outputs, references, strict=True)]
    return {
        title: round(100 * sum(score[name].fmeasure for score in scores) / len(scores), 2)
        for name, title in names.items()
    }


SCORES = {score.__name__: score for score in (inflection, translation, summarization)}
"""The function that computes the scores of each task."""
