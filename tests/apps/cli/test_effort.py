"""`proplace explain --effort`, for a whole input and for one person."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import proplace as pp
from commands import run_quickly


@pytest.fixture(scope="module")
def expected(loans):
    effort = {"income": 5.0, "job": 2.0}
    explainer = pp.Proplace(
        loans.net, 0.01, k=5, schema=loans.schema, effort=effort, max_effort=0.2
    )
    return explainer.fit(loans.train).explain(loans.people)


OPTIONS = ("--effort", "income=5", "--effort", "job=2", "--max-effort", "0.2")


def test_a_whole_input(loans, expected, tmp_path):
    done = run_quickly("explain", *loans.options(out=tmp_path / "out"), *OPTIONS)
    assert done.returncode == 0, done.stderr
    found = pd.read_csv(tmp_path / "out" / "results.csv")
    assert found["effort"].tolist() == found["distance"].tolist() == [e.effort for e in expected]
    assert found["out_of_reach"].tolist() == [e.out_of_reach for e in expected]
    usual = pp.Proplace(loans.net, 0.01, k=5, schema=loans.schema).fit(loans.train)
    assert [e.changed for e in usual.explain(loans.people)] != [e.changed for e in expected]


def test_one_person(loans, expected):
    row = next(n for n, e in enumerate(expected) if e.out_of_reach)
    done = run_quickly("explain", *loans.options(row=row), *OPTIONS, "--json")
    (facts,) = json.loads(done.stdout)
    assert facts["effort"] == expected[row].effort
    assert facts["efforts"] == expected[row].efforts
    assert facts["out_of_reach"] is True
    shown = run_quickly("explain", *loans.options(row=row), *OPTIONS).stdout
    assert f"effort {expected[row].effort:.6g}, out of reach" in shown
    assert "beyond what was set as reachable (0.2)" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--effort", "income"], "not of the form name=value"),
        (["--effort", "income=much"], "--effort income=much: 'much' is not a number"),
        (["--effort", "incme=2"], "'incme' is not a feature (did you mean 'income'?)"),
        (["--effort", "income=-2"], "must be a number >= 0"),
        (["--max-effort", "2"], "max_effort needs efforts"),
        (["--effort", "income=2", "--distance", "l2"], "leave distance and weights out"),
    ],
)
def test_what_is_wrong(loans, options, says):
    done = run_quickly("explain", *loans.options(row=0), *options)
    assert done.returncode == 1
    assert says in " ".join(done.stderr.split())
