"""The limits of the service, which bound its memory and the time of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a request may ask for, and how many requests may wait.

    Args:
        body_bytes: of a request's body.
        inputs: the number of inputs of a request.
        characters: of an input, a target or a prefix.
        outputs: `nbest`, `beam` and `samples`.
        limit: hypotheses that an explanation searches for.
        weights: attention weights in an answer.
        max_length: tokens of an output.
        queue: requests that wait for the model.
        seconds: from the arrival of a request to its answer; its body has as long to arrive.
        connections: open connections; more are refused.
    """

    body_bytes: int = 1 << 20
    inputs: int = 64
    characters: int = 2000
    outputs: int = 50
    limit: int = 1000
    weights: int = 1_000_000
    max_length: int = 100
    queue: int = 1000
    seconds: float = 30.0
    connections: int = 1000
