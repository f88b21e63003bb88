"""A queue runs its entries side by side, ends them in time, and packs what they keep."""

from __future__ import annotations

import json
import os
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from experiments import queue

CORE = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="this system does not choose cores"
)
MODULE = """
import json, os, subprocess, sys
from pathlib import Path
name, seconds = sys.argv[1:]
about = [sorted(os.sched_getaffinity(0)), os.environ.get("CUDA_VISIBLE_DEVICES")]
Path(f"{name}.txt").write_text(json.dumps(about))
if seconds == "fail":
    sys.exit(3)
child = subprocess.Popen(["sleep", seconds])
Path(f"{name}.pid").write_text(str(child.pid))
sys.exit(child.wait())
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def entry(name: str, *commands: list[str], **more: Any) -> dict[str, Any]:
    return {"name": name, "cores": str(CORE), "commands": list(commands)} | more


def run(plan: list[dict[str, Any]], minutes: float) -> int:
    Path("plan.json").write_text(json.dumps(plan), encoding="utf-8")
    words = ["plan.json", "--minutes", str(minutes), "--pack", "packed.tar.gz", "--logs", "logs"]
    return queue.main([*words, "--every", "0.1"])


def packed() -> list[str]:
    with tarfile.open("packed.tar.gz") as file:
        return file.getnames()


def is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text(encoding="utf-8").split()[2] != "Z"


def test_entries_have_their_cores_and_device(capsys: pytest.CaptureFixture[str]) -> None:
    first = entry("one", ["work", "a", "0"], ["work", "b", "0"], keep=["*.txt"])
    second = entry("two", ["work", "c", "0"], gpu=True)
    assert run([first, second], 1) == 0
    assert json.loads(Path("b.txt").read_text(encoding="utf-8")) == [[CORE], ""]
    assert json.loads(Path("c.txt").read_text(encoding="utf-8")) == [[CORE], None]
    assert capsys.readouterr().out.splitlines() == ["one: done", "two: done"]
    assert packed() == ["a.txt", "b.txt", "c.txt", "logs/one.log", "logs/two.log"]


def test_when_time_is_over_all_processes_end(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    assert run([entry("long", ["work", "a", "60"], ["work", "b", "0"], keep=["a.*"])], 1 / 15) == 1
    assert time.monotonic() - start < 30
    assert capsys.readouterr().out == "long: ended\n"
    assert not Path("b.txt").exists()
    pid = int(Path("a.pid").read_text(encoding="utf-8"))
    assert not is_alive(pid)
    assert packed() == ["a.pid", "a.txt", "logs/long.log"]


def test_what_a_process_leaves_running_ends_too(folder: Path) -> None:
    stubborn = """
import subprocess, sys, time
from pathlib import Path
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)"
child = subprocess.Popen([sys.executable, "-c", code + "; time.sleep(60)"], stdout=subprocess.PIPE)
child.stdout.readline()
Path("child.pid").write_text(str(child.pid))
time.sleep(60)
"""
    (folder / "stubborn.py").write_text(stubborn, encoding="utf-8")
    assert run([entry("long", ["stubborn"])], 1 / 10) == 1
    assert not is_alive(int(Path("child.pid").read_text(encoding="utf-8")))


def test_a_failure_ends_its_entry_alone(capsys: pytest.CaptureFixture[str]) -> None:
    bad = entry("bad", ["work", "a", "fail"], ["work", "b", "0"])
    assert run([bad, entry("good", ["work", "c", "0"])], 1) == 1
    assert capsys.readouterr().out == "bad: failed; see logs/bad.log\ngood: done\n"
    assert not Path("b.txt").exists()


def test_an_entry_waits_for_others(capsys: pytest.CaptureFixture[str]) -> None:
    first = [entry("slow", ["work", "a", "0.5"]), entry("bad", ["work", "b", "fail"])]
    last = [entry("next", ["work", "c", "0"], after=["slow"])]
    last += [entry("never", ["work", "d", "0"], after=["slow", "bad"])]
    assert run([*first, *last], 1) == 1
    assert capsys.readouterr().out.splitlines()[2:] == ["next: done", "never: not started"]
    assert Path("c.txt").stat().st_mtime_ns > Path("a.pid").stat().st_mtime_ns + 4e8
    assert not Path("d.txt").exists()


def test_no_entry_starts_when_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    long = entry("long", ["work", "a", "60"])
    assert run([long, entry("next", ["work", "b", "0"], after=["long"])], 1 / 30) == 1
    assert capsys.readouterr().out == "long: ended\nnext: not started\n"
    assert not Path("b.txt").exists()


def test_cores_are_numbers_and_ranges() -> None:
    assert queue.Entry("a", "0,4-6", []).core_numbers() == {0, 4, 5, 6}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ([{"name": "a"}], "plan.json is not a plan: .*cores"),
        ([entry("a", cores="x")], "plan.json is not a plan"),
        ([entry("a", cores="100000")], r"`cores` of a must be there, got \[100000\]"),
        ([entry("a", after=["b"]), entry("b")], r"`after` of a must name .* got \['b'\]"),
    ],
)
def test_plans_that_cannot_be_run(plan: list[dict[str, Any]], message: str) -> None:
    Path("plan.json").write_text(json.dumps(plan), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        queue.read_plan(Path("plan.json"))
