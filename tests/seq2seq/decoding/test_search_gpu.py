"""Search on a GPU claims nothing false, and finds what it finds on the CPU."""

from __future__ import annotations

import pytest
import torch
from tables import Table, check_claims, inputs

from fenchel.seq2seq import Constraint, ModelConfig, Seq2Seq, sample, search
from fenchel.seq2seq.data._vocabulary import Characters

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("method", ["greedy", "beam", "exhaustive"])
def test_tables(method):
    source, lengths = inputs(*range(40))
    table = Table(3)
    results = search(table, source.cuda(), lengths.cuda(), method=method, attention=True)
    for item, result in enumerate(results):
        check_claims(result, table.everything(item), 100)
        assert result.complete or method != "exhaustive"
        for each in result.hypotheses:
            steps = torch.arange(len(each.tokens) + 1.0, device="cuda")
            torch.testing.assert_close(each.attention, steps[:, None, None].expand(-1, 1, 3))


@pytest.mark.parametrize("architecture", ["lstm", "transformer"])
def test_models(architecture):
    letters = Characters("abcdefgh")
    config = ModelConfig(architecture=architecture, embedding=16, hidden=16, layers=1)
    model = Seq2Seq(config, letters, letters).eval()
    with torch.no_grad():  # far from uniform, so that little is possible
        for parameter in model.parameters():
            parameter.mul_(4)
    source = torch.randint(4, letters.size, (20, 7))
    lengths = torch.randint(1, 8, (20,))
    here = search(model, source, lengths, beam=4, max_length=12)
    there = search(model.cuda(), source.cuda(), lengths.cuda(), beam=4, max_length=12)
    for one, other in zip(here, there, strict=True):
        assert one.hypotheses[0].tokens == other.hypotheses[0].tokens
        assert other.mass == pytest.approx(one.mass, rel=1e-3, abs=1e-6)
        assert (one.exact, one.limited) == (other.exact, other.limited)


def test_constraints_and_length_normalization():
    source, lengths = inputs(*range(20))
    table = Table(3)
    constraints = [Constraint(prefix=[4 + item % 3], forbidden=[7]) for item in range(20)]
    options = {"constraints": constraints, "length_power": 0.6, "max_length": 4}
    here = search(table, source, lengths, **options)
    there = search(table, source.cuda(), lengths.cuda(), **options)
    assert any(result.hypotheses for result in here)
    for one, other in zip(here, there, strict=True):
        assert [each.tokens for each in one.hypotheses] == [
            each.tokens for each in other.hypotheses
        ]
        assert (one.exact, one.complete) == (other.exact, other.complete)
        assert other.mass == pytest.approx(one.mass)


@pytest.mark.parametrize("architecture", ["lstm", "transformer"])
def test_samples(architecture):
    torch.manual_seed(0)
    letters = Characters("abcdefgh")
    config = ModelConfig(architecture=architecture, embedding=16, hidden=16, layers=1)
    model = Seq2Seq(config, letters, letters).eval()
    options = {"samples": 30, "max_length": 8, "constraints": Constraint(prefix="a")}
    texts = ["abc", "h", "gadfly"]
    here = sample(model, texts, **options)
    there = sample(model.cuda(), texts, **options)
    pairs = [
        (a, b)
        for one, other in zip(here, there, strict=True)
        for a, b in zip(one, other, strict=True)
    ]
    # A random number may fall between the two devices' boundaries.
    assert sum(a.tokens == b.tokens for a, b in pairs) >= 0.95 * len(pairs)
    for a, b in pairs:
        if a.tokens == b.tokens:
            assert b.log_probability == pytest.approx(a.log_probability, abs=1e-3)
