"""Several commands side by side on one machine, for so many minutes, with their results packed.

    python -m experiments.queue plan.json --minutes 9 --pack results.tar.gz

The plan is a list of entries, which start at once, or after others. An entry is an object:

    {"name": "parsing",
     "cores": "4-9",                                       the cores that its processes may use
     "gpu": false,                                         whether it may use the GPU
     "commands": [["experiments.dependency_parsing", …]],  the words after `python -m`, in turn
     "after": ["data"],                                    earlier entries that must be done before
     "keep": ["runs/parsing/**/history.json"]}             what is packed: patterns

The archive is written anew every so often, so that it is there if the machine goes away. When the
minutes are over, the processes of all entries are ended: commands that can be resumed go on when
the same queue is started again. A training on a GPU should end by itself before that, by its own
`--minutes`: with `--mps` processes share the GPU, and ending one may harm the others.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import command


@dataclass(frozen=True)
class Entry:
    """What one entry of a plan says."""

    name: str
    cores: str
    commands: list[list[str]]
    gpu: bool = False
    after: list[str] = field(default_factory=list)
    keep: list[str] = field(default_factory=list)

    def core_numbers(self) -> set[int]:
        """The numbers of its cores: "0,4-6" are 0, 4, 5 and 6."""
        found: set[int] = set()
        for part in self.cores.split(","):
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
        return found


def read_plan(path: Path) -> list[Entry]:
    """The entries of a plan.

    Raises:
        ValueError: for a plan that is not a list of such entries, or has no such core, or an entry
            that waits for none of those before it.
    """
    try:
        plan = [Entry(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
        wanted = {entry.name: entry.core_numbers() for entry in plan}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a plan: {error}") from None
    for name, cores in wanted.items():
        missing = sorted(cores - os.sched_getaffinity(0))
        if missing:
            raise ValueError(f"{path}: `cores` of {name} must be there, got {missing}.")
    for place, entry in enumerate(plan):
        unknown = sorted({*entry.after} - {before.name for before in plan[:place]})
        if unknown:
            raise ValueError(
                f"{path}: `after` of {entry.name} must name entries before it, got {unknown}."
            )
    return plan


class Running:
    """An entry whose commands run one after the other, in a thread.

    Args:
        entry: of the plan.
        logs: a folder for its output.
        before: entries that must be done before; if one of them fails, this one does not start.
    """

    def __init__(self, entry: Entry, logs: Path, before: Sequence[Running] = ()) -> None:
        self.entry, self.log, self._before = entry, logs / f"{entry.name}.log", before
        self.code: int | None = None
        self.is_done = False
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._is_ended = threading.Lock(), False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for one in self._before:
            one.thread.join()
            if not one.is_done:
                return
        cores = self.entry.core_numbers()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if not self.entry.gpu:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        with open(self.log, "ab") as log:
            for words in self.entry.commands:
                with self._lock:
                    if self._is_ended:
                        return
                    self._process = subprocess.Popen(
                        [sys.executable, "-m", *words],
                        stdout=log,
                        stderr=log,
                        env=environment,
                        start_new_session=True,
                    )
                    os.sched_setaffinity(self._process.pid, cores)
                self.code = self._process.wait()
                if self.code:
                    return
        self.is_done = True

    @property
    def has_started(self) -> bool:
        """Whether one of its commands has."""
        return self._process is not None

    def end(self, grace: float = 5.0) -> None:
        """Ends its processes and what they started: asks them to, and after some seconds insists.

        Args:
            grace: the seconds.
        """
        with self._lock:
            self._is_ended = True
            process = self._process
        if process is None or not self.thread.is_alive():
            return
        for which in (signal.SIGTERM, signal.SIGKILL):
            stop = time.monotonic() + grace
            is_left = _signal(process.pid, which)
            while is_left and time.monotonic() < stop:
                time.sleep(0.02)
                is_left = _signal(process.pid, 0)
            if not is_left:
                break
        self.thread.join(grace)


def _signal(group: int, which: int) -> bool:
    """Sends a signal to a group of processes; whether there is such a group."""
    try:
        os.killpg(group, which)
    except ProcessLookupError:
        return False
    return True


def pack(plan: Sequence[Entry], logs: Path, archive: Path) -> None:
    """Writes what entries keep, and the logs, as an archive that is never seen half written."""
    temporary = archive.with_name(f".{archive.name}")
    paths = {path for entry in plan for pattern in entry.keep for path in Path().glob(pattern)}
    with tarfile.open(temporary, "w:gz", compresslevel=6) as file:
        for path in sorted({*paths, *logs.glob("*.log")}):
            if path.is_file():
                file.add(path)
    os.replace(temporary, archive)


def run(plan: Sequence[Entry], minutes: float, archive: Path, logs: Path, every: float) -> int:
    """Runs a plan, and returns how many entries failed or were ended.

    Args:
        plan: its entries.
        minutes: after which all is ended.
        archive: what is packed, and packed again after `every` seconds.
        logs: a folder for the output of each entry.
        every: seconds.
    """
    logs.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    started: dict[str, Running] = {}
    for entry in plan:
        started[entry.name] = Running(entry, logs, [started[name] for name in entry.after])
    running = [*started.values()]
    packed = start
    while any(one.thread.is_alive() for one in running):
        now = time.monotonic()
        if now - start > 60 * minutes:
            break
        if now - packed > every:
            pack(plan, logs, archive)
            packed = now
        time.sleep(0.2)
    ending = [threading.Thread(target=one.end) for one in running]
    for thread in ending:
        thread.start()
    for thread in ending:
        thread.join()
    pack(plan, logs, archive)
    for one in running:
        print(f"{one.entry.name}: {_outcome(one)}", flush=True)
    return sum(not one.is_done for one in running)


def _outcome(one: Running) -> str:
    if one.is_done:
        return "done"
    if not one.has_started:
        return "not started"
    if one.code is None or one.code <= 0:
        return "ended"
    return f"failed; see {one.log}"


def _start_mps() -> None:
    """Starts the server by which processes share a GPU."""
    server = shutil.which("nvidia-cuda-mps-control")
    if server is None:
        raise FileNotFoundError("nvidia-cuda-mps-control is not there; leave out `--mps`.")
    subprocess.run([server, "-d"], check=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.queue",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--minutes", type=command.number, required=True)
    parser.add_argument("--pack", type=Path, required=True, metavar="ARCHIVE", help="a .tar.gz")
    parser.add_argument("--every", type=command.number, default=60.0, help="seconds (default: 60)")
    parser.add_argument("--logs", type=Path, default=Path("runs/queue"))
    parser.add_argument("--mps", action="store_true", help="let processes share the GPU")
    parser.set_defaults(run=_main)
    return command.run_subcommand(parser, argv)


def _main(arguments: Any) -> int:
    plan = read_plan(arguments.plan)
    if arguments.mps:
        _start_mps()
    failed = run(plan, arguments.minutes, arguments.pack, arguments.logs, arguments.every)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
