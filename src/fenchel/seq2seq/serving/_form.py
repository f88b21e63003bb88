"""The form in which a reader asks for an explanation."""

from __future__ import annotations

from html import escape

from ..explanations._page import document


def form(text: str = "", reference: str = "") -> str:
    """The form, filled with what was asked."""
    fields = (
        ("text", "Input", text, " required autofocus"),
        ("reference", "Reference, if there is one", reference, ""),
    )
    labels = "".join(
        f'<label>{label}<input name="{name}" value="{escape(value)}" autocomplete="off"{more}>'
        "</label>"
        for name, label, value, more in fields
    )
    return (
        f'<form class="ask" method="post" action="/explain">{labels}<button>Explain</button></form>'
    )


def form_page(text: str = "", reference: str = "", error: str = "") -> str:
    """The form alone on a page, with what is wrong with a request."""
    title = "What does the model consider?"
    alarm = f'<p class="verdict alarm" role="alert">{escape(error)}</p>' if error else ""
    return document(
        "fenchel explain",
        f'<header><p class="eyebrow">fenchel explain</p><h1>{title}</h1></header>'
        f"{form(text, reference)}{alarm}",
        has_script=False,
    )
