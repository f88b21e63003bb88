"""What training starts from: vocabularies, and encoded pairs to train on and to validate with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from ..config._schema import Config, DataConfig
from ..data._corpus import Corpus, Encoded, encode
from ..data._inflection import Inflection, only_language
from ..data._readers import DataError, Malformed, pairs, paths
from ..data._vocabulary import Characters, Subwords, Vocabulary, Words
from ..models._folder import read_vocabularies, save_vocabularies
from . import _checkpoint
from ._distributed import World

NOTHING = "there is no pair to train on; see `data.train` and `data.max_length`."
TOKENS = {"characters": Characters, "words": Words, "subwords": Subwords}


def prepare(
    config: Config, folder: Path, world: World, note: Callable[[str], None]
) -> tuple[Vocabulary, Vocabulary, Corpus, Encoded]:
    """The vocabularies of source and target, the training pairs and the validation pairs.

    Args:
        config: the whole configuration.
        folder: where vocabularies are that an earlier start wrote.
        world: the processes, of which the first makes the vocabularies.
        note: is told of what was left out.
    Raises:
        ValueError: if a split holds no pair.
        DataError: if a file is a pipe or a device.
    """
    data = config.data
    _check_files(data)
    skip = data.malformed == "skip"
    source, target = _vocabularies(data, folder, world, note)
    lines = Malformed(skip)
    buffer = data.buffer if data.streaming else None
    corpus = Corpus(lambda: pairs(data, "train", lines), source, target, data.max_length, buffer)
    _report(lines, note)
    if corpus.kept is not None and not len(corpus.kept):
        raise ValueError(NOTHING)
    if corpus.dropped:
        note(too_long(corpus.dropped, data))
    lines = Malformed(skip)
    # Of one language, whose name may be a mere "train.tsv", the validation pairs are so, too.
    held_out = pairs(data, "validation", lines, only_language(source))
    validation = encode(held_out, source, target)
    _report(lines, note)
    if not len(validation):
        raise ValueError("there is no pair to validate with; see `data.validation`.")
    return source, target, corpus, validation


def _check_files(data: DataConfig) -> None:
    """Raises for what can be read but once: the vocabularies, and every start, read it again."""
    for path in map(Path, (*paths(data, "train"), *paths(data, "validation"))):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise DataError(
                f"{path} is a pipe or a device, and training reads its data more than once; write "
                "them to a file."
            )


def too_long(dropped: int, data: DataConfig) -> str:
    """What is said of pairs that are left out."""
    return f"left out {dropped} pairs of no token, or of more than {data.max_length} on a side"


def _report(lines: Malformed, note: Callable[[str], None]) -> None:
    if lines.count:
        note(str(lines))


def _vocabularies(
    data: DataConfig, folder: Path, world: World, note: Callable[[str], None]
) -> tuple[Vocabulary, Vocabulary]:
    """Those that a checkpoint goes with, or new ones, which the first process makes."""
    if world.first and not (folder / _checkpoint.NAME).exists():
        lines = Malformed(data.malformed == "skip")
        save_vocabularies(folder, *build_vocabularies(data, lines))
        if data.streaming:  # otherwise the pairs are read once more, and reported then
            _report(lines, note)
    world.wait()
    return read_vocabularies(folder)


def build_vocabularies(data: DataConfig, lines: Malformed) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of the training pairs, source and target."""

    def sources() -> Iterator[str]:
        return (source for source, _ in pairs(data, "train", lines))

    def targets() -> Iterator[str]:
        return (target for _, target in pairs(data, "train", Malformed()))

    size = data.vocabulary_size
    if data.task == "inflection":
        return Inflection.build(sources(), size), Characters.build(targets(), size)
    kind = TOKENS[data.tokens]
    if data.shared_vocabulary:
        both = kind.build((text for half in (sources, targets) for text in half()), size)
        return both, both
    return kind.build(sources(), size), kind.build(targets(), size)
