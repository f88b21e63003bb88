"""The last state of a training, from which it goes on bit by bit as if it had never stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._files import FormatError, fill, full, like, read_tensors, write_tensors
from ..models._folder import check_vocabularies, digest_of
from ..models._model import Seq2Seq
from ._distributed import World

NAME = "last.safetensors"
SCHEDULE = ("learning_rate", "lr_decay", "lr_patience", "min_lr_ratio", "max_grad_norm")
"""The keys of `training` whose change is told: they make it another training from here on."""
MAY_CHANGE = (
    "folder", "epochs", "steps", "minutes", "early_stopping_patience", "validate_every",
    "validate_unit", "checkpoint_every", "log_every", *SCHEDULE,
)  # fmt: skip
"""The keys of `training` that may have other values when a training goes on."""
PLATEAU = ("best", "num_bad_epochs", "last_epoch", "cooldown_counter", "_last_lr")
"""What the schedule remembers; the rest of its state are keys that may change."""


@dataclass
class Progress:
    """Where a training is.

    Args:
        step: steps done.
        epoch, buffer, batch: the next batch.
        seconds: time spent.
        tokens: target tokens since the last line of the log.
        validated: the step of the last validation.
        best: the best value of the metric so far, and the metrics and step that go with it.
        worse: validations since then.
        pairs: how many there are to train on and to validate with, as far as they are in memory.
        digests: of the pairs to validate with and of each buffer of those to train on, by name.
    """

    step: int = 0
    epoch: int = 0
    buffer: int = 0
    batch: int = 0
    seconds: float = 0.0
    tokens: int = 0
    validated: int = -1
    best: dict[str, float] = field(default_factory=dict)
    worse: int = 0
    pairs: list[int] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)


def fixed_part(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the keys that may change; what a checkpoint must agree with."""
    training = {key: value for key, value in config["training"].items() if key not in MAY_CHANGE}
    return {"model": config["model"], "data": config["data"], "training": training}


def save(
    folder: Path,
    model: Seq2Seq,
    optimizer: Optimizer,
    scheduler: Any,
    losses: Tensor,
    progress: Progress,
    config: dict[str, Any],
    world: World,
) -> None:
    """Writes the checkpoint; every process must call it, and the first one writes."""
    tensors = {f"model.{name}": full(p) for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{key}"] = full(value)
    states = _random_states(world.device)
    for kind, state in states.items():
        for rank, part in enumerate(world.gather(state)):
            tensors[f"random.{kind}.{rank}"] = part
    for rank, part in enumerate(world.gather(losses)):
        tensors[f"losses.{rank}"] = part
    if world.first:
        value = {
            "progress": asdict(progress),
            "learning_rate": float(optimizer.param_groups[0]["lr"]),
            "scheduler": scheduler.state_dict(),
            "processes": world.size,
            "config": config,
            "vocabularies": digest_of((model.source, model.target)),
        }
        write_tensors(folder / NAME, tensors, value)
    world.wait()


def check(folder: Path, config: dict[str, Any], world: World) -> list[str]:
    """Checks that a checkpoint, if there is one, fits a configuration and as many processes.

    Returns:
        The keys of the schedule that have other values than it was written with.
    Raises:
        ValueError: if it does not, with the keys that differ.
        FormatError: if it is damaged.
    """
    path = folder / NAME
    if not path.exists():
        return []
    with _understood(path):
        value = read_tensors(path)[1]
        _agree(path, value, config, world)
        now, then = config["training"], value["config"]["training"]
        return [key for key in SCHEDULE if then.get(key, now[key]) != now[key]]


def restore(
    folder: Path,
    model: Seq2Seq,
    optimizer: Optimizer,
    scheduler: Any,
    losses: Tensor,
    config: dict[str, Any],
    world: World,
) -> Progress:
    """Reads the checkpoint, if there is one, into the model and all that trains it.

    Raises:
        FormatError: if it is damaged, or goes with other vocabularies.
    """
    path = folder / NAME
    if not path.exists():
        return Progress()
    tensors, value = read_tensors(path)
    check_vocabularies(folder, (model.source, model.target), value, NAME)
    with _understood(path):
        progress = Progress(**value["progress"])
        scheduler.load_state_dict({key: value["scheduler"][key] for key in PLATEAU})
        for group in optimizer.param_groups:
            _set_rate(group, _rate(value, config))
        _restore_random_states(tensors, world)
        losses.copy_(tensors[f"losses.{world.rank}"])
    fill(dict(model.named_parameters()), _under("model.", tensors), path)
    states = _under("optimizer.", tensors)
    for name, parameter in model.named_parameters():
        found = _under(f"{name}.", states)
        for key, tensor in found.items():
            if tensor.shape == parameter.shape:
                optimizer.state[parameter][key] = like(tensor, parameter)
            else:  # the number of steps, which stays on the CPU unless the optimizer says so
                group = optimizer.param_groups[0]
                on_device = group.get("fused") or group.get("capturable")
                device = parameter.device if on_device else tensor.device
                optimizer.state[parameter][key] = tensor.to(device)
    return progress


@contextmanager
def _understood(path: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path} is not a checkpoint: {error}.") from None


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}


def _rate(value: dict[str, Any], config: dict[str, Any]) -> float:
    """The learning rate to go on with: in proportion, if it began with another one, and not below
    its floor."""
    rate, first = value["learning_rate"], config["training"]["learning_rate"]
    before = value["config"]["training"].get("learning_rate", first)
    if before != first:
        rate *= first / before
    return max(rate, config["training"]["min_lr_ratio"] * first)


def _set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def _random_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _restore_random_states(tensors: dict[str, Tensor], world: World) -> None:
    torch.set_rng_state(tensors[f"random.cpu.{world.rank}"])
    if world.device.type == "cuda":
        torch.cuda.set_rng_state(tensors[f"random.cuda.{world.rank}"], world.device)


def _agree(path: Path, value: dict[str, Any], config: dict[str, Any], world: World) -> None:
    """Raises if a checkpoint is that of another configuration or number of processes."""
    now, then = fixed_part(config), fixed_part(value["config"])
    differing = [
        f"{section}.{key}"
        for section in now
        for key in sorted({*now[section], *then[section]})
        if now[section].get(key) != then[section].get(key)
    ]
    if differing:
        raise ValueError(
            f"{path} was written with other values of {', '.join(differing)}; choose another "
            "`training.folder`, or remove this one to start again."
        )
    if value["processes"] != world.size:
        raise ValueError(
            f"{path} was written by {value['processes']} processes, and this is one of "
            f"{world.size}; start as many."
        )
