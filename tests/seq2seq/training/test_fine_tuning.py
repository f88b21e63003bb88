"""Fine-tuning: weights and vocabularies of another model, new tokens, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import inflected
from fenchel import seq2seq
from fenchel.seq2seq import Characters, Inflection, Subwords, Words
from fenchel.seq2seq._files import read_tensors
from inflected import Recorder

LETTERS = "walk\twalked\tV;PST\nquizz\tquizzed\tV;PST\ngol\twent\tV;NEW\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The data, a model of one epoch in `first`, and other data with new letters and tags."""
    inflected.write(tmp_path)
    seq2seq.train(inflected.config(tmp_path, "first", training={"steps": 2}))
    for name in ("train", "dev"):
        (tmp_path / f"words-{name}").write_text(LETTERS, encoding="utf-8")
    return tmp_path


def config(folder: Path, name: str, model: dict[str, Any] | None = None, **plan: Any) -> Any:
    data = {
        key: [str(folder / f"words-{n}")] for key, n in (("train", "train"), ("validation", "dev"))
    }
    plan = {"start_from": str(folder / "first"), "epochs": 1, "learning_rate": 1e-30, **plan}
    return inflected.config(folder, name, data=data, model=model or {}, training=plan)


def test_old_rows_are_kept_and_new_ones_are_means(folder: Path) -> None:
    seq2seq.train(config(folder, "second"))
    first, second = (seq2seq.load(folder / name) for name in ("first", "second"))
    rows = first.source.ids_in(second.source)
    assert first.source.tokens(range(first.source.size)) == second.source.tokens(rows)
    assert second.source.encode("quiz V;NEW words")[1:] != [3] * 5
    old, new = first.core.source_embedding.weight, second.core.source_embedding.weight
    assert new[rows].equal(old)
    added = sorted(set(range(second.source.size)) - set(rows))
    assert len(added) >= 6  # a language, a tag, and the letters c, e, q, u, w, z as far as new
    torch.testing.assert_close(new[added], old[4:].mean(0).expand(len(added), -1))
    rows = first.target.ids_in(second.target)
    for name in ("weight", "bias"):
        assert getattr(second.output, name)[rows].equal(getattr(first.output, name))
    assert second.core.rnn.weight_hh_l0.equal(first.core.rnn.weight_hh_l0)
    (result,) = seq2seq.decode([second], ["quizz V;PST words"], max_length=5)
    assert result.hypotheses


def test_the_same_data_go_on_with_the_same_model(folder: Path) -> None:
    plan = {"start_from": str(folder / "first"), "learning_rate": 1e-30, "steps": 1}
    summary = seq2seq.train(inflected.config(folder, "again", training=plan))
    one, other = (
        read_tensors(folder / name / "weights.safetensors")[0] for name in ("first", "again")
    )
    assert all(one[name].equal(other[name]) for name in one)
    assert summary.folder == folder / "again"


def test_a_stopped_training_goes_on_without_the_first_model(folder: Path) -> None:
    plan = {"learning_rate": 0.01, "epochs": 8, "checkpoint_every": 1}
    seq2seq.train(config(folder, "whole", **plan))
    with pytest.raises(KeyboardInterrupt):
        seq2seq.train(config(folder, "parts", **plan), Recorder(stop=4))
    (folder / "first").rename(folder / "gone")
    seq2seq.train(config(folder, "parts", **plan))
    one, other = (
        read_tensors(folder / name / "last.safetensors")[0] for name in ("whole", "parts")
    )
    assert all(one[name].equal(other[name]) for name in one)


def test_mappings_and_dropout_may_differ(folder: Path) -> None:
    model = {"output": "softmax", "attention": "sparsemax", "dropout": 0.0, "heads": 2}
    seq2seq.train(config(folder, "second", model))
    assert seq2seq.load(folder / "second").config.output.mapping == "softmax"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"hidden": 18}, r"`model.hidden` is 18 here and 16 there. Give them the values of that"),
        (
            {"layers": 2, "embedding": 9},
            r"`model.embedding` is 9 here and 12 there; `model.layers`",
        ),
        ({"architecture": "transformer", "heads": 2}, "`model.architecture` is 'transformer' here"),
        (
            {"attention": {"mapping": "entmax", "learned_alpha": True}},
            r"`model.attention.learned_alpha` is True here and False there",
        ),
    ],
)
def test_other_sizes_are_named(folder: Path, model: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        seq2seq.train(config(folder, "second", model))


def test_other_tasks_and_folders_are_refused(folder: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"`training.start_from` must be the folder of a tr"
    ):
        seq2seq.train(config(folder, "second", start_from=str(folder / "nowhere")))
    with pytest.raises(FileNotFoundError, match=r"there is no .*weights.safetensors"):
        seq2seq.train(config(folder, "second", start_from=str(folder)))
    files = {"source": str(folder / "words-train"), "target": str(folder / "words-dev")}
    data = {"task": "translation", "train": files, "validation": files, "tokens": "words"}
    plan = {"start_from": str(folder / "first")}
    with pytest.raises(
        ValueError, match="source vocabulary of inflection, and these data have one"
    ):
        seq2seq.train(inflected.config(folder, "second", data=data, training=plan))
    with pytest.raises(ValueError, match=r"training.start_from: must be a string"):
        seq2seq.load_config(_write(folder), ["training.start_from=[a, b]"])
    with pytest.raises(ValueError, match="`start_from` must be another folder than `folder`"):
        config(folder, "first")


def _write(folder: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text("data: {task: inflection, train: [a], validation: [b]}", encoding="utf-8")
    return path


def test_vocabularies_extend() -> None:
    words = Words(["ja", "nein"]).extended(Words(["doch", "ja", "oh"]), 7)
    assert words.tokens(range(4, words.size)) == ["ja", "nein", "doch"]
    assert Words(["a", "b"]).extended(Words(["c"]), 5).size == 6  # none is lost
    letters = Characters("ab")
    assert letters.ids_in(letters.extended(Characters("bc"), 99)) == list(range(6))
    old = Inflection(["en"], ["V"], ["a", "b"])
    new = old.extended(Inflection(["de"], ["N"], ["b", "c"]), 99)
    assert new.tokens(range(4, new.size)) == ["<en>", "<de>", "V", "N", "a", "b", "c"]
    assert old.ids_in(new) == [0, 1, 2, 3, 4, 6, 8, 9]
    subwords = Subwords.build(["der Baum des Lebens"] * 5, 20)
    assert subwords.extended(Subwords.build(["ein Blick"] * 5, 14), 99) is subwords
