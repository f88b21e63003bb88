"""The form in which a reader asks for an explanation."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from ..explanations._page import document

FIELDS = {
    "text": ("Input", " required autofocus"),
    "features": ("Features, between semicolons", ""),
    "reference": ("Reference, if there is one", ""),
}


def form(asked: Mapping[str, Any], has_features: bool) -> str:
    """The form, filled with what was asked; with a field for features if the model has any."""
    labels = "".join(
        f'<label>{label}<input name="{name}" value="{escape(asked.get(name, ""))}" '
        f'autocomplete="off"{more}></label>'
        for name, (label, more) in FIELDS.items()
        if has_features or name != "features"
    )
    return (
        f'<form class="ask" method="post" action="/explain">{labels}<button>Explain</button></form>'
    )


def form_page(asked: Mapping[str, Any], has_features: bool, error: str = "") -> str:
    """The form alone on a page, with what is wrong with a request."""
    title = "What does the model consider?"
    alarm = f'<p class="verdict alarm" role="alert">{escape(error)}</p>' if error else ""
    return document(
        "fenchel explain",
        f'<header><p class="eyebrow">fenchel explain</p><h1>{title}</h1></header>'
        f"{form(asked, has_features)}{alarm}",
        has_script=False,
    )
