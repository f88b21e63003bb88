"""How much memory a model takes to train, and whether there is as much, before any is taken."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from ..config._schema import ModelConfig
from ..data._vocabulary import Vocabulary
from ..models._model import Seq2Seq
from ._distributed import World

TRAINED = 4
"""Numbers that training holds for each weight: itself, its gradient and Adam's two moments."""
GROUPS = Path("/sys/fs/cgroup")
"""Where Linux keeps its control groups, which limit what a container or a job may take."""
OWN = Path("/proc/self/cgroup")
"""The groups that this process is in."""


def check_memory(
    config: ModelConfig, source: Vocabulary, target: Vocabulary, world: World, divided: bool
) -> None:
    """Checks that a model can be trained here, as far as its weights go.

    Args:
        config: the architecture.
        source, target: the vocabularies.
        world: the processes that train it.
        divided: whether each holds but its part of gradients and moments.
    Raises:
        ValueError: if the device, or the machine on which it is built, has less memory than that.
    """
    with torch.device("meta"):
        weights = list(Seq2Seq(config, source, target).parameters())
    held = sum(weight.numel() * weight.element_size() for weight in weights)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    parts = world.size if divided else 1
    trained = held + (TRAINED - 1) * held // parts
    if world.device.type == "cuda":
        needs = {"the GPU": (trained, torch.cuda.get_device_properties(world.device).total_memory)}
        needs["this machine"] = (here * held, available())
    else:
        needs = {"this machine": (here * trained, available())}
    for place, (need, there) in needs.items():
        if need > there:
            count = sum(weight.numel() for weight in weights)
            raise ValueError(
                f"a model of {count:,} weights takes {_size(need)} of memory to train, before its "
                f"first batch, and {place} has {_size(there)}; lower `model.hidden`, "
                "`model.embedding`, `model.feedforward`, `model.layers` or `data.vocabulary_size`."
            )


def available() -> int:
    """The bytes of memory, swap included, that this machine or its container can still give."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    table = Path("/proc/meminfo")
    if table.exists():
        lines = (line.split() for line in table.read_text(encoding="ascii").splitlines())
        sizes = {words[0]: int(words[1]) * 1024 for words in lines}
        found = sizes.get("MemAvailable:", found) + sizes.get("SwapFree:", 0)
    return min([found, *_limits()])


def _limits() -> Iterator[int]:
    """The limits of the control groups that this process is in, and of those around them."""
    for line in OWN.read_text(encoding="utf-8").splitlines() if OWN.exists() else ():
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, file = (GROUPS / "memory", "limit_in_bytes") if controllers else (GROUPS, "max")
        place = top / name.lstrip("/")
        for folder in (place, *place.parents):
            limit = folder / f"memory.{file}"
            text = limit.read_text(encoding="ascii").strip() if limit.is_file() else ""
            if text.isdecimal():
                yield int(text)


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
