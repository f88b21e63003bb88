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
    """Commands of a module, one after the other.

    Args:
        name: what it is called.
        commands: the words after the module's name.
        log: where their output goes.
        module: what `python -m` runs.
    """

    name: str
    commands: Sequence[Sequence[str]]
    log: Path
    module: str = "fenchel"


def run(jobs: Sequence[Job], num_parallel: int) -> list[Job]:
    """Runs jobs, so many in parallel, and returns those that failed."""
    cores = os.cpu_count() or 1
    threads = str(max(1, cores // min(num_parallel, max(len(jobs), 1))))
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}

    def run_one(job: Job) -> bool:
        start = time.monotonic()
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with open(job.log, "w", encoding="utf-8") as log:
            for command in job.commands:
                words = [sys.executable, "-m", job.module, *command]
                done = subprocess.run(words, stdout=log, stderr=log, env=environment, check=False)
                if done.returncode:
                    print(f"{job.name}: failed; see {job.log}", file=sys.stderr, flush=True)
                    return False
        print(f"{job.name}: done in {time.monotonic() - start:.0f} s", flush=True)
        return True

    with ThreadPoolExecutor(max_workers=num_parallel) as pool:
        succeeded = list(pool.map(run_one, jobs))
    return [job for job, is_done in zip(jobs, succeeded, strict=True) if not is_done]
