"""Whether there is enough memory to train a model, before any is allocated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from ..config._schema import ModelConfig
from ..data._vocabulary import Vocabulary
from ..models._model import Seq2Seq
from ._distributed import World

NUMBERS_PER_WEIGHT = 4
"""What training stores for each weight: itself, its gradient and Adam's two moments."""
CGROUP_ROOT = Path("/sys/fs/cgroup")
"""The control groups of Linux, which limit the memory of a container or a job."""
OWN_CGROUPS = Path("/proc/self/cgroup")
"""The control groups of this process."""


def check_memory(
    config: ModelConfig, source: Vocabulary, target: Vocabulary, world: World, is_sharded: bool
) -> None:
    """Checks that a model's weights, gradients and moments fit into memory.

    Args:
        config: the architecture.
        source, target: the vocabularies.
        world: the processes that train it.
        is_sharded: whether each process holds only its shard of gradients and moments.
    Raises:
        ValueError: if the device, or the machine on which the model is built, has less memory.
    """
    with torch.device("meta"):
        weights = list(Seq2Seq(config, source, target).parameters())
    weight_bytes = sum(weight.numel() * weight.element_size() for weight in weights)
    local_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    shards = world.size if is_sharded else 1
    training_bytes = weight_bytes + (NUMBERS_PER_WEIGHT - 1) * weight_bytes // shards
    if world.device.type == "cuda":
        gpu_bytes = torch.cuda.get_device_properties(world.device).total_memory
        needs = {
            "the GPU": (training_bytes, gpu_bytes),
            "this machine": (local_processes * weight_bytes, available()),
        }
    else:
        needs = {"this machine": (local_processes * training_bytes, available())}
    for place, (needed, found) in needs.items():
        if needed > found:
            count = sum(weight.numel() for weight in weights)
            raise ValueError(
                f"a model of {count:,} weights takes {_gibibytes(needed)} of memory to train, "
                f"before its first batch, and {place} has {_gibibytes(found)}; lower "
                "`model.hidden`, `model.embedding`, `model.feedforward`, `model.layers` or "
                "`data.vocabulary_size`."
            )


def available() -> int:
    """The bytes of memory, with swap, that this machine or its container still has."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    table = Path("/proc/meminfo")
    if table.exists():
        lines = (line.split() for line in table.read_text(encoding="ascii").splitlines())
        sizes = {words[0]: int(words[1]) * 1024 for words in lines}
        found = sizes.get("MemAvailable:", found) + sizes.get("SwapFree:", 0)
    return min([found, *_cgroup_limits()])


def _cgroup_limits() -> Iterator[int]:
    """The limits of the control groups of this process, and of their parents."""
    if not OWN_CGROUPS.exists():
        return
    for line in OWN_CGROUPS.read_text(encoding="utf-8").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        is_version_1 = bool(controllers)
        root = CGROUP_ROOT / "memory" if is_version_1 else CGROUP_ROOT
        group = root / name.lstrip("/")
        for folder in (group, *group.parents):
            limit = folder / ("memory.limit_in_bytes" if is_version_1 else "memory.max")
            text = limit.read_text(encoding="ascii").strip() if limit.is_file() else ""
            if text.isdecimal():
                yield int(text)


def _gibibytes(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
