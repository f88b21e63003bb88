"""`fenchel doctor`: what it reports, and when it calls the package unusable."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import fenchel
from fenchel import cli
from fenchel.cli import _doctor
from fenchel.ops import _native


def test_report_names_what_is_in_use(capsys):
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    for word in (fenchel.__version__, torch.__version__, "numpy", "threads", "triton", "gpu"):
        assert word in out
    assert _native.STATUS.partition("; ")[0] in out
    assert "fenchel is usable here." in out


def test_missing_library_has_a_remedy(monkeypatch, capsys):
    monkeypatch.setattr(_native, "LIBRARY", None)
    monkeypatch.setattr(_native, "STATUS", "not found; install a compiler")
    assert cli.main(["doctor"]) == 0
    assert "native library: install a compiler." in capsys.readouterr().out


def test_missing_packages_of_the_toolkit_have_a_remedy(monkeypatch, capsys):
    assert cli.main(["doctor"]) == 0
    assert "all that the toolkit needs" in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "without sacrebleu" in printed
    assert "pip install 'fenchel[seq2seq]'" in printed


def test_old_torch_is_not_usable(monkeypatch, capsys):
    monkeypatch.setattr(torch, "__version__", "2.7.1")
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "torch: install torch 2.8 or newer." in out
    assert "fenchel is NOT usable here." in out


def test_wrong_answers_are_not_usable(monkeypatch, capsys):
    monkeypatch.setattr(_doctor, "get", lambda name: lambda scores: scores)
    assert cli.main(["doctor"]) == 1
    assert "FENCHEL_KERNELS=reference" in capsys.readouterr().out


NOWHERE = {"FENCHEL_LIBRARY_DIR": "/nowhere"}


def run_doctor(**variables):
    inherited = {key: word for key, word in os.environ.items() if not key.startswith("FENCHEL_")}
    return subprocess.run(
        [sys.executable, "-m", "fenchel", "doctor"],
        capture_output=True,
        text=True,
        env={**inherited, **variables},
    )


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"FENCHEL_KERNELS": "reference"}, "switched off by FENCHEL_KERNELS=reference"),
        (NOWHERE, "not found, the slower references are used"),
        ({**NOWHERE, "FENCHEL_ISA": "v3"}, "not found for FENCHEL_ISA=v3, the slower references"),
    ],
)
def test_environment_is_reported(variables, message):
    done = run_doctor(**variables)
    assert done.returncode == 0, done.stderr
    assert message in done.stdout
    assert "What to do:" in done.stdout


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("FENCHEL_KERNELS", "`FENCHEL_KERNELS` must be fast or reference, got 'mistyped'."),
        ("FENCHEL_ISA", "`FENCHEL_ISA` must be baseline, v3 or v4, got 'mistyped'."),
        ("FENCHEL_BINDING", "`FENCHEL_BINDING` must be on or off, got 'mistyped'."),
    ],
)
def test_a_mistyped_setting_is_an_error(variable, message):
    done = run_doctor(**{variable: "mistyped"})
    assert done.returncode != 0
    assert message in done.stderr
