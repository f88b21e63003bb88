"""The recipes of grapheme-to-phoneme conversion and summarization, and predictions of files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from experiments.grapheme_to_phoneme import __main__ as pronunciation
from experiments.grapheme_to_phoneme import table as pronunciation_table
from experiments.summarization import __main__ as summarization
from experiments.summarization import table as summarization_table

from experiments import predict, recipe
from fenchel.seq2seq import load_config

SMALL = [
    "model.hidden=8",
    "model.embedding=8",
    "model.layers=1",
    "training.epochs=1",
    "training.device=cpu",
    "training.precision=float32",
]


@pytest.fixture
def words(tmp_path: Path) -> Path:
    folder = tmp_path / "words"
    folder.mkdir()
    pairs = ["ab\ta b", "ba\tb a", "aba\ta b a"]
    for name, lines in (("train", pairs * 8), ("dev", pairs)):
        (folder / f"xyz_{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "xyz_covered-test.txt").write_text("abab\nb\n", encoding="utf-8")
    return folder


def test_grapheme_to_phoneme(words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = words.parent / "runs"
    arguments = ["run", str(words), "--alphas", "1.5", "--output", str(output), "--set", *SMALL]
    assert pronunciation.main(arguments) == 0
    assert "| xyz |" in capsys.readouterr().out
    (result,) = json.loads((output / "results.json").read_text(encoding="utf-8"))["results"]
    assert (result["language"], result["alpha"], result["training"]["epochs"]) == ("xyz", 1.5, 1)
    written = gzip.decompress((output / "predictions" / "xyz-1.5-0.txt.gz").read_bytes())
    assert [line.split("\t")[0] for line in written.decode().splitlines()] == ["abab", "b"]
    (output / "xyz-1.5-0" / "weights.safetensors").unlink()  # nothing is trained again
    assert pronunciation.main(arguments) == 0
    (output / "machine.json").write_text(json.dumps({"gpu": "A", "cpu": "B", "torch": "1"}))
    more = ["run", str(words), "--output", str(output), "--table-only"]
    assert pronunciation.main(more) == 0
    assert not (output / "xyz-1-0").exists()
    assert "GPU: A; torch 1." in (output / "results.md").read_text(encoding="utf-8")
    assert pronunciation.main(["run", str(output)]) == 1
    assert "holds no files named LANGUAGE_train.tsv" in capsys.readouterr().err


def pronounced(language: str, alpha: float, seed: int, wer: float) -> dict:
    scores = {"scores": {"WER": wer, "PER": wer / 4}}
    sparsity = {"sparsity": {"single_hypothesis": 50.0, "attention_nonzeros": 1.5}}
    return {"language": language, "alpha": alpha, "seed": seed, **scores, **sparsity}


def test_languages_are_averaged_where_every_alpha_has_them() -> None:
    results = [
        pronounced("one", 1.0, 0, 10.0),
        pronounced("one", 1.5, 0, 8.0),
        pronounced("one", 1.5, 1, 10.0),
        pronounced("two", 1.0, 0, 20.0),
        pronounced("two", 1.5, 0, 16.0),
        pronounced("two", 1.5, 1, 18.0),
        pronounced("three", 1.5, 0, 99.0),
    ]
    rows = [line.split(" | ") for line in pronunciation_table.page(results).splitlines()[-4:]]
    assert [row[1] for row in rows] == ["10.00", "20.00", "", "15.00"]
    assert [row[3] for row in rows] == ["9.00 ± 1.41", "17.00 ± 1.41", "99.00", "13.00 ± 1.41"]
    assert rows[3][0] == "| **mean of 2**"


def test_published_table_is_that_of_its_records() -> None:
    folder = Path(pronunciation.__file__).parent / "results"
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))["results"]
    published = (folder / "table.md").read_text(encoding="utf-8")
    assert published.startswith(pronunciation_table.page(results) + "\n")
    names = {f"{one['language']}-{one['alpha']:g}-{one['seed']}.txt.gz" for one in results}
    assert {path.name for path in (folder / "predictions").iterdir()} == names


def summarized(attention: str, seed: int, score: float) -> dict:
    scores = {"scores": dict.fromkeys(summarization_table.MEASURES, score)}
    more = {"sparsity": {"attention_nonzeros": 2.0}, "training": {"epochs": 3, "minutes": 1.0}}
    return {"attention": attention, "seed": seed, **scores, **more}


def test_summaries_are_averaged_over_seeds_beside_the_paper() -> None:
    results = [summarized("softmax", 0, 10.0), summarized("softmax", 1, 12.0)]
    page = summarization_table.page([*results, summarized("entmax", 0, 11.0)])
    assert "| softmax | 2 | 11.00 ± 1.41 | 11.00 ± 1.41 | 11.00 ± 1.41 | 2.00 ± 0.00 |" in page
    assert "| 35.13 | 17.15 | 32.92 |" in page
    assert page.splitlines()[-1].startswith("| entmax | 1 | 11.00 | 11.00 | 11.00 | 2.00 |")


@pytest.mark.slow
def test_summarization(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["please call me today\tcall me", "the price of gas is up\tgas price"]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines * 8) + "\n", encoding="utf-8")
    (tmp_path / "covered-test.txt").write_text("call me\n", encoding="utf-8")
    shared = [str(tmp_path), "--output", str(tmp_path / "out"), "--attentions", "fusedmax"]
    small = ["--set", *SMALL, "data.tokens=words", "data.shared_vocabulary=false"]
    assert summarization.main(["run", *shared, *small]) == 0
    assert "| fusedmax | 1 |" in capsys.readouterr().out
    written = (tmp_path / "out" / "predictions" / "fusedmax-0.txt.gz").read_bytes()
    assert len(gzip.decompress(written).decode().splitlines()) == 1
    assert summarization.main(["pictures", *shared]) == 0
    drawn = list((tmp_path / "out" / "pictures").iterdir())
    assert len(drawn) == len(summarization_table.SENTENCES)


@pytest.mark.parametrize("of", [pronunciation, summarization])
def test_configurations_can_be_used(of: object) -> None:
    config = load_config(of.CONFIG, ["data.train=[a]", "data.validation=[b]"])  # type: ignore[attr-defined]
    assert config.model.layers == 1
    assert config.search.beam == 5


def test_attentions_have_the_papers_options_and_a_strength() -> None:
    assert recipe.attention("softmax") == "softmax"
    assert recipe.attention("softmax", 2.0) == {"mapping": "softmax", "gamma": 2.0}
    assert recipe.attention("fusedmax") == {"mapping": "fusedmax", "lam": 0.1}


@pytest.mark.slow
def test_lines_of_a_file_have_lines_of_output(words: Path) -> None:
    output = words.parent / "runs"
    small = ["--set", *SMALL]
    arguments = ["run", str(words), "--alphas", "1", "--output", str(output), *small]
    assert pronunciation.main(arguments) == 0
    model, plain = output / "xyz-1-0", words.parent / "plain.txt"
    covered = words / "xyz_covered-test.txt"
    given = [str(model), str(model), "--input", str(covered), "--output", str(plain)]
    assert predict.main([*given, "--length-power", "1", "--max-length", "3"]) == 0
    lines = plain.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    assert all(len(line.split()) <= 3 for line in lines)
