"""The sections on data: the files, their columns and tokens, and how outputs are measured."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    PositiveInt,
    Tag,
    model_serializer,
    model_validator,
)

from ..._choices import Form, Measure, References, TableFormat, Task, Tokens
from ._section import Section

MAX_COLUMN = 10_000


class ParallelFiles(Section):
    """Two files of parallel text, one sentence a line, plain or gzip."""

    source: str
    target: str


TAGS = ("file", "pair")


def _tag(value: Any) -> str:
    return TAGS[0] if isinstance(value, str) else TAGS[1]


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


Files = Annotated[
    list[
        Annotated[
            Annotated[str, Tag(TAGS[0])] | Annotated[ParallelFiles, Tag(TAGS[1])],
            Discriminator(_tag),
        ]
    ],
    BeforeValidator(_as_list),
]


def _check_column(value: Any) -> Any:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    is_column = 1 <= value <= MAX_COLUMN if is_number else isinstance(value, str) and value.strip()
    if value is not None and not is_column:
        raise ValueError(f"must be the number of a column, from 1, or its name, got {value!r}.")
    return value


Column = Annotated[int | str | None, BeforeValidator(_check_column)]


class ColumnsConfig(Section):
    """Where a table has its sources and targets.

    Args:
        format: "tsv", columns between tabs, or "json", one object a line. By default files that end
            in .json, .jsonl or .ndjson, also with .gz, are JSON, and all others TSV.
        source, target: a column's number, from 1, or its name in the header or in JSON. By default
            1 and 2, in JSON "source" and "target".
        features: a column of features of the source, between semicolons or spaces, or in JSON a
            list of texts. Each becomes a token before those of the source.
        header: whether the first line of a TSV file is a header. By default it is if a column has
            a name.
    """

    format: TableFormat | None = None
    source: Column = None
    target: Column = None
    features: Column = None
    header: bool | None = None

    @model_validator(mode="after")
    def _check_columns(self) -> ColumnsConfig:
        named = [name for name in ROLES if isinstance(getattr(self, name), str)]
        numbered = [name for name in ROLES if isinstance(getattr(self, name), int)]
        if self.header is False and named and self.format != "json":
            raise ValueError(f"`{named[0]}` is a name, and `header: false` says there are none.")
        if self.format == "json" and numbered:
            raise ValueError(f"`{numbered[0]}` must be a key of the JSON objects, not a number.")
        return self


ROLES = ("source", "target", "features")
"""What a column may hold."""


class TokensConfig(Section):
    """How text is split, on each side. A single word stands for both sides.

    >>> TokensConfig.model_validate("words").target
    'words'
    """

    source: Tokens
    target: Tokens

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        return {"source": value, "target": value} if isinstance(value, str) else value

    @model_serializer
    def _to_word(self) -> Any:
        sides = {"source": self.source, "target": self.target}
        return self.source if self.source == self.target else sides


class DataConfig(ColumnsConfig):
    """The files of the pairs, and how text is split into tokens.

    The task sets the defaults of `tokens` and of the section `evaluation`. Inflection has files of
    its own, with a language, and is always split into characters.

    Args:
        task: "text", "inflection", "translation" or "summarization".
        train: a list of tables, with `*` as a wildcard; or `source` and `target`, two files of
            parallel text, or a list of such pairs.
        validation: the same, to choose the best model.
        language: the language of all inflection files. By default it is a file's name up to
            "-train", "-dev" or "-test", or its first dot. If the training files have only one
            language, the validation files have it, too.
        tokens: how text is split, for both sides or for `source` and `target`: "characters" (code
            points), "words" (between spaces), "subwords", or "none", if the file has the tokens
            between spaces. By default "characters" for "text", otherwise "subwords".
        unicode: the normal form that all text is brought into, such as "NFC"; by default text
            stays as it is.
        vocabulary_size: the largest size of a vocabulary; features have as much room again.
        shared_vocabulary: whether source and target text share one vocabulary.
        max_length: pairs with more tokens on a side are left out of training, and counted.
        malformed: whether to skip a line that cannot be read, or to stop with an error.
        streaming: whether to read the files again in every epoch and to shuffle them in a buffer,
            for corpora larger than memory.
        buffer: the number of pairs in that buffer, which are shuffled and batched together.
    """

    task: Task
    train: Files
    validation: Files
    language: str | None = None
    tokens: TokensConfig
    unicode: Form | None = None
    vocabulary_size: Annotated[int, Field(ge=8, le=10_000_000)] = 8000
    shared_vocabulary: bool = False
    max_length: PositiveInt = 250
    malformed: Literal["skip", "error"] = "skip"
    streaming: bool = False
    buffer: Annotated[int, Field(gt=0, le=1_000_000_000)] = 100_000

    @model_validator(mode="before")
    @classmethod
    def _default_tokens(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "tokens" in value:
            return value
        return {**value, "tokens": "characters" if value.get("task") == "text" else "subwords"}

    @model_validator(mode="after")
    def _check_files(self) -> DataConfig:
        kinds = {type(file) for key in ("train", "validation") for file in getattr(self, key)}
        for key in ("train", "validation"):
            if not getattr(self, key):
                raise ValueError(f"`{key}` must name at least one file.")
        if self.task == "inflection":
            self._check_inflection(kinds)
        elif len(kinds) > 1:
            raise ValueError(
                "`train` and `validation` must both be tables, or both `source` and `target` files."
            )
        given = [name for name in ColumnsConfig.model_fields if getattr(self, name) is not None]
        if given and kinds != {str}:
            raise ValueError(f"`{given[0]}` is for tables; parallel files have no columns.")
        if self.shared_vocabulary and self.tokens.source != self.tokens.target:
            raise ValueError("`shared_vocabulary` needs the same `tokens` on both sides.")
        return self

    def _check_inflection(self, kinds: set[type]) -> None:
        if kinds != {str}:
            raise ValueError("`train` and `validation` must be lists of files for inflection.")
        given = [name for name in ColumnsConfig.model_fields if getattr(self, name) is not None]
        given += ["unicode"] if self.unicode else []
        if given:
            raise ValueError(
                f"`{given[0]}` is for other tasks: inflection has lines `lemma TAB form TAB tags`; "
                "choose the task text for other files."
            )

    @property
    def has_tables(self) -> bool:
        """Whether the files are tables, and not parallel text."""
        return isinstance(self.train[0], str)


class EvaluationConfig(Section):
    """How outputs are compared with references, in training and by `fenchel evaluate`.

    Args:
        measures: their names. By default those of the task; training then computes only what
            `training.metric` needs. If they are given, each validation decodes and computes them.
        references: "any": a source with several targets, on as many lines, counts once, and each
            of them is right; or "each": every line counts by itself. By default "any" for
            inflection and text, "each" for translation and summarization.
    """

    measures: list[Measure] | None = None
    references: References | None = None

    @model_validator(mode="after")
    def _check_measures(self) -> EvaluationConfig:
        if self.measures is not None and not 0 < len(self.measures) == len(set(self.measures)):
            raise ValueError("`measures` must name at least one measure, and each of them once.")
        return self
