"""The service answers as the command does, and refuses what is wrong or too much."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Iterator

import pytest
from served import Served, small_model

from fenchel import cli
from fenchel.seq2seq import Characters, Featured, ModelConfig, Seq2Seq, save
from fenchel.seq2seq.serving import _answers, _app
from fenchel.seq2seq.serving._requests import Predict

INPUTS = ["draw V;PST", "sing V", "d\u00e9j\u00e0 V;PST", "raw\tV;PST"]


@pytest.fixture(scope="module")
def model() -> Seq2Seq:
    return small_model()


@pytest.fixture(scope="module")
def served(model) -> Iterator[Served]:
    with Served(model) as running:
        yield running


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, []),
        ({"nbest": 3, "certificate": True}, ["--nbest", "3", "--certificate"]),
        ({"method": "greedy"}, ["--method", "greedy"]),
        ({"method": "exhaustive", "nbest": 9}, ["--method", "exhaustive", "--nbest", "9"]),
        ({"attention": True, "beam": 2}, ["--attention", "--beam", "2"]),
        (
            {"samples": 4, "seed": 7, "temperature": 2.0},
            ["--sample", "4", "--seed", "7", "--gamma", "2"],
        ),
        ({"prefix": "dr", "forbidden": "sw"}, ["--prefix", "dr", "--forbid", "sw"]),
        ({"allowed": ["d", "r"], "max_length": 3}, ["--allow", "dr", "--max-length", "3"]),
        ({"allow_unknown": False, "nbest": 5}, ["--no-unknown", "--nbest", "5"]),
        ({"length_power": 1.0, "nbest": 2}, ["--length-power", "1", "--nbest", "2"]),
    ],
)
def test_answers_are_those_of_predict(served, model, tmp_path, monkeypatch, capsys, options, words):
    save(model, tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(INPUTS).encode())))
    words = words if "--max-length" in words else [*words, "--max-length", "8"]
    assert cli.main(["predict", str(tmp_path), "--json", "--device", "cpu", *words]) == 0
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    status, answer = served.post("/predict", {"inputs": INPUTS, **options})
    assert status == 200
    for found, wanted in zip(answer["results"], expected, strict=True):
        del wanted["line"]
        assert found.keys() == wanted.keys()
        assert [each["text"] for each in found["outputs"]] == [
            each["text"] for each in wanted["outputs"]
        ]
        assert [each["probability"] for each in found["outputs"]] == pytest.approx(
            [each["probability"] for each in wanted["outputs"]], rel=1e-4
        )
        others = found.keys() - {"outputs", "mass", "bound"}
        assert {name: found[name] for name in others} == {name: wanted[name] for name in others}


def test_scores_are_those_of_predictions(served):
    _, answer = served.post("/predict", {"inputs": INPUTS[:2], "nbest": 5, "method": "exhaustive"})
    pairs = [
        {"source": result["input"], "target": output["text"]}
        for result in answer["results"]
        for output in result["outputs"]
        if output["text"] and output["finished"]
    ]
    wanted = [
        output["probability"]
        for result in answer["results"]
        for output in result["outputs"]
        if output["text"] and output["finished"]
    ]
    assert len(pairs) > 3
    status, scored = served.post("/score", {"pairs": pairs})
    assert status == 200
    assert [each["probability"] for each in scored["results"]] == pytest.approx(wanted, rel=1e-4)
    _, answer = served.post("/score", {"pairs": [{"source": "d V", "target": "x\u00e9"}]})
    assert answer["results"][0]["unknown_target"] == ["x", "\u00e9"]


def test_null_is_not_given(served):
    names = [name for name in Predict.model_fields if name != "inputs"]
    status, answer = served.post("/predict", {"inputs": INPUTS, **dict.fromkeys(names)})
    assert status == 200
    assert answer == served.post("/predict", {"inputs": INPUTS})[1]
    body = {"inputs": ["d V"], "samples": 2, "beam": None, "nbest": None, "seed": None}
    assert served.post("/predict", body)[0] == 200


def test_scores_name_what_cannot_be_copied():
    letters = Characters("ab")
    config = ModelConfig(embedding=4, hidden=4, layers=1, copy_source=True)
    with Served(Seq2Seq(config, letters, letters).eval()) as copying:
        pairs = [{"source": "axb", "target": target} for target in ("xa", "xyz")]
        _, answer = copying.post("/score", {"pairs": pairs})
    assert [each.get("unknown_target") for each in answer["results"]] == [None, ["y", "z"]]


@pytest.mark.parametrize("text", ["a\tb", "a\nb", "a\rb", "a\0b"])
def test_an_input_is_one_line_of_one_column(text):
    letters = Characters("ab")
    with Served(Seq2Seq(ModelConfig(embedding=4, hidden=4, layers=1), letters, letters)) as plain:
        status, answer = plain.post("/predict", {"inputs": ["a", text]})
    assert status == 422
    assert "`inputs[1]`" in answer["error"]["message"]


def test_health_metrics_and_headers(served):
    status, headers, text = served.ask("GET", "/health")
    assert (status, json.loads(text)["status"]) == (200, "ok")
    assert headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "server" not in headers
    served.post("/predict", {"inputs": ["d V"]})
    status, headers, text = served.ask("GET", "/metrics")
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'fenchel_requests_total{path="/predict",status="200"}' in text
    assert 'fenchel_request_seconds_bucket{path="/predict",le="+Inf"}' in text
    for line in text.splitlines():
        assert line.startswith(("#", "fenchel_"))
        assert line.startswith("#") or float(line.rsplit(" ", 1)[1]) >= 0


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b'{"inputs": ["d V"]', 400, "The body must be JSON in UTF-8: EOF while parsing"),
        (b"\xff\xfe", 400, "The body must be JSON in UTF-8"),
        (b'{"inputs": ["\\ud800 V"]}', 400, "The body must be JSON in UTF-8"),
        (b"", 400, "The body must be JSON in UTF-8"),
        (b"[" * 100_000, 400, "The body must be JSON in UTF-8"),
        ([], 422, "Input should be an object"),
        ({}, 422, "`inputs`: Field required"),
        ({"inputs": []}, 422, "`inputs`: List should have at least 1 item"),
        ({"inputs": "d V"}, 422, "`inputs`: Input should be a valid array"),
        ({"inputs": ["d V", 3]}, 422, "`inputs[1]`: Input should be a valid string"),
        ({"inputs": ["d V"], "nbset": 2}, 422, "`nbset`: Extra inputs are not permitted"),
        ({"inputs": ["d V"], "nbest": 0}, 422, "`nbest`: Input should be greater than or equal to"),
        ({"inputs": ["d V"], "nbest": 51}, 422, "`nbest` must be at most 50, got 51"),
        ({"inputs": ["d V"], "beam": 10**9}, 422, "`beam` must be at most 50"),
        ({"inputs": ["d V"], "samples": 99}, 422, "`samples` must be at most 50"),
        ({"inputs": ["d V"], "max_length": 9}, 422, "`max_length` must be at most 8, got 9"),
        ({"inputs": ["d V"], "method": "fast"}, 422, "`method`: Input should be 'beam'"),
        ({"inputs": ["d V"] * 65}, 422, "A request holds at most 64 inputs, got 65"),
        ({"inputs": ["d" * 3000 + " V"]}, 422, "`inputs[0]` must have at most 2000 characters"),
        ({"inputs": ["d V", "nonsense"]}, 422, "`inputs[1]`: expected a lemma and tags"),
        ({"inputs": ["d\0 V"]}, 422, "`inputs[0]` must not hold a NUL"),
        ({"inputs": ["d V"], "allowed": "x"}, 422, "`allowed` has 'x', which is no token"),
        (
            {"inputs": ["d V"], "samples": 2, "certificate": True},
            422,
            "`samples` does not search: leave out `certificate`.",
        ),
        ({"inputs": ["d V"], "samples": 2, "nbest": 1}, 422, "leave out `nbest`."),
        ({"inputs": ["d V"], "samples": 2, "beam": 3}, 422, "leave out `beam`."),
        ({"inputs": ["d V"], "samples": 2, "method": "greedy"}, 422, "leave out `method`."),
        ({"inputs": ["d V"], "temperature": 2.0}, 422, "`temperature` needs `samples`."),
        ({"inputs": ["d V"], "seed": 1}, 422, "`seed` needs `samples`."),
        ({"inputs": ["d V"], "length_power": 1.0, "method": "greedy"}, 422, "needs the method"),
        ({"inputs": ["d V"], "beam": 2, "method": "greedy"}, 422, "`beam` needs the method beam"),
        ({"inputs": ["d V"], "beam": 2, "nbest": 3}, 422, "`nbest` must be at most `beam`, 2, got"),
        ({"inputs": None}, 422, "`inputs`: Input should be a valid array"),
        ({"inputs": ["d V"], "nbset": None}, 422, "`nbset`: Extra inputs are not permitted"),
    ],
)
def test_wrong_predictions(served, body, status, message):
    found, answer = served.post("/predict", body)
    assert found == status
    assert answer["error"]["status"] == status
    assert message in answer["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("POST", "/score", {"pairs": [{"source": "d V", "target": ""}]}, {}, 422),
        ("POST", "/score", {"pairs": [{"source": "d V"}]}, {}, 422),
        ("POST", "/predict", {"inputs": ["d V"]}, {"content-type": "text/plain"}, 415),
        ("POST", "/explain", {"text": "d V"}, {}, 415),
        ("GET", "/predict", None, {}, 405),
        ("GET", "/nothing", None, {}, 404),
        ("GET", "/..%2f..%2fetc/passwd", None, {}, 404),
        ("GET", "/health", None, {"host": "evil.example"}, 400),
        ("GET", "/health", None, {"host": "[::bad"}, 400),
        ("PUT", "/explain", None, {}, 405),
    ],
)
def test_other_wrong_requests(served, method, path, body, headers, status):
    found, _, text = served.ask(method, path, body, headers=headers)
    assert found == status
    assert json.loads(text)["error"]["status"] == status


def test_one_bad_request_of_a_batch_fails_alone(model, monkeypatch):
    decode = _answers.decode

    def failing(models, texts, **options):
        if any(text.startswith("s") for text in texts):
            raise RuntimeError("a defect")
        return decode(models, texts, **options)

    monkeypatch.setattr(_answers, "decode", failing)
    found: dict[str, tuple] = {}
    with Served(model, wait_seconds=0.3) as served:

        def ask(text: str) -> None:
            found[text] = served.post("/predict", {"inputs": [text]})

        threads = [threading.Thread(target=ask, args=(t,)) for t in ("d V", "s V", "w V")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [found[text][0] for text in ("d V", "s V", "w V")] == [200, 500, 200]
    assert "defect" not in found["s V"][1]["error"]["message"]


def test_concurrent_requests_share_batches(model):
    with Served(model, wait_seconds=0.3) as served:
        threads = [
            threading.Thread(target=served.post, args=("/predict", {"inputs": ["d V", "s V"]}))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert served.metric("fenchel_batch_inputs_sum") == 16
        assert served.metric("fenchel_batch_inputs_count") < 8


def test_the_form_never_shows_unescaped_text(served):
    form = {"content-type": "application/x-www-form-urlencoded"}
    attack = "%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E"
    for path, method, body in (
        (f"/explain?text={attack}+V&reference={attack}", "GET", None),
        ("/explain", "POST", f"text={attack}+V&reference={attack}".encode()),
        ("/explain", "POST", f"text={attack}".encode()),  # which the model cannot read
        ("/explain", "POST", f"{attack}=1&text=d+V".encode()),
    ):
        status, headers, text = served.ask(method, path, body, headers=form)
        assert headers["content-type"] == "text/html; charset=utf-8"
        assert "<script>alert" not in text
        assert status == (200 if b"reference" in (body or b"reference") else 422)
    status, _, text = served.ask("GET", "/explain?shown=many&text=d+V")
    assert status == 422
    assert "`shown`: Input should be a valid integer" in text
    assert served.ask("POST", "/explain", b"text=%ff", headers=form)[0] == 400
    assert served.ask("POST", "/explain", b"&".join([b"a=1"] * 99), headers=form)[0] == 400


def test_an_input_with_features_is_explained(served):
    letters = Characters("abc")
    model = Seq2Seq(
        ModelConfig(embedding=8, hidden=8, layers=1), Featured(letters, ["N", "V"]), letters
    )
    form = {"content-type": "application/x-www-form-urlencoded"}
    with Served(model.eval()) as with_features:
        assert 'name="features"' in with_features.ask("GET", "/")[2]
        asked = b"text=cab&features=V%3BN&reference=ab"
        status, _, text = with_features.ask("POST", "/explain", asked, headers=form)
        assert status == 200
        assert 'name="features" value="V;N"' in text
        assert with_features.ask("GET", "/explain?text=cab%09V%3BN")[0] == 200
        status, _, text = with_features.ask("GET", "/explain?text=cab")
        assert status == 422
        assert "expected `text TAB feature;feature;…`, got &#x27;cab&#x27;." in text
        assert 'name="features"' in text
    assert 'name="features"' not in served.ask("GET", "/")[2]
    status, _, text = served.ask("GET", "/explain?text=d+V&features=V")
    assert status == 422
    assert "`features`: the model has none." in text


def test_the_paths_that_are_counted_are_the_routes(served):
    routes = served.service.app.routes
    assert sorted(route.path for route in routes) == sorted(_app.PATHS)
