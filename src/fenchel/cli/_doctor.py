"""`fenchel doctor`: what is in use, what is missing, and the remedy."""

from __future__ import annotations

import platform
from importlib import metadata
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import torch

from .. import __version__
from ..mappings import get
from ..ops import _binding, _native, _triton

OLDEST_TORCH = (2, 8)
SEQ2SEQ = (
    "pydantic", "rich", "rouge_score", "sacrebleu", "safetensors", "sentencepiece", "tensorboardX",
    "yaml",
)  # fmt: skip
"""The modules that the extra `seq2seq` installs."""
SERVE = ("h11", "starlette", "uvicorn")
"""The modules that the extra `serve` installs beyond these."""
EXPORT = ("onnx", "onnxscript")
"""The modules that the extra `export` installs beyond these."""


class Finding(NamedTuple):
    """One line of the report; `remedy` is empty if nothing is missing."""

    subject: str
    state: str
    remedy: str = ""
    fatal: bool = False


def run() -> int:
    """Prints the report; returns 0 if the package is usable."""
    extras = [_matplotlib(), _extra("seq2seq", SEQ2SEQ, "train, predict and explain")]
    extras.append(_extra("serve", SERVE, "answer HTTP requests"))
    findings = [*_versions(), _native_library(), _bound(), *_devices(), *extras, _self_test()]
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        print(f"{finding.subject:<{width}}  {finding.state}")
    remedies = [finding for finding in findings if finding.remedy]
    if remedies:
        print("\nWhat to do:")
    for finding in remedies:
        print(f"  {finding.subject}: {finding.remedy}")
    usable = not any(finding.fatal for finding in findings)
    print(f"\nfenchel is {'usable' if usable else 'NOT usable'} here.")
    return 0 if usable else 1


def _versions() -> list[Finding]:
    old = tuple(int(part) for part in torch.__version__.split(".")[:2]) < OLDEST_TORCH
    remedy = f"install torch {'.'.join(map(str, OLDEST_TORCH))} or newer." if old else ""
    system = f"{platform.system()} {platform.machine()}"
    return [
        Finding("fenchel", __version__),
        Finding("python", f"{platform.python_version()} on {system}"),
        Finding("torch", torch.__version__, remedy, old),
        Finding("numpy", np.__version__),
    ]


def _native_library() -> Finding:
    state, _, remedy = _native.STATUS.partition("; ")
    return Finding("native library", state, f"{remedy}." if _native.LIBRARY is None else "")


def _bound() -> Finding:
    return Finding("binding", _binding.STATUS.partition("; ")[0])


def _devices() -> list[Finding]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    kernels, _, remedy = _triton.STATUS.partition("; ")
    return [
        Finding("threads", f"{torch.get_num_threads()} (torch.set_num_threads changes it)"),
        Finding("triton", _version("triton") or "not installed"),
        Finding("gpu", gpu or "none that torch can use; everything runs on the CPU"),
        Finding("gpu kernels", kernels, f"{remedy}." if gpu and remedy else ""),
    ]


def _matplotlib() -> Finding:
    found = _version("matplotlib")
    remedy = "" if found else "install it with `pip install 'fenchel[plots]'` to draw pictures."
    return Finding("matplotlib", found or "not installed", remedy)


def _extra(name: str, modules: tuple[str, ...], purpose: str) -> Finding:
    missing = [module for module in modules if find_spec(module) is None]
    state = f"without {', '.join(missing)}" if missing else "all that the toolkit needs"
    command = f"pip install 'fenchel[{name}]'"
    remedy = f"install it with `{command}` to {purpose}." if missing else ""
    return Finding(name, state, remedy)


def _self_test() -> Finding:
    """Whether a mapping is correct on every device."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        y = get("sparsemax")(torch.tensor([1.0, 0.5, -1.0], device=device))
        if not torch.allclose(y.cpu(), torch.tensor([0.75, 0.25, 0.0])):
            break
    else:
        return Finding("self-test", f"passed on {' and '.join(devices)}")
    remedy = "set FENCHEL_KERNELS=reference, and report this with the lines above."
    return Finding("self-test", f"failed: sparsemax gave {y.tolist()}", remedy, fatal=True)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
