"""--tolerance of explain, certify and check, as a user types it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from commands import good, run
from proplace.batch.checking import not_covered, too_narrow
from proplace.batch.reading import ResultsFolder
from proplace.core.errors import OptionError, OutputError
from support.errors import failed


@pytest.fixture(scope="module")
def results(loans, tmp_path_factory):
    """Folders of answers that bear a miss of income, and that bear none."""
    folder = tmp_path_factory.mktemp("tolerance")
    for name, words in (("wide", ["--tolerance", "income=0.25"]), ("exact", [])):
        good("explain", *loans.options(out=folder / name), "--certificates", *words)
    return folder


def test_the_folder_knows_its_tolerance(loans, results):
    opened = ResultsFolder.open(results / "wide")
    assert opened.about.provenance.request.tolerance == {"income": (0.25, 0.25)}
    column = opened.setting.schema.span("income").start
    (models,) = opened.setting.guarantee.members
    assert models.tolerance[:, column] == pytest.approx(0.025)
    assert np.count_nonzero(models.tolerance) == 2
    assert ResultsFolder.open(results / "exact").setting.guarantee.members[0].tolerance is None
    net, answers = loans.net, pp.read_results(results / "wide")
    for e in answers:
        assert e.found
        for share in (-1.0, 0.3, 1.0):
            missed = e.counterfactual.copy()
            missed["income"] = min(10.0, max(0.0, missed["income"] + share * 0.25))
            assert net.predict(loans.schema.encode(pd.DataFrame([missed])))[0] == 1


def test_check_demands_what_the_folder_promises(loans, results):
    model = loans.folder / "model.onnx"
    assert "12 of 12" in good("check", results / "wide", "--model", model).stdout
    opened = ResultsFolder.open(results / "wide")
    line = next(opened.lines())
    alone = pp.certify(loans.net, line.explanation.encoded_counterfactual, 0.01, certificates=True)
    proved = alone.certificates[0].check(loans.net).statement
    assert too_narrow(proved, opened.setting.guarantee.members[0].tolerance)
    assert not too_narrow(opened.certificate(line).check(loans.net).statement, None)


def test_whoever_checks_may_demand_more(loans, results):
    model = loans.folder / "model.onnx"
    for folder, words, accepted in (
        ("wide", ["income=0.25"], True),
        ("wide", ["income=0.2"], True),
        ("wide", ["income=0.26"], False),
        ("wide", ["income=0.25", "age=1"], False),
        ("wide", ["income=0.25:0"], True),
        ("wide", ["income=0.26:0"], False),
        ("exact", ["income=0.2"], False),
        ("exact", ["income=0"], True),
    ):
        asked = [word for each in words for word in ("--tolerance", each)]
        done = run("check", results / folder, "--model", model, *asked)
        assert done.returncode == (0 if accepted else 1), (folder, words, done.stdout)


def test_another_tolerance_is_another_question(loans, results):
    words = ["explain", *loans.options(out=results / "wide"), "--certificates", "--tolerance"]
    failed(run(*words, "income=0.5"), OutputError, name="tolerance")
    failed(run(*words, "income=0.25:0"), OutputError, name="tolerance")
    good(*words, "income=0.25")


def test_answers_as_json(loans):
    options = loans.options(row=0)
    (answer,) = good("explain", *options, "--json", "--tolerance", "income=0.25").json
    assert answer["request"]["tolerance"] == {"income": [0.25, 0.25]}
    assert answer["certificate"]["format"] == "proplace-certificate-3"
    plain = good("explain", *options, "--json").json[0]
    assert plain["request"]["tolerance"] == {}
    assert answer["distance"] > plain["distance"]


def test_certify(loans):
    words = ["--model", loans.folder / "model.onnx", "--schema", loans.folder / "schema.yaml"]
    words += ["--input", loans.folder / "train.csv", "--delta", 0.01]
    counts = {}
    for t in (0, 0.5, 5):
        found = good("certify", *words, "--tolerance", f"income={t}", "--json").json
        assert found["tolerance"] == {"income": [t, t]}
        counts[t] = found["robust"]
    plain = good("certify", *words, "--json").json
    assert plain["robust"] == counts[0] > counts[0.5] > counts[5]
    report = pp.certify(
        loans.net, loans.train, 0.01, schema=loans.schema, tolerance={"income": 0.5}
    )
    assert counts[0.5] == report.robust.sum()


@pytest.mark.parametrize("word", ["income", "income=", "=5", "income=-1", "age=0:", "age=0:1:2"])
def test_words_that_are_no_tolerance_are_rejected(loans, word):
    done = run("explain", *loans.options(row=0), "--tolerance", word)
    failed(done, OptionError, name="--tolerance", value=word)


@pytest.mark.parametrize("name", ["salary", "job", "member"])
def test_only_numbers_have_a_tolerance(loans, name):
    done = run("explain", *loans.options(row=0), "--tolerance", f"{name}=1")
    failed(done, OptionError)
    assert name in done.stderr


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
        done = run("check", tmp_path / f"{number}.json", *words)
        assert done.returncode == (0 if accepted else 1), done.stdout


def test_what_holds_is_written_read_and_checked(loans, tmp_path):
    out, model = tmp_path / "results", loans.folder / "model.onnx"
    words = [*loans.options(out=out), "--certificates", "--tolerance", "income=0.25"]
    good("explain", *words)
    answers = pp.read_results(out)
    assert all("income" in e.guaranteed_ranges for e in answers)
    wide = [e for e in answers if e.guaranteed_ranges["income"][1] == 10.0]
    assert wide
    good("check", out, "--model", model)
    opened = ResultsFolder.open(out)
    line = next(opened.lines())
    proved = opened.certificate(line).check(loans.net).statement
    e = line.explanation
    assert not not_covered(proved, loans.schema, e.guaranteed_ranges)
    more = {**e.guaranteed_ranges, "age": (18.0, 90.0)}
    assert not_covered(proved, loans.schema, more)
    low, high = e.guaranteed_ranges["income"]
    for interval in ((low - 0.01, high), (low, high + 0.01)):
        assert not_covered(proved, loans.schema, {"income": interval})
    (answer,) = good("explain", *loans.options(row=0), "--json").json
    assert answer["guaranteed_ranges"]["income"][1] == 10.0
