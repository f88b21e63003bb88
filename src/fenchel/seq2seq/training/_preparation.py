"""What training starts from: the vocabularies, and the encoded training and validation pairs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import TypeVar

from ..config._data import DataConfig
from ..config._schema import Config
from ..data._copying import check_copyable, copying
from ..data._corpus import Corpus, Encoded, encode
from ..data._features import Featured, texts_of
from ..data._inflection import Inflection, only_language
from ..data._normalized import Normalized
from ..data._readers import DataError, Malformed, Pair, pairs, paths
from ..data._subwords import Subwords
from ..data._vocabulary import Characters, Symbols, Vocabulary, Words
from ..models._folder import read_vocabularies, save_vocabularies
from . import _checkpoint
from ._distributed import World
from ._fine_tuning import extend

Item = TypeVar("Item")

NO_TRAINING_PAIR = "there is no pair to train on; see `data.train` and `data.max_length`."
VOCABULARIES = {
    "characters": Characters,
    "words": Words,
    "subwords": Subwords,
    "none": Symbols,
}


def prepare(
    config: Config, folder: Path, world: World, note: Callable[[str], None]
) -> tuple[Vocabulary, Vocabulary, Corpus, Encoded, list[Pair]]:
    """The source and target vocabularies, the training pairs, and the validation pairs with texts.

    Each file is parsed once, and texts are freed as they are encoded. Streamed training files are
    parsed twice for the vocabularies, and once in every epoch.

    Args:
        config: the whole configuration.
        folder: of the training, where an earlier start has saved the vocabularies.
        world: the processes; rank 0 builds the vocabularies.
        note: is called with what was left out.
    Raises:
        ValueError: if there is no training or no validation pair.
        DataError: if a file is a pipe or a device.
    """
    data = config.data
    _check_files(data)
    source, target, texts = _vocabularies(config, folder, world, note)
    if config.model.copy_source:
        source, target = copying(source, target)
    are_checked = data.tokens.source != data.tokens.target and data.task != "inflection"
    malformed = Malformed(data.malformed == "skip")

    def read() -> Iterator[Pair]:
        for pair in pairs(data, "train", malformed) if texts is None else _drain(texts):
            if are_checked:
                check_copyable(source, target, pair[0])
            yield pair

    buffer = data.buffer if data.streaming else None
    corpus = Corpus(read, source, target, data.max_length, buffer)
    _report(malformed, note)
    if corpus.kept is not None and not len(corpus.kept):
        raise ValueError(NO_TRAINING_PAIR)
    if corpus.dropped:
        note(dropped_pairs(corpus.dropped, data))
    malformed = Malformed(data.malformed == "skip")
    # The files of a single language may have any name, such as "train.tsv" and "dev.tsv".
    read_pairs = pairs(data, "validation", malformed, only_language(source))
    validation_texts = [pair for pair in read_pairs if source.encode(pair[0])]
    validation = encode(validation_texts, source, target)
    _report(malformed, note)
    if not len(validation):
        raise ValueError("there is no pair to validate with; see `data.validation`.")
    return source, target, corpus, validation, validation_texts


def _check_files(data: DataConfig) -> None:
    """Raises for files that can be read only once, since a resumed training reads them again."""
    for path in map(Path, (*paths(data, "train"), *paths(data, "validation"))):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise DataError(
                f"{path} is a pipe or a device, and training reads its data more than once; write "
                "them to a file."
            )


def dropped_pairs(count: int, data: DataConfig) -> str:
    """The note on pairs that are left out."""
    return f"left out {count} pairs of no token, or of more than {data.max_length} on a side"


def _report(malformed: Malformed, note: Callable[[str], None]) -> None:
    if malformed.count:
        note(str(malformed))


def _drain(items: deque[Item]) -> Iterator[Item]:
    """All items, each of which is removed before the next one is taken."""
    while items:
        yield items.popleft()


def _vocabularies(
    config: Config, folder: Path, world: World, note: Callable[[str], None]
) -> tuple[Vocabulary, Vocabulary, deque[Pair] | None]:
    """The vocabularies of the checkpoint, or new ones by rank 0; and the training pairs, if they
    were read for that and are kept in memory."""
    data, texts = config.data, None
    if world.is_main and not (folder / _checkpoint.NAME).exists():
        malformed = Malformed(data.malformed == "skip")
        if data.streaming:
            passes = chain((malformed,), repeat(Malformed()))  # all find the same malformed lines
            built = build_vocabularies(data, lambda: pairs(data, "train", next(passes)))
        else:
            texts = kept = deque(pairs(data, "train", malformed))
            built = build_vocabularies(data, lambda: kept)
        if config.training.start_from is not None:
            built = extend(Path(config.training.start_from), built, data)
        save_vocabularies(folder, *built)
        _report(malformed, note)
    world.wait()
    return *read_vocabularies(folder), texts


def build_vocabularies(
    data: DataConfig, read: Callable[[], Iterable[Pair]]
) -> tuple[Vocabulary, Vocabulary]:
    """The source and the target vocabulary of the training pairs.

    Args:
        data: the kind and size of the vocabularies.
        read: returns the pairs; called once for the sources, once for the targets, and once more
            for features.
    """

    def sources() -> Iterator[str]:
        return (source for source, _ in read())

    def targets() -> Iterator[str]:
        return (target for _, target in read())

    def build(tokens: str, texts: Iterable[str]) -> Vocabulary:
        kind = VOCABULARIES[tokens]
        if data.unicode is not None:
            return Normalized.build(kind, data.unicode, texts, size)
        return kind.build(texts, size)

    size = data.vocabulary_size
    if data.task == "inflection":
        return Inflection.build(sources(), size), Characters.build(targets(), size)
    texts = sources() if data.features is None else texts_of(sources())
    if data.shared_vocabulary:
        source = target = build(data.tokens.source, chain(texts, targets()))
    else:
        source, target = build(data.tokens.source, texts), build(data.tokens.target, targets())
    if data.features is not None:
        source = Featured(source, Featured.names(sources(), size))
    return source, target
