"""The table of grapheme-to-phoneme conversion: a row per language, and their averages."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from .. import summary, tables

Result = dict[str, Any]
TITLE = """# Grapheme-to-phoneme conversion: error on the dev words

WER is the percentage of words with an error, PER that of phonemes; the best epoch was chosen by WER
on the same words. One hypothesis: the percentage of words for which the model holds a single
pronunciation possible.

"""


def page(results: Sequence[Result]) -> str:
    """The table in Markdown, under its title.

    Args:
        results: of each language, α and seed: `scores`, `sparsity` and `training`.
    """
    alphas = sorted({result["alpha"] for result in results})
    head = [f"{name}, α = {alpha:g}" for alpha in alphas for name in ("WER", "PER")]
    head += [f"one hypothesis, %, α = {alpha:g}" for alpha in alphas if alpha > 1]
    head += [f"nonzeros in attention, α = {alpha:g}" for alpha in alphas if alpha > 1]
    rows = []
    for (language,), members in summary.grouped(results, ("language",)).items():
        rows.append([language, *_cells(members, alphas)])
    complete = _complete(results, alphas)
    if len(complete) > 1:
        members = [result for result in results if result["language"] in complete]
        rows.append([f"**mean of {len(complete)}**", *_cells(members, alphas)])
    return TITLE + tables.markdown(["language", *head], rows)


def _complete(results: Sequence[Result], alphas: Sequence[float]) -> set[str]:
    """The languages with a result for every α."""
    found = summary.grouped(results, ("language", "alpha"))
    names = {result["language"] for result in results}
    return {name for name in names if all((name, alpha) in found for alpha in alphas)}


def _cells(members: Sequence[Result], alphas: Sequence[float]) -> list[str | None]:
    by_alpha = summary.grouped(members, ("alpha",))

    def cell(alpha: float, section: str, name: str) -> str | None:
        here = by_alpha.get((alpha,), [])
        seeds = summary.grouped(here, ("seed",)).values()
        means = [fmean(result[section][name] for result in one) for one in seeds]
        return summary.spread(means) if means else None

    sparse = [alpha for alpha in alphas if alpha > 1]
    return [
        *(cell(alpha, "scores", name) for alpha in alphas for name in ("WER", "PER")),
        *(cell(alpha, "sparsity", "single_hypothesis") for alpha in sparse),
        *(cell(alpha, "sparsity", "attention_nonzeros") for alpha in sparse),
    ]
