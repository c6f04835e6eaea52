"""The small lender and its report, and answers beside each other, made once."""

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.schema import Schema
from small_lender import LOAN, Lender

TITLE = "Loans <b>& more</b>"


@pytest.fixture(scope="package")
def lender():
    return Lender()


@pytest.fixture(scope="package")
def folder(lender, tmp_path_factory):
    """A folder with a report that has every part, and its proofs."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    folder = tmp_path_factory.mktemp("report")
    lender.result.report(
        folder / "report.html",
        LOAN,
        title=TITLE,
        retrained=lender.retrained,
        proofs=folder / "the proofs",
    )
    return folder


@pytest.fixture(scope="package")
def paths_result():
    rng = np.random.default_rng(0)
    schema = Schema(
        [
            pp.Continuous(
                "income", 0, 100, step=1, effort=[(0, 0), (10, 1), (40, 20)], label="pay"
            ),
            pp.Continuous("debt", 0, 100, step=1, unit="% of income"),
            pp.Categorical("job", ["<i>cook", "clerk & co", "boss"], effort=3),
        ]
    )
    names = schema.features[2].categories
    table = pd.DataFrame(
        {
            "income": rng.integers(0, 100, 200),
            "debt": rng.integers(0, 100, 200),
            "job": rng.choice(names, 200),
        }
    )
    net = pp.Network([([[1.0, -1.0, 0.0, 0.2, 0.5]], [-0.1])])
    explainer = pp.Proplace(net, 0.01, schema=schema, max_effort=4).fit(table)
    people = pd.DataFrame({"income": [20, 90], "debt": [50, 99], "job": [names[0]] * 2})
    return explainer.explain(people, count=3)


@pytest.fixture(scope="package")
def paths_page(paths_result, tmp_path_factory):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    return paths_result.report(tmp_path_factory.mktemp("paths") / "page.html")
