"""Configurations: what they accept, and what they say of what they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import fenchel
from fenchel.seq2seq import Config, MappingConfig, ModelConfig
from fenchel.seq2seq.config import _loading as configuration
from fenchel.seq2seq.config._data import ColumnsConfig
from fenchel.seq2seq.config._loading import ConfigError

INFLECTION = configuration.example("inflection")


@pytest.mark.parametrize("name", configuration.TASKS)
def test_examples_can_be_used(name: str) -> None:
    assert configuration.parse(configuration.example(name)).data.task == name


def test_the_inflection_example_holds_every_default() -> None:
    data = {"task": "inflection", "train": ["a"], "validation": ["b"]}
    default, shown = Config.model_validate({"data": data}), configuration.parse(INFLECTION)
    assert (shown.model, shown.training, shown.search) == (
        default.model,
        default.training,
        default.search,
    )
    files = {"train", "validation"}
    assert shown.data.model_dump(exclude=files) == default.data.model_dump(exclude=files)


@pytest.mark.parametrize("name", configuration.TASKS)
def test_examples_name_every_key(name: str) -> None:
    values = yaml.safe_load(configuration.example(name))
    for section, field in Config.model_fields.items():
        known = set(field.annotation.model_fields)  # type: ignore[union-attr]
        unused = set() if name == "text" else set(ColumnsConfig.model_fields)
        unused |= (
            {"tokens", "shared_vocabulary", "unicode"} if name == "inflection" else {"language"}
        )
        assert set(values[section]) | unused >= known
        assert set(values[section]) <= known


def test_unknown_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="must be one of inflection, translation, summariz"):
        configuration.example("poetry")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.laiers=1", "model.laiers: there is no such key; did you mean layers?"),
        ("model.xyz=1", "The keys here are architecture, attention, copy_source, dropout"),
        ("model.architecture=rnn", "must be 'lstm' or 'transformer', got 'rnn'"),
        ("model.hidden='300'", "model.hidden: must be an integer, got '300'"),
        ("model.hidden=2.5", "model.hidden: must be an integer, got 2.5"),
        ("model.hidden=301", "must be even"),
        ("model.dropout=1.5", "model.dropout: must be less than 1, got 1.5"),
        ("training.label_smoothing=1", "training.label_smoothing: must be less than 1, got 1"),
        ("model.attention=hardmax", "must be one of entmax, .*sparsemax, got 'hardmax'"),
        ("model.attention.alpha=-0.5", "`alpha` must be greater than 0, got -0.5"),
        ("model.attention.beta=1", "entmax has no option `beta`; it takes alpha, gamma"),
        ("model.attention.alpha=x", "model.attention.alpha: must be a number, got 'x'"),
        ("model.output=ksubset", "must be a mapping that sums to one; ksubset does not"),
        ("model.output.learned_alpha=true", "is for the attention"),
        ("model.attention={mapping: softmax, learned_alpha: true}", "is for entmax"),
        ("training.seed=-1", "training.seed: must be greater than or equal to 0, got -1"),
        ("training.seed=5000000000", "training.seed: must be less than 4294967296"),
        ("training.batch_size=0", "training.batch_size: must be greater than 0, got 0"),
        ("training.learning_rate=.nan", "training.learning_rate: must be"),
        ("training.device=tpu", "must be 'auto', 'cpu' or 'cuda', got 'tpu'"),
        (
            "data={task: inflection, train: {source: a, target: b}, validation: c}",
            "lists of files for",
        ),
        ("data={task: text, train: {source: a, target: b}, validation: c}", "both be tables, or"),
        ("data.source=2", "`source` is for other tasks: inflection has lines `lemma TAB form TAB"),
        ("data={task: text, train: a, validation: b, source: 0}", "number of a column, from 1, or"),
        ("data={task: text, train: a, validation: b, source: x, header: false}", "is a name, and"),
        ("data={task: text, train: a, validation: b, format: json, target: 2}", "must be a key of"),
        (
            "data={task: text, train: a, validation: b, tokens: bytes}",
            "'words', 'subwords' or 'none'",
        ),
        ("evaluation.measures=[BLUE]", "evaluation.measures.0: must be 'accuracy', 'WER', 'PER'"),
        ("evaluation.measures=[]", "must name at least one measure"),
        (
            "training.metric=BLUE",
            "training.metric: must be 'loss', 'token_accuracy', 'accuracy', 'WER'",
        ),
        ("data.train=[]", "`train` must name at least one file"),
        ("data.train={source: a, tarket: b}", "did you mean target?"),
        ("training=3", "training: must be"),
        ("search.beam=100000000000", "search.beam: must be at most 8192, got 100000000000; with"),
        ("search.max_length=99999", "search.max_length: must be at most 10000, got 99999; an out"),
        ("surplus.key=1", "The keys here are data, evaluation, model, search, training"),
        ("model", "an override is `section.key=value`, got 'model'"),
        ("model.layers.x=1", "goes into 'layers', which is 2"),
        ("model.layers=[", "is not YAML"),
        ("model.layers=1e9", "model.layers: must be an integer"),
        ("model.layers=5000", "model.layers: must be less than or equal to 1000, got 5000"),
        ("model.hidden=" + "9" * 30, "model.hidden: must be less than or equal to 10000000, got"),
        ("model.hidden=" + "9" * 5000, "is not YAML"),
        ("training.steps=2001-99-99", "is not YAML"),
        ("training.steps=!!timestamp x", "is not YAML"),
        ("training.steps=!!bool x", "is not YAML"),
        ("data.language=" + "[" * 5000, "is not a configuration: it nests too deep"),
        ("training.hidden=3", "training.hidden: there is no such key; did you mean model.hidden?"),
        ("hiden=3", "hiden: there is no such key; did you mean model.hidden?"),
        ("training.learning-rate=1", "did you mean learning_rate?"),
        ("training.patience=1", r"did you mean lr_patience\?"),
        ("training.lr_patient=1", r"did you mean lr_patience\?"),
        ("patience=1", r"did you mean training\.lr_patience\?"),
        ("training.decay=0.5", r"did you mean lr_decay\?"),
        ("training.floor=0.1", r"did you mean min_lr_ratio\?"),
        ("training.clip=5", r"did you mean max_grad_norm\?"),
        ("training.stop_after=5", r"did you mean early_stopping_patience\?"),
        ("training.accumulate=2", r"did you mean gradient_accumulation\?"),
    ],
)
def test_errors_say_what_could_stand_there(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configuration.parse(INFLECTION, [override])


@pytest.mark.parametrize("given", ["*.tsv", " *", "*a: [b"])
def test_a_pattern_is_a_text(given: str) -> None:
    assert configuration.parse(INFLECTION, [f"data.train={given}"]).data.train == [given.strip()]


@pytest.mark.parametrize("target", ["characters", "words", "none", "subwords"])
@pytest.mark.parametrize("source", ["characters", "words", "none", "subwords"])
def test_copied_tokens_are_tokens_of_the_target(source: str, target: str) -> None:
    tokens = f"tokens: {{source: {source}, target: {target}}}"
    text = f"data: {{task: text, train: a, validation: b, {tokens}}}"
    configuration.parse(text)
    starts = {"characters": "characters none", "words": "words none", "none": "words none"}
    if target in starts.get(source, "").split():
        configuration.parse(text, ["model.copy_source=true"])
        return
    with pytest.raises(ConfigError) as error:
        configuration.parse(text, ["model.copy_source=true"])
    assert "`data.tokens.source` and `data.tokens.target` must be the same" in str(error.value)
    assert f"got {source} and {target}. Set `data.tokens`, or" in str(error.value)


def test_all_errors_come_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        configuration.parse(INFLECTION, ["model.layers=0", "training.seed=x"])
    assert "model.layers" in str(error.value)
    assert "training.seed" in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {}\nmodel: {}\n", "the key 'model' is given twice"),
        ("1: 2", "the key 1 is not a word"),
        ("[1, 2]", "must hold the sections model, data, training, evaluation, search"),
        ("model: {}", "data: this key must be given"),
        ("a: !!python/object/apply:os.getcwd []", "is not YAML"),
        ("a: " + "[" * 5000 + "]" * 5000, "is not a configuration: it nests too deep"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configuration.parse(text)


def test_errors_are_short_whatever_was_given() -> None:
    """References that refer to references would be written out as a billion words."""
    levels = ["a0: &a0 [lol, lol]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60))]
    with pytest.raises(ConfigError) as error:
        configuration.parse("\n".join([*levels, "model: {layers: *a59}"]))
    assert len(str(error.value)) < 20_000


def test_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(INFLECTION, encoding="utf-8")
    found = configuration.load_config(
        path, ["training.learning_rate=1e-3", "model.attention=softmax"]
    )
    assert found.training.learning_rate == 0.001
    assert isinstance(found.model.attention.build(), fenchel.Softmax)
    path.write_text("\ufeff" + INFLECTION, encoding="utf-8")
    assert configuration.load_config(path).data.task == "inflection"
    path.write_text("#" * (configuration.MAX_CHARACTERS + 1), encoding="utf-8")
    with pytest.raises(ConfigError, match="is longer than 1048576 characters; is it a config"):
        configuration.load_config(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        configuration.load_config(path)


def test_mappings_are_built_with_their_options() -> None:
    config = MappingConfig.model_validate({"mapping": "fusedmax", "lam": 0.3, "gamma": 2})
    mapping = config.build()
    assert isinstance(mapping, fenchel.Fusedmax)
    assert (mapping.lam, mapping.gamma) == (0.3, 2.0)
    assert MappingConfig.model_validate(config.model_dump()) == config


def test_feedforward_follows_hidden() -> None:
    assert ModelConfig(hidden=128).feedforward == 512
    assert ModelConfig(hidden=128, feedforward=100).feedforward == 100
    with pytest.raises(ValueError, match=r"must be a multiple of `heads` \(4\), got 30"):
        ModelConfig(architecture="transformer", hidden=30)
    with pytest.raises(ValueError, match="`tie_embeddings` needs `embedding` equal to `hidden`"):
        ModelConfig(hidden=128, tie_embeddings=True)
