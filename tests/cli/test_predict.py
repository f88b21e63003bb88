"""`fenchel predict`: formats, options, bad lines and exit codes."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from small_models import save_verbs

from fenchel import cli
from fenchel.seq2seq import ModelConfig, Seq2Seq, Subwords, save
from fenchel.seq2seq.data import _lines
from fenchel.seq2seq.data._vocabulary import Characters

LINES = "draw\tV;PST\nsing\tV;PST\nd\tV\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[Path]:
    return save_verbs(tmp_path_factory.mktemp("models"))


def predict(monkeypatch, capsys, data: str | bytes, *words: object) -> tuple[int, list[str], str]:
    """The exit code, the lines written, and the errors."""
    raw = data.encode() if isinstance(data, str) else data
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    code = cli.main(["predict", *map(str, words), "--device", "cpu", "--max-length", "6"])
    printed = capsys.readouterr()
    return code, printed.out.splitlines(), printed.err


def test_one_line_for_each_input(models, monkeypatch, capsys):
    code, lines, errors = predict(monkeypatch, capsys, LINES, models[0])
    assert (code, len(lines), errors) == (0, 3, "")


@pytest.mark.parametrize("size", [1, 2, 100])
def test_order_is_kept_in_batches_of_any_size(models, monkeypatch, capsys, size):
    data = "".join(f"{'draw'[: 1 + k % 4]}\tV;PST\n" for k in range(11))
    whole = predict(monkeypatch, capsys, data, models[0], "--json")[1]
    parts = predict(monkeypatch, capsys, data, models[0], "--json", "--batch-size", size)[1]
    texts = [[out["text"] for out in json.loads(line)["outputs"]] for line in whole]
    assert [[out["text"] for out in json.loads(line)["outputs"]] for line in parts] == texts
    assert [json.loads(line)["line"] for line in parts] == list(range(1, 12))


def test_columns(models, monkeypatch, capsys):
    words = ("--nbest", 3, "--certificate")
    code, lines, _ = predict(monkeypatch, capsys, LINES, models[0], *words)
    assert code == 0
    for line in lines:
        number, _, probability, certificate = line.split("\t")
        assert number in {"1", "2", "3"}
        assert 0 < float(probability) <= 1
        assert certificate in {"complete", "exact", "none"}
    assert {line.split("\t")[0] for line in lines} == {"1", "2", "3"}
    assert len(lines) <= 9
    one = predict(monkeypatch, capsys, LINES, models[0], "--certificate")[1]
    assert [len(line.split("\t")) for line in one] == [3, 3, 3]


def test_json_lines(models, monkeypatch, capsys):
    words = ("--json", "--certificate", "--attention", "--nbest", 2)
    code, lines, _ = predict(monkeypatch, capsys, LINES, models[0], *words)
    assert code == 0
    for line, text in zip(lines, LINES.splitlines(), strict=True):
        record = json.loads(line)
        assert record["input"] == text
        assert {"exact", "complete", "mass", "bound", "limited"} <= record.keys()
        for output in record["outputs"]:
            rows = len(output["tokens"]) + 1
            assert len(output["attention"]) == rows
            assert len(output["attention"][0][0]) == len(record["source"])


def test_samples_are_those_of_the_seed_in_any_batch(models, monkeypatch, capsys):
    words = (models[0], "--sample", 3, "--seed", 5, "--temperature", 2)
    code, lines, _ = predict(monkeypatch, capsys, LINES, *words)
    assert code == 0
    assert [line.split("\t")[0] for line in lines] == ["1"] * 3 + ["2"] * 3 + ["3"] * 3
    alone = predict(monkeypatch, capsys, LINES.splitlines()[1], *words)[1]
    assert [line.split("\t")[1] for line in alone] == [line.split("\t")[1] for line in lines[3:6]]
    texts = [line.split("\t")[1] for line in lines]
    records = predict(monkeypatch, capsys, LINES, *words, "--json", "--batch-size", 1)[1]
    assert [each["text"] for line in records for each in json.loads(line)["outputs"]] == texts
    other = predict(monkeypatch, capsys, LINES, *words[:3], "--seed", 6)[1]
    assert other != lines


def test_constraints_allow_some_outputs(models, monkeypatch, capsys):
    words = (models[0], "--nbest", 4, "--method", "exhaustive", "--prefix", "dr")
    code, lines, _ = predict(monkeypatch, capsys, LINES, *words, "--forbid", "sw")
    assert code == 0
    texts = [line.split("\t")[1] for line in lines]
    assert all(text.startswith("dr") and not set(text) & set("sw") for text in texts)
    impossible = ("--prefix", "d\N{SNOWMAN}", "--certificate")
    code, lines, errors = predict(monkeypatch, capsys, LINES, models[0], *impossible)
    assert (code, lines) == (0, ["\t\tcomplete"] * 3)
    assert "line 2: no allowed output was found." in errors
    code, lines, _ = predict(monkeypatch, capsys, LINES, models[0], *impossible[:2], "--sample", 2)
    assert (code, lines) == (0, ["1\t\t", "2\t\t", "3\t\t"])
    code, lines, errors = predict(monkeypatch, capsys, LINES, models[0], "--allow", "xyz")
    assert (code, lines) == (1, [])
    assert "error: `allowed` has 'x', which is no token of the vocabulary." in errors


def test_the_unknown_token_can_be_forbidden(models, monkeypatch, capsys):
    words = (models[0], "--nbest", 50, "--method", "exhaustive")
    _, lines, _ = predict(monkeypatch, capsys, LINES, *words)
    assert any("\ufffd" in line for line in lines)
    _, found, _ = predict(monkeypatch, capsys, LINES, *words, "--no-unknown")
    assert set(found) >= {line for line in lines if "\ufffd" not in line}
    assert not any("\ufffd" in line for line in found)


def test_outputs_that_were_cut_are_counted(models, monkeypatch, capsys):
    for words in (("--sample", 9), ("--method", "greedy")):
        _, lines, errors = predict(monkeypatch, capsys, LINES, models[0], *words, "--json")
        assert errors == ""
        outputs = [each for line in lines for each in json.loads(line)["outputs"]]
        count = sum(not each["finished"] for each in outputs)
        errors = predict(monkeypatch, capsys, LINES, models[0], *words)[2]
        were = "output was" if count == 1 else "outputs were"
        note = f"note: {count} {were} cut after 6 tokens, before the end; raise --max-length.\n"
        assert count > 0
        assert errors == note


def test_constraints_of_a_model_that_copies(tmp_path, monkeypatch, capsys):
    torch.manual_seed(0)
    letters = Characters("ab")
    sizes = ModelConfig(embedding=8, hidden=8, layers=1, output="softmax", copy_source=True)
    save(Seq2Seq(sizes, letters, letters), tmp_path)
    words = (tmp_path, "--nbest", 4, "--prefix", "xa", "--allow", "axyz", "--forbid", "y")
    code, lines, _ = predict(monkeypatch, capsys, "yax\nxx\nab\n", *words)
    assert code == 0
    texts = {number: [] for number in "123"}
    for line in lines:
        number, text, _ = line.split("\t")
        texts[number].append(text)
    assert all(text.startswith("xa") and set(text) <= {"a", "x"} for text in texts["1"])
    assert len(texts["1"]) == len(texts["2"]) == 4
    assert texts["3"] == [""]  # there is no x in the third line


def test_outputs_ranked_by_a_score_have_it(models, monkeypatch, capsys):
    words = (models[0], "--nbest", 4, "--length-power", 1, "--json")
    _, lines, _ = predict(monkeypatch, capsys, LINES, *words)
    for line in lines:
        outputs = json.loads(line)["outputs"]
        scores = [each["score"] for each in outputs]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sample", 2, "--nbest", 2), "--sample does not search: leave out --nbest."),
        (("--sample", 2, "--certificate"), "--sample does not search: leave out --certificate."),
        (("--sample", 2, "--beam", 2), "--sample does not search: leave out --beam."),
        (("--sample", 2, "--method", "greedy"), "--sample does not search: leave out --method."),
        (("--temperature", 2), "--temperature needs --sample."),
        (("--gamma", 1, "--nbest", 2), "--temperature needs --sample."),
        (("--seed", 0), "--seed needs --sample."),
        (("--sample", 0), "must be a positive integer, got '0'"),
        (("--temperature", 0), "must be a number above 0 and at most 1e+06, got '0'"),
        (("--length-power", "nan"), "must be a number at least 0 and at most 10, got 'nan'"),
        (("--beam", 3, "--method", "greedy"), "--beam needs the method beam, got greedy."),
        (("--beam", 3, "--method", "exhaustive"), "--beam needs the method beam, got exhaustive."),
        (("--beam", 2, "--nbest", 3), "--nbest must be at most --beam, 2, got 3; raise --beam."),
        (("--length-power", 1, "--method", "greedy"), "needs the method beam or exhaustive"),
    ],
)
def test_options_that_do_not_go_together(models, monkeypatch, capsys, words, message):
    with pytest.raises(SystemExit, match="2"):
        predict(monkeypatch, capsys, LINES, models[0], *words)
    assert message in capsys.readouterr().err


def test_bad_lines_are_reported_and_the_others_done(models, monkeypatch, capsys):
    data = b"draw\tV;PST\nnonsense\n\xff\n\nd\0\tV\ndraw\tV;PST\n"
    code, lines, errors = predict(monkeypatch, capsys, data, models[0])
    assert code == 1
    assert len(lines) == 6
    assert lines[0] == lines[5]
    assert lines[1:5] == ["", "", "", ""]
    assert "line 2: expected a lemma and tags" in errors
    assert "line 3: not UTF-8" in errors
    assert "line 4: " in errors
    assert "line 5: a NUL at byte 2, as in a binary file." in errors
    assert "4 lines could not be read" in errors
    records = predict(monkeypatch, capsys, data, models[0], "--json")[1]
    errors = ["error" in json.loads(line) for line in records]
    assert errors == [False, True, True, True, True, False]


def test_a_line_without_end_needs_no_memory(models, monkeypatch, capsys):
    monkeypatch.setattr(_lines, "MAX_LINE_BYTES", 100)
    data = "d" * 1000 + "\tV\n" + "draw\tV;PST\n"
    code, lines, errors = predict(monkeypatch, capsys, data, models[0])
    assert code == 1
    assert lines[0] == ""
    assert len(lines) == 2
    assert "line 1: longer than 100 bytes." in errors
    assert "error: 1 line could not be read." in errors


def test_a_byte_order_mark_is_no_letter(models, monkeypatch, capsys):
    marked = predict(monkeypatch, capsys, b"\xef\xbb\xbf" + LINES.encode(), models[0], "--json")
    assert marked == predict(monkeypatch, capsys, LINES, models[0], "--json")


def test_outputs_are_utf_8_in_any_locale(models, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("d\N{SNOWMAN}\tV\n".encode())))
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert cli.main(["predict", str(models[0]), "--json", "--max-length", "2"]) == 0
    assert json.loads(written.getvalue())["input"] == "d\N{SNOWMAN}\tV"


def test_closed_streams(models, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert cli.main(["predict", str(models[0])]) == 1
    assert "standard input and standard output must be open" in capsys.readouterr().err


def test_no_input(models, monkeypatch, capsys):
    assert predict(monkeypatch, capsys, "", models[0]) == (0, [], "")


def test_several_models_are_an_ensemble(models, monkeypatch, capsys):
    words = ("--json", "--certificate")
    alone = predict(monkeypatch, capsys, LINES, models[0], *words)[1]
    together = predict(monkeypatch, capsys, LINES, *models, *words)[1]
    twice = predict(monkeypatch, capsys, LINES, models[0], models[0], *words)[1]
    assert together != alone
    for one, two in zip(alone, twice, strict=True):
        first, second = json.loads(one), json.loads(two)
        assert first["mass"] == pytest.approx(second["mass"], rel=1e-5)


def test_models_with_other_vocabularies(models, monkeypatch, capsys, tmp_path):
    letters = Characters("xyz")
    save(Seq2Seq(ModelConfig(embedding=8, hidden=8, layers=1), letters, letters), tmp_path)
    for lines in (LINES, ""):
        code, _, errors = predict(monkeypatch, capsys, lines, models[0], tmp_path)
        assert code == 1
        assert "must share their source vocabulary" in errors


def test_a_huge_search_section_of_a_model(models, monkeypatch, capsys, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(models[0], folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["search"] = {"beam": 10**11}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    code, _, errors = predict(monkeypatch, capsys, LINES, folder)
    assert code == 1
    assert "search.beam: must be at most 8192, got 100000000000; with fewer" in errors


def test_tokenizations_of_a_text_are_in_the_json(monkeypatch, capsys, tmp_path):
    letters = Subwords.build(["aaaa aaa aa a", "aab ab b"] * 9, 14)
    torch.manual_seed(0)
    save(Seq2Seq(ModelConfig(embedding=8, hidden=8, layers=1), letters, letters), tmp_path)
    words = ("--json", "--nbest", 20)
    _, (line,), _ = predict(monkeypatch, capsys, "aab\n", tmp_path, *words)
    outputs = json.loads(line)["outputs"]
    assert len({output["text"] for output in outputs}) == len(outputs)
    several = [output for output in outputs if "tokenizations" in output]
    assert several
    for output in several:
        chances = [each["probability"] for each in output["tokenizations"]]
        assert sum(chances) == pytest.approx(output["probability"])
        assert len({tuple(each["tokens"]) for each in output["tokenizations"]}) == len(chances) > 1


def test_unknown_tokens_are_in_the_json(models, monkeypatch, capsys):
    data = "dr\u00e9\u00e9w\tV;PST\ndraw\tV;PST\n"
    code, lines, errors = predict(monkeypatch, capsys, data, models[0], "--json")
    assert (code, errors) == (0, "line 1: the model does not know \u00e9.\n")
    first, second = map(json.loads, lines)
    assert first["unknown"] == ["\u00e9", "\u00e9"]
    assert "unknown" not in second
