"""The interface for programs: what it answers, and what it makes of anything else."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import time
import zipfile

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("fastapi")

from fastapi.openapi.models import OpenAPI

import proplace as pp
import small_promises as small
from proplace.apps.serve import service, workers
from served import API, PERSON, opened, wait, with_odd_workers

LENDER = f"{API}/models/lender"
MARKUP = "<script>alert('x')</script>"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with opened(tmp_path_factory.mktemp("api")) as found:
        yield found


@pytest.fixture
def admin(served):
    return served.client("admin")


@pytest.fixture
def odd(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_GRACE", 0.1)
    with opened(tmp_path, limits={"seconds": 20.0, "at_once": 1, "jobs": 2}) as found:
        yield with_odd_workers(found)


def answer_of(client, person=PERSON, **options):
    """The first answer of a person."""
    found = client.post(f"{LENDER}/explain", json={"people": [person], "options": options})
    assert found.status_code == 200, found.text
    return found.json()["answers"][0][0]


def issue(client, who, person=PERSON, **more):
    """Promise somebody the first answer."""
    asked = {
        "id": who,
        "person": person,
        "certificate": answer_of(client, person)["certificate_digest"],
    }
    return client.post(f"{LENDER}/promises", json=asked | more)


# -- the same as the library -------------------------------------------------------------------------


def test_models_and_schema(admin):
    (facts,) = admin.get(f"{API}/models").json()
    assert facts == admin.get(LENDER).json()
    assert (facts["name"], facts["delta"], facts["target"]) == ("lender", 0.01, 1)
    features = admin.get(f"{LENDER}/schema").json()["features"]
    assert [feature["name"] for feature in features] == ["income", "debt"]


def test_predict_and_certify_are_those_of_the_library(admin):
    people = [
        *small.refused(20).to_dict("records"),
        {"income": 90, "debt": 3},
        {"income": 53, "debt": 9},
    ]
    X = small.SCHEMA.encode(pd.DataFrame(people))
    said = admin.post(f"{LENDER}/predict", json={"people": people}).json()
    assert [one["label"] for one in said] == small.NET.predict(X).tolist()
    assert [one["margin"] for one in said] == pytest.approx(small.NET.margin(X, 1).tolist())
    proved = admin.post(f"{LENDER}/certify", json={"people": people}).json()
    own = pp.certify(small.NET, X, 0.01, 1)
    assert [one["robust"] for one in proved] == own.robust.tolist()
    assert {one["robust"] for one in proved} == {True, False}
    refused = admin.post(f"{LENDER}/certify", json={"people": people, "target": 0}).json()
    assert refused[0]["robust"] is True


def test_answers_are_those_of_the_library(admin):
    own = pp.Proplace(small.NET, 0.01, schema=small.SCHEMA, prefer="few").fit(small.TRAINING)
    best = own.explain(pd.DataFrame([PERSON]))[0]
    assert answer_of(admin)["distance"] == pytest.approx(best.distance)


def test_a_certificate_is_checked(admin):
    proof = answer_of(admin)["certificate"]
    found = admin.post(f"{LENDER}/check", json={"certificate": proof}).json()
    assert (found["accepted"], found["claim"]) == (True, "robust")
    other = json.loads(json.dumps(proof))
    other["x"] = [0.0, 0.0]
    found = admin.post(f"{LENDER}/check", json={"certificate": other}).json()
    assert (found["accepted"], found["claim"]) == (False, None)
    assert found["reason"]


@pytest.mark.parametrize(
    "certificate",
    [
        "{}",
        '{"a": NaN}',
        '{"format": "proplace-certificate-1"}',
        '{"format": "proplace-bundle-1", "certificates": 3}',
        '{"format": ["x"], "verdict": "robust"}',
        '{"a": "\\ud800"}',
        '{"a": ' + "[" * 800 + "]" * 800 + "}",
        '{"a": ' + "9" * 4000 + "}",
    ],
)
def test_what_is_no_certificate_is_not_accepted(admin, certificate):
    answer = post(admin, f"{LENDER}/check", f'{{"certificate": {certificate}}}')
    assert answer.status_code == 422 or answer.json()["accepted"] is False


@pytest.mark.parametrize("space", ["", " ", "\n\t"])
def test_a_certificate_is_checked_letter_by_letter(admin, space):
    proof = json.dumps(answer_of(admin)["certificate"])

    def checked(certificate):
        body = f'{space}{{{space}"certificate"{space}:{space}{certificate}{space}}}{space}'
        return post(admin, f"{LENDER}/check", body).json()

    assert checked(proof)["accepted"]
    twice = checked('{"verdict": "not robust", ' + proof[1:])
    assert (twice["accepted"], twice["reason"]) == (False, "a field is given twice")


@pytest.mark.parametrize(
    "body",
    [
        '{"certificate": {}, "certificate": %s}',
        '{"certificate": %s, "certificate": %s}',
        '{"certificate": %s, "\\u0063ertificate": {}}',
        '\ufeff{"certificate": %s}',
    ],
)
def test_a_certificate_comes_alone(admin, body):
    body = body.replace("%s", json.dumps(answer_of(admin)["certificate"]))
    answer = post(admin, f"{LENDER}/check", body)
    assert answer.status_code == 422, answer.text
    assert "given once" in answer.json()["error"] or "BOM" in answer.json()["error"]


def test_a_promise_from_beginning_to_end(served):
    cases, audits = served.client("caseworker"), served.client("auditor")
    made = issue(cases, "anna", expires="2999-01-31")
    assert made.status_code == 201, made.text
    number = made.json()["promise"]
    assert issue(cases, "anna", expires="2999-01-31").json() == {"promise": number, "new": False}
    promise = cases.get(f"{API}/promises/{number}").json()
    assert (promise["person"], promise["state"]) == ("anna", "open")
    assert promise["expires"] == "2999-01-31"
    checked = cases.post(f"{LENDER}/check", json={"certificate": promise["certificate"]})
    assert checked.json()["accepted"] is True
    rows = cases.get(f"{API}/promises", params={"person": "anna", "state": "open"}).json()
    assert [row["id"] for row in rows] == [number]
    same = cases.post(f"{API}/promises/{number}/redeem", json={"person": PERSON, "dry_run": True})
    assert same.json()["verdict"] == "not met"
    become = answer_of(cases)["counterfactual"]
    path = f"{API}/promises/{number}/redeem"
    assert cases.post(path, json={"person": become}).json()["verdict"] == "exact"
    assert cases.post(path, json={"person": become}).status_code == 409
    history = [e["kind"] for e in cases.get(f"{API}/promises/{number}").json()["history"]]
    assert history == ["issued", "redeemed"]
    entries = audits.get(f"{API}/ledger/entries").json()
    actors = {json.loads(e["body"])["by"] for e in entries if e["promise"] == number}
    assert actors == {"caseworker"}


def test_only_what_was_seen_is_promised(served):
    cases = served.client("caseworker")
    found = issue(cases, "berta", certificate="0" * 64)
    assert found.status_code == 409
    assert "not found again" in found.json()["error"]
    assert cases.get(f"{API}/promises", params={"person": "berta"}).json() == []


def test_withdraw_and_erase(served, admin):
    number = issue(admin, "clara", {"income": 13, "debt": 24}).json()["promise"]
    path = f"{API}/promises/{number}/withdraw"
    assert admin.post(path, json={"reason": "clara asked"}).status_code == 409
    assert admin.post(path, json={"reason": "a mistake"}).status_code == 204
    page = served.folder / "serve.files" / "audit-x.html"
    page.write_text("clara")
    assert admin.post(f"{API}/people/erase", json={"id": "clara"}).json() == {"promises": [number]}
    assert not page.exists()
    assert admin.get(f"{API}/promises/{number}").json()["person"] is None
    assert admin.get(f"{API}/ledger").json()["good"] is True


def test_an_audit_is_decided(served):
    audits, admin = served.client("auditor"), served.client("admin")
    issue(admin, "dora", {"income": 14, "debt": 24})
    content = (served.folder / "later.npz").read_bytes()
    started = audits.post(f"{API}/audits", files={"model": ("later.npz", content)})
    assert started.status_code == 202
    job = started.json()["job"]
    assert started.headers["location"] == f"{API}/jobs/{job}"
    assert wait(audits, job)["state"] == "done"
    found = audits.get(f"{API}/jobs/{job}/answers").json()["answers"]["0"]
    assert sum(found["counts"].values()) >= 1
    assert "later.npz" in found["sentence"]
    page = audits.get(f"{API}/jobs/{job}/page")
    assert "dora" in page.text
    assert "script-src" not in page.headers["content-security-policy"]
    assert "sandbox" in page.headers["content-security-policy"]
    path = f"{API}/audits/{found['audit']}/decision"
    assert audits.post(path, json={"go": False, "note": "wait"}).status_code == 201
    assert audits.post(f"{API}/audits/1/decision", json={"go": True}).status_code == 404
    last = audits.get(f"{API}/ledger/entries").json()[-1]
    assert (last["kind"], json.loads(last["body"])["by"]) == ("decided", "auditor")
    assert not list((served.folder / "serve.files").glob("model-*"))


def test_entries_come_in_parts(served, admin):
    path = f"{API}/ledger/entries"
    whole = [entry["seq"] for entry in admin.get(path).json()]
    first = [entry["seq"] for entry in admin.get(path, params={"most": 2}).json()]
    rest = [entry["seq"] for entry in admin.get(path, params={"after": first[-1]}).json()]
    assert len(first) == 2
    assert first + rest == whole


# -- what is wrong -------------------------------------------------------------------------------------


def post(client, path, text, kind="application/json"):
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return client.post(path, content=content, headers={"content-type": kind})


def people(cells):
    return f'{{"people": [{cells}]}}'


MALFORMED = {
    "nothing": "",
    "no JSON": "{",
    "a list": "[]",
    "no people": '{"people": []}',
    "more": '{"people": [{"income": 1, "debt": 1}], "admin": true}',
    "no text": b"\xff\xfe{}",
    "deep": "[" * 100_000,
    "deep in a cell": people('{"income": ' + "[" * 800 + "]" * 800 + ', "debt": 1}'),
    "NaN": people('{"income": NaN, "debt": 1}'),
    "infinite": people('{"income": 1e999, "debt": 1}'),
    "large": people('{"income": 1e300, "debt": 1}'),
    "larger": people('{"income": ' + "9" * 400 + ', "debt": 1}'),
    "largest": people('{"income": ' + "9" * 5000 + ', "debt": 1}'),
    "a truth": people('{"income": true, "debt": 1}'),
    "null": people('{"income": null, "debt": 1}'),
    "a word": people('{"income": "much", "debt": 1}'),
    "a long word": people('{"income": "' + "9" * 2000 + '", "debt": 1}'),
    "half a letter": people('{"income": "\\ud800", "debt": 1}'),
    "half a letter as name": people('{"\\ud800": 1, "debt": 1}'),
    "no such feature": people('{"income": 1, "debt": 1, "sex": 1}'),
    "a long name": people('{"' + "a" * 100_000 + '": 1}'),
    "one missing": people('{"income": 1}'),
    "an object": people('{"income": {"$gt": 0}, "debt": 1}'),
    "twice": people("1, 2, 3"),
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("path", ["predict", "certify", "explain"])
def test_malformed_people_are_refused(admin, path, text):
    answer = post(admin, f"{LENDER}/{path}", text)
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["error"]


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_only_json_is_read(admin, kind):
    """A form of another site can send these kinds, and nothing else."""
    answer = post(admin, f"{LENDER}/predict", people('{"income": 1, "debt": 1}'), kind)
    assert answer.status_code in (400, 422)


@pytest.mark.parametrize(
    "options",
    [
        {"count": 0},
        {"count": 10**30},
        {"count": "many"},
        {"prefer": "all"},
        {"max_changes": -1},
        {"max_changes": 10**9},
        {"changeable": ["nothing"]},
        {"changeable": []},
        {"locked": ["income", "debt"]},
        {"locked": ["sex"]},
        {"tolerance": {"nothing": 1.0}},
        {"tolerance": {"income": -1.0}},
        {"effort": {"nothing": 1.0}},
        {"max_effort": 0},
        {"target": "no class"},
        {"target": [1]},
        {"region": "sphere"},
        {"solver": "gurobi"},
        {"time_limit": 1e9},
    ],
    ids=str,
)
def test_options_that_do_not_exist_are_refused(admin, options):
    answer = admin.post(f"{LENDER}/explain", json={"people": [PERSON], "options": options})
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("get", "/models/nothing", None, 404),
        ("post", "/models/nothing/predict", {"people": [PERSON]}, 404),
        ("post", "/models/nothing/explain", {"people": [PERSON]}, 404),
        ("post", "/models/nothing/check", {"certificate": {}}, 404),
        ("get", "/promises/999", None, 404),
        ("get", f"/promises/{10**30}", None, 422),
        ("get", "/promises/-1", None, 422),
        ("get", "/promises/one", None, 422),
        ("get", "/promises?state=lost", None, 422),
        ("get", "/promises?person=%00", None, 409),
        ("get", "/ledger/entries?most=0", None, 422),
        ("get", f"/ledger/entries?after={10**30}", None, 200),
        ("post", "/promises/999/redeem", {"person": PERSON}, 404),
        ("post", "/promises/999/withdraw", {"reason": "x"}, 404),
        ("post", "/promises/999/withdraw", {"reason": ""}, 422),
        ("post", "/promises/999/withdraw", {"reason": "x" * 201}, 422),
        ("post", "/audits/999/decision", {"go": True}, 404),
        ("post", "/audits/999/decision", {"go": "perhaps"}, 422),
        ("post", "/audits/999/decision", {"go": True, "note": "x" * 501}, 422),
        ("post", "/people/erase", {"id": "nobody"}, 200),
        ("post", "/people/erase", {"id": ""}, 422),
        ("get", "/jobs/none", None, 404),
        ("delete", "/jobs/none", None, 404),
        ("put", "/models", None, 405),
        ("get", "/../serve.db", None, 404),
    ],
)
def test_what_does_not_exist(admin, method, path, body, status):
    answer = admin.request(method, API + path, json=body)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    "person", [{}, {"income": "much", "debt": 1}, {"income": True, "debt": None}]
)
def test_who_comes_back_is_somebody(served, admin, person):
    number = issue(admin, "emma", {"income": 15, "debt": 24}).json()["promise"]
    before = admin.get(f"{API}/ledger").json()["entries"]
    answer = admin.post(f"{API}/promises/{number}/redeem", json={"person": person})
    assert answer.status_code == 422, answer.text
    assert admin.get(f"{API}/ledger").json()["entries"] == before


@pytest.mark.parametrize(
    "field",
    [{"certificate": "0"}, {"expires": "tomorrow"}, {"expires": "2020-01-01"}, {"expires": "2999-02-31"},
     {"existing": "force"}, {"id": ""}, {"id": "x" * 201}, {"id": "a\nb"}],
    ids=str,
)  # fmt: skip
def test_a_wrong_promise_is_not_made(admin, field):
    before = admin.get(f"{API}/ledger").json()["entries"]
    answer = issue(admin, "fanny", {"income": 16, "debt": 24}, **field)
    assert answer.status_code in (409, 422), answer.text
    assert admin.get(f"{API}/ledger").json()["entries"] == before


def test_bodies_are_bounded(served, admin):
    most = served.service.config.limits.body
    assert post(admin, f"{LENDER}/predict", b" " * (most + 1)).status_code == 413
    assert post(admin, f"{LENDER}/predict", b" " * most).status_code == 422

    def parts():  # no length is told
        for _ in range(most // 2**20 + 1):
            yield b" " * 2**20

    answer = admin.post(
        f"{LENDER}/predict", content=parts(), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413
    for length in ("-1", "1e3", "9" * 5000, ""):
        answer = admin.get(LENDER, headers={"content-length": length})
        assert answer.status_code == 413, length


def test_wrong_people_cost_one_message(admin):
    answer = post(admin, f"{LENDER}/predict", people(",".join(["1"] * 1_000_000)))
    assert answer.status_code == 422
    assert len(answer.content) < 2000
    cells = ",".join(f'"{n}": []' for n in range(20_000))
    for body in (
        people("{" + cells + "}"),
        f'{{"people": [], {cells}}}',
        f'{{"people": [{{}}], "options": {{{cells}}}}}',
        f'{{"people": [{{}}], "options": {{"effort": {{{cells}}}}}}}',
    ):
        answer = post(admin, f"{LENDER}/explain", body)
        assert answer.status_code == 422
        assert "more than 10,000 fields" in answer.json()["error"]
        assert len(answer.content) < 500


def test_too_many_people_are_refused(tmp_path):
    with opened(tmp_path, limits={"people": 2}) as found:
        for path in ("predict", "certify", "explain"):
            answer = found.client("reader").post(f"{LENDER}/{path}", json={"people": [PERSON] * 3})
            assert answer.status_code == 413
            assert "3 people" in answer.json()["error"]


# -- models that are sent ------------------------------------------------------------------------------


class _Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def _pickled(path, kind):
    content = pickle.dumps(_Bomb(path))
    if kind == "raw":
        return content
    buffer = io.BytesIO()
    if kind == "npz":
        array = np.array([_Bomb(path)], dtype=object)
        np.savez(buffer, W0=array, b0=array)
    else:
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("model/data.pkl", content)
            archive.writestr("model/version", "3")
    return buffer.getvalue()


def _zip_bomb():
    """Zeros that unpack to a thousand times their size."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("W0.npy", "w", force_zip64=True) as part,
    ):
        header = {"descr": "<f8", "fortran_order": False, "shape": (40_000_000,)}
        np.lib.format.write_array_header_1_0(part, header)
        for _ in range(40):
            part.write(bytes(8_000_000))
    return buffer.getvalue()


def _claims():
    """A header that speaks of terabytes."""
    buffer, head = io.BytesIO(), io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)}
    np.lib.format.write_array_header_1_0(head, header)
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("W0.npy", head.getvalue())
    return buffer.getvalue()


def _onnx_bomb(width=10):
    onnx = pytest.importorskip("onnx")
    huge = onnx.TensorProto(name="W", data_type=1, dims=[10**5, 10**6])
    node = onnx.helper.make_node("MatMul", ["x", "W"], ["y"])
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node], "g", [info("x", 1, [1, width])], [info("y", 1, [1, 10**6])], [huge]
    )
    return onnx.helper.make_model(graph).SerializeToString()


def _outside(path):
    """Weights of an ONNX model that lie in a file of the server."""
    onnx = pytest.importorskip("onnx")
    graph = onnx.load_from_string(_onnx_bomb())
    weights = graph.graph.initializer[0]
    weights.dims[:] = [1, 1]
    weights.data_location = onnx.TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=f"../../{path.name}")
    return graph.SerializeToString()


HOSTILE = {
    "a pickle as npz": ("m.npz", lambda path: _pickled(path, "raw")),
    "a pickle in an npz": ("m.npz", lambda path: _pickled(path, "npz")),
    "a pickle as pt": ("m.pt", lambda path: _pickled(path, "raw")),
    "a pickle in a pt": ("m.pth", lambda path: _pickled(path, "pt")),
    "a pickle as keras": ("m.keras", lambda path: _pickled(path, "raw")),
    "zeros": ("m.npz", lambda _: _zip_bomb()),
    "terabytes": ("m.npz", lambda _: _claims()),
    "onnx terabytes": ("m.onnx", lambda _: _onnx_bomb()),
    "onnx columns": ("m.onnx", lambda _: _onnx_bomb(10**12)),
    "weights elsewhere": ("m.onnx", _outside),
    "a header without end": ("m.safetensors", lambda _: b"\xff" * 8 + b"{"),
    "nothing": ("m.npz", lambda _: b""),
}


@pytest.mark.parametrize(("name", "make"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_models_are_refused(served, tmp_path, name, make):
    audits = served.client("auditor")
    before = served.client("admin").get(f"{API}/ledger").json()["entries"]
    content = make(tmp_path / "made")
    started = audits.post(f"{API}/audits", files={"model": (name, content)})
    assert started.status_code == 202
    ended = wait(audits, started.json()["job"])
    assert ended["state"] == "failed"
    assert ended["reason"]
    assert "died" not in ended["reason"]
    assert str(served.folder) not in ended["reason"]
    assert not (tmp_path / "made").exists()
    assert served.client("admin").get(f"{API}/ledger").json()["entries"] == before
    assert not list((served.folder / "serve.files").glob("model-*"))


@pytest.mark.parametrize(
    "name", ["m.pkl", "m.joblib", "m.h5", "m", ".npz", "", "m.npz.exe", "m.html"]
)
def test_other_files_are_refused_by_name(served, name):
    files = {"model": (name, pickle.dumps(1))}
    answer = served.client("auditor").post(f"{API}/audits", files=files)
    assert answer.status_code in (415, 422), answer.text


@pytest.mark.parametrize(
    "name",
    ["../../../later.npz", "/etc/later.npz", "..\\..\\later.npz", "é" * 200 + ".npz", "a\r\nb.npz",
     f"{MARKUP}.npz", "CON.npz", "-rf.npz"],
    ids=ascii,
)  # fmt: skip
def test_names_of_uploads_lead_nowhere(served, name):
    audits = served.client("auditor")
    before = {path for path in served.folder.rglob("*") if "serve.files" not in str(path)}
    content = (served.folder / "later.npz").read_bytes()
    job = audits.post(f"{API}/audits", files={"model": (name, content)}).json()["job"]
    assert wait(audits, job)["state"] == "done"
    found = audits.get(f"{API}/jobs/{job}/answers").text
    assert "<" not in found
    assert "<script" not in audits.get(f"{API}/jobs/{job}/page").text
    after = {path for path in served.folder.rglob("*") if "serve.files" not in str(path)}
    assert after == before


def test_a_model_of_many_parameters_is_refused(tmp_path):
    with opened(tmp_path, limits={"parameters": 3}) as found:
        audits = found.client("auditor")
        files = {"model": ("later.npz", (tmp_path / "later.npz").read_bytes())}
        ended = wait(audits, audits.post(f"{API}/audits", files=files).json()["job"])
        assert ended["state"] == "failed"
        assert "numbers; models of at most 3 are read" in ended["reason"]
        assert (
            answer_of(found.client("admin"))["status"] == "optimal"
        )  # the model served is not cut


def test_a_large_model_is_refused(tmp_path):
    with opened(tmp_path, limits={"model_file": 2048}) as found:
        audits = found.client("auditor")
        answer = audits.post(f"{API}/audits", files={"model": ("m.npz", b"x" * 3000)})
        assert answer.status_code == 413
        answer = audits.post(f"{API}/audits", files={"model": ("m.npz", b"x" * 100_000)})
        assert answer.status_code == 413
        assert found.service.store.jobs() == []


# -- texts are texts -----------------------------------------------------------------------------------


def test_markup_is_inert_wherever_it_comes_back(served, admin):
    number = issue(admin, MARKUP, {"income": 17, "debt": 24}).json()["promise"]
    content = (served.folder / "later.npz").read_bytes()
    job = admin.post(f"{API}/audits", files={"model": ("later.npz", content)}).json()["job"]
    assert wait(admin, job)["state"] == "done"
    audit = admin.get(f"{API}/jobs/{job}/answers").json()["answers"]["0"]["audit"]
    admin.post(f"{API}/audits/{audit}/decision", json={"go": True, "note": MARKUP})
    page = admin.get(f"{API}/jobs/{job}/page").text
    assert "&lt;script&gt;alert" in page
    assert MARKUP not in page
    withdrawn = admin.post(f"{API}/promises/{number}/withdraw", json={"reason": f"no {MARKUP[1:]}"})
    assert withdrawn.status_code == 204
    for path in (f"/promises/{number}", "/promises", "/ledger/entries", f"/models/{MARKUP}"):
        answer = admin.get(API + path)
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "alert" in answer.text or answer.status_code == 404


def test_logs_hold_nothing_of_what_is_sent(served, admin, caplog):
    caplog.set_level("INFO", "proplace.serve")
    said = [f"zebra{n}" for n in range(12)]
    admin.post(f"{LENDER}/predict", json={"people": [{"income": said[0], "debt": 23.4567}]})
    admin.post(f"{LENDER}/predict", json={"people": [{said[1]: 1}]})
    admin.post(f"{LENDER}/explain", json={"people": [PERSON], "options": {"locked": [said[2]]}})
    number = issue(admin, said[3], {"income": 18, "debt": 23.4567}).json()["promise"]
    admin.get(f"{API}/promises", params={"person": said[3]})
    admin.get(f"{API}/models/{said[4]}")
    admin.get(f"{API}/{said[5]}")
    admin.request(said[6].upper(), LENDER)
    admin.post(f"{API}/promises/{number}/withdraw", json={"reason": said[7]})
    admin.post(f"{API}/people/erase", json={"id": said[3]})
    admin.post(f"{API}/audits", files={"model": (f"{said[8]}.npz", b"zebra")})
    admin.get(LENDER, headers={"authorization": f"Bearer {said[9]}", "user-agent": said[10]})
    admin.get(LENDER, headers={"host": said[11]})
    lines = [record.getMessage() for record in caplog.records if record.name == "proplace.serve"]
    assert len(lines) >= 13
    for line in lines:
        facts = json.loads(line)
        assert set(facts) == {"time", "request", "method", "route", "status", "ms", "by"}
        assert not re.search("zebra|23.4567|pp_", line, re.I)


# -- searches that take long ---------------------------------------------------------------------------


def explain(client, *incomes):
    asked = [{"income": income, "debt": 1} for income in incomes]
    return client.post(f"{LENDER}/explain", json={"people": asked})


def test_a_late_search_costs_one_request(odd, monkeypatch):
    client = odd.client("reader")
    started = explain(client, 0)
    assert started.status_code == 200, started.text  # the process has started
    monkeypatch.setattr(odd.service, "config", odd.service.config.model_copy(
        update={"limits": odd.service.config.limits.model_copy(update={"seconds": 0.2})}))  # fmt: skip
    late = explain(client, 1)
    assert late.status_code == 504
    assert "0.2 s" in late.json()["error"]


@pytest.mark.parametrize(("income", "said"), [(2, "died"), (3, "RuntimeError")])
def test_a_dead_search_costs_one_request(odd, income, said):
    client = odd.client("reader")
    died = explain(client, income)
    assert died.status_code in ((503,) if income == 2 else (500, 503))
    assert said in died.json()["error"]
    assert "retry-after" in died.headers or died.status_code == 500
    assert explain(client, 0).status_code == 200


def test_a_full_queue_is_told_at_once(tmp_path):
    with opened(tmp_path) as found:
        with_odd_workers(found, waiting=1)
        ask = found.service.workers.ask
        running = ask("explain", "lender", [{"income": 1}], {}, 1.0, seconds=60.0)
        while not found.service.workers.running:
            time.sleep(0.01)
        waiting = ask("explain", "lender", [{"income": 0}], {}, 1.0, seconds=60.0)
        refused = explain(found.client("reader"), 0)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert found.client("reader").get(f"{API}/health").json() == {
            "status": "ok", "waiting": 1, "running": 1,
        }  # fmt: skip
        running.cancel()
        assert waiting.future.result(timeout=60)
        assert explain(found.client("reader"), 0).status_code == 200


# -- jobs ----------------------------------------------------------------------------------------------


def test_many_people_are_a_job(odd):
    client = odd.client("reader")
    started = explain(client, 0, 2, 3, 0)
    assert started.status_code == 202
    job = started.json()["job"]
    ended = wait(client, job)
    assert (ended["state"], ended["done"], ended["total"]) == ("done", 4, 4)
    answers = client.get(f"{API}/jobs/{job}/answers").json()["answers"]
    assert set(answers) == {"0", "1", "2", "3"}
    assert "pid" in answers["0"][0]
    assert "pid" in answers["3"][0]
    assert "died" in answers["1"]["error"]
    assert "RuntimeError" in answers["2"]["error"]


def test_a_job_is_cancelled(odd):
    client = odd.client("reader")
    job = explain(client, 0, 1, 0).json()["job"]
    wait(client, job, until=lambda facts: facts["done"] == 1)
    assert client.delete(f"{API}/jobs/{job}").status_code == 204
    assert wait(client, job)["state"] == "cancelled"
    assert explain(client, 0).status_code == 200
    assert client.get(f"{API}/jobs/{job}").json()["done"] == 1


def test_jobs_are_bounded(odd):
    client = odd.client("reader")
    jobs = [explain(client, 1, 1).json()["job"] for _ in range(2)]
    refused = explain(client, 1, 1)
    assert refused.status_code == 429
    assert "jobs" in refused.json()["error"]
    for job in jobs:
        client.delete(f"{API}/jobs/{job}")
        wait(client, job)
    end = time.monotonic() + 30
    while (again := explain(client, 0, 0)).status_code == 429 and time.monotonic() < end:
        time.sleep(0.02)
    assert again.status_code == 202


def test_a_job_goes_on_where_it_was_stopped(tmp_path):
    with opened(tmp_path, limits={"at_once": 1}) as found:
        with_odd_workers(found)
        keys, client = found.keys, found.client("reader")
        job = explain(client, 0, 0, 4, 4, 4, 4).json()["job"]
        wait(client, job, until=lambda facts: facts["done"] >= 2)
    with opened(tmp_path, limits={"at_once": 1}) as found:
        found.keys = keys
        assert found.service.store.job(job).state == "running"
        found.service.cancel_job("nothing")
        client = with_odd_workers(found).client("reader")
        ended = wait(client, job)
        assert (ended["state"], ended["done"]) == ("done", 6)
        answers = client.get(f"{API}/jobs/{job}/answers").json()["answers"]
        assert answers["0"] == answers["1"] != answers["5"]


def test_ended_jobs_are_deleted_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "_TIDY_SECONDS", 0.02)
    with opened(tmp_path, limits={"keep": 1e-5}) as found:
        store = found.service.store
        running, ended = (store.add_job("audit", "admin", '{"path": "x"}', 1) for _ in range(2))
        for job in (running, ended):
            (found.service.files / f"audit-{job}.html").write_text("anna")
        store.set_state(ended, "done")
        end = time.monotonic() + 30
        while store.job(ended) is not None and time.monotonic() < end:
            time.sleep(0.02)
        assert store.job(running) is not None
    assert [path.name for path in found.service.files.iterdir()] == [f"audit-{running}.html"]


# -- the description -----------------------------------------------------------------------------------


def test_the_description_is_whole(served):
    facts = served.client().get(f"{API}/openapi.json").json()
    OpenAPI.model_validate(facts)
    schemas = facts["components"]["schemas"]
    names = re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(facts))
    assert set(names) <= set(schemas)
    assert set(facts["components"]["securitySchemes"]) == {"HTTPBearer", "APIKeyCookie"}
    operations = [
        (f"{method} {path}", one)
        for path, item in facts["paths"].items()
        for method, one in item.items()
    ]
    assert len({one["operationId"] for _, one in operations}) == len(operations)
    for name, one in operations:
        assert one["description"], name
        good = [answer for status, answer in one["responses"].items() if status.startswith("2")]
        assert good, name
        for answer in good:
            if "204" not in one["responses"] and "application/json" in answer.get("content", {}):
                schema = answer["content"]["application/json"]["schema"]
                assert schema.get("$ref") or schema.get("items", {}).get("$ref"), name
        if name == f"get {API}/health":
            continue
        assert one["security"], name
        for status in ("401", "403", "413", "422", "429"):
            assert one["responses"][status]["content"]["application/json"]["schema"] == {
                "$ref": "#/components/schemas/Error"
            }, name


def test_answers_are_as_described(served, admin):
    jsonschema = pytest.importorskip("jsonschema")
    facts = admin.get(f"{API}/openapi.json").json()

    def fits(answer, name):
        schema = {"$ref": f"#/components/schemas/{name}", "components": facts["components"]}
        jsonschema.validate(answer, schema)

    fits(admin.get(LENDER).json(), "Model")
    fits(answer_of(admin), "Answer")
    fits(admin.get(f"{API}/nothing").json(), "Error")
    fits(admin.get(f"{API}/ledger").json(), "Verified")
    fits(admin.get(f"{API}/ledger/entries").json()[0], "Entry")
    with pytest.raises(jsonschema.ValidationError):
        fits({"accepted": "perhaps"}, "Predicted")
