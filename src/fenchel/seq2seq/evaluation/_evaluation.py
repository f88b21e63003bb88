"""The evaluation of a model's outputs: measures, sparsity and certificates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..data._corpus import encode
from ..data._readers import Pair
from ..decoding._comparison import Comparison
from ..decoding._decode import best_texts, decode
from ..decoding._hypotheses import Result
from ..models._ensemble import check_decoders
from ..models._model import Seq2Seq
from ..training._distributed import World
from ..training._validation import validate


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`.

    Args:
        scores: the measures of the outputs; for inflection their means over languages.
        languages: for inflection, the scores of each language.
        sparsity: mean numbers of nonzeros over the tokens of the references, and shares of the
            inputs in percent.
        outputs: the most probable output of each pair's source.
        pairs: the number of pairs.
        inputs: the number of different sources.

    >>> found = Evaluation({"accuracy": 50.0}, {}, {"exact": 100.0}, ["walked", "goed"], 2, 2)
    >>> found.scores["accuracy"], sorted(found.to_json())
    (50.0, ['inputs', 'languages', 'pairs', 'scores', 'sparsity'])
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
    task: str = "text",
    *,
    measures: Sequence[str] | None = None,
    references: str | None = None,
    batch_size: int = 256,
    method: str = "beam",
    beam: int = 5,
    max_length: int = 100,
    length_power: float = 0.0,
) -> Evaluation:
    """Decodes the sources of pairs, and scores the outputs against the targets.

    Args:
        models: a model, or a list of models that form an ensemble.
        pairs: sources and references.
        task: "text", "inflection", "translation" or "summarization".
        measures: "accuracy", "WER", "PER", "CER", "edit_distance", "BLEU", "chrF", "ROUGE-1",
            "ROUGE-2" and "ROUGE-L"; by default those of the task.
        references: "any" counts a source with several references once, and compares its output
            with the nearest; "each" counts every pair. By default "any" for inflection and text.
        batch_size, method, beam, max_length, length_power: as for `decode`.
    Raises:
        TypeError, ValueError: if an argument is wrong, or there are no pairs.

    >>> from fenchel.seq2seq import Characters, ModelConfig
    >>> letters = Characters("abc")
    >>> model = Seq2Seq(ModelConfig(embedding=4, hidden=4, layers=1), letters, letters)
    >>> found = evaluate([model], [("abc", "c"), ("a", "b")], measures=["CER"], max_length=5)
    >>> found.pairs, sorted(found.scores)
    (2, ['CER'])
    """
    models = check_decoders(models)
    comparison = Comparison(models[0].target, task, measures, references)
    if not pairs:
        raise ValueError("there is no pair to evaluate.")
    spell = models[0].source.normalize
    pairs = [(spell(source), target) for source, target in pairs]
    sources = [source for source, _ in pairs]
    inputs = list(dict.fromkeys(sources))
    results = decode(
        models,
        inputs,
        batch_size=batch_size,
        method=method,
        beam=beam,
        max_length=max_length,
        length_power=length_power,
    )
    found = dict(zip(inputs, best_texts(models[0], results), strict=True))
    languages = comparison.languages(found, pairs)
    sparsity = {**_nonzeros(models, pairs, batch_size), **_shares(results)}
    return Evaluation(
        scores=comparison.mean(languages),
        languages=languages if task == "inflection" else {},
        sparsity=sparsity,
        outputs=[found[source] for source in sources],
        pairs=len(pairs),
        inputs=len(inputs),
    )


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
