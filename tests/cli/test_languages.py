"""The language of inflections that come from standard input."""

from __future__ import annotations

from pathlib import Path

import pytest

from fenchel.cli import main
from fenchel.seq2seq import Characters, Inflection, ModelConfig, Seq2Seq, save


@pytest.mark.parametrize("command", [["score"], ["evaluate", "--task", "inflection"]])
def test_standard_input_has_no_name_that_says_it(tmp_path: Path, capsys, command) -> None:
    source = Inflection(["english", "german"], ["V"], list("draw"))
    config = ModelConfig(embedding=4, hidden=4, layers=1)
    save(Seq2Seq(config, source, Characters("drew")), tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main([*command, str(tmp_path), "-"])
    said = "add --language: standard input has no name that says it; one of english, german."
    assert said in capsys.readouterr().err
