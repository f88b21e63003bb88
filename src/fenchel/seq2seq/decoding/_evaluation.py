"""The evaluation of outputs: scores, sparsity and certificates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ... import _checks
from ..data._corpus import encode
from ..data._readers import Pair
from ..models._ensemble import check_decoders
from ..models._model import Seq2Seq
from ..training._distributed import World
from ..training._validation import validate
from ._decode import best_texts, decode
from ._hypotheses import Result
from ._metrics import SCORES, edit_distance


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`.

    Args:
        scores: of the task, over all pairs; for inflection over all different sources, averaged
            over languages.
        languages: for inflection, the scores of each language.
        sparsity: mean numbers of nonzeros over the tokens of the references, and shares of the
            inputs in percent.
        outputs: the most probable output of each pair's source.
        pairs: the number of pairs.
        inputs: the number of different sources.
    """

    scores: dict[str, float]
    languages: dict[str, dict[str, float]]
    sparsity: dict[str, float]
    outputs: list[str]
    pairs: int
    inputs: int

    def to_json(self) -> dict[str, Any]:
        """All fields but the outputs."""
        return {
            "pairs": self.pairs,
            "inputs": self.inputs,
            "scores": self.scores,
            "sparsity": self.sparsity,
            "languages": self.languages,
        }


def evaluate(
    models: Seq2Seq | Sequence[Seq2Seq],
    pairs: Sequence[Pair],
    task: str,
    *,
    batch_size: int = 256,
    method: str = "beam",
    beam: int = 5,
    max_length: int = 100,
) -> Evaluation:
    """Decodes the sources of pairs, and scores the outputs against the targets.

    Args:
        models: a model, or a list of models that form an ensemble.
        pairs: sources and references. Inflection counts each source once, and compares its output
            with the nearest of its references.
        task: "inflection", "translation" or "summarization".
        batch_size, method, beam, max_length: as for `decode`.
    Raises:
        TypeError, ValueError: if an argument is wrong, or there are no pairs.

    >>> from fenchel.seq2seq import Characters, ModelConfig
    >>> letters = Characters("abc")
    >>> model = Seq2Seq(ModelConfig(embedding=4, hidden=4, layers=1), letters, letters)
    >>> found = evaluate([model], [("abc", "c"), ("a", "b")], "translation", max_length=5)
    >>> found.pairs, sorted(found.scores)
    (2, ['BLEU', 'chrF'])
    """
    _checks.check_choice("task", task, tuple(SCORES))
    models = check_decoders(models)
    if not pairs:
        raise ValueError("there is no pair to evaluate.")
    sources, references = [s for s, _ in pairs], [r for _, r in pairs]
    inputs = list(dict.fromkeys(sources))
    results = decode(
        models, inputs, batch_size=batch_size, method=method, beam=beam, max_length=max_length
    )
    found = dict(zip(inputs, best_texts(models[0], results), strict=True))
    outputs = [found[source] for source in sources]
    languages: dict[str, dict[str, float]] = {}
    if task == "inflection":
        languages = _by_language(found, pairs)
        names = next(iter(languages.values()))
        scores = {n: sum(s[n] for s in languages.values()) / len(languages) for n in names}
    else:
        scores = SCORES[task](outputs, references)
    sparsity = {**_nonzeros(models, pairs, batch_size), **_shares(results)}
    return Evaluation(scores, languages, sparsity, outputs, len(pairs), len(inputs))


def _by_language(outputs: dict[str, str], pairs: Sequence[Pair]) -> dict[str, dict[str, float]]:
    """The scores of each language; an output is compared with the nearest reference."""
    accepted: dict[str, list[str]] = defaultdict(list)
    for source, reference in pairs:
        accepted[source].append(reference)
    groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for source, output in outputs.items():
        nearest = min(accepted[source], key=lambda form: edit_distance(output, form))
        groups[source.split("\t")[2]].append((output, nearest))
    return {
        language: SCORES["inflection"](*zip(*group, strict=True))
        for language, group in sorted(groups.items())
    }


def _nonzeros(
    models: Sequence[Seq2Seq], pairs: Sequence[Pair], batch_size: int
) -> dict[str, float]:
    """The mean numbers of nonzeros when the models are given the references."""
    device = next(models[0].parameters()).device
    encoded = encode(pairs, models[0].source, models[0].target)
    found = [validate(model, encoded, batch_size, World(0, 1, device)) for model in models]
    return {
        name: sum(getattr(metrics, name) for metrics in found) / len(found)
        for name in ("attention_nonzeros", "output_nonzeros")
    }


def _shares(results: Sequence[Result]) -> dict[str, float]:
    """In percent: inputs with a single text, with an exact result, and with a complete one."""
    single = sum(result.complete and len(result.hypotheses) == 1 for result in results)
    exact = sum(result.exact for result in results)
    complete = sum(result.complete for result in results)
    shares = {"single_hypothesis": single, "exact": exact, "complete": complete}
    return {name: 100 * count / len(results) for name, count in shares.items()}
