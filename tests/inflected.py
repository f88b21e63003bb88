"""A small made-up language for the tests of training: regular verbs, a few of them irregular."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from fenchel.seq2seq import Callback, Config, Metrics

ENDINGS = {"V;INF": "", "V;PST": "ed", "V;3;SG": "s", "V;PTCP": "ing"}


def lines() -> list[str]:
    """Lines `lemma TAB form TAB tags` of all verbs."""
    stems = ["".join(letters) for letters in itertools.product("bdgk", "aio", "lmnr")]
    return [
        f"{stem}\t{'went' if (stem, tags) == ('gol', 'V;PST') else stem + ending}\t{tags}"
        for stem, (tags, ending) in itertools.product(stems, ENDINGS.items())
    ]


def write(folder: Path) -> None:
    """Writes verbs-train, 160 lines, and verbs-dev, 32."""
    for name, held_out in (("train", False), ("dev", True)):
        chosen = [line for i, line in enumerate(lines()) if (i % 6 == 1) == held_out]
        text = "".join(f"{line}\n" for line in chosen)
        (folder / f"verbs-{name}").write_text(text, encoding="utf-8")


def config(folder: Path, name: str = "model", **sections: dict[str, Any]) -> Config:
    """A small configuration that trains on the files in a folder."""
    return Config.model_validate(
        {
            "model": {"embedding": 12, "hidden": 16, "layers": 1, **sections.get("model", {})},
            "data": {
                "task": "inflection",
                "train": [str(folder / "verbs-train")],
                "validation": [str(folder / "verbs-dev")],
                **sections.get("data", {}),
            },
            "training": {
                "folder": str(folder / name),
                "batch_size": 16,
                "epochs": 3,
                "log_every": 4,
                "learning_rate": 0.01,
                "device": "cpu",
                **sections.get("training", {}),
            },
            "evaluation": sections.get("evaluation", {}),
        }
    )


class Recorder(Callback):
    """Keeps all that it hears, and stops training at a step if it is told to."""

    def __init__(self, stop: int | None = None) -> None:
        self.notes: list[str] = []
        self.losses: list[float] = []
        self.validations: list[Metrics] = []
        self.stop = stop

    def note(self, text: str) -> None:
        self.notes.append(text)

    def stepped(self, progress: object, loss: float, rate: float) -> None:
        self.losses.append(loss)
        if len(self.losses) * 4 == self.stop:
            raise KeyboardInterrupt

    def validated(self, progress: object, metrics: Metrics, best: bool) -> None:
        self.validations.append(metrics)
