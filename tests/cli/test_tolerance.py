"""The tolerance of explain and certify, and the check of folders that promise one."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from commands import good, run
from proplace.batch.check import not_covered, too_narrow
from proplace.batch.results import ResultsFolder
from proplace.core.errors import OptionError, OutputError
from support.errors import failed


@pytest.fixture(scope="module")
def results(loans, tmp_path_factory):
    """Folders of answers that bear a miss of income, and that bear none."""
    folder = tmp_path_factory.mktemp("tolerance")
    for name, words in (("wide", ["--tolerance", "income=0.25"]), ("exact", [])):
        good("explain", *loans.options(out=folder / name), *words)
    return folder


def test_folder_holds_its_tolerance(loans, results):
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


def test_check_demands_tolerance_of_folder(loans, results):
    model = loans.folder / "model.onnx"
    assert "12 of 12" in good("check", results / "wide", "--model", model).stdout
    opened = ResultsFolder.open(results / "wide")
    line = next(opened.lines())
    alone = pp.certify(loans.net, line.explanation.encoded_counterfactual, 0.01, certificates=True)
    proved = alone.certificates[0].check(loans.net).statement
    assert too_narrow(proved, opened.setting.guarantee.members[0].tolerance)
    assert not too_narrow(opened.certificate(line).check(loans.net).statement, None)


def test_another_tolerance_is_another_question(loans, results):
    words = ["explain", *loans.options(out=results / "wide"), "--tolerance"]
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
    words = loans.options("certify", input=loans.folder / "train.csv")
    counts = {}
    for t in (0, 0.5, 5):
        found = good("certify", *words, "request.tolerance:", {"income": t}, "--json").json
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
def test_only_numbers_have_tolerance(loans, name):
    done = run("explain", *loans.options(row=0), "--tolerance", f"{name}=1")
    failed(done, OptionError)
    assert name in done.stderr


def test_guaranteed_ranges_are_written_read_and_checked(loans, tmp_path):
    out, model = tmp_path / "results", loans.folder / "model.onnx"
    words = [*loans.options(out=out), "--tolerance", "income=0.25"]
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
