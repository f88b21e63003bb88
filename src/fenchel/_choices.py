"""The words that both configurations and the command line accept.

The command line prints its help without the packages that `fenchel.seq2seq` needs, so the words are
defined outside of it.
"""

from __future__ import annotations

from typing import Literal, get_args

Task = Literal["inflection", "translation", "summarization"]
TASKS: tuple[str, ...] = get_args(Task)
Device = Literal["auto", "cpu", "cuda"]
DEVICES: tuple[str, ...] = get_args(Device)
SEARCH_METHODS = ("beam", "greedy", "exhaustive")
