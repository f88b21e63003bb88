"""The table of summarization, beside the paper's figures; and sentences to draw attention on."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from .. import summary, tables

MEASURES = ("ROUGE-1", "ROUGE-2", "ROUGE-L")
PAPER = {
    "softmax": (35.13, 17.15, 32.92),
    "sparsemax": (36.04, 17.78, 33.64),
    "fusedmax": (36.09, 17.62, 33.69),
    "oscarmax": (35.36, 17.23, 33.03),
}
"""ROUGE-1, ROUGE-2 and ROUGE-L on Gigaword, in Table 2 of the paper on regularized attention."""
SENTENCES = (
    "Please send me the new price list before the meeting on Friday morning.",
    "The meeting about the gas contract is moved from Tuesday to Thursday at ten.",
    "I will be out of the office next week, so call Anna if you need the report.",
)
"""Written for the pictures: none is from a letter."""
TITLE = """# Summarization: email subjects, dev set, a softmax output and several attentions

The paper's figures are of another corpus, Gigaword: 3.8 million pairs of news, here 14,436 of
letters. Nonzeros are of the attention, per token of the subject. A beam of 5, ranked by
log-probability per token.

"""


def page(results: Sequence[dict[str, Any]]) -> str:
    """The table in Markdown, under its title: a row per attention, averaged over seeds.

    Args:
        results: of each attention and seed: `scores`, `sparsity` and `training`.
    """
    rows = []
    for (attention,), members in summary.grouped(results, ("attention",)).items():
        scores = [summary.spread([run["scores"][name] for run in members]) for name in MEASURES]
        nonzeros = summary.spread([run["sparsity"]["attention_nonzeros"] for run in members])
        times = [fmean(run["training"][name] for run in members) for name in ("epochs", "minutes")]
        paper = PAPER.get(attention, (None,) * len(MEASURES))
        rows.append([attention, str(len(members)), *scores, nonzeros, *times, *paper])
    columns = ("attention", "seeds", *MEASURES, "nonzeros", "epochs", "minutes")
    columns += tuple(f"paper's {name}" for name in MEASURES)
    return TITLE + tables.markdown(columns, rows)
