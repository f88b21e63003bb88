"""Scores of outputs against references: accuracy and edit distance, BLEU and chrF, ROUGE."""

from __future__ import annotations

import re
from collections.abc import Sequence


def edit_distance(a: str, b: str) -> int:
    """The fewest insertions, deletions and substitutions of characters from one text to another.

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
    """The share of outputs that are right, in percent, and their mean edit distance.

    >>> inflection(["drawn", "drawed"], ["drawn", "drawn"])
    {'accuracy': 50.0, 'edit_distance': 1.0}
    """
    right = sum(output == reference for output, reference in zip(outputs, references, strict=True))
    edits = sum(map(edit_distance, outputs, references))
    return {"accuracy": 100 * right / len(references), "edit_distance": edits / len(references)}


def translation(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF by sacrebleu, with its defaults.

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
    """Words of any script, in lower case; rouge_score's own keeps English letters alone."""

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
        shown: round(100 * sum(score[name].fmeasure for score in scores) / len(scores), 2)
        for name, shown in names.items()
    }


SCORES = {"inflection": inflection, "translation": translation, "summarization": summarization}
"""The scores of each task, by name."""
