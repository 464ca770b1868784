"""Requests as clients of KServe, Triton and TensorFlow Serving send them, and what is answered."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.serve.served import EXAMPLE, ask, program, served, two_inputs
from trainband.model.predictor import Predictor
from trainband.serve import ServedModel
from trainband.serve.app import App

ROWS = EXAMPLE[:2].tolist()
PREDICT = "/v1/models/scaled:predict"
INFER = "/v2/models/scaled/infer"


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with served(ServedModel.of(program())) as made:
        yield made


@pytest.fixture(scope="module")
def pair() -> Iterator[App]:
    with served(ServedModel.of(two_inputs(), "pair")) as made:
        yield made


def tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "input", "shape": [2, 2], "datatype": "FP32", "data": [0, 1, 2.0, 3.0], **changes}


@pytest.mark.smoke
@pytest.mark.parametrize("data", [[0, 1, 2.0, 3.0], [[0, 1], [2, 3]]], ids=["flat", "nested"])
def test_v2_in_json(app: App, data: Any) -> None:
    answer = ask(app, "POST", INFER, json={"id": "a", "inputs": [tensor(data=data)]})
    assert answer.status_code == 200
    assert answer.json() == {
        "model_name": "scaled",
        "model_version": "7",
        "id": "a",
        "outputs": [
            {"name": "largest", "shape": [2], "datatype": "INT32", "data": [1, 1]},
            {"name": "scaled", "shape": [2, 2], "datatype": "FP32", "data": [0.0, 2.0, 4.0, 6.0]},
        ],
    }


def binary(head: dict[str, Any], raw: bytes) -> dict[str, Any]:
    text = json.dumps(head).encode()
    return {"content": text + raw, "headers": {"Inference-Header-Content-Length": str(len(text))}}


def test_v2_in_binary() -> None:
    del_data = {key: value for key, value in tensor(parameters={"binary_data_size": 16}).items() if key != "data"}
    wanted = [{"name": "scaled", "parameters": {"binary_data": True}}, {"name": "largest"}]
    with served(ServedModel.of(program())) as app:
        answer = ask(app, "POST", INFER, **binary({"inputs": [del_data], "outputs": wanted}, EXAMPLE[:2].tobytes()))
    assert answer.status_code == 200
    length = int(answer.headers["Inference-Header-Content-Length"])
    assert json.loads(answer.content[:length])["outputs"] == [
        {"name": "scaled", "shape": [2, 2], "datatype": "FP32", "parameters": {"binary_data_size": 16}},
        {"name": "largest", "shape": [2], "datatype": "INT32", "data": [1, 1]},
    ]
    assert np.frombuffer(answer.content[length:], np.float32).tolist() == [0.0, 2.0, 4.0, 6.0]


BAD_BINARY = [
    ({"parameters": {"binary_data_size": 12}}, 16, "takes 16 bytes as FP32, but its binary_data_size is 12"),
    ({"parameters": {"binary_data_size": 16}}, 12, "expected 16 bytes, got 12"),
    ({"parameters": {"binary_data_size": 16}}, 20, "the body has 20 bytes after its JSON"),
    ({"parameters": {"binary_data_size": -4}, "shape": [-1, 2]}, 16, "has shape"),
]


@pytest.mark.parametrize(("changes", "sent", "found"), BAD_BINARY)
def test_binary_that_lies_about_its_size_is_refused(app: App, changes: dict[str, Any], sent: int, found: str) -> None:
    answer = ask(app, "POST", INFER, **binary({"inputs": [tensor(**changes)]}, bytes(sent)))
    assert answer.status_code == 400
    assert found in answer.json()["error"]


def test_a_header_longer_than_the_body_is_refused(app: App) -> None:
    answer = ask(app, "POST", INFER, content=b"{}", headers={"Inference-Header-Content-Length": "99"})
    assert answer.status_code == 400
    assert "is 99, but the body has 2 bytes" in answer.json()["error"]


def test_a_compressed_body(app: App) -> None:
    body = gzip.compress(json.dumps({"instances": ROWS}).encode())
    assert ask(app, "POST", PREDICT, content=body, headers={"Content-Encoding": "gzip"}).status_code == 200
    cut = ask(app, "POST", PREDICT, content=body[:-9], headers={"Content-Encoding": "gzip"})
    assert (cut.status_code, "is incomplete" in cut.json()["error"]) == (400, True)
    bomb = gzip.compress(bytes(64 << 20))
    assert ask(app, "POST", PREDICT, content=bomb, headers={"Content-Encoding": "gzip"}).status_code == 413


ROWS_ANSWER = {"predictions": [{"largest": 1, "scaled": [0.0, 2.0]}, {"largest": 1, "scaled": [4.0, 6.0]}]}
COLUMNS_ANSWER = {"outputs": {"largest": [1, 1], "scaled": [[0.0, 2.0], [4.0, 6.0]]}}


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"instances": ROWS}, ROWS_ANSWER),
        ({"instances": [{"input": row} for row in ROWS], "signature_name": "serving_default"}, ROWS_ANSWER),
        ({"inputs": ROWS}, COLUMNS_ANSWER),
        ({"inputs": {"input": ROWS}}, COLUMNS_ANSWER),
    ],
    ids=["rows", "named rows", "column", "named column"],
)
def test_tensorflow_serving(app: App, body: Any, answer: Any) -> None:
    found = ask(app, "POST", PREDICT, json=body)
    assert (found.status_code, found.json()) == (200, answer)


def test_two_inputs_and_one_output(pair: App) -> None:
    rows = ask(
        pair, "POST", "/v1/models/pair:predict", json={"instances": [{"x": [1, 2], "n": 3}, {"x": [0, 0], "n": 1}]}
    )
    assert rows.json() == {"predictions": [[13.0, 23.0], [1.0, 1.0]]}
    columns = ask(pair, "POST", "/v1/models/pair:predict", json={"inputs": {"x": [[1, 2]], "n": [3]}})
    assert columns.json() == {"outputs": [[13.0, 23.0]]}
    uneven = ask(pair, "POST", "/v1/models/pair:predict", json={"inputs": {"x": [[1, 2]], "n": [3, 4]}})
    assert (uneven.status_code, "another input has batch" in uneven.json()["error"]) == (400, True)


def test_floats_that_json_has_not(app: App) -> None:
    rows = ask(app, "POST", PREDICT, content=b'{"instances": [[NaN, 1.0], [-Infinity, Infinity]]}')
    assert rows.status_code == 200
    assert rows.text.count("NaN") == 1
    assert '"scaled":[-Infinity,Infinity]' in rows.text
    tensors = json.dumps({"inputs": [tensor(data=[float("nan"), 1, 2, 3])]})
    assert "[NaN,2.0,4.0,6.0]" in ask(app, "POST", INFER, content=tensors).text


BAD: list[tuple[str, bytes | Any, str]] = [
    # address, body, what the error says
    (PREDICT, b"", "cannot read the request"),
    (PREDICT, b'{"instances": [[1.0, 2', "cannot read the request"),
    (PREDICT, b'{"instances": [[NaN, 2', "cannot read the request"),
    (PREDICT, {}, "either instances (rows) or inputs (columns)"),
    (PREDICT, {"instances": ROWS, "inputs": ROWS}, "either instances (rows) or inputs (columns)"),
    (PREDICT, {"instances": ROWS, "signature_name": "other"}, "no signature 'other'"),
    (PREDICT, {"instances": []}, "expected input: float32[batch, 2]"),
    (PREDICT, {"instances": [[1.0, 2.0], [3.0]]}, "expected input: float32[batch, 2]"),
    (PREDICT, {"instances": [[1.0, 2.0, 3.0]]}, "is float32[1, 3]; expected input: float32[batch, 2]"),
    (PREDICT, {"instances": [["a", "b"]]}, "expected input: float32[batch, 2]"),
    (PREDICT, {"instances": [{"image": [1, 2]}]}, "unknown field `image`"),
    (PREDICT, {"inputs": {"image": ROWS}}, "no input 'image'; the inputs are input: float32[batch, 2]"),
    (INFER, {"inputs": []}, "the input 'input' is missing"),
    (INFER, {"inputs": [tensor(), tensor()]}, "given twice"),
    (INFER, {"inputs": [tensor(name="image")]}, "no input 'image'"),
    (INFER, {"inputs": [tensor(datatype="FP64")]}, "expected FP32 (input: float32[batch, 2])"),
    (INFER, {"inputs": [tensor(shape=[2, 3])]}, "needs 6 elements, but has 4"),
    (INFER, {"inputs": [tensor(shape=[4, 1])]}, "is float32[4, 1]; expected input: float32[batch, 2]"),
    (INFER, {"inputs": [tensor(shape=[0, 2], data=[])]}, "no examples"),
    (INFER, {"inputs": [tensor()], "outputs": [{"name": "logits"}]}, "no output 'logits'"),
]


@pytest.mark.parametrize(("path", "body", "found"), BAD)
def test_bad_input_is_told_what_is_expected(app: App, path: str, body: Any, found: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = ask(app, "POST", path, content=content)
    assert answer.status_code == 400
    assert found in answer.json()["error"]


@pytest.mark.parametrize(("number", "found"), [(2**40, "a tensor"), (1.5, "Expected `int`"), (True, "Expected `int`")])
def test_a_number_that_is_no_int32_is_refused(pair: App, number: Any, found: str) -> None:
    answer = ask(pair, "POST", "/v1/models/pair:predict", json={"instances": [{"x": [1, 2], "n": number}]})
    assert answer.status_code == 400
    assert found in answer.json()["error"]


def test_what_is_served_and_what_is_not(app: App) -> None:
    assert ask(app, "GET", "/v2/health/live").status_code == 200
    ready = ask(app, "GET", "/v2/health/ready").json()
    assert (ready["ready"], ready["version"], ready["source"]["state"]) == (True, 7, "fixed")
    metadata = ask(app, "GET", "/v2/models/scaled/versions/7").json()
    assert metadata["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 2]}]
    assert ask(app, "GET", "/v2/models/scaled/ready").json() == {"name": "scaled", "ready": True}
    status = ask(app, "GET", "/v1/models/scaled").json()["model_version_status"]
    assert [(one["version"], one["state"]) for one in status] == [("7", "AVAILABLE")]
    definition = ask(app, "GET", "/v1/models/scaled/metadata").json()["metadata"]["signature_def"]["signature_def"]
    assert definition["serving_default"]["outputs"]["largest"]["dtype"] == "DT_INT32"
    assert ask(app, "POST", "/v2/models/scaled/versions/7/infer", json={"inputs": [tensor()]}).status_code == 200
    for path in ("/v2/models/other", "/v2/models/scaled/versions/6", "/v1/models/scaled/labels/a", "/v3"):
        assert ask(app, "GET", path).status_code == 404, path
    assert ask(app, "POST", "/v1/models/other:predict", json={"instances": ROWS}).status_code == 404
    assert ask(app, "GET", PREDICT).status_code == 405


def test_tritons_client_may_ask_for_the_configuration_and_the_statistics() -> None:
    with served(ServedModel.of(program())) as app:
        assert ask(app, "POST", INFER, json={"inputs": [tensor()]}).status_code == 200
        assert ask(app, "POST", INFER, json={"inputs": []}).status_code == 400
        config = ask(app, "GET", "/v2/models/scaled/config").json()
        assert (config["name"], config["max_batch_size"]) == ("scaled", 8)
        assert config["input"] == [{"name": "input", "data_type": "TYPE_FP32", "dims": [2]}]
        assert [output["dims"] for output in config["output"]] == [[], [2]]
        for path in ("/v2/models/scaled/stats", "/v2/models/scaled/versions/7/stats", "/v2/models/stats"):
            (stats,) = ask(app, "GET", path).json()["model_stats"]
            assert (stats["name"], stats["version"], stats["inference_count"]) == ("scaled", "7", 2)
            assert (stats["execution_count"], stats["inference_stats"]["success"]["count"]) == (1, 1)
            assert stats["inference_stats"]["fail"]["count"] == 1
            assert stats["inference_stats"]["compute_infer"]["ns"] > 0
        assert ask(app, "GET", "/v2/models/other/config").status_code == 404
        wanted = {"inputs": [tensor()], "outputs": [{"name": "scaled", "parameters": {"classification": 1}}]}
        assert "of the extension 'classification'" in ask(app, "POST", INFER, json=wanted).json()["error"]


@pytest.mark.parametrize(
    ("accepted", "encoded"), [("gzip", "gzip"), ("deflate", "deflate"), ("gzip, deflate, br", ""), ("br", "")]
)
def test_an_answer_is_compressed_where_the_client_asks_for_that_alone(app: App, accepted: str, encoded: str) -> None:
    answer = ask(app, "POST", INFER, json={"inputs": [tensor()]}, headers={"Accept-Encoding": accepted})
    assert answer.headers.get("content-encoding", "") == encoded
    assert answer.json()["outputs"][1]["data"] == [0, 2, 4, 6]  # httpx unpacks it


def test_integers_that_jax_would_cut_are_refused() -> None:
    predictor = Predictor(lambda params, batch: batch * params["factor"], example=np.array([1, 2, 3]))
    one = ServedModel.of(predictor.program({"params/factor": np.array(1, np.int32)}), name="ids")
    kept = ServedModel.of_run(lambda inputs: {"output": inputs["input"]}, one.signature, "ids")  # such as ONNX's
    for model, code in ((one, 400), (kept, 200)):
        with served(model) as app:
            answer = ask(app, "POST", "/v1/models/ids:predict", json={"instances": [1, 2**32 + 1]})
            assert answer.status_code == code, answer.text
            if code == 400:
                assert "array ['input'] (int64[2]) holds 4294967297" in answer.json()["error"]
            data = {"name": "input", "shape": [1], "datatype": "INT64", "data": [2**32 + 1]}
            assert ask(app, "POST", "/v2/models/ids/infer", json={"inputs": [data]}).status_code == code
