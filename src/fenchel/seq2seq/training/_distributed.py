"""Training by several processes: who they are, what they share, and a model that they train."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..data._batches import Batch
from ..models._model import Seq2Seq
from ._graphs import Recorded


@dataclass(frozen=True)
class World:
    """The processes that torchrun started, or this one alone."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and talks."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, written over the tensor."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, which have the same shape."""
        if self.size == 1:
            return [tensor]
        here = tensor.to(self.device)
        gathered = [torch.empty_like(here) for _ in range(self.size)]
        dist.all_gather(gathered, here)
        return [part.to(tensor.device) for part in gathered]

    def agree(self, value: float) -> float:
        """The first process's value, on all."""
        if self.size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.broadcast(shared, src=0)
        return float(shared)

    def wait(self) -> None:
        """Waits until all processes are here."""
        if self.size > 1:
            dist.barrier()


def device_of(choice: str) -> torch.device:
    """The device of a configuration's "auto", "cpu" or "cuda".

    Raises:
        ValueError: if it is not there.
    """
    if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError("the device should be cuda, but PyTorch sees no GPU; try auto.")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


@contextmanager
def world(choice: str) -> Iterator[World]:
    """Joins the processes that torchrun started, if it did, and leaves them at the end; if they
    are joined already, they stay so."""
    device = device_of(choice)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(0, 1, device)
        return
    if dist.is_initialized():
        yield World(dist.get_rank(), dist.get_world_size(), device)
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size(), device)
    finally:
        dist.destroy_process_group()


class _Sum(nn.Module):
    """A model's loss as a module, which is what is copied among processes."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        return self.model.loss(Batch(source, lengths, target), reduction="sum")


class Together:
    """A model whose gradients are those of all processes, each with its part of a batch.

    Args:
        model: a `Seq2Seq`; its parameters are replaced by parts of them for "fsdp".
        world: the processes.
        kind: "ddp", where each has all parameters, or "fsdp", where they are divided.
        record: whether one process on a GPU replays recorded graphs.
    """

    def __init__(self, model: Seq2Seq, world: World, kind: str, record: bool) -> None:
        self.model = model
        self._kind = kind if world.size > 1 else "alone"
        alone_on_gpu = self._kind == "alone" and world.device.type == "cuda"
        self._recorded = Recorded(model) if record and alone_on_gpu else None
        self._sum: nn.Module = _Sum(model)
        if self._kind == "ddp":
            self._sum = nn.parallel.DistributedDataParallel(self._sum)
        elif self._kind == "fsdp":
            from torch.distributed import fsdp
            from torch.distributed.device_mesh import init_device_mesh

            mesh = init_device_mesh(world.device.type, (world.size,))
            # Divided again after each forward pass, validation's too, or a checkpoint would meet
            # whole parameters that the optimizer does not know.
            whole = {"mesh": mesh, "reshard_after_forward": True}
            # The Transformer's feedforward layers, most of its weights, are gathered one at a time.
            for part in model.modules():
                if isinstance(part, nn.Sequential):
                    fsdp.fully_shard(part, **whole)
            fsdp.fully_shard(model, **whole)
            fsdp.register_fsdp_forward_method(model, "loss")

    def backward(self, batch: Batch, factor: float) -> Tensor:
        """Adds the gradients of the sum of a batch's losses times a factor; returns the sum."""
        if self._recorded is not None:
            return self._recorded.backward(batch, factor)
        loss = self._sum(batch.source, batch.source_lengths, batch.target)
        with torch.autocast(loss.device.type, enabled=False):  # backward has the types of forward
            (loss * factor).backward()
        return loss.detach()

    def zero_grad(self) -> None:
        """Empties the gradients, which stay where they are if recorded graphs write to them."""
        self.model.zero_grad(set_to_none=self._recorded is None)

    def synchronized(self, now: bool) -> AbstractContextManager[None]:
        """Whether backward inside shares gradients; only the last of those added up must."""
        if self._kind == "ddp" and not now:
            return self._sum.no_sync()  # type: ignore[operator]
        if self._kind == "fsdp":
            self.model.set_requires_gradient_sync(now)  # type: ignore[operator]
        return nullcontext()
