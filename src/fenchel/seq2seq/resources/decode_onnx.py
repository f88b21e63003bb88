#!/usr/bin/env python3
"""Decodes with an exported model: needs numpy and onnxruntime (and sentencepiece for subwords).

Reads inputs from standard input, one per line, and writes the most probable output of each:

    printf 'draw\\tV;PST\\n' | python decode.py --nbest 3
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import sys
import unicodedata
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnxruntime

PADDING, BEGIN, END, UNKNOWN = range(4)
UNKNOWN_TEXT = "\N{REPLACEMENT CHARACTER}"
MAX_NAMED = 12
"""How many unknown parts of a line are named."""


class Vocabulary:
    """Text to token ids and back; `value` is one side of vocabulary.json."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.kind = value["kind"]
        if self.kind == "subwords":
            import sentencepiece

            model = base64.b64decode(value["model"])
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        elif self.kind in ("characters", "words", "symbols"):
            self.names = ["", "", "", UNKNOWN_TEXT, *value["tokens"]]
            self.ids = {token: index for index, token in enumerate(value["tokens"], start=4)}
        elif self.kind == "inflection":
            parts = [value[name] for name in ("languages", "tags", "characters")]
            starts = np.cumsum([4, len(parts[0]), len(parts[1])]).tolist()
            self.languages, self.tags, self.characters = (
                {name: index for index, name in enumerate(names, start)}
                for names, start in zip(parts, starts)
            )
        elif self.kind in ("normalized", "featured"):
            self.base = Vocabulary(value["base"])
            self.form: Any = value.get("form")
            names = value.get("features", [])
            self.features = {name: index for index, name in enumerate(names, self.base.size)}
        else:
            sys.exit(f"decode.py: error: it does not know vocabularies of kind {self.kind!r}.")

    @property
    def size(self) -> int:
        if self.kind == "subwords":
            return self.processor.get_piece_size()
        return self.base.size if self.kind == "normalized" else len(self.names)

    def encode(self, text: str) -> list[tuple[int, str, bool]]:
        """Token ids, each with its name and whether it is of the text, which may be copied."""
        if self.kind == "normalized":
            return self.base.encode(unicodedata.normalize(self.form, text))
        if self.kind == "featured":
            text, _, features = text.rpartition("\t")
            names = features.replace(";", " ").split()
            if not text.strip() or not names:
                raise ValueError("expected `text TAB feature;feature;…`")
            found = [(self.features.get(name, UNKNOWN), name, False) for name in names]
            return [*found, *self.base.encode(text)]
        if self.kind == "subwords":
            names = self.processor.encode(text, out_type=str)
            return [(i, name, False) for i, name in zip(self.processor.encode(text), names)]
        if self.kind == "inflection":
            return self._encode_inflection(text)
        tokens = text if self.kind == "characters" else text.split()
        return [(self.ids.get(token, UNKNOWN), token, True) for token in tokens]

    def _encode_inflection(self, text: str) -> list[tuple[int, str, bool]]:
        """`lemma TAB tags TAB language`, or the same with spaces; the language if there is one."""
        parts = text.split("\t") if "\t" in text else text.split(" ")
        language = next(iter(self.languages))
        if len(parts) > 2 and parts[-1] in self.languages:
            language = parts.pop()
        elif len(self.languages) > 1:
            raise ValueError(f"name the language: one of {', '.join(self.languages)}")
        *lemma, tags = parts
        if not "".join(lemma).strip() or ("\t" in text and len(lemma) != 1):
            raise ValueError("expected a lemma and tags, such as `draw V;PST`")
        tags = [tag.strip() for tag in tags.split(";") if tag.strip()]
        if not tags:
            raise ValueError("expected a lemma and tags, such as `draw V;PST`")
        return [
            (self.languages[language], language, False),
            *((self.tags.get(tag, UNKNOWN), tag, False) for tag in tags),
            *((self.characters.get(letter, UNKNOWN), letter, True) for letter in " ".join(lemma)),
        ]

    def can_copy(self, token: str) -> bool:
        """Whether a token of a source may be one of this vocabulary."""
        is_single = self.kind == "characters" or token.split() == [token]
        return is_single and token not in ("", UNKNOWN_TEXT)

    def decode(self, ids: list[int], source: list[str]) -> str:
        """The text of ids; those behind the vocabulary's are places in the source's tokens."""
        if self.kind == "normalized":
            return self.base.decode(ids, source)
        if self.kind == "subwords":
            return self.processor.decode(list(ids))
        size = len(self.names)
        names = (self.names[index] if index < size else source[index - size] for index in ids)
        return ("" if self.kind == "characters" else " ").join(names)


class Model:
    """The encoder and the step of an exported model."""

    def __init__(self, folder: Path) -> None:
        description = json.loads((folder / "export.json").read_text("utf-8"))
        vocabularies = json.loads((folder / "vocabulary.json").read_text("utf-8"))
        self.source, self.target = (Vocabulary(vocabularies[side]) for side in ("source", "target"))
        self.state, self.search = description["state"], description["search"]
        self.copies, self.sizes = description["model"]["copy_source"], description["sizes"]
        self.encoder, self.stepper = (
            onnxruntime.InferenceSession(str(folder / name), providers=["CPUExecutionProvider"])
            for name in ("encoder.onnx", "step.onnx")
        )

    def read(self, text: str) -> tuple[list[int], list[str], list[str]]:
        """The ids and the tokens of an input, and the names of its unknown tokens. What the source
        vocabulary does not have, and may be copied, has an id by which the model can tell it apart.
        """
        num_tabs = {"featured": 1, "inflection": text.count("\t")}
        if text.count("\t") > num_tabs.get(self.source.kind, 0):
            raise ValueError("the line has other columns than an input")
        found = self.source.encode(text)
        ids, unknown = [index for index, _, _ in found], []
        tokens = [name if is_text else "" for _, name, is_text in found]
        for place, (index, name, _) in enumerate(found):
            token = tokens[place]
            if index != UNKNOWN:
                continue
            if self.copies and self.target.can_copy(token):
                new = self.sizes["target"] + tokens.index(token)
                ids[place] = self.sizes["source"] + self.target.ids.get(token, new)
            else:
                unknown.append(name)
        return ids, tokens, unknown

    def start(self, ids: list[int]) -> dict[str, Any]:
        """The state before the first token, for one input."""
        given = [each["name"] for each in self.state if not each["empty_at_first"]]
        inputs = {"source": np.array([ids]), "lengths": np.array([len(ids)])}
        found = dict(zip(given, self.encoder.run(given, inputs)))
        for each in self.state:
            if each["empty_at_first"]:
                sizes = {"batch": 1, "source": len(ids), "length": 0}
                shape: Any = [sizes.get(dim, dim) for dim in each["dims"]]
                found[each["name"]] = np.zeros(shape, each["dtype"])
        return found

    def step(self, tokens: list[int], state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The probabilities (batch, V) of the next token, or (batch, V + S) if the model may copy
        the S tokens of the source, and the next state."""
        known = {each.name for each in self.stepper.get_inputs()}
        inputs = {"tokens": np.array(tokens), **state}
        updated = [each["name"] for each in self.state if each["updated"]]
        names = ["probabilities", *(f"next_{name}" for name in updated)]
        used = {name: value for name, value in inputs.items() if name in known}
        probabilities, *values = self.stepper.run(names, used)
        return probabilities, {**state, **dict(zip(updated, values))}


def beam_search(
    model: Model,
    ids: list[int],
    source: list[str],
    beam: int,
    nbest: int,
    max_length: int,
    greedy: bool = False,
) -> list[tuple[str, float]]:
    """The most probable outputs with their probabilities, for the ids and tokens of an input.

    Every sequence that can end has finished; the `beam` best others go on. If `greedy`, only the
    most probable token is taken, the end included.
    """
    state, finished = model.start(ids), {}
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    for length in range(max_length + 1):
        probabilities, state = model.step([y[-1] if y else BEGIN for _, y in live], state)
        probabilities = probabilities.astype(np.float64)
        probabilities /= probabilities.sum(-1, keepdims=True)
        candidates = []
        for row, (log_p, y) in enumerate(live):
            (tokens,) = np.nonzero(probabilities[row])
            if greedy:
                tokens = [int(probabilities[row].argmax())]
            for token in map(int, tokens):
                total = log_p + math.log(probabilities[row, token])
                if token == END:
                    text = model.target.decode(y, source)
                    finished[text] = float(np.logaddexp(finished.get(text, -math.inf), total))
                else:
                    candidates.append((total, [*y, token], row))
        worst = sorted(finished.values(), reverse=True)[nbest - 1 : nbest] or [-math.inf]
        candidates = sorted(candidates, key=lambda each: -each[0])[:beam]
        candidates = [each for each in candidates if each[0] >= worst[0]]
        if length == max_length or not candidates:
            break
        rows = [row for _, _, row in candidates]
        live = [(total, y) for total, y, _ in candidates]
        state = {name: value[rows] for name, value in state.items()}
    if not finished:  # nothing has ended within the length
        finished = {model.target.decode(y, source): log_p for log_p, y in live}
    best = sorted(finished.items(), key=lambda each: -each[1])[:nbest]
    return [(text, math.exp(log_p)) for text, log_p in best]


def visible(token: str) -> str:
    """A token in visible characters."""
    if unicodedata.combining(token[:1] or " "):
        token = f"\N{DOTTED CIRCLE}{token}"
    return "".join(
        "\N{OPEN BOX}" if each == " " else each if each.isprintable() else f"U+{ord(each):04X}"
        for each in token
    )


def name_parts(parts: list[str]) -> str:
    """The first few different parts of a text."""
    names = list(dict.fromkeys(map(visible, parts)))
    return ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")


def write(line: str) -> None:
    """Writes a line in UTF-8, in any locale."""
    sys.stdout.buffer.write(f"{line}\n".encode())
    sys.stdout.buffer.flush()


def positive(text: str) -> int:
    """The type of an option for a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}.")
    return int(text)


class Parser(argparse.ArgumentParser):
    """A parser whose errors have one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def main() -> None:
    parser = Parser(description=(__doc__ or "").split("\n")[0])
    folder = Path(__file__).resolve().parent
    parser.add_argument("--folder", type=Path, default=folder, help="of the exported files")
    parser.add_argument("--beam", type=positive, help="live sequences kept")
    parser.add_argument("--greedy", action="store_true", help="take the most probable token")
    parser.add_argument(
        "--nbest",
        type=positive,
        help="outputs of an input, with their probabilities; at most --beam, if that is given",
    )
    parser.add_argument("--max-length", type=positive, help="the largest number of tokens")
    arguments = parser.parse_args()
    nbest = arguments.nbest or 1
    if arguments.greedy and (arguments.beam or nbest > 1):
        parser.error("--greedy finds one output: leave out --beam and --nbest.")
    if arguments.beam and nbest > arguments.beam:
        parser.error(f"--nbest must be at most --beam, {arguments.beam}, got {nbest}.")
    model = Model(arguments.folder)
    beam = max(arguments.beam or model.search["beam"], nbest)
    max_length = arguments.max_length or model.search["max_length"]
    is_wrong = False
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            if "\0" in text:
                raise ValueError("the line has a NUL")
            ids, source, unknown = model.read(text)
            if not ids:
                raise ValueError("the line is empty")
        except ValueError as error:
            print(f"line {number}: {error}.", file=sys.stderr)
            write(f"{number}\t\t" if arguments.nbest else "")
            is_wrong = True
            continue
        if unknown:
            said = f"the model does not know {name_parts(unknown)}"
            print(f"line {number}: {said}.", file=sys.stderr)
        width = 1 if arguments.greedy else beam
        # As many are kept as the beam is wide, which prunes less than --nbest alone.
        found = beam_search(model, ids, source, width, width, max_length, arguments.greedy)
        for text, probability in found[:nbest]:
            write(f"{number}\t{text}\t{probability:.6g}" if arguments.nbest else text)
    sys.exit(1 if is_wrong else 0)


if __name__ == "__main__":
    main()
