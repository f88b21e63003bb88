"""What constraints allow for models that copy, and what searches then claim, by brute force."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import check_allowed_claims

from fenchel.seq2seq import (
    Characters,
    Constraint,
    ModelConfig,
    Result,
    Seq2Seq,
    Words,
    decode,
    sample,
)
from fenchel.seq2seq.data import _codes
from fenchel.seq2seq.data._copying import CopyingTarget
from fenchel.seq2seq.data._vocabulary import BOS, EOS, UNK
from fenchel.seq2seq.decoding._hypotheses import Sequences
from fenchel.seq2seq.decoding._restriction import restriction_of
from fenchel.seq2seq.models._ensemble import Ensemble

SOURCE = "qcaq"
"""q is in neither vocabulary, c in the source's alone, and a in both."""
LONGEST = 4
SCALES = {"lstm": 8, "transformer": 1}
METHODS = ("greedy", "beam", "exhaustive")


@lru_cache
def build(seed: int = 0, architecture: str = "lstm", kind: Any = Characters) -> Seq2Seq:
    torch.manual_seed(seed)
    config = ModelConfig(
        architecture=architecture,  # type: ignore[arg-type]
        hidden=6, embedding=4, layers=1, heads=2, dropout=0.0, output="sparsemax",
        copy_source=True,
    )  # fmt: skip
    model = Seq2Seq(config, kind(list("ac")), kind(list("ab"))).double().eval()
    assert model.pointer is not None
    with torch.no_grad():  # far enough from uniform for zeros to appear, and with ends and copies
        for name, parameter in model.named_parameters():
            if "encoder.layers" not in name:
                is_last = name.startswith(("output", "pointer"))
                parameter.mul_(SCALES[architecture] if is_last else 2)
        model.output.bias[EOS] += 1
        model.pointer.gate.bias += 2
    return model


def target(model: Seq2Seq) -> CopyingTarget:
    assert isinstance(model.target, CopyingTarget)
    return model.target


@lru_cache
def everything(model: Seq2Seq) -> dict[tuple[int, ...], float]:
    """Every output of up to `LONGEST` tokens and its probability, from those of actions."""
    size, copied = model.target.size, [target(model).copy_id(letter) for letter in SOURCE]
    text = " ".join(SOURCE) if isinstance(target(model).known, Words) else SOURCE
    source = torch.tensor([model.source.encode(text)])
    found = {}
    for length in range(LONGEST + 1):
        alphabet = sorted({UNK, *range(4, size), *copied})
        outputs = list(itertools.product(alphabet, repeat=length))
        tokens = torch.tensor([[BOS, *y] for y in outputs])
        with torch.no_grad():
            sources = source.expand(len(outputs), -1)
            scores, _ = model(sources, torch.full((len(outputs),), len(SOURCE)), tokens)
            p = model.probabilities(scores)
        actions = torch.tensor([*range(size), *copied])
        gives = actions == torch.tensor([[*y, EOS] for y in outputs]).unsqueeze(-1)
        total = (p * gives).sum(-1).prod(-1)
        found |= {y: value for y, value in zip(outputs, total.tolist(), strict=True) if value}
    return found


def allowed_of(model: Seq2Seq, constraint: Constraint) -> dict[tuple[int, ...], float]:
    """The outputs whose letters a constraint allows."""

    def is_allowed(tokens: tuple[int, ...]) -> bool:
        text = model.target.decode(tokens)
        letters, prefix = set(text.split() if " " in text else text), constraint.prefix
        return (
            (not isinstance(prefix, str) or text.startswith(prefix))
            and (constraint.allowed is None or letters <= set(constraint.allowed))
            and not letters & set(constraint.forbidden)
        )

    return {y: p for y, p in everything(model).items() if is_allowed(y)}


def texts_of(model: Seq2Seq, result: Result) -> set[str]:
    return {model.target.decode(each.tokens) for each in result.hypotheses if each.finished}


CONSTRAINTS = st.builds(
    Constraint,
    prefix=st.text("abcqz", max_size=3),
    allowed=st.none() | st.text("abcqz", max_size=4) | st.lists(st.sampled_from("abcqz")),
    forbidden=st.text("abcqz", max_size=2),
)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 9),
    architecture=st.sampled_from(sorted(SCALES)),
    method=st.sampled_from(METHODS),
    beam=st.integers(1, 4),
    nbest=st.none() | st.integers(1, 6),
    max_length=st.integers(1, LONGEST),
    constraint=CONSTRAINTS,
    power=st.sampled_from([0.0, 1.0]),
)
def test_every_claim_is_true(
    seed, architecture, method, beam, nbest, max_length, constraint, power
) -> None:
    model, power = build(seed, architecture), 0.0 if method == "greedy" else power
    (result,) = decode(
        model,
        [SOURCE],
        method=method,
        beam=beam,
        nbest=nbest,
        max_length=max_length,
        constraints=constraint,
        length_power=power,
    )
    truth = allowed_of(model, constraint)
    check_allowed_claims(result, truth, max_length, power=power)


@pytest.mark.parametrize("architecture", SCALES)
@pytest.mark.parametrize(
    "constraint",
    [Constraint(prefix="q"), Constraint(forbidden="a"), Constraint(allowed="qc")],
    ids=["prefix", "forbidden", "allowed"],
)
def test_searches_find_copied_letters_and_prove_it(architecture, constraint) -> None:
    certificates, letters = set(), set()
    for seed in range(40):
        model = build(seed, architecture)
        truth = allowed_of(model, constraint)
        (result,) = decode(model, [SOURCE], beam=2, max_length=3, constraints=constraint)
        check_allowed_claims(result, truth, 3)
        certificates.add(result.certificate)
        letters |= set("".join(texts_of(model, result)))
        options = {"method": "exhaustive", "max_length": LONGEST, "constraints": constraint}
        (whole,) = decode(model, [SOURCE], **options)
        if not whole.limited:
            found = {each.tokens: each.probability for each in whole.hypotheses}
            assert found == pytest.approx(truth)
    assert certificates == {"complete", "exact", "none"}
    assert "q" in letters


def test_a_letter_is_allowed_or_not_whether_written_or_copied() -> None:
    """a can be written and copied; forbidden, neither gives it."""
    for seed in range(10):
        model = build(seed)
        for forbidden in ("a", ["a"], model.target.encode("a")):
            only = Constraint(forbidden=forbidden)
            (result,) = decode(model, [SOURCE], max_length=3, constraints=only)
            assert not any("a" in text for text in texts_of(model, result))
        free, other = (
            decode(model, [SOURCE], max_length=3, constraints=each)[0]
            for each in (None, Constraint(forbidden="z"))  # which the source does not have
        )
        assert [each.tokens for each in free.hypotheses] == [
            each.tokens for each in other.hypotheses
        ]


def test_a_mask_has_a_column_for_each_different_token() -> None:
    model, text = build(), torch.tensor([build().source.encode(SOURCE), [4, 0, 0, 0]])
    ensemble, size = Ensemble(model), model.target.size
    q, c = model.target.encode("qc")
    tokens = ensemble.copied_tokens(text)
    assert tokens is not None
    assert tokens.tolist() == [[q, c, -1, -1], [-1] * 4]
    only = [Constraint(forbidden="c"), Constraint(forbidden="b")]
    restriction = restriction_of(ensemble, text, only)
    assert restriction is not None
    item, zero = torch.arange(2), torch.zeros(2)
    live = Sequences(item, zero, zero, zero, item, torch.full_like(item, BOS), zero + 1)
    restriction.advance(live, [], 0)
    mask = restriction.mask(live, 0, size + 4)
    assert mask[:, size:].tolist() == [[True, False, False, False], [False] * 4]
    assert mask[:, model.target.encode("b")[0]].tolist() == [True, False]


@pytest.mark.parametrize("kind", [Characters, Words])
def test_each_input_has_its_own_tokens(kind) -> None:
    model = build(2, kind=kind)
    texts = ["q c a q", "z", "c z z", "q x"]
    if kind is Characters:
        texts = [text.replace(" ", "") for text in texts]
    constraints = [
        Constraint(prefix="q"),
        Constraint(allowed="z"),
        None,
        Constraint(prefix=model.target.encode("x"), forbidden=["q"]),
    ]
    results = decode(model, texts, max_length=3, constraints=constraints)
    for text, constraint, result in zip(texts, constraints, results, strict=True):
        (alone,) = decode(model, [text], max_length=3, constraints=constraint)
        found = [(each.tokens, each.probability) for each in result.hypotheses]
        assert [each.tokens for each in alone.hypotheses] == [tokens for tokens, _ in found]
        assert [each.probability for each in alone.hypotheses] == pytest.approx(
            [p for _, p in found]
        )
    first, second, _, last = (texts_of(model, result) for result in results)
    assert all((first, second, last))
    assert all(text.startswith("q") for text in first)
    assert all(set(text) <= {"z", " "} for text in second)
    assert all(text.startswith("x") and "q" not in text for text in last)


def test_words_are_allowed_by_their_form() -> None:
    model = build(2, kind=Words)
    constraint = Constraint(prefix="q", forbidden="a")
    options = {"method": "exhaustive", "max_length": LONGEST, "constraints": constraint}
    (result,) = decode(model, [" ".join(SOURCE)], **options)
    truth = allowed_of(model, constraint)
    assert truth
    check_allowed_claims(result, truth, LONGEST)


def test_a_prefix_that_the_source_does_not_have_is_impossible() -> None:
    (result,) = decode(build(), [SOURCE], constraints=Constraint(prefix="x"))
    assert (result.hypotheses, result.certificate) == ([], "complete")


@pytest.mark.parametrize("constraint", [None, Constraint(forbidden="Name1873 Name7773")])
def test_words_are_not_taken_for_each_other(constraint) -> None:
    """The digests of both words of a line share their first 30 bits."""
    lines = ["a Name1873 Name260232", "a Name7773 Name65082", "Name7773 a", "Name260232"]
    copied = set[str]()
    for seed in range(5):
        model, options = build(seed, kind=Words), {"max_length": 3, "constraints": constraint}
        found = [result.hypotheses for result in decode(model, lines, **options)]
        drawn = sample(model, lines, samples=20, **options)
        for line, each in zip(lines * 2, [*found, *drawn], strict=True):
            words = {word for one in each for word in model.target.decode(one.tokens).split()}
            assert words <= {*line.split(), "a", "b", "\ufffd"}
            copied |= words
    names = {"Name1873", "Name7773", "Name260232", "Name65082"}
    assert copied & names == names - ({"Name1873", "Name7773"} if constraint else set())


def test_words_of_one_call_are_all_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_codes, "MAX_WORDS", 2)
    model, lines = build(kind=Words), [f"a new{number}" for number in range(9)]
    for result, line in zip(decode(model, lines, max_length=3), lines, strict=True):
        words = {word for text in texts_of(model, result) for word in text.split()}
        assert words <= {*line.split(), "b", "\ufffd"}


def test_a_part_of_a_prefix_is_no_output() -> None:
    for seed in range(5):
        model, only = build(seed), Constraint(prefix="qcaq")
        for length in (1, 3):
            options = {"max_length": length, "constraints": only}
            (result,) = decode(model, [SOURCE], **options)
            assert not result.hypotheses
            assert result.complete or not result.exact
            assert sample(model, [SOURCE], samples=9, **options) == [[]]


def test_ensembles_and_samples_obey() -> None:
    both = [build(1), build(1, "transformer")]
    only = Constraint(prefix="q", allowed="qb")
    (result,) = decode(both, [SOURCE], max_length=3, constraints=only)
    assert result.hypotheses
    (samples,) = sample(both, [SOURCE], samples=50, max_length=3, constraints=only)
    for each in (*result.hypotheses, *samples):
        text = both[0].target.decode(each.tokens)
        assert text.startswith("q")
        assert set(text) <= set("qb")
    assert samples


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ({"allowed": "q\ufffd"}, r"`allowed` has '\ufffd', which is no token"),
        ({"forbidden": ["qc"]}, "`forbidden` has 'qc', which is no token"),
        ({"forbidden": ["</s>"]}, r"must not hold padding, begin or end \(0, 1, 2\)"),
        ({"allowed": [8]}, "`allowed` must hold token ids below 6, or those of copied tokens, got"),
        ({"prefix": [8]}, "`prefix` must hold token ids below 6, or those of copied tokens, got 8"),
        ({"prefix": [2**40]}, f"`prefix` must hold token ids below 6, or .*, got {2**40}"),
    ],
)
def test_wrong_constraints(constraint, message) -> None:
    with pytest.raises(ValueError, match=message):
        decode(build(), [SOURCE], constraints=Constraint(**constraint))
