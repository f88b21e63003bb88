"""The checkpoint of a training, which resumes from it as if it had never stopped, bit by bit."""

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
"""The keys of `training` whose change is noted, since it changes what is learnt from here on."""
MAY_CHANGE = (
    "folder", "epochs", "steps", "minutes", "early_stopping_patience", "validate_every",
    "validate_unit", "checkpoint_every", "log_every", *SCHEDULE,
)  # fmt: skip
"""The keys of `training` that may have other values when a training resumes."""
SCHEDULER_STATE = ("best", "num_bad_epochs", "last_epoch", "cooldown_counter", "_last_lr")
"""What is restored of the scheduler; the rest of its state are keys that may change."""


@dataclass
class Progress:
    """How far a training has come.

    Args:
        step: the number of steps taken.
        epoch, buffer, batch: the position of the next batch.
        seconds: the time spent.
        tokens: target tokens since the last line of the log.
        last_validation: the step of the last validation.
        best: the metrics of the best model so far, and its step as `best_step`.
        num_bad_validations: validations since then.
        pairs: the numbers of training and validation pairs, as far as they are in memory.
        digests: of the validation pairs and of each buffer of training pairs, by name.
    """

    step: int = 0
    epoch: int = 0
    buffer: int = 0
    batch: int = 0
    seconds: float = 0.0
    tokens: int = 0
    last_validation: int = -1
    best: dict[str, Any] = field(default_factory=dict)
    num_bad_validations: int = 0
    pairs: list[int] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)


def fixed_part(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the keys that may change; a checkpoint's must be equal."""
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
    """Writes the checkpoint. Every process must call it; only rank 0 writes."""
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
    if world.is_main:
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
    """Checks that a checkpoint, if there is one, fits the configuration and number of processes.

    Returns:
        The keys of the schedule whose values differ from the checkpoint's.
    Raises:
        ValueError: if it does not fit, with the keys that differ.
        FormatError: if it is damaged.
    """
    path = folder / NAME
    if not path.exists():
        return []
    with _format_errors(path):
        value = read_tensors(path)[1]
        _check_config(path, value, config, world)
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
    """Reads the checkpoint, if there is one, into all these objects; returns the progress.

    Raises:
        FormatError: if it is damaged, or belongs to other vocabularies.
    """
    path = folder / NAME
    if not path.exists():
        return Progress()
    tensors, value = read_tensors(path)
    check_vocabularies(folder, (model.source, model.target), value, NAME)
    with _format_errors(path):
        progress = Progress(**value["progress"])
        scheduler.load_state_dict({key: value["scheduler"][key] for key in SCHEDULER_STATE})
        for group in optimizer.param_groups:
            _set_learning_rate(group, _learning_rate(value, config))
        _restore_random_states(tensors, world)
        losses.copy_(tensors[f"losses.{world.rank}"])
    fill(dict(model.named_parameters()), _without_prefix("model.", tensors), path)
    states = _without_prefix("optimizer.", tensors)
    for name, parameter in model.named_parameters():
        for key, tensor in _without_prefix(f"{name}.", states).items():
            if tensor.shape == parameter.shape:
                optimizer.state[parameter][key] = like(tensor, parameter)
            else:  # Adam's number of steps, on the CPU unless the optimizer wants it on the device
                group = optimizer.param_groups[0]
                on_device = group.get("fused") or group.get("capturable")
                device = parameter.device if on_device else tensor.device
                optimizer.state[parameter][key] = tensor.to(device)
    return progress


@contextmanager
def _format_errors(path: Path) -> Iterator[None]:
    """Turns errors about missing or wrong parts into a `FormatError`."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path} is not a checkpoint: {error}.") from None


def _without_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names have a prefix, by the rest of their names."""
    return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}


def _learning_rate(value: dict[str, Any], config: dict[str, Any]) -> float:
    """The learning rate to resume with: scaled if the configuration's has changed, and not below
    its minimum."""
    rate, initial = value["learning_rate"], config["training"]["learning_rate"]
    before = value["config"]["training"].get("learning_rate", initial)
    if before != initial:
        rate *= initial / before
    return max(rate, config["training"]["min_lr_ratio"] * initial)


def _set_learning_rate(group: dict[str, Any], rate: float) -> None:
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


def _check_config(path: Path, value: dict[str, Any], config: dict[str, Any], world: World) -> None:
    """Raises if a checkpoint has another configuration or number of processes."""
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
