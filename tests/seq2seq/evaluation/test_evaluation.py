"""Evaluation agrees with decoding by hand, in any order and batch size."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import inflected
from fenchel import seq2seq
from fenchel.seq2seq import Characters, ModelConfig, Seq2Seq
from fenchel.seq2seq.data._batches import MAX_BATCH_TOKENS
from fenchel.seq2seq.data._readers import Malformed, inflections
from fenchel.seq2seq.decoding._decode import best_texts, decode
from fenchel.seq2seq.evaluation._evaluation import evaluate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluation")
    inflected.write(folder)
    torch.manual_seed(0)
    plan = {"epochs": 8, "lr_patience": 3}
    seq2seq.train(inflected.config(folder, model={"hidden": 32}, training=plan))
    return folder


def pairs(folder: Path) -> list[tuple[str, str]]:
    return list(inflections([str(folder / "verbs-dev")], Malformed()))


def test_greedy_accuracy_is_that_of_validation(folder: Path) -> None:
    model = seq2seq.load(folder / "model")
    found = evaluate([model], pairs(folder), "inflection", method="greedy")
    summary = seq2seq.train(
        inflected.config(folder, model={"hidden": 32}, training={"epochs": 8, "lr_patience": 3})
    )
    assert found.scores["accuracy"] == pytest.approx(100 * summary.metrics.accuracy)
    for name in ("attention_nonzeros", "output_nonzeros"):
        assert found.sparsity[name] == pytest.approx(getattr(summary.metrics, name))


@pytest.mark.parametrize("references", ["any", "each"])
def test_several_forms_and_languages_count_in_validation_as_in_evaluation(
    folder: Path, references: str
) -> None:
    lines = (folder / "verbs-dev").read_text(encoding="utf-8").splitlines()[:12]
    others = [f"{lemma}\t{lemma}s\t{tags}" for lemma, _, tags in (x.split("\t") for x in lines[:5])]
    (folder / "verbs-dev2").write_text("\n".join(lines + others), encoding="utf-8")
    (folder / "other-dev2").write_text("\n".join(lines[:3]), encoding="utf-8")
    shutil.copy(folder / "verbs-train", folder / "other-train")
    data = {"train": [str(folder / "*-train")], "validation": [str(folder / "*-dev2")]}
    measures = ["accuracy", "edit_distance", "CER", "chrF"]
    config = inflected.config(
        folder,
        references,
        data=data,
        training={"epochs": 2, "metric": "CER"},
        evaluation={"measures": measures, "references": references},
    )
    metrics = seq2seq.train(config).metrics
    validation = list(inflections(data["validation"], Malformed()))
    model = seq2seq.load(folder / references)
    options: dict[str, Any] = {"measures": measures, "references": references}
    found = evaluate(model, validation, "inflection", method="greedy", **options)
    assert metrics.scores == pytest.approx(found.scores)
    assert 100 * metrics.accuracy == pytest.approx(found.scores["accuracy"])
    assert found.languages.keys() == {"other", "verbs"}


def test_results_are_in_order(folder: Path) -> None:
    model = seq2seq.load(folder / "model")
    texts = [source for source, _ in pairs(folder)]
    one = best_texts(model, decode([model], texts, batch_size=5))
    assert one == best_texts(model, decode([model], texts))
    assert one[3] == best_texts(model, decode([model], texts[3:4]))[0]


def test_shares_are_those_of_the_results(folder: Path) -> None:
    model = seq2seq.load(folder / "model")
    found = evaluate([model, model], pairs(folder), "inflection")
    results = decode([model], [source for source, _ in pairs(folder)])
    shares = {
        "exact": [result.exact for result in results],
        "complete": [result.complete for result in results],
        "single_hypothesis": [r.complete and len(r.hypotheses) == 1 for r in results],
    }
    for name, each in shares.items():
        assert found.sparsity[name] == pytest.approx(100 * sum(each) / len(each))
    assert (found.pairs, found.inputs) == (32, 32)
    assert found.to_json()["languages"].keys() == {"verbs"}


def test_outputs_are_ranked_by_length_if_asked(folder: Path) -> None:
    letters = Characters("ab")
    torch.manual_seed(0)
    plan = ModelConfig.model_validate(
        {"embedding": 8, "hidden": 8, "layers": 1, "output": "softmax"}
    )
    model = Seq2Seq(plan, letters, letters)
    given = [("ab", "a"), ("ba", "b")]
    for power in (0.0, 1.0):
        results = decode(model, ["ab", "ba"], max_length=6, length_power=power)
        found = evaluate(model, given, max_length=6, length_power=power)
        assert found.outputs == best_texts(model, results)
    short, long = (evaluate(model, given, max_length=6, length_power=p).outputs for p in (0.0, 2.0))
    assert len("".join(short)) < len("".join(long))


def test_languages_count_the_same(folder: Path) -> None:
    plan = {"training": {"epochs": 1}, "data": {"train": [str(folder / "*-train")]}}
    shutil.copy(folder / "verbs-train", folder / "other-train")
    model = seq2seq.load(seq2seq.train(inflected.config(folder, "two", **plan)).folder)
    known = [(source, out) for source, out in pairs(folder)][:4]
    outputs = best_texts(model, decode([model], [source for source, _ in known]))
    right = [(source, output) for (source, _), output in zip(known, outputs, strict=True)]
    wrong = (right[0][0].replace("verbs", "other"), "?")
    found = evaluate([model], [*right, wrong], "inflection")
    assert found.languages["verbs"]["accuracy"] == 100.0
    assert found.languages["other"]["accuracy"] == 0.0
    assert found.scores["accuracy"] == 50.0


def test_an_input_with_several_references_counts_once(folder: Path) -> None:
    model = seq2seq.load(folder / "model")
    sources = [source for source, _ in pairs(folder)][:3]
    right = list(zip(sources, best_texts(model, decode([model], sources)), strict=True))
    other = (sources[0], right[0][1] + "xy")
    wrong = [(sources[2], right[2][1] + end) for end in ("xyz", "x")]
    for first in ([other, right[0]], [right[0], other]):
        found = evaluate([model], [*first, right[1], *wrong], "inflection")
        assert (found.pairs, found.inputs, len(found.outputs)) == (5, 3, 5)
        assert found.scores == pytest.approx({"accuracy": 200 / 3, "edit_distance": 1 / 3})
        once = evaluate([model], [first[0], right[1], wrong[0]], "inflection")
        for share in ("single_hypothesis", "exact", "complete"):
            assert found.sparsity[share] == once.sparsity[share]


def test_one_long_text_does_not_widen_a_batch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = seq2seq.load(folder / "model")
    texts = [source for source, _ in pairs(folder)]
    alone = best_texts(model, decode([model], texts))
    shapes: list[torch.Size] = []
    start = type(model).start
    monkeypatch.setattr(
        type(model), "start", lambda self, x, n: (shapes.append(x.shape), start(self, x, n))[1]
    )
    long = "b" * (MAX_BATCH_TOKENS // 16) + "\tV;PST\tverbs"
    together = best_texts(model, decode([model], [long, *texts], max_length=20))
    assert together[1:] == alone
    assert max(batch * length for batch, length in shapes) <= MAX_BATCH_TOKENS // 16 + 3


def test_one_model_needs_no_list_and_empty_texts_have_no_output(folder: Path) -> None:
    letters = Characters("ab ")
    model = Seq2Seq(ModelConfig(embedding=8, hidden=8, layers=1), letters, letters)
    empty, full = decode(model, ["", "ab"], max_length=3)
    assert (empty.hypotheses, empty.exact, empty.complete) == ([], False, False)
    assert full == decode([model], ["ab"], max_length=3)[0]
    found = evaluate(model, [("", "a"), ("ab", "b")], "translation", max_length=3)
    assert found.outputs[0] == ""


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"texts": "ab"}, TypeError, "`texts` must be a list of str, got a str; put it into"),
        ({"texts": [3]}, TypeError, "`texts` must be a str, got int"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be at least 1, got 0"),
        ({"models": []}, ValueError, "`models` must hold at least one model"),
        ({"models": "model"}, TypeError, "`models` must be a model, or a list of models"),
    ],
)
def test_wrong_arguments(change: dict[str, Any], error: type[Exception], message: str) -> None:
    letters = Characters("ab")
    model = Seq2Seq(ModelConfig(embedding=8, hidden=8, layers=1), letters, letters)
    with pytest.raises(error, match=message):
        decode(**{"models": model, "texts": ["ab"], **change})
    with pytest.raises(ValueError, match="`task` must be one of inflection, translation, summar"):
        evaluate(model, [("a", "b")], "poetry")


def test_nothing_cannot_be_evaluated(folder: Path) -> None:
    with pytest.raises(ValueError, match="there is no pair to evaluate"):
        evaluate([seq2seq.load(folder / "model")], [], "inflection")
