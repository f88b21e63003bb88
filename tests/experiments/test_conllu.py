"""CoNLL-U in, CoNLL-U out."""

from __future__ import annotations

import pytest
from experiments.dependency_parsing.conllu import read_conllu, write_conllu

TEXT = """\
# text = vámonos al mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\t_\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t1:obj\t_
3\tmar\tmar\tNOUN\t_\t_\t1\tobl\t_\tSpaceAfter=No
3.1\tx\t_\t_\t_\t_\t_\t_\t_\t_

# text = two
1\ttwo\ttwo\tNUM\t_\t_\t_\t_\t_\t_

"""


def written(tmp_path, text):
    path = tmp_path / "some.conllu"
    path.write_text(text, encoding="utf-8")
    return path


def test_reading(tmp_path):
    first, second = read_conllu(written(tmp_path, TEXT))
    assert first.words == ("vamos", "nos", "mar")
    assert first.tags == ("VERB", "PRON", "NOUN")
    assert first.heads == (0, 1, 1)
    assert first.code == [0, 0, 0]
    assert second.heads == tuple(second.code) == (-1,)


def test_the_last_empty_line_may_be_missing(tmp_path):
    assert len(read_conllu(written(tmp_path, TEXT.rstrip("\n")))) == 2


def test_writing_changes_heads_and_keeps_the_rest(tmp_path):
    sentences = read_conllu(written(tmp_path, TEXT))
    path = tmp_path / "out.conllu"
    write_conllu(path, sentences, [[2, 2, 2], [0]])
    first, second = read_conllu(path)
    assert first.heads == (3, 3, 0)
    assert second.heads == (0,)
    changed = {
        (before, after)
        for before, after in zip(
            TEXT.splitlines(), path.read_text("utf-8").splitlines(), strict=True
        )
        if before != after
    }
    assert len(changed) == 4
    assert "3\tmar\tmar\tNOUN\t_\t_\t0\t_\t_\tSpaceAfter=No" in {after for _, after in changed}


def test_what_is_no_conllu_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"some.conllu, line 2: a line must have 10 fields, got 1"):
        read_conllu(written(tmp_path, "# text\nword\n\n"))
    bad = TEXT.replace("\t1\tobl", "\t7\tobl")
    with pytest.raises(ValueError, match="before line 7: a head is 7, but there are 3 words"):
        read_conllu(written(tmp_path, bad))
