"""The public names are those of docs/api.md, each with a docstring and an example."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import fenchel
from fenchel import mappings

API = Path(__file__).parents[1] / "docs" / "api.md"
DOCUMENTED: dict[str, set[str]] = {}
for _section in API.read_text(encoding="utf-8").split("\n## ")[1:]:
    _title = re.match(r"`([\w.]+)`", _section)
    if _title:
        _names = re.findall(r"^\| `(\w+)", _section, flags=re.MULTILINE)
        DOCUMENTED[_title[1]] = set(_names)
NEEDS = {"fenchel.integrations.sklearn": "sklearn"}
"""The packages whose names need another package."""
OBJECTS = [
    (module, name)
    for module in sorted(DOCUMENTED)
    for name in sorted(DOCUMENTED[module])
    if module not in NEEDS or find_spec(NEEDS[module])
]
FUNCTIONS = [
    (module, name)
    for module, name in OBJECTS
    if inspect.isfunction(getattr(importlib.import_module(module), name))
]
PACKAGES = ["fenchel"] + [
    module.name for module in pkgutil.walk_packages(fenchel.__path__, "fenchel.") if module.ispkg
]


def test_all_public_packages_are_documented() -> None:
    assert set(DOCUMENTED) == {
        "fenchel",
        "fenchel.attention",
        "fenchel.mappings",
        "fenchel.nn",
        "fenchel.structures",
        "fenchel.testing",
        "fenchel.latent",
        "fenchel.latent.estimators",
        "fenchel.plots",
        "fenchel.seq2seq",
        "fenchel.compat.entmax",
        "fenchel.integrations.sklearn",
        "fenchel.integrations.transformers",
    }


@pytest.mark.parametrize("module", sorted(DOCUMENTED))
def test_public_names_are_the_documented_ones(module: str) -> None:
    assert set(importlib.import_module(module).__all__) == DOCUMENTED[module]


@cache
def docstrings_with_examples(module: str) -> set[str]:
    """Those of a module whose examples `test_docstring_examples` runs."""
    tests = doctest.DocTestFinder().find(importlib.import_module(module))
    return {inspect.cleandoc(str(test.docstring)) for test in tests if test.examples}


@pytest.mark.parametrize(("module", "name"), OBJECTS)
def test_every_public_object_has_an_example(module: str, name: str) -> None:
    found = getattr(importlib.import_module(module), name)
    home = found.__name__ if inspect.ismodule(found) else found.__module__
    assert inspect.getdoc(found) in docstrings_with_examples(home)


@pytest.mark.parametrize("mapping", mappings.examples(), ids=lambda mapping: mapping.name)
def test_every_mapping_has_an_example(mapping: mappings.AbstractMapping) -> None:
    assert ">>> " in str(inspect.getdoc(type(mapping)))


@pytest.mark.parametrize(("module", "name"), FUNCTIONS)
def test_no_public_function_takes_arbitrary_keywords(module: str, name: str) -> None:
    if name == "get":  # hands them to a class and checks them
        return
    function = getattr(importlib.import_module(module), name)
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_function_has_the_name_of_a_module(package: str) -> None:
    module = importlib.import_module(package)
    inside = {name for _, name, _ in pkgutil.iter_modules(module.__path__)}
    for name in set(getattr(module, "__all__", ())) & inside:
        assert isinstance(getattr(module, name), ModuleType)


# The modules of a compat package are those of the package that it stands for.
@pytest.mark.parametrize(
    "package", [name for name in DOCUMENTED if name not in ("fenchel", "fenchel.compat.entmax")]
)
def test_leaves_of_a_public_package_are_private(package: str) -> None:
    module = importlib.import_module(package)
    for _, name, is_package in pkgutil.iter_modules(getattr(module, "__path__", ())):
        assert is_package or name.startswith("_")


def test_import_leaves_what_is_rarely_used() -> None:
    """What an import reads is most of its time, and does not depend on the machine."""
    code = (
        "import torch, sys; before = set(sys.modules); import fenchel; "
        "print(*(name for name in sys.modules if name not in before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    read = set(done.stdout.split())
    own = {name for name in read if name.split(".")[0] == "fenchel"}
    assert len(own) <= 54
    later = {"attention", "latent", "structures"}
    for name in (*later, "plots", "seq2seq", "testing", "compat", "cli"):
        assert f"fenchel.{name}" not in own
    assert not read & {
        "triton",
        "matplotlib",
        "numpy.testing",
        "torch.distributed.tensor",
        "sklearn",
    }
    for name in later:
        assert getattr(fenchel, name).__name__ == f"fenchel.{name}"
    assert set(fenchel.__all__) <= set(dir(fenchel))
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        fenchel.missing  # noqa: B018


def test_all_names_leave_a_function_alone() -> None:
    """The function has the name of its package."""
    names: dict[str, object] = {}
    exec("from fenchel.attention import attention\nfrom fenchel import *", names)
    assert inspect.isfunction(names["attention"])


def test_import_needs_no_matplotlib() -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; import fenchel, fenchel.plots, fenchel.cli"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_import_in_inference_mode() -> None:
    code = """
import torch
with torch.inference_mode():
    import fenchel
    fenchel.entmax(torch.zeros(2))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
