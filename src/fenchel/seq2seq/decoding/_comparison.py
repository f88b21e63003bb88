"""What is compared with what: each source once or each line by itself, and by language."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..._checks import check_choice
from ..._choices import MEASURES, REFERENCES, TASKS
from ..data._readers import Pair
from ..data._vocabulary import Vocabulary
from ._metrics import default_measures, default_references, measures


@dataclass(frozen=True)
class Comparison:
    """How outputs are compared with references, in training and in evaluation alike.

    Args:
        target: the vocabulary of the outputs.
        task: sets the defaults of the others. The scores of inflection are means over languages.
        measures: their names.
        references: "any" counts a source once, and accepts each of its references; "each" counts
            every pair.

    >>> from fenchel.seq2seq import Characters
    >>> pairs = [("a", "x"), ("a", "y"), ("b", "z")]
    >>> for way in ("any", "each"):
    ...     comparison = Comparison(Characters("xyz"), "text", ("accuracy",), way)
    ...     print(round(comparison.scores({"a": "y", "b": "y"}, pairs)["accuracy"], 1))
    50.0
    33.3
    """

    target: Vocabulary
    task: str
    measures: Sequence[str] | None = None
    references: str | None = None

    def __post_init__(self) -> None:
        check_choice("task", self.task, TASKS)
        for name in self.measures or ():
            check_choice("measures", name, MEASURES)
        if self.references is not None:
            check_choice("references", self.references, REFERENCES)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the measures."""
        return tuple(self.measures or default_measures(self.task, self.target))

    @property
    def is_any(self) -> bool:
        """Whether a source counts once, and each of its references is right."""
        return (self.references or default_references(self.task)) == "any"

    def scores(self, outputs: Mapping[str, str], pairs: Sequence[Pair]) -> dict[str, float]:
        """The measures of outputs, given by their sources, on pairs."""
        return self.mean(self.languages(outputs, pairs))

    def languages(
        self, outputs: Mapping[str, str], pairs: Sequence[Pair]
    ) -> dict[str, dict[str, float]]:
        """The measures of each language; those of other tasks than inflection have the name ""."""
        accepted: dict[tuple[str, int], list[str]] = defaultdict(list)
        for place, (source, reference) in enumerate(pairs):
            key = (source, 0 if self.is_any else place)
            accepted[key].append(self.target.normalize(reference))
        groups: dict[str, tuple[list[str], list[list[str]]]] = defaultdict(lambda: ([], []))
        for (source, _), references in accepted.items():
            group = groups[self._language(source)]
            group[0].append(outputs[source])
            group[1].append(references)
        known = measures(self.target)
        return {
            language: {name: known[name].compare(*group) for name in self.names}
            for language, group in sorted(groups.items())
        }

    def accuracy(self, is_right: Sequence[bool], sources: Sequence[str]) -> float:
        """The accuracy, as a share, if it is known which pairs greedy decoding gets right."""
        right: dict[tuple[str, int], bool] = defaultdict(bool)
        for place, (source, each) in enumerate(zip(sources, is_right, strict=True)):
            right[source, 0 if self.is_any else place] |= each
        groups: dict[str, list[bool]] = defaultdict(list)
        for (source, _), each in right.items():
            groups[self._language(source)].append(each)
        shares = [sum(group) / len(group) for group in groups.values()]
        return sum(shares) / len(shares)

    def _language(self, source: str) -> str:
        """The language that an inflection's source names after its lemma and tags."""
        columns = source.split("\t") if self.task == "inflection" else []
        return columns[2] if len(columns) > 2 else ""

    @staticmethod
    def mean(languages: dict[str, dict[str, float]]) -> dict[str, float]:
        """The means of measures over languages."""
        names = next(iter(languages.values()))
        return {n: sum(each[n] for each in languages.values()) / len(languages) for n in names}
