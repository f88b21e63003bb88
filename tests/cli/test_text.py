"""The task text from end to end: train, evaluate, predict, score and explain, on odd files too."""

from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path
from threading import Thread

import pytest
import yaml
from piped import run

from fenchel._format import percent
from fenchel.cli import main

ENDINGS = {"SG": "", "PL": "s", "PST": "t"}
STEMS = [f"{a}{b}{c}" for a in "bdg" for b in "aé" for c in "lmn"]
ROWS = [
    {"word": stem, "phones": " ".join(stem + end), "tag": tag}
    for stem in STEMS
    for tag, end in ENDINGS.items()
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of words and a feature to symbols, trained on a table with a header."""
    folder = tmp_path_factory.mktemp("text")
    lines = ["phones\tword\ttag", *("\t".join((r["phones"], r["word"], r["tag"])) for r in ROWS)]
    (folder / "table.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    records = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in ROWS)
    (folder / "table.jsonl.gz").write_bytes(gzip.compress(records.encode()))
    values = {
        "data": {
            "task": "text",
            "train": [str(folder / "table.tsv"), str(folder / "table.jsonl.gz")],
            "validation": str(folder / "table.tsv"),
            "source": "word",
            "target": "phones",
            "features": "tag",
            "tokens": {"source": "characters", "target": "none"},
            "unicode": "NFC",
        },
        "model": {"embedding": 16, "hidden": 32, "layers": 1, "dropout": 0.0},
        "training": {
            "folder": str(folder / "model"),
            "epochs": 25,
            "batch_size": 16,
            "learning_rate": 0.01,
            "metric": "PER",
            "device": "cpu",
        },
        "evaluation": {"measures": ["WER", "PER"]},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    assert main(["train", str(folder / "config.yaml"), "--quiet"]) == 0
    return folder


def test_the_same_figures_in_training_and_evaluation(folder: Path, capsys) -> None:
    log = (folder / "model" / "log.csv").read_text(encoding="utf-8").splitlines()
    names = log[0].split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in log[1:]]
    best = min((float(row["PER"]), float(row["WER"])) for row in rows if row["PER"])
    model, table = str(folder / "model"), str(folder / "table.tsv")
    assert main(["evaluate", model, table, "--method", "greedy", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert scores["PER"] == pytest.approx(best[0], rel=1e-4)
    with pytest.raises(SystemExit):
        main(["evaluate", model, table, "--method", "greedy", "--length-power", "1"])
    assert "--length-power needs the method beam or exhaustive." in capsys.readouterr().err
    assert main(["train", str(folder / "config.yaml"), "--quiet"]) == 0
    assert f"WER {scores['WER']:.2f}, PER {scores['PER']:.2f}" in capsys.readouterr().out


def test_evaluate_reads_json_and_other_columns(folder: Path, tmp_path: Path, capsys) -> None:
    model = str(folder / "model")
    outputs = []
    plain = tmp_path / "plain.txt"
    plain.write_text("".join(f"{r['word']}\t{r['tag']}\t{r['phones']}\n" for r in ROWS))
    for words in (
        ["table.tsv"],
        ["table.jsonl.gz"],
        [str(plain), "--columns", "source=1,features=2,target=3"],
    ):
        assert main(["evaluate", model, str(folder / words[0]), *words[1:], "--json"]) == 0
        outputs.append(json.loads(capsys.readouterr().out))
    assert outputs[0] == outputs[1] == outputs[2]
    assert outputs[0]["pairs"] == len(ROWS)
    assert outputs[0]["scores"].keys() == {"WER", "PER"}
    options = ["--measures", "accuracy,CER,BLEU", "--references", "each", "--json"]
    assert main(["evaluate", model, str(folder / "table.tsv"), *options]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert scores.keys() == {"accuracy", "CER", "BLEU"}
    assert scores["accuracy"] == pytest.approx(100 - outputs[0]["scores"]["WER"])


def test_several_references(folder: Path, tmp_path: Path, capsys) -> None:
    model, table = str(folder / "model"), tmp_path / "two.tsv"
    header = "word\tphones\ttag\n"
    table.write_text(header + "bal\tb  a l \tSG\nbal\tb a l s\tSG\n", encoding="utf-8")
    found = {}
    for way in ("any", "each"):
        assert main(["evaluate", model, str(table), "--references", way, "--json"]) == 0
        found[way] = json.loads(capsys.readouterr().out)["scores"]["WER"]
    assert found == {"any": 0.0, "each": 50.0}


def test_predict_reads_sources_or_the_test_file(folder: Path, monkeypatch, capsys) -> None:
    model = folder / "model"
    lines = "".join(f"{row['word']}\t{row['tag']}\n" for row in ROWS)
    code, plain, errors = run(monkeypatch, capsys, lines, "predict", model)
    assert (code, errors, len(plain)) == (0, "", len(ROWS))
    table = (folder / "table.tsv").read_bytes()
    assert run(monkeypatch, capsys, table, "predict", model, "--format", "tsv") == (0, plain, "")
    numbers = ("--columns", "source=2,features=3", "--header")
    assert run(monkeypatch, capsys, table, "predict", model, *numbers) == (0, plain, "")
    records = gzip.decompress((folder / "table.jsonl.gz").read_bytes())
    code, found, _ = run(monkeypatch, capsys, records, "predict", model, "--format", "json")
    assert [json.loads(line)["outputs"][0]["text"] for line in found] == plain
    decomposed = "bél\tPL\n".replace("é", "e\u0301")
    assert run(monkeypatch, capsys, decomposed, "predict", model) == (0, ["b é l s"], "")


def test_a_table_is_not_taken_for_inputs(folder: Path, monkeypatch, capsys) -> None:
    data = "bal\tPL\nbal\tb a l s\tPL\n"
    code, lines, errors = run(monkeypatch, capsys, data, "predict", folder / "model")
    assert (code, lines) == (1, ["b a l s", ""])
    assert "line 2: the line has other columns than an input; if the input is a table" in errors


def test_scores(folder: Path, monkeypatch, capsys) -> None:
    model, table = folder / "model", str(folder / "table.tsv")
    code, lines, errors = run(monkeypatch, capsys, "", "score", model, table)
    assert (code, len(lines), errors) == (0, len(ROWS), "")
    values = [line.split("\t") for line in lines]
    assert all(verdict == "possible" and -1 < float(log) <= 0 for log, verdict in values)
    piped = (folder / "table.tsv").read_bytes()
    assert run(monkeypatch, capsys, piped, "score", model, "-") == (0, lines, "")
    two = run(monkeypatch, capsys, piped, "score", model, "-", "--ensemble", model)[1]
    assert [float(line.split("\t")[0]) for line in two] == pytest.approx(
        [float(log) for log, _ in values], abs=1e-5
    )
    shares = run(monkeypatch, capsys, piped, "score", model, "-", "--probability")[1]
    assert [float(line.split("\t")[0]) for line in shares] == pytest.approx(
        [math.exp(float(log)) for log, _ in values], rel=1e-4
    )


def test_an_impossible_target_is_said_to_be_so(folder: Path, monkeypatch, capsys) -> None:
    data = "word\ttag\tphones\nbal\tPL\tb a l s\nbal\tPL\tb a t t t\n"
    model = folder / "model"
    code, (good, bad), _ = run(monkeypatch, capsys, data, "score", model, "-", "--tokens")
    assert code == 0
    assert good.split("\t")[1] == "possible"
    assert [part.split(" ")[0] for part in good.split("\t")[2:]] == ["b", "a", "l", "s", "end"]
    log, verdict, *tokens = bad.split("\t")
    assert log == "-inf"
    first = next(i for i, part in enumerate(tokens) if part.endswith(" 0"))
    assert verdict == f"impossible at token {first + 1}, {tokens[first].split(' ')[0]}"
    words = ("score", model, "-", "--tokens", "--json")
    good, bad = map(json.loads, run(monkeypatch, capsys, data, *words)[1])
    assert (good["possible"], good["first_zero"]) == (True, None)
    assert good["log_probability"] == pytest.approx(math.log(math.prod(good["probabilities"])))
    assert (bad["possible"], bad["log_probability"], bad["probability"]) == (False, None, 0.0)
    assert bad["first_zero"] == first + 1


def test_compressed_and_damaged_files_are_scored_or_refused(
    folder: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    whole = (folder / "table.jsonl.gz").read_bytes()
    table = tmp_path / "table.jsonl.gz"
    for content, code in ((whole, 0), (whole[: len(whole) // 2], 1)):
        table.write_bytes(content)
        found, _, errors = run(monkeypatch, capsys, "", "score", folder / "model", table)
        assert found == code
    assert f"fenchel score: error: {table} is damaged: " in errors


def test_bad_lines_of_a_table(folder: Path, monkeypatch, capsys) -> None:
    data = b"word\ttag\tphones\nbal\tPL\tb a l s\n\nbal\n\xff\nbal\tPL\tb q\nbal\tXX\tb\n"
    model = folder / "model"
    code, lines, errors = run(monkeypatch, capsys, data, "score", model, "-")
    assert (code, len(lines), lines[1:4]) == (1, 6, ["", "", ""])
    assert errors.splitlines() == [
        "line 3: the line is empty.",
        "line 4: the target is column 3, and the line has 1 column, without a tab.",
        "line 5: not UTF-8 at byte 1.",
        "line 6: the model does not know q in the target.",
        "line 7: the model does not know XX.",
        "fenchel score: error: 3 lines could not be read.",
    ]
    code, lines, errors = run(monkeypatch, capsys, data, "predict", model, "--format", "tsv")
    assert (code, len(lines), lines[1:4]) == (1, 6, ["", "", ""])
    records = b'{"word": "bal", "tag": ["PL"], "phones": null}\n{"word": 3}\n[]\n'
    code, lines, errors = run(monkeypatch, capsys, records, "predict", model, "--format", "json")
    assert code == 1
    assert [list(json.loads(line)) for line in lines][1:] == [["line", "input", "error"]] * 2
    assert "line 2: no key 'tag'; the keys are 'word'." in errors
    assert "line 3: not a JSON object on one line, but a list." in errors


@pytest.mark.parametrize(
    ("command", "data", "options", "message"),
    [
        ("score", "bal\tPL\tb\n", [], "line 1: the header has no column 'word' for the source; "),
        ("predict", "bal\tPL\n", ["--format", "tsv"], "error: line 1: the header has no column"),
        ("predict", "", ["--format", "json", "--columns", "source=1"], "must be a key of the JSON"),
        (
            "score",
            "bal",
            ["--columns", "source=1,target=2"],
            "header has no column 'tag' for the fe",
        ),
    ],
)
def test_columns_that_do_not_fit(
    folder: Path, monkeypatch, capsys, command: str, data: str, options: list[str], message: str
) -> None:
    words = [command, folder / "model", *(["-"] if command == "score" else []), *options]
    code, _, errors = run(monkeypatch, capsys, data, *words)
    assert code == 1
    assert errors.startswith(f"fenchel {command}: error: ")
    assert message in errors


@pytest.mark.parametrize("columns", ["1", "source=", "word=1", "source=1,source=2", ""])
def test_wrong_columns_exit_with_2(folder: Path, capsys, columns: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["predict", str(folder / "model"), "--columns", columns])
    assert stopped.value.code == 2
    assert "must be such as source=1,target=2,features=3" in capsys.readouterr().err


def test_wrong_measures_and_files_exit_with_2(folder: Path, capsys) -> None:
    model = str(folder / "model")
    for words, message in (
        (["evaluate", model, "file", "--measures", "WER,BLUE"], "got 'BLUE'"),
        (["score", model, "one", "two"], "name one file"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("target", ["b a l s", "b a t t t"])
def test_explain_judges_a_reference_as_score_does(
    folder: Path, monkeypatch, capsys, target: str
) -> None:
    model = folder / "model"
    data = f"word\ttag\tphones\nbal\tPL\t{target}\n"
    options = ("--tokens", "--probability")
    (line,) = run(monkeypatch, capsys, data, "score", model, "-", *options)[1]
    p, said, *_ = line.split("\t")
    words = ("explain", model, "bal", "--features", "PL", "--reference", target)
    judged = run(monkeypatch, capsys, "", *words)[1][-1]
    tail = "" if said == "possible" else f", {said}"
    assert judged == f"The reference as a whole has {percent(float(p))}{tail}."


def test_explain_takes_features(folder: Path, capsys) -> None:
    words = ["explain", str(folder / "model"), "bal", "--device", "cpu"]
    assert main([*words, "--features", "PL", "--reference", "b a l s"]) == 0
    assert "b a l s" in capsys.readouterr().out
    assert main(words) == 1
    assert "expected `text TAB feature;feature;…`, got 'bal'" in capsys.readouterr().err


def test_pipes_are_evaluated(folder: Path, tmp_path: Path, capsys) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content = (folder / "table.tsv").read_bytes()
    writer = Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    assert main(["evaluate", str(folder / "model"), str(pipe), "--json"]) == 0
    writer.join()
    assert json.loads(capsys.readouterr().out)["pairs"] == len(ROWS)


@pytest.mark.parametrize("command", ["evaluate", "score"])
def test_a_language_is_for_inflections(folder: Path, capsys, command: str) -> None:
    words = [command, str(folder / "model"), str(folder / "table.tsv"), "--language", "french"]
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "--language is for inflections" in capsys.readouterr().err
