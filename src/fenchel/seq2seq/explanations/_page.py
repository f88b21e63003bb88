"""The page of an explanation: one HTML file that contains its style and its script."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from torch import Tensor

from ..._format import percent

if TYPE_CHECKING:
    from ._explain import Explanation, Node, Position

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

MAX_CELLS = 60_000
"""How many cells all attention maps have together; a larger page is slow to open."""


def page(explanation: Explanation, form: str = "") -> str:
    """The whole page; a `form` in HTML stands before everything else."""
    body = "\n".join([form, *_body(explanation)] if form else _body(explanation))
    return document(f"{explanation.text} – fenchel explain", body)


def script() -> str:
    """The script of the page, as it stands between its tags."""
    return f"\n{_resource('page.js')}"


def _resource(name: str) -> str:
    return (files("fenchel.seq2seq") / "resources" / "page" / name).read_text("utf-8")


def document(title: str, body: str, has_script: bool = True) -> str:
    """A document with the style and the script of the page; `title` is escaped here."""
    end = f"\n<script>{script()}</script>" if has_script else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>
{_resource("page.css")}</style>
</head>
<body>
{body}{end}
</body>
</html>
"""


def _body(explanation: Explanation) -> Iterator[str]:
    words = explanation.text.split()
    kinds = [' class="tags"' if ";" in word else "" for word in words]
    title = " ".join(
        f"<bdi{kind}>{escape(word)}</bdi>" for word, kind in zip(words, kinds, strict=True)
    )
    yield f'<header><p class="eyebrow">fenchel explain</p><h1>{title}</h1>'
    if explanation.unknown:
        yield f'<p class="verdict alarm" role="note">{escape(warning(explanation))}</p>'
    yield f'<p class="verdict">{verdict(explanation)}</p>{_badges(explanation)}</header>'
    yield "<main>"
    yield from _hypotheses(explanation)
    yield from _attention(explanation)
    if explanation.reference:
        yield from _forced(explanation)
    yield "</main>"
    yield '<p id="status" role="status" aria-live="polite"></p>'
    yield (
        "<footer>Touch or click anything to read it below. Keys: <kbd>Tab</kbd> goes from picture "
        "to picture, the arrow keys, <kbd>Home</kbd> and <kbd>End</kbd> go through one.</footer>"
    )


def warning(explanation: Explanation) -> str:
    """A sentence that names the unknown parts of the input."""
    from ._explain import name_parts

    names = name_parts(explanation.unknown)
    share = unknown_share(explanation)
    return f"The model does not know {share}: {names}. It reads each as the same unknown token."


def unknown_share(explanation: Explanation) -> str:
    """The number of unknown tokens of the input, in words."""
    return f"{len(explanation.unknown)} of the {len(explanation.source)} tokens of the input"


def verdict(explanation: Explanation) -> str:
    """The certificates as a sentence."""
    result = explanation.result
    if not any(each.finished for each in result.hypotheses):
        return "No output ended within the length limit; these are only the beginnings of some."
    count = len(result.hypotheses)
    shown = len(explanation.outputs)
    tail = f" The {shown} most probable are shown." if count > shown else ""
    outputs = f"{count} output{'s' if count > 1 else ''}"
    if result.complete and count == 1:
        return "The model is certain: every other output has probability exactly zero."
    if result.complete:
        rest = "every other output has probability exactly zero"
        return f"The model considers exactly {outputs}; {rest}.{tail}"
    qualifier = "" if explanation.is_unambiguous else "at most "  # texts found may share it
    rest = f"all others together have {qualifier}{percent(max(1e-9, 1 - result.mass))}"
    proof = "and none of them is" if result.exact else "and some of them may be"
    return f"{outputs} found; {rest}, {proof} more probable than the first.{tail}"


def reference_verdict(explanation: Explanation) -> str:
    """The probability of the reference as a sentence, and where it is impossible."""
    probabilities = [each.probability for each in explanation.reference]
    is_possible = 0 not in probabilities
    # A product that underflows is no zero.
    total = max(1e-9, math.prod(probabilities)) if is_possible else 0.0
    share, tail = percent(min(1.0, total)), ""
    if not is_possible:
        first = probabilities.index(0)
        tail = f", impossible at token {first + 1}, {explanation.reference[first].token}"
    if explanation.is_unambiguous:
        return f"The reference as a whole has {share}{tail}."
    found = dict(zip(explanation.outputs, explanation.result.hypotheses, strict=False))
    text = found.get(explanation.reference_text)
    tail += f"; the text has {percent(text.probability)}" if text else ""
    return f"The tokens of the reference together have {share}{tail}."


def _badges(explanation: Explanation) -> str:
    result = explanation.result
    certificates = [
        ("exact", result.exact, "no output is more probable than the first"),
        ("complete", result.complete, "these are all outputs of nonzero probability"),
    ]
    unknown = len(explanation.unknown)
    share = f"{unknown} of {len(explanation.source)} tokens unknown"
    alarm = f'<span class="badge no alarm">⚠ {share}</span>' if unknown else ""
    spans = [
        f'<span class="badge {"yes" if is_proven else "no"}" title="{meaning}">'
        f"{'✓' if is_proven else '✗'} {'' if is_proven else 'not '}{name}</span>"
        for name, is_proven, meaning in certificates
    ]
    mass = "100%" if result.complete else percent(min(result.mass, 1 - 1e-9))
    found = f'<span class="badge">{mass} of the probability found</span>'
    return f'<p class="badges">{alarm}{"".join(spans)}{found}</p>'


def _section(name: str, title: str, note: str) -> str:
    return (
        f'<section aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>'
        f'<p class="note">{note}</p>'
    )


def _hypotheses(explanation: Explanation) -> Iterator[str]:
    shown = explanation.result.hypotheses[: len(explanation.outputs)]
    several = (
        " If several paths write the same text, its probability is that of all of them."
        if any(each.others for each in shown)
        else ""
    )
    yield _section(
        "tree",
        "What the model can say",
        "Every path is an output. The model chooses at each coloured percentage; the probability "
        f"of an output stands after its end.{several}",
    )
    yield '<ul class="tree" role="tree" aria-labelledby="tree-title">'
    for child in explanation.tree.children:
        yield from _branch(child, explanation, 1, alone=len(explanation.tree.children) == 1)
    yield from _rest(explanation.tree, 1)
    yield "</ul></section>"


def _branch(node: Node, explanation: Explanation, level: int, alone: bool) -> Iterator[str]:
    tokens = "".join(_token(token) for token in node.tokens)
    odds = "" if alone and node.probability == 1 else f"<b>{percent(node.probability)}</b>"
    spoken = f"{' '.join(node.tokens)}, {percent(node.probability)}"
    leaf = ""
    extra = ""
    if node.hypothesis is not None:
        text = explanation.outputs[node.hypothesis]
        hypothesis = explanation.result.hypotheses[node.hypothesis]
        chance = percent(hypothesis.probability)
        part = f", {percent(node.mass)} of it by this path" if hypothesis.others else ""
        spoken = f"{text}: {chance}{part}"
        extra = f' data-map="{node.hypothesis}"'
        leaf = (
            f'<span class="leaf"><bdi>{escape(text) or "(empty)"}</bdi> <i>{chance}{part}</i>'
            f'<span class="bar" style="--w:{node.mass:.4f}"></span></span>'
        )
    kind = "item" if node.hypothesis is None else "item ends"
    yield (
        f'<li role="treeitem" aria-level="{level}" tabindex="-1" aria-label="{escape(spoken)}"'
        f'{extra}><span class="{kind}">{odds}<span class="tokens">{tokens}</span>{leaf}</span>'
    )
    if node.children:
        yield '<ul role="group">'
        for child in node.children:
            yield from _branch(child, explanation, level + 1, alone=False)
        yield from _rest(node, level + 1)
        yield "</ul>"
    yield "</li>"


def _rest(node: Node, level: int) -> Iterator[str]:
    if node.rest > 1e-12:  # more than the rounding of sums
        text = f"others: {percent(node.rest)}"
        yield (
            f'<li role="treeitem" aria-level="{level}" tabindex="-1" aria-label="{text}">'
            f'<span class="item others">{text}</span></li>'
        )


def _token(token: str) -> str:
    kind = "tok end" if token == "end" else "tok"
    return f'<span class="{kind}"><bdi>{escape(token)}</bdi></span>'


def _attention(explanation: Explanation) -> Iterator[str]:
    if not explanation.attention:
        return
    other = " Choose another output above to see its own." if len(explanation.outputs) > 1 else ""
    if explanation.copied:
        other = f" A frame is around what the model copies.{other}"
    yield _section(
        "look",
        "What it looks at",
        "A row for each token that the model writes, a column for each that it reads. The stronger "
        "the colour, the more weight, in percent; an empty cell has a weight of exactly zero."
        f"{other}",
    )
    heads = explanation.attention[0].shape[1]
    if heads > 1:
        options = "".join(f'<option value="{k}">head {k + 1}</option>' for k in range(heads))
        yield (
            '<label class="heads">Attention <select id="head"><option value="-1">mean of '
            f"{heads} heads</option>{options}</select></label>"
        )
    shown = zip(explanation.outputs, explanation.targets, explanation.attention, strict=True)
    cells = 0
    for index, (text, target, weights) in enumerate(shown):
        cells += len(target) * len(explanation.source)
        if cells > MAX_CELLS:
            yield (
                '<p class="note">The attention of the other outputs has too many cells for a page; '
                "<code>fenchel predict --json --attention</code> writes its numbers.</p>"
            )
            break
        copied = explanation.copied[index] if explanation.copied else ()
        yield from _attention_map(index, text, target, explanation.source, weights, copied)
    yield "</section>"


def _attention_map(
    index: int,
    text: str,
    target: tuple[str, ...],
    source: tuple[str, ...],
    weights: Tensor,
    copied: Sequence[tuple[tuple[int, float], ...]],
) -> Iterator[str]:
    wide = " wide" if len(source) > 16 else ""
    yield f'<figure class="map{wide}" data-map="{index}"><figcaption>for <bdi>{escape(text)}</bdi>'
    yield '<span class="cue" aria-hidden="true">scroll for more →</span></figcaption>'
    yield '<div class="scroll"><table role="grid"><thead><tr><td></td>'
    yield from (f'<th scope="col"><span>{escape(word)}</span></th>' for word in source)
    yield "</tr></thead><tbody>"
    copied = [*copied, *[()] * (len(target) - len(copied))]
    for token, row, shares in zip(target, weights, copied, strict=True):
        yield f'<tr><th scope="row">{escape(token)}</th>'
        for place, (word, column) in enumerate(zip(source, row.t(), strict=True)):
            yield _cell(token, word, column, dict(shares).get(place, 0.0))
        yield "</tr>"
    yield "</tbody></table></div></figure>"


def _cell(token: str, word: str, weights: Tensor, copied: float) -> str:
    mean = float(weights.double().mean())
    each = ""
    if len(weights) > 1:
        each = f' data-heads="{" ".join(f"{w:.4g}" for w in weights.tolist())}"'
    names = " ".join([*["on"] * (mean > 0), *["copied"] * (copied > 0)])
    kind = f' class="{names}" style="--w:{mean:.4g}"' if names else ""
    shown = f"{100 * mean:.0f}" if mean >= 0.005 else "&lt;1" if mean > 0 else ""
    label = f"{token} looks at {word}: {percent(min(mean, 1.0))}"
    if copied:  # before the weight, which the script replaces
        label = f"{token} is copied from {word} with {percent(min(copied, 1.0))}; {label}"
    return f'<td{kind}{each} tabindex="-1" aria-label="{escape(label)}">{shown}</td>'


def _forced(explanation: Explanation) -> Iterator[str]:
    text = escape(explanation.reference_text)
    yield _section(
        "forced",
        f"Writing <bdi>{text}</bdi>, token by token",
        "Each position lists the tokens that the model considers, given all tokens before it; any "
        "other has probability exactly zero. The reference is bold. Positions with one candidate, "
        "which the model would complete by itself, are joined. "
        f"{escape(reference_verdict(explanation))}",
    )
    yield (
        '<ol class="forced" role="listbox" aria-orientation="horizontal" '
        'aria-labelledby="forced-title">'
    )
    for index in range(len(explanation.reference)):
        yield from _position(index, explanation.reference)
    yield "</ol></section>"


def _position(index: int, positions: tuple[Position, ...]) -> Iterator[str]:
    position = positions[index]
    sure = [len(each.candidates) == 1 and each.probability > 0 for each in positions]
    before, here, after = [False, *sure, False][index : index + 3]
    flags = {"sure": here, "joined": here and before, "joins": here and after}
    kinds = [name for name, is_set in flags.items() if is_set]
    spoken = ", ".join(f"{token} {percent(p)}" for token, p in position.candidates)
    label = f"position {index + 1}, {position.token}: {spoken}"
    yield (
        f'<li role="option" aria-selected="false" tabindex="-1" class="{" ".join(kinds)}" '
        f'aria-label="{escape(label)}">'
    )
    if position.probability == 0:
        yield f'<span class="cand gold never">{_token(position.token)}<i>0%</i></span>'
    for token, p in position.candidates:
        kind = "cand gold" if (token, p) == (position.token, position.probability) else "cand"
        text = f"{_token(token)}<i>{percent(p)}</i>"
        yield f'<span class="{kind}" style="--w:{p:.4f}">{text}</span>'
    if position.others:
        yield f'<span class="cand more">and {position.others} more</span>'
    yield "</li>"
