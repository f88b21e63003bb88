"""Tests of trained networks at many lengths."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from .model import Networks, correct
from .results import ROWS, Results, Row
from .settings import Settings
from .tasks import TASKS
from .train import Clock, autocast, seed_of, train


@torch.no_grad()
def evaluate(
    networks: Networks, task: str, length: int, settings: Settings, device: str
) -> list[Row]:
    """How many answers are right at a length, a row for each seed.

    All networks, of any attention, are asked the same. An answer counts if it is right after the
    right answers before it, so a sequence with all answers right is one that greedy decoding gets
    right.
    """
    torch.manual_seed(seed_of(task, "test", length))
    start = time.perf_counter()
    total, part = settings.num_sequences(length), max(settings.part // length, 1)
    answers, sequences = (torch.zeros(settings.seeds, device=device) for _ in range(2))
    for first in range(0, total, part):
        batch, num_answers = TASKS[task].testing(min(part, total - first), length, device)
        tokens = batch.tokens.expand(settings.seeds, -1, -1)
        with autocast(device):
            scores = networks(tokens, num_answers)
        right = correct(scores, batch.targets[:, -num_answers:])
        answers += right.float().mean(2).sum(1)
        sequences += right.all(2).sum(1)
    found = zip((answers / total).tolist(), (sequences / total).tolist(), strict=True)
    seconds = time.perf_counter() - start
    return [
        {
            "task": task,
            "attention": networks.kind,
            "length": length,
            "seed": seed,
            "accuracy": accuracy,
            "exact": exact,
            "sequences": total,
            "seconds": seconds,
        }
        for seed, (accuracy, exact) in enumerate(found, 1)
    ]


def run(
    folder: Path,
    tasks: list[str],
    kinds: list[str],
    settings: Settings,
    device: str,
    clock: Clock,
) -> Results:
    """Trains and tests each pair of a task and an attention that is not done.

    Raises:
        OutOfTimeError: if the time is over; the next call goes on.
    """
    results = Results(folder / ROWS, settings, device)
    for task in tasks:
        for kind in kinds:
            pair = {"task": task, "attention": kind}
            todo = [n for n in settings.lengths if not results.has(**pair, length=n)]
            if not todo:
                continue
            clock.check()
            networks, about = train(folder, task, kind, settings, device, clock)
            for length in todo:
                is_first = length == settings.lengths[0]
                record = {**pair, **about, "learned": networks.learned()} if is_first else None
                rows = evaluate(networks, task, length, settings, device)
                results.add(rows, record)
                shown = " ".join(f"{row['accuracy']:.3f}" for row in rows)
                taken = f"{rows[0]['seconds']:.1f} s"
                print(f"{task}, {kind}, {length} tokens: {shown}, {taken}", file=sys.stderr)
                clock.check()
    return results
