"""Proofs that nothing helps a person, in folders of results and as `explain` prints them."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import proplace as pp
from commands import good, run
from proplace.batch.results import ResultsFolder

SCHEMA = pp.Schema(
    [
        pp.Continuous("a", 0, 10, step=1),
        pp.Continuous("b", 0, 10, step=1, immutable=True),
        pp.Categorical("c", ["x", "y"]),
    ]
)
NET = pp.Network([([[0.25, 1.0, 0.0, 0.125]], [-1.0])])
PEOPLE = pd.DataFrame({"a": [2, 2, 9], "b": [5, 8, 10], "c": ["x", "x", "y"]})


@pytest.fixture(scope="module", params=["delta", "box"])
def folder(request, tmp_path_factory):
    """A folder with the model and the results of three people, one of them fixed."""
    place = tmp_path_factory.mktemp(request.param)
    NET.save(place / "net.npz")
    SCHEMA.write(place / "schema.yaml")
    PEOPLE.to_csv(place / "people.csv", index=False)
    around = pp.Shifts.of(NET, 0.01)
    pp.Shifts(around.low, around.high).save(place / "box.npz")
    given = ["--delta", "0.01"] if request.param == "delta" else ["--delta", place / "box.npz"]
    command = ["explain", "--model", place / "net.npz", "--train", place / "people.csv"]
    command += ["--input", place / "people.csv", "--schema", place / "schema.yaml", *given]
    command += ["--out", place / "results"]
    good(*command)
    return place


def check(folder, *words):
    """Return the exit status and the line of each certificate."""
    done = run("check", *words, "--model", folder / "net.npz", "--json")
    return done.returncode, done.json["certificates"]


def box(folder):
    return ["--delta", folder / "box.npz"] * folder.name.startswith("box")


def test_folder_holds_proof_that_nothing_helps(folder):
    result = pp.read_results(folder / "results")
    assert result[0].status == "fixed_prediction"
    assert isinstance(result[0].certificate, pp.certification.FixedPrediction)
    assert result[0].certificate.check(NET, result[0].setting.current.shifts).accepted
    status, entries = check(folder, folder / "results")
    assert status == 0
    assert [entry["proved"]["verdict"] for entry in entries] == ["fixed", "robust", "robust"]
    (proof,) = (folder / "results" / "certificates").glob("row-*0-0.json")
    status, (entry,) = check(folder, proof, *box(folder))
    assert (status, entry["proved"]["verdict"]) == (0, "fixed")
    status, (entry,) = check(folder, proof, *box(folder), "--target", "1")
    assert (status, entry["accepted"]) == (1, False)


def test_proof_about_something_else_is_rejected(folder, monkeypatch):
    """True certificates, about less than the schema allows this person, or another class."""
    (first, *_) = pp.read_results(folder / "results")
    shifts = first.setting.current.shifts
    narrow = pp.Schema([pp.Continuous("a", 0, 9, step=1, scaling=(0, 10)), *SCHEMA.features[1:]])
    (other,) = pp.Proplace(NET, shifts, schema=narrow).fit(PEOPLE).explain(PEOPLE[:1])
    smaller = pp.Shifts.of(NET, 0.005)
    (fewer,) = pp.Proplace(NET, smaller, schema=SCHEMA).fit(PEOPLE).explain(PEOPLE[:1])
    accepted = pp.certify(NET, [[1.0, 1.0, 0.0, 1.0]], shifts, certificates=True).certificates[0]
    for proof in (other.certificate, fewer.certificate, accepted):
        content = proof.text.encode()
        monkeypatch.setattr(
            ResultsFolder,
            "proof",
            lambda self, line, c=content, own=ResultsFolder.proof: (
                c if line.explanation.status == "fixed_prediction" else own(self, line)
            ),
        )
        status, entries = check(folder, folder / "results")
        monkeypatch.undo()
        assert status == 1
        assert [entry["accepted"] for entry in entries] == [False, True, True]


def test_proof_that_nothing_helps_proves_no_answer(folder, monkeypatch):
    """Lines of people with a counterfactual whose certificate is that of a person without one."""
    content = pp.read_results(folder / "results")[0].certificate.text.encode()
    monkeypatch.setattr(ResultsFolder, "proof", lambda self, line: content)
    status, entries = check(folder, folder / "results")
    assert status == 1
    assert [entry["accepted"] for entry in entries] == [True, False, False]


def test_printed_certificate_is_checked(folder, tmp_path):
    command = ["explain", "--model", folder / "net.npz", "--train", folder / "people.csv"]
    command += ["--input", folder / "people.csv", "--schema", folder / "schema.yaml"]
    command += box(folder) or ["--delta", "0.01"]
    (answer,) = good(*command, "--row", "0", "--json").json
    assert answer["status"] == "fixed_prediction"
    (tmp_path / "proof.json").write_text(json.dumps(answer["certificate"]))
    status, (entry,) = check(folder, tmp_path / "proof.json", *box(folder))
    assert (status, entry["proved"]["verdict"]) == (0, "fixed")
