"""--tolerance of explain, certify and check, as a user types it."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from commands import call
from proplace.apps.batch.checking import not_held, too_narrow
from proplace.apps.batch.reading import ResultsFolder


@pytest.fixture(scope="module")
def results(loans, tmp_path_factory):
    """Folders of answers that bear a miss of income, and that bear none."""
    folder = tmp_path_factory.mktemp("tolerance")
    for name, words in (("wide", ["--tolerance", "income=0.25"]), ("exact", [])):
        done = call("explain", *loans.options(out=folder / name), "--certificates", *words)
        assert done.returncode == 0, done.stderr
    return folder


def test_the_folder_knows_its_tolerance(loans, results):
    opened = ResultsFolder.open(results / "wide")
    assert opened.about.provenance.tolerance == (("income", 0.25),)
    column = opened.setting.schema.span("income").start
    (models,) = opened.setting.sets
    assert models.tolerance[column] == pytest.approx(0.025)
    assert np.count_nonzero(models.tolerance) == 1
    assert ResultsFolder.open(results / "exact").setting.sets[0].tolerance is None
    net, answers = loans.net, pp.read_results(results / "wide")
    for e in answers:
        assert e.found
        for share in (-1.0, 0.3, 1.0):
            missed = e.counterfactual.copy()
            missed["income"] = min(10.0, max(0.0, missed["income"] + share * 0.25))
            assert net.predict(loans.schema.encode(pd.DataFrame([missed])))[0] == 1


def test_check_demands_what_the_folder_promises(loans, results):
    model = loans.folder / "model.onnx"
    good = call("check", results / "wide", "--model", model)
    assert good.returncode == 0, good.stdout
    assert "12 of 12" in good.stdout
    opened = ResultsFolder.open(results / "wide")
    line = next(opened.lines())
    alone = pp.certify(loans.net, line.explanation.point, 0.01, certificates=True)
    proved = alone.certificates[0].check(loans.net).statement
    assert "not every miss" in too_narrow(proved, opened.setting.sets[0].tolerance)
    assert not too_narrow(opened.certificate(line).check(loans.net).statement, None)


def test_whoever_checks_may_demand_more(loans, results):
    model = loans.folder / "model.onnx"
    for folder, words, accepted in (
        ("wide", ["income=0.25"], True),
        ("wide", ["income=0.2"], True),
        ("wide", ["income=0.26"], False),
        ("wide", ["income=0.25", "age=1"], False),
        ("exact", ["income=0.2"], False),
        ("exact", ["income=0"], True),
    ):
        asked = [word for each in words for word in ("--tolerance", each)]
        done = call("check", results / folder, "--model", model, *asked)
        assert done.returncode == (0 if accepted else 1), (folder, words, done.stdout)
        assert ("not every miss" in done.stdout) != accepted


def test_another_tolerance_is_another_question(loans, results):
    done = call(
        "explain",
        *loans.options(out=results / "wide"),
        "--certificates",
        "--tolerance",
        "income=0.5",
    )
    assert done.returncode != 0
    assert "tolerance" in done.stderr
    again = call(
        "explain",
        *loans.options(out=results / "wide"),
        "--certificates",
        "--tolerance",
        "income=0.25",
    )
    assert again.returncode == 0


def test_answers_as_json(loans):
    options = loans.options(row=0)
    done = call("explain", *options, "--json", "--tolerance", "income=0.25")
    assert done.returncode == 0, done.stderr
    (answer,) = json.loads(done.stdout)
    assert answer["tolerance"] == {"income": 0.25}
    assert answer["certificate"]["format"] == "proplace-certificate-3"
    plain = json.loads(call("explain", *options, "--json").stdout)[0]
    assert "tolerance" not in plain
    assert answer["distance"] > plain["distance"]


def test_certify(loans):
    words = ["--model", loans.folder / "model.onnx", "--schema", loans.folder / "schema.yaml"]
    words += ["--input", loans.folder / "train.csv", "--delta", 0.01]
    counts = {}
    for t in (0, 0.5, 5):
        done = call("certify", *words, "--tolerance", f"income={t}", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["tolerance"] == {"income": t}
        counts[t] = found["robust"]
    plain = json.loads(call("certify", *words, "--json").stdout)
    assert plain["robust"] == counts[0] > counts[0.5] > counts[5]
    report = pp.certify(
        loans.net, loans.train, 0.01, schema=loans.schema, tolerance={"income": 0.5}
    )
    assert counts[0.5] == report.robust.sum()
    said = call("certify", *words, "--tolerance", "income=0.5").stdout
    assert "also where income is missed by 0.5" in said


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("income", "give the name of a feature and a number"),
        ("income=", "give the name of a feature and a number"),
        ("=5", "give the name of a feature and a number"),
        ("income=-1", "0 or more"),
        ("income=nan", "0 or more"),
        ("salary=5", "salary"),
        ("job=1", "only a number"),
        ("member=1", "only a number"),
    ],
)
def test_bad_words(loans, word, said):
    done = call("explain", *loans.options(row=0), "--tolerance", word)
    assert done.returncode
    assert said in " ".join(done.stderr.split())


def test_one_certificate_of_a_network(tmp_path):
    """A network without names knows its columns as x0, x1, ..."""
    net = pp.Network([([[1.0, -1.0]], [0.0])])
    net.save(tmp_path / "net.npz")
    report = pp.certify(
        net, [[1.0, 0.0], [0.0, 1.0]], 0.05, tolerance={"x0": 0.25}, certificates=True
    )
    for i, certificate in enumerate(report.certificates):
        certificate.save(tmp_path / f"{i}.json")
    for number, word, accepted in (
        (0, "x0=0.25", True),
        (0, "x0=0.5", False),
        (0, "x1=0.1", False),
        (1, "x0=0.1", False),
    ):
        words = ["--model", tmp_path / "net.npz", "--tolerance", word]
        done = call("check", tmp_path / f"{number}.json", *words)
        assert done.returncode == (0 if accepted else 1), done.stdout


def test_what_holds_is_written_read_and_checked(loans, tmp_path):
    out, model = tmp_path / "results", loans.folder / "model.onnx"
    words = [*loans.options(out=out), "--certificates", "--holds", "--tolerance", "income=0.25"]
    done = call("explain", *words)
    assert done.returncode == 0, done.stderr
    answers = pp.read_results(out)
    assert all("income" in e.holds for e in answers)
    wide = [e for e in answers if e.holds["income"][1] == 10.0]
    assert wide
    done = call("check", out, "--model", model)
    assert done.returncode == 0, done.stdout
    opened = ResultsFolder.open(out)
    line = next(opened.lines())
    proved = opened.certificate(line).check(loans.net).statement
    e = line.explanation
    assert not not_held(proved, loans.schema, e.holds)
    more = {**e.holds, "age": (18.0, 90.0)}
    assert "more is said to hold" in not_held(proved, loans.schema, more)
    low, high = e.holds["income"]
    for interval in ((low - 0.01, high), (low, high + 0.01)):
        assert not_held(proved, loans.schema, {"income": interval})
    shown = call("explain", *loans.options(row=0), "--holds", "--json")
    (answer,) = json.loads(shown.stdout)
    assert answer["holds"] == {n: list(ends) for n, ends in answer["holds"].items()}
