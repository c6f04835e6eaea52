"""The record of the origin of a result."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from proplace.core.errors import InputError, OptionError
from proplace.core.request import Request
from proplace.explain.record import Provenance
from support.errors import raises

NET = pp.Network([([[1.0, 1.0]], [-1.0])])
ROWS = np.array([[0.2, 0.1], [0.9, 0.8], [0.9, 0.8], [0.7, -0.0]])
PERSON = [[0.1, 0.2]]


def made(explainer=None, rows=ROWS):
    explainer = explainer or pp.Proplace(NET, 0.05, k=3)
    return explainer.fit(rows).explain(PERSON).provenance


def test_provenance_contains_request_and_model():
    found = made()
    plain = struct.pack("<8d", 0.2, 0.1, 0.9, 0.8, 0.9, 0.8, 0.7, 0.0)
    assert found.training_digest == hashlib.sha256(b"4 2\n" + plain).hexdigest()
    assert found.training_rows == 4  # twice the same row is two rows
    result = pp.Proplace(NET, 0.05, k=3).fit(ROWS).explain(PERSON)
    assert found.network_digest == result[0].certificate.facts["network"]
    assert dataclasses.asdict(found) | {"date": ""} == {
        "date": "",
        "version": pp.__version__,
        "method": "Proplace",
        "model": "Network",
        "training_digest": found.training_digest,
        "training_rows": 4,
        "guarantee": {
            "members": [
                {
                    "name": "the current model",
                    "network": found.network_digest,
                    "delta": 0.05,
                    "about": "",
                    "file_digest": None,
                    "has_original": False,
                }
            ]
        },
        "target": 1,
        "distance": "l1",
        "k": 3,
        "region": "hull",
        "request": dataclasses.asdict(Request(1)),
    }


def test_file_is_known_by_its_name_and_digest(tmp_path):
    path = tmp_path / "model in use.npz"
    NET.save(path)
    found = made(pp.Proplace(path, 0.05))
    assert found.model == "model in use.npz"  # where it lies is nobody's business
    assert found.file_digest == hashlib.sha256(path.read_bytes()).hexdigest()
    schema = pp.Schema([pp.Continuous(name, 0, 1) for name in "ab"])
    assert made(pp.Proplace(path, 0.05, schema=schema)).file_digest == found.file_digest


def test_required_models_are_known_by_their_own_digests(tmp_path):
    other = pp.Network([([[1.0, 0.9]], [-0.9])])
    for name, net in (("first.npz", NET), ("second.npz", other)):
        net.save(tmp_path / name)
    first, second = tmp_path / "first.npz", tmp_path / "second.npz"
    found = made(pp.Proplace(first, 0.05, required_models=[(second, 0.01)], k=3))
    assert found.file_digest == hashlib.sha256(first.read_bytes()).hexdigest()
    _, also = found.guarantee["members"]
    assert also["file_digest"] == hashlib.sha256(second.read_bytes()).hexdigest()
    assert also["network"] == made(pp.Proplace(other, 0.05)).network_digest
    assert also["network"] != found.network_digest
    assert also["delta"] == 0.01


def test_model_in_memory_is_known_by_its_type_and_target_by_its_label():
    frame = pd.DataFrame({"a": [0.0, 1.0, 2.0, 3.0], "b": [1.0, 0.0, 1.0, 0.0]})
    pipe = make_pipeline(StandardScaler(), LogisticRegression(C=100.0))
    pipe.fit(frame, ["no", "no", "yes", "yes"])
    result = pp.Proplace(pipe, 0.01).fit(frame).explain(frame[:1], target="yes")
    assert (result.provenance.model, result.provenance.target) == ("Pipeline", "yes")
    numbers = make_pipeline(StandardScaler(), LogisticRegression(C=100.0)).fit(frame, [3, 3, 7, 7])
    result = pp.Proplace(numbers, 0.01).fit(frame).explain(frame[:1], target=7)
    assert json.loads(json.dumps(result.provenance.to_dict()))["target"] == 7


def test_date_is_now_in_utc_or_from_environment(monkeypatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    before = datetime.now(UTC).replace(microsecond=0)
    date = datetime.fromisoformat(made().date)
    assert before <= date <= datetime.now(UTC)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86399")
    assert made().date == "1970-01-01T23:59:59Z"
    for bad in ("yesterday", "", "9" * 30):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", bad)
        with raises(OptionError, name="SOURCE_DATE_EPOCH"):
            made()


def test_comparison_ignores_date(monkeypatch):
    found = []
    for seconds in ("0", "100000"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", seconds)
        found.append(pp.Proplace(NET, 0.05).fit(ROWS).explain(PERSON))
    one, other = found
    assert one.provenance.date != other.provenance.date
    assert one.provenance == other.provenance
    assert hash(one.provenance) == hash(other.provenance)
    assert one[0].certificate.digest == other[0].certificate.digest


@pytest.mark.parametrize(
    "other",
    [
        lambda: made(pp.Proplace(NET, 0.04, k=3)),
        lambda: made(pp.Proplace(NET, 0.05, k=2)),
        lambda: made(pp.Proplace(NET, 0.05, k=3, weights="mad")),
        lambda: made(pp.Proplace(NET, 0.05, k=3, region="box")),
        lambda: made(pp.Proplace(pp.Network([([[1.0, 1.1]], [-1.0])]), 0.05, k=3)),
        lambda: made(rows=ROWS[:3]),
        lambda: made(rows=ROWS[::-1]),
    ],
)
def test_another_question_is_another_provenance(other):
    assert other() != made()


def test_parts_and_streams_keep_provenance(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    explainer = pp.Proplace(NET, 0.05).fit(ROWS)
    whole = explainer.explain([*PERSON, *PERSON]).provenance
    assert explainer.explain([*PERSON, *PERSON])[1:].provenance == whole
    parts = list(explainer.stream([PERSON, PERSON]))
    assert [part.provenance for part in parts] == [whole, whole]
    assert pp.Explanations([]).provenance is None


def test_baselines_have_provenance():
    plain = made(pp.baselines.Wachter(NET))
    assert (plain.method, plain.delta, plain.k, plain.region) == ("Wachter", 0.0, None, None)
    assert made(pp.baselines.Rnce(NET, 0.02)).delta == 0.02
    assert plain.training_digest == made().training_digest


def test_json_and_back():
    layers = made(pp.Proplace(NET, [(0.05, 0.0)]))
    assert layers.delta == [[0.05, 0.0]]  # a frozen bias: not one radius
    for found in (made(), layers, made(pp.baselines.Wachter(NET))):
        fields = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        again = Provenance.from_dict(fields)
        assert again == found
        assert again.date == found.date


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("date", "2025-01-31"),
        ("date", "<b>now</b>"),
        ("date", 3),
        ("training_digest", None),
        ("guarantee", None),
        ("guarantee", {"members": []}),
        ("training_rows", 0),
        ("training_rows", 2.0),
        ("target", ["yes"]),
        ("k", True),
        ("model", 7),
        ("region", 7),
    ],
)
def test_provenance_with_wrong_values_is_rejected(name, value):
    with raises(InputError, name=name):
        Provenance.from_dict(made().to_dict() | {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", 7),
        ("network", "A" * 64),
        ("file_digest", ""),
        ("has_original", 1),
        ("delta", -0.1),
        ("delta", float("nan")),
        ("delta", "0.1"),
        ("delta", []),
        ("delta", [[0.1]]),
        ("delta", [[0.1, True]]),
        ("delta", [0.1, 0.2]),
    ],
)
def test_member_that_no_run_has_written_is_refused(name, value):
    facts = made().to_dict()
    facts["guarantee"]["members"][0][name] = value
    with raises(InputError, name=name):
        Provenance.from_dict(facts)


@pytest.mark.parametrize("fields", [{}, [], None, {"date": "2025-01-31T00:00:00Z"}])
def test_provenance_with_wrong_fields_is_rejected(fields):
    with raises(InputError, name=None, match="fields"):
        Provenance.from_dict(fields)
    with raises(InputError, name=None, match="fields"):
        Provenance.from_dict(made().to_dict() | {"more": 1})
