"""Training of one task with one attention, all seeds at once, from the state on disk on."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import files
from .model import Networks, losses
from .settings import Settings
from .tasks import TASKS, Batch

STATE = "state.pt"
EAGER_STEPS = 3
"""Steps that are run before the rest is captured as a CUDA graph."""
MAX_NORM = 1.0
"""Of the gradient of each network."""


class OutOfTimeError(Exception):
    """The time limit has passed; what is on disk is where the next call goes on."""


class Clock:
    """Says when the time is over; None for no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.end = None if seconds is None else time.monotonic() + seconds

    def check(self) -> None:
        """Raises OutOfTimeError if it is."""
        if self.end is not None and time.monotonic() > self.end:
            raise OutOfTimeError


class Step:
    """A training step: on a GPU it is captured as a CUDA graph and replayed.

    Args:
        compute: from nothing to the losses of a new batch. It must not wait for the device.
        parameters: what is trained.
        lr, warmup, steps: see `settings`.
        device: of all tensors.
        clip: bounds the gradients, in place.
    """

    def __init__(
        self,
        compute: Callable[[], Tensor],
        parameters: list[nn.Parameter],
        *,
        lr: float,
        warmup: int,
        steps: int,
        device: str,
        clip: Callable[[], None],
    ) -> None:
        self.compute, self.clip, self.device = compute, clip, device
        self.lr, self.warmup, self.steps = lr, warmup, steps
        on_gpu = torch.device(device).type == "cuda"
        rate = torch.zeros((), device=device)
        self.optimizer = torch.optim.Adam(
            parameters, rate, betas=(0.9, 0.98), capturable=on_gpu, fused=on_gpu
        )
        self.count = torch.zeros((), device=device)
        self._eager_left = EAGER_STEPS if on_gpu else -1
        self._graph: torch.cuda.CUDAGraph | None = None
        self._losses = torch.zeros(())

    def __call__(self) -> Tensor:
        """Takes a step and returns its losses, which the next step may overwrite."""
        if self._eager_left < 0:
            return self._run()
        if self._eager_left > 0:
            self._eager_left -= 1
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                found = self._run()
            torch.cuda.current_stream().wait_stream(stream)
            return found
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._losses = self._run()
        self._graph.replay()
        return self._losses

    def _run(self) -> Tensor:
        self.optimizer.zero_grad()
        with autocast(self.device):
            found = self.compute()
        found.sum().backward()
        self.clip()
        rate = torch.minimum((self.count + 1) / self.warmup, 1 - self.count / self.steps)
        self.optimizer.param_groups[0]["lr"].copy_(self.lr * rate)
        self.optimizer.step()
        self.count += 1
        return found.detach()


def autocast(device: str) -> torch.autocast:
    """Products in bfloat16 on a GPU."""
    kind = torch.device(device).type
    return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda", cache_enabled=False)


def seed_of(*words: Any) -> int:
    """A number that depends on the words alone."""
    number = 0
    for byte in "/".join(map(str, words)).encode():
        number = (number * 257 + byte) % (2**31 - 1)
    return number


def train(
    folder: Path, task: str, kind: str, settings: Settings, device: str, clock: Clock
) -> tuple[Networks, dict[str, Any]]:
    """The trained networks, and what is known of their training.

    Args:
        folder: holds the state of the pair of task and attention that is trained now.
        task, kind: names in TASKS and ATTENTIONS.
        settings: of the experiment.
        device: to train on.
        clock: looked at after each chunk.
    Returns:
        The networks; the losses of each chunk, by seed, and its seconds.
    Raises:
        OutOfTimeError: if the time is over before the last step.
    """
    networks = Networks(settings, kind).to(device)
    rows, shape = settings.seeds * settings.batch, (settings.seeds, settings.batch, -1)

    def compute() -> Tensor:
        batch = Batch(
            *(x.reshape(shape) for x in TASKS[task].training(rows, settings.length, device))
        )
        return losses(networks(batch.tokens), batch.targets)

    def clip() -> None:
        grad = networks.flat.grad
        assert grad is not None
        grad.mul_((MAX_NORM / grad.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1))

    step = Step(
        compute,
        [networks.flat],
        lr=settings.lr,
        warmup=settings.warmup,
        steps=settings.steps,
        device=device,
        clip=clip,
    )
    about = _load(folder / STATE, (task, kind), networks, step)
    for chunk in range(len(about["losses"]), -(-settings.steps // settings.chunk)):
        torch.manual_seed(seed_of(task, chunk))
        start = time.perf_counter()
        count = min(settings.chunk, settings.steps - chunk * settings.chunk)
        total = torch.zeros(settings.seeds, device=device)
        for _ in range(count):
            total += step()
        about["losses"].append((total / count).tolist())
        about["seconds"].append(time.perf_counter() - start)
        _save(folder / STATE, (task, kind), networks, step, about)
        shown = " ".join(f"{loss:.3f}" for loss in about["losses"][-1])
        taken = f"{about['seconds'][-1]:.1f} s"
        print(f"{task}, {kind}, chunk {chunk + 1}: {shown}, {taken}", file=sys.stderr, flush=True)
        clock.check()
    return networks, about


def _save(
    path: Path, owner: tuple[str, str], networks: Networks, step: Step, about: dict[str, Any]
) -> None:
    state = {
        "owner": owner,
        "networks": networks.state_dict(),
        "optimizer": step.optimizer.state_dict(),
        "count": step.count,
        "about": about,
    }
    content = io.BytesIO()
    torch.save(state, content)
    files.write(path, content.getvalue())


def _load(path: Path, owner: tuple[str, str], networks: Networks, step: Step) -> dict[str, Any]:
    """What is known of the training so far; nothing if the state is another pair's."""
    if path.exists():
        state = torch.load(path, map_location=step.device, weights_only=True)
        if tuple(state["owner"]) == owner:
            networks.load_state_dict(state["networks"])
            step.optimizer.load_state_dict(state["optimizer"])
            step.count.copy_(state["count"])
            return state["about"]
    return {"losses": [], "seconds": []}
