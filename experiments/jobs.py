"""Commands as processes, several at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Job:
    """Commands, one after the other.

    Args:
        name: what it is called.
        commands: the words after `python -m`: a module, and its arguments.
        log: where their output goes.
    """

    name: str
    commands: Sequence[Sequence[str]]
    log: Path


def run(jobs: Sequence[Job], num_parallel: int) -> list[Job]:
    """Runs jobs, so many in parallel, and returns those that failed.

    A job without commands keeps its log.
    """
    threads = str(max(1, num_cores() // min(num_parallel, max(len(jobs), 1))))
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}

    def run_one(job: Job) -> bool:
        start = time.monotonic()
        if not job.commands:
            print(f"{job.name}: nothing to do", flush=True)
            return True
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with open(job.log, "w", encoding="utf-8") as log:
            for command in job.commands:
                words = [sys.executable, "-m", *command]
                done = subprocess.run(words, stdout=log, stderr=log, env=environment, check=False)
                if done.returncode:
                    print(f"{job.name}: failed; see {job.log}", file=sys.stderr, flush=True)
                    return False
        print(f"{job.name}: done in {time.monotonic() - start:.0f} s", flush=True)
        return True

    with ThreadPoolExecutor(max_workers=num_parallel) as pool:
        succeeded = list(pool.map(run_one, jobs))
    return [job for job, is_done in zip(jobs, succeeded, strict=True) if not is_done]


def num_cores() -> int:
    """The cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")  # Linux
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
