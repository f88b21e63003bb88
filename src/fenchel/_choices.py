"""The words that both configurations and the command line accept.

The command line prints its help without the packages that `fenchel.seq2seq` needs, so the words are
defined outside of it.
"""

from __future__ import annotations

from typing import Literal, get_args

Task = Literal["inflection", "translation", "summarization", "text"]
TASKS: tuple[str, ...] = get_args(Task)
Tokens = Literal["characters", "words", "subwords", "none"]
Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
"""Unicode's normal forms."""
TableFormat = Literal["tsv", "json"]
TABLE_FORMATS: tuple[str, ...] = get_args(TableFormat)
Measure = Literal[
    "accuracy", "WER", "PER", "CER", "edit_distance", "BLEU", "chrF", "ROUGE-1", "ROUGE-2",
    "ROUGE-L",
]  # fmt: skip
Metric = Literal["loss", "token_accuracy", Measure]
"""What chooses the best model."""
MEASURES: tuple[str, ...] = get_args(Measure)
References = Literal["any", "each"]
REFERENCES: tuple[str, ...] = get_args(References)
Device = Literal["auto", "cpu", "cuda"]
DEVICES: tuple[str, ...] = get_args(Device)
SEARCH_METHODS = ("beam", "greedy", "exhaustive")
