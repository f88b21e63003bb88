"""Training by several processes: their ranks, their communication, and a model that they share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..data._batches import Batch
from ..models._model import Seq2Seq
from ._graphs import GraphedModel


@dataclass(frozen=True)
class World:
    """The processes that torchrun started, or this one alone."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only process that logs and saves."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, which must have the same shape."""
        if self.size == 1:
            return [tensor]
        here = tensor.to(self.device)
        gathered = [torch.empty_like(here) for _ in range(self.size)]
        dist.all_gather(gathered, here)
        return [part.to(tensor.device) for part in gathered]

    def broadcast(self, value: float) -> float:
        """The value of rank 0, on all processes."""
        if self.size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.broadcast(shared, src=0)
        return float(shared)

    def wait(self) -> None:
        """Waits until all processes have called this."""
        if self.size > 1:
            dist.barrier()


def device_of(choice: str) -> torch.device:
    """The device of a configuration's "auto", "cpu" or "cuda".

    Raises:
        ValueError: if there is no such device.
    """
    if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError("the device should be cuda, but PyTorch sees no GPU; try auto.")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


@contextmanager
def process_group(device_choice: str) -> Iterator[World]:
    """Initializes the process group of torchrun, if there is one, and destroys it at the end. A
    group that is already initialized stays."""
    device = device_of(device_choice)
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


class _SummedLoss(nn.Module):
    """A model's summed loss as a module, as DistributedDataParallel needs it."""

    def __init__(self, model: Seq2Seq, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        return self.model.loss(Batch(source, lengths, target), "sum", self.smoothing)


class DistributedModel:
    """A model whose gradients are averaged over all processes, each with its part of a batch.

    Args:
        model: a `Seq2Seq`. For "fsdp" its parameters are replaced by shards.
        world: the processes.
        strategy: "ddp", where each process has all parameters, or "fsdp", where each has a shard.
        cuda_graphs: whether a single process on a GPU replays CUDA graphs.
        smoothing: the label smoothing of the loss.
    """

    def __init__(
        self, model: Seq2Seq, world: World, strategy: str, cuda_graphs: bool, smoothing: float = 0.0
    ) -> None:
        self.model = model
        self._strategy = strategy if world.size > 1 else "single"
        on_single_gpu = self._strategy == "single" and world.device.type == "cuda"
        is_graphed = cuda_graphs and on_single_gpu
        self._graphed = GraphedModel(model, smoothing=smoothing) if is_graphed else None
        self._summed_loss: nn.Module = _SummedLoss(model, smoothing)
        if self._strategy == "ddp":
            self._summed_loss = nn.parallel.DistributedDataParallel(self._summed_loss)
        elif self._strategy == "fsdp":
            from torch.distributed import fsdp
            from torch.distributed.device_mesh import init_device_mesh

            mesh = init_device_mesh(world.device.type, (world.size,))
            # Without resharding after forward, and so after validation, a checkpoint would find
            # whole parameters that the optimizer does not know.
            options = {"mesh": mesh, "reshard_after_forward": True}
            # The Transformer's feedforward layers hold most of its weights. Each is a shard group
            # of its own, so that they are gathered one at a time.
            parts = [part for part in model.modules() if isinstance(part, nn.Sequential)]
            for part in (*parts, model):
                shard: Any = fsdp.fully_shard(part, **options)
                if world.device.type == "cpu":  # where gloo of PyTorch 2.8 gives sums for means
                    shard.set_force_sum_reduction_for_comms(True)
            fsdp.register_fsdp_forward_method(model, "loss")

    def backward(self, batch: Batch, factor: float) -> Tensor:
        """Adds the gradient of `factor` times the summed loss of a batch, and returns the sum."""
        if self._graphed is not None:
            return self._graphed.backward(batch, factor)
        loss = self._summed_loss(batch.source, batch.source_lengths, batch.target)
        with torch.autocast(loss.device.type, enabled=False):  # backward has the dtypes of forward
            (loss * factor).backward()
        return loss.detach()

    def zero_grad(self) -> None:
        """Resets the gradients; in place if CUDA graphs write to them."""
        self.model.zero_grad(set_to_none=self._graphed is None)

    def gradient_sync(self, enabled: bool) -> AbstractContextManager[None]:
        """A context in which backward averages gradients over processes, or does not. Only the
        last batch of accumulated gradients needs it."""
        if self._strategy == "ddp" and not enabled:
            return self._summed_loss.no_sync()  # type: ignore[operator]
        if self._strategy == "fsdp":
            self.model.set_requires_gradient_sync(enabled)  # type: ignore[operator]
        return nullcontext()
