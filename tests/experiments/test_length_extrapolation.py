"""Length extrapolation: tasks have the right answers, attentions are what they say, runs resume."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.length_extrapolation import __main__ as command
from experiments.length_extrapolation import attentions, cache, evaluate, language, train
from experiments.length_extrapolation.model import Networks, correct, losses
from experiments.length_extrapolation.settings import (
    ATTENTIONS,
    QUICK,
    QUICK_CACHE,
    QUICK_LANGUAGE,
    SCALE,
    Settings,
)
from experiments.length_extrapolation.tasks import (
    MARKERS,
    NEEDLES,
    NOTHING,
    PADDING,
    SEPARATOR,
    START,
    SYMBOLS,
    TASKS,
    distinct,
)

from fenchel.attention import _attend, attention

NO_LIMIT = train.Clock(None)


def answers_of(tokens: list[int], targets: list[int]) -> tuple[list[int], list[int]]:
    """The tokens before the padding, and the targets that there are, which must be the last."""
    size = tokens.index(PADDING) if PADDING in tokens else len(tokens)
    assert all(token == PADDING for token in tokens[size:])
    found = [target for target in targets if target != NOTHING]
    assert targets[size - len(found) : size] == found
    return tokens[:size], found


def check_transduced(task: str, tokens: list[int], answers: list[int]) -> None:
    middle = tokens.index(SEPARATOR)
    symbols, shown = tokens[1:middle], tokens[middle + 1 :]
    right = {"copy": symbols, "reverse": symbols[::-1], "sort": sorted(symbols)}[task]
    assert tokens[0] == START
    assert len(set(symbols)) == len(symbols)
    assert (answers, shown) == (right, right[:-1])


def check_recall(tokens: list[int], answers: list[int]) -> None:
    pairs = tokens[: -len(answers)]
    memory = dict(zip(pairs[::2], pairs[1::2], strict=True))
    questions = tokens[-len(answers) :]
    assert len(memory) == len(pairs) // 2
    assert len(set(questions)) == len(questions) == len(memory)
    assert answers == [memory[key] for key in questions]
    assert max(memory) < SYMBOLS // 2 <= min(memory.values())


def check_needles(tokens: list[int], answers: list[int]) -> None:
    hay, questions = tokens[:-NEEDLES], tokens[-NEEDLES:]
    assert sorted(questions) == [MARKERS + i for i in range(NEEDLES)]
    assert sum(token >= SYMBOLS for token in hay) == NEEDLES
    assert answers == [hay[hay.index(marker) + 1] for marker in questions]


@pytest.mark.parametrize("length", [13, 64])
@pytest.mark.parametrize("task", TASKS)
def test_answers_are_right(task: str, length: int) -> None:
    training = TASKS[task].training(200, length, "cpu")
    testing, num_answers = TASKS[task].testing(20, length, "cpu")
    assert training.tokens.shape == training.targets.shape == (200, length)
    assert length - 3 < testing.tokens.shape[1] <= length
    assert bool((testing.tokens != PADDING).all())
    assert bool(((testing.targets != NOTHING).sum(1) == num_answers).all())
    for batch in (training, testing):
        for row, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
            tokens, answers = answers_of(row, targets)
            if task == "recall":
                check_recall(tokens, answers)
            elif task == "needle":
                check_needles(tokens, answers)
            else:
                check_transduced(task, tokens, answers)
    sizes = (training.targets != NOTHING).sum(1)
    assert task == "needle" or sizes.unique().numel() > 2


@pytest.mark.parametrize(("bits", "count"), [(4, 16), (15, 2**15), (16, 2**15)])
def test_distinct_symbols_are_distinct_and_random(bits: int, count: int) -> None:
    rows = distinct(50, count, torch.device("cpu"), bits)
    assert all(row.unique().numel() == count for row in rows)
    assert rows.min() >= 0
    assert rows.max() < 2**bits
    assert rows[:, 0].unique().numel() > 10
    if bits == 16:  # neighbours are not related
        steps = rows.diff() % 2**bits
        assert all(row.unique().numel() > count // 8 for row in steps)


@pytest.mark.parametrize("task", TASKS)
def test_the_longest_tests_fit(task: str) -> None:
    size = TASKS[task].max_size(65536)
    assert 65536 - 3 < TASKS[task].length(size) <= 65536 < TASKS[task].length(size + 1)


def test_lengths_without_a_sequence_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`length` must be at least 12 for this task, got 11."):
        TASKS["needle"].max_size(11)


def test_the_scale_is_that_of_the_formula() -> None:
    delta, beta, gamma = torch.tensor([[1.0, 0.5], [2.0, 0.1], [1.5, 3.0]]).unsqueeze(1)
    scale = attentions.length_scale(delta, beta, gamma, 3, 10)
    assert scale.shape == (1, 2, 3, 1)
    for head in range(2):
        for query, seen in enumerate((8, 9, 10)):
            power = math.log(seen) ** float(gamma[0, head])
            right = float(delta[0, head]) + float(beta[0, head]) * power
            assert float(scale[0, head, query, 0]) == pytest.approx(right, rel=1e-6)
    first = attentions.length_scale(delta, beta, gamma, 10, 10)
    torch.testing.assert_close(first[..., -3:, :], scale)
    gamma.requires_grad_()
    attentions.length_scale(delta, beta, gamma, 4, 4).sum().backward()
    assert bool(gamma.grad.isfinite().all())  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ATTENTIONS)
@pytest.mark.parametrize("num_queries", [3, 10])
def test_attention_by_its_weights(kind: str, num_queries: int) -> None:
    """Each kind against weights of the scores written out."""
    torch.manual_seed(3)
    query, key, value = torch.randn(3, 2, 3, 4, 10, 8, dtype=torch.float64)
    query = query[..., -num_queries:, :]
    learned = {
        name: torch.rand(2, count).double()
        for name, (count, _) in attentions.parameters(kind, 4).items()
    }
    found = attentions.attend(kind, query, key, value, learned)
    place = torch.arange(10)
    distance = place[-num_queries:, None] - place
    bias = -torch.tensor([0, 0, 1, 0.5]).double()[:, None, None] * distance
    bias = bias.masked_fill(distance < 0, -math.inf)
    products = query @ key.mT * 8**-0.5
    if kind == "scaled":  # the two heads without positions
        delta, raw_beta, gamma = (learned[n][:, None] for n in ("delta", "raw_beta", "gamma"))
        beta = (1 + raw_beta.exp()).log()
        products[:, :, :2] *= attentions.length_scale(delta, beta, gamma, num_queries, 10)
    scores = products + bias
    if kind == "softmax":
        weights = scores.softmax(-1)
    else:
        alpha = torch.full((2, 1, 4, 1, 1), 1.5).double()
        if kind == "alpha":
            alpha = 1 + learned["alpha_logit"].sigmoid()[:, None, :, None, None]
        weights = attentions.Entmax(alpha)(scores)
    torch.testing.assert_close(found, weights @ value, rtol=1e-9, atol=1e-9)


def test_softmax_is_torch_s_own_with_distances_of_many_digits() -> None:
    query, key, value = torch.randn(3, 1, 1, 4, 700, 8)
    found = attentions.attend("softmax", query, key, value, {})
    slopes = attentions.slopes(4, query.device)
    right = attention(query, key, value, "softmax", causal=True, alibi=slopes)
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_networks_do_not_know_of_each_other(kind: str) -> None:
    networks = Networks(QUICK, kind)
    batch = TASKS["recall"].training(6, 24, "cpu")
    tokens, targets = (x.reshape(2, 3, -1) for x in batch)
    found = losses(networks(tokens), targets)
    (grad,) = torch.autograd.grad(found[1], networks.flat)
    assert bool((grad[0] == 0).all())
    assert bool((grad[1] != 0).any())
    assert not torch.equal(networks.flat[0], networks.flat[1])
    last = networks(tokens, 5)
    torch.testing.assert_close(last, networks(tokens)[:, :, -5:])


def test_losses_and_right_answers() -> None:
    targets = torch.tensor([[[NOTHING, 258, 3]]])
    scores = torch.zeros(1, 1, 3, 2, 256)
    scores[0, 0, 1, 0, 1] = scores[0, 0, 1, 1, 2] = scores[0, 0, 2, 1, 3] = 50.0
    assert correct(scores, targets).tolist() == [[[False, True, True]]]
    assert float(losses(scores, targets)) == pytest.approx(math.log(256) / 2)


def rows_without_times(path: Path) -> list[dict[str, Any]]:
    content = json.loads((path / "rows.json").read_text(encoding="utf-8"))
    rows = content["rows"] + content["training"]
    return [{name: v for name, v in row.items() if name != "seconds"} for row in rows]


class Stops(train.Clock):
    """A clock that stops at the n-th look."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def check(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise train.OutOfTimeError


@pytest.mark.parametrize("looks", [1, 2, 3, 4, 5])
def test_a_run_that_was_cut_goes_on_as_if_it_was_not(tmp_path: Path, looks: int) -> None:
    def run(folder: str, clock: train.Clock) -> None:
        evaluate.run(tmp_path / folder, ["copy"], ["alpha"], QUICK, "cpu", clock)

    run("whole", NO_LIMIT)
    with pytest.raises(train.OutOfTimeError):
        run("cut", Stops(looks))
    run("cut", NO_LIMIT)
    assert rows_without_times(tmp_path / "cut") == rows_without_times(tmp_path / "whole")


def test_an_empty_clock_stops_and_none_does_not() -> None:
    train.Clock(None).check()
    train.Clock(100).check()
    with pytest.raises(train.OutOfTimeError):
        train.Clock(-1).check()


def test_training_learns(tmp_path: Path) -> None:
    settings = dataclasses.replace(
        QUICK, seeds=1, length=12, batch=32, steps=200, chunk=100, lr=1e-2
    )
    _, about = train.train(tmp_path, "needle", "scaled", settings, "cpu", NO_LIMIT)
    first, last = (loss for (loss,) in about["losses"])
    assert last < first


def test_the_command_trains_tests_and_makes_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    text = tmp_path / "input.txt"
    text.write_text("a small text, again and again.\n" * 40, encoding="utf-8")
    run = ["--quick", "--run", str(tmp_path / "run"), "--device", "cpu"]
    assert command.main([*run, "--task", "needle", "sort", "--time-limit", "0"]) == 0
    assert "The time is over" in capsys.readouterr().out
    assert command.main([*run, "--task", "needle", "sort"]) == 0
    assert f"Done: {tmp_path}/run/rows.json, 32 rows" in capsys.readouterr().out
    assert command.main([*run, "--task", "sort", "--steps", "21"]) == 1
    assert "holds rows with other steps; name another." in capsys.readouterr().err
    assert command.main(["language", *run, "--data", str(text)]) == 0
    assert command.main(["cache", *run, "--data", str(text)]) == 0
    output = tmp_path / "results"
    assert command.main(["table", str(tmp_path / "run"), "--output", str(output)]) == 0
    lengths = (output / "lengths.md").read_text(encoding="utf-8")
    assert "| needle | entmax, learned α |" in lengths
    assert "| attention | 24 | 48 |" in lengths
    page = (output / "language.md").read_text(encoding="utf-8")
    assert "| softmax |" in page
    assert "Learned α by layer and head." in page
    page = (output / "cache.md").read_text(encoding="utf-8")
    assert "| rotation | softmax | 300 |" in page
    assert "| slopes | entmax 1.5 | 2 |" in page
    assert all((output / f"{name}.png").stat().st_size for name in ("lengths", "language"))
    assert command.main(["table", str(tmp_path / "nothing"), "--output", str(output)]) == 1
    assert (
        "must hold rows.json, language.json or cache.json; train first." in capsys.readouterr().err
    )


def test_the_language_model_counts_nonzeros(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be, that is the question\n" * 20, encoding="utf-8")
    text = language.Text(path, "cpu")
    assert len(text.training) + len(text.held_out) == 20 * 41 - 1
    rows = text.stretches(2, 32)
    assert rows[0].tolist() == text.held_out[:33].tolist()
    assert rows[1].tolist() == text.held_out[32:65].tolist()
    found = {kind: language.train(text, kind, QUICK_LANGUAGE, "cpu") for kind in language.KINDS}
    for kind, row in found.items():
        counts = torch.tensor(row["nonzeros"])
        assert counts.shape == (QUICK_LANGUAGE.layers, QUICK_LANGUAGE.heads)
        assert bool((counts >= 1).all())
        assert bool((counts <= 16.5).all())
        assert bool((counts == 16.5).all()) == (kind == "softmax")
        assert [record["step"] for record in row["history"]] == [4, 8]
        assert row["milliseconds"] > 0
    with pytest.raises(ValueError, match="must have more than 500 characters"):
        text.stretches(1, 500)


def test_rotated_scores_depend_on_distances_alone() -> None:
    vector = torch.randn(1, 1, 1, 8).expand(1, 1, 50, 8)
    other = torch.randn(1, 1, 1, 8).expand(1, 1, 50, 8)
    scores = (cache.rotated(vector) @ cache.rotated(other).mT)[0, 0]
    for distance in (-7, 0, 3):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert not torch.allclose(scores[0, 0], scores[0, 5], atol=1e-3)


@pytest.mark.parametrize("kind", cache.KINDS)
@pytest.mark.parametrize("positions", cache.POSITIONS)
def test_the_cached_vectors_are_those_of_attention(kind: str, positions: str) -> None:
    """One more character: its scores follow from the vectors of those before."""
    model = cache.Cached(11, kind, positions, QUICK_CACHE)
    tokens = torch.randint(11, (1, 40))
    whole = model(tokens)
    torch.testing.assert_close(model(tokens, 3), whole[:, -3:])
    vectors = model.vectors(tokens)
    assert [x.shape for x in vectors] == [(2, 4, 40, 8)] * 3
    assert model.loss(torch.randint(11, (2, 9)), 4).ndim == 0
    first = [x[:1] for x in vectors]
    found = model._attend(*first)
    x = model.embedding(tokens)
    x = x + model.outputs[0](found.transpose(1, 2).flatten(2))
    x = x + model.networks[0](cache._normal(x))
    key = model.inputs[1](cache._normal(x)).chunk(3, -1)[2].unflatten(-1, (4, 8)).transpose(1, 2)
    torch.testing.assert_close(key, vectors[2][1:])


def test_few_pages_are_read_where_slopes_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_attend.MIN_PAGES, "cpu", 1)
    query, key, value = torch.randn(3, 1, 2, 64 * 64, 8)
    shares = cache.share_read((query, key, value), [4095, 4000], torch.tensor([0.0, 1.0]))
    assert shares.shape == (1, 2)
    assert shares[0, 1] <= 8 / 63
    assert shares[0, 0] > shares[0, 1]
    times = cache.times((query, key, value), None)
    assert times["pages"] > 0
    assert times["all"] > 0


def test_the_full_settings_are_those_of_the_page() -> None:
    settings = Settings()
    assert settings.lengths[-1] == 65536
    assert settings.seeds == 3
    assert math.log(1 + math.exp(SCALE["raw_beta"])) == pytest.approx(0.2, abs=1e-4)
    assert [settings.num_sequences(n) for n in settings.lengths] == [256, 256, 256, 128, 32, 8, 4]
