"""Efforts in a folder of results: written, read back, and part of the question."""

from __future__ import annotations

import pandas as pd
import pytest

import proplace as pp
from proplace.apps.batch import explain_file, read_results
from proplace.core.errors import OutputError
from proplace.schema import Schema


def explainer(**options):
    features = [
        pp.Continuous("a", 0, 100, step=1, effort=[(0, 0), (20, 0.1), (80, 9)]),
        pp.Categorical("job", ["cook", "clerk"], effort=2),
    ]
    net = pp.Network([([[1.0, 0.0, 0.4]], [-0.7])])
    train = pd.DataFrame({"a": [20, 100, 40, 90], "job": ["cook", "clerk", "clerk", "cook"]})
    return pp.Proplace(net, 0.01, schema=Schema(features), region="box", **options).fit(train)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_efforts_there_and_back(kind, tmp_path):
    people = pd.DataFrame({"a": [20, 50, 95], "job": ["cook", "cook", "clerk"]})
    people.to_csv(tmp_path / "people.csv", index=False)
    asked = explainer(max_effort=2.5)
    summary = explain_file(asked, tmp_path / "people.csv", tmp_path / "out", count=2, kind=kind)
    expected, found = asked.explain(people, count=2), read_results(tmp_path / "out")
    assert [e.effort for e in found] == [e.effort for e in expected]
    assert [e.out_of_reach for e in found] == [e.out_of_reach for e in expected]
    assert [e.efforts for e in found] == [e.efforts for e in expected]
    assert {e.out_of_reach for e in found} == {True, False}
    read = pd.read_csv if kind == "csv" else pd.read_parquet
    lines = read(summary.results)
    assert lines["effort"].tolist() == [e.effort for e in expected]
    assert lines["out_of_reach"].tolist() == [e.out_of_reach for e in expected]
    assert found.provenance.distance == "effort"


def test_other_efforts_are_another_question(tmp_path):
    people = pd.DataFrame({"a": [20, 50], "job": ["cook", "cook"]})
    people.to_csv(tmp_path / "people.csv", index=False)
    explain_file(explainer(), tmp_path / "people.csv", tmp_path / "out")
    again = explain_file(explainer(), tmp_path / "people.csv", tmp_path / "out")
    assert again.resumed == 2
    for other in ({"effort": {"job": 3}}, {"max_effort": 1}):
        with pytest.raises(OutputError, match="holds a batch with"):
            explain_file(explainer(**other), tmp_path / "people.csv", tmp_path / "out")
