"""Texts claim no more than was proved: at the ends of ranges, in either direction, and by label."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from proplace.core.errors import OptionError
from support.errors import raises
from support.people import World


def lender(labels=("refused", "approved")):
    """A pipeline, and its table: it approves larger incomes and smaller debts."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"income": rng.integers(30, 90, 400), "debt": rng.integers(0, 40, 400)})
    y = np.where(table.income - 0.3 * table.debt > 28, *reversed(labels))
    pipe = make_pipeline(StandardScaler(), LogisticRegression(C=1000, max_iter=5000))
    return pipe.fit(table, y), table


DECLARED = pp.Schema(
    [pp.Continuous("income", 0, 120, step=1), pp.Continuous("debt", 0, 60, step=1)]
)
PERSON = pd.DataFrame({"income": [35], "debt": [39]})


def explained(person=PERSON, *, schema=None, **request):
    pipe, table = lender()
    explainer = pp.Proplace(pipe, 0.002, k=10, schema=schema).fit(table)
    return explainer.explain(person, "approved", **request)


def test_ends_of_drafted_ranges_are_named():
    (e,) = explained()
    (claim,) = e.claims
    assert claim.name == "income"
    low, high = e.guaranteed_ranges["income"]
    assert (claim.low, claim.high, claim.to_end) == (low, high, False)
    assert claim.goal == f"between {low:g} and {high:g}"
    assert "at least" not in str(e.describe())


@pytest.mark.parametrize(
    "options", [{"schema": DECLARED}, {"ranges": {"income": (0, 120), "debt": (0, 60)}}]
)
def test_declared_ends_may_be_left_unsaid(options):
    (e,) = explained(**options)
    (claim,) = e.claims
    assert (claim.name, claim.to_end, claim.high) == ("income", True, 120.0)
    assert claim.goal == f"at least {claim.low:g}"


def test_person_below_range_is_reported_to_rise():
    """The counterfactual may be missed by 2 on both sides. The sentence never gives the upper end."""
    (e,) = explained(pd.DataFrame({"income": [20], "debt": [0]}), tolerance={"income": 2})
    (claim,) = e.claims
    assert claim.direction == "up"
    assert claim.low > 20
    sentence = str(e.describe()).split(" (today: ")[0]
    for text in (sentence, *e.describe().table()["to"]):
        assert "at most" not in text
        assert "no more than" not in text


def test_person_above_range_is_reported_to_fall():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"income": rng.integers(30, 90, 400), "debt": rng.integers(0, 49, 400)})
    y = np.where(table.debt < 50.5 - 0.01 * table.income, "approved", "refused")
    y[:20], table.loc[:19, "debt"] = "refused", 58
    pipe = make_pipeline(StandardScaler(), LogisticRegression(C=1000, max_iter=5000)).fit(table, y)
    explainer = pp.Proplace(pipe, 0.002, k=10).fit(table[20:])
    person = pd.DataFrame({"income": [60], "debt": [58]})
    (e,) = explainer.explain(person, "approved", tolerance={"debt": 2})
    (claim,) = [c for c in e.claims if c.name == "debt"]
    assert claim.direction == "down"
    assert claim.high < 58
    assert "at least" not in str(e.describe())


def test_outcomes_go_by_label_and_list_needs_order_of_model():
    (e,) = explained()
    assert e.setting.model.classes == ("approved", "refused")
    right = {"approved": "granted", "refused": "turned down"}
    assert "would have been granted" in str(e.describe(pp.Wording("the loan", right)))
    for outcomes in (["refused", "approved"], ["granted", "turned down"], ["a", "b", "c"]):
        with raises(OptionError, name="outcomes"):
            e.describe(pp.Wording("the loan", outcomes))
    own = pp.Wording("the loan", ["approved", "refused"])  # the labels in the model's own order
    assert "would have been approved" in str(e.describe(own))
    with raises(OptionError, name="outcomes"):
        e.describe(pp.Wording("the loan", {"granted": "approved"}))


def test_pages_of_sparse_counterfactuals_mention_no_mixture(tmp_path):
    """A sparse counterfactual is no mixture of rows of the training data."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    world = World(5, rows=400)
    result = world.explainer(0.004).explain(world.refused(3), prefer="sparse")
    assert any(e.found for e in result)
    page = result.report(tmp_path / "page.html").read_text(encoding="utf-8")
    for text in ("robust neighbour", "mixtures", "real people", "A person of the training data"):
        assert text not in page
    assert "plausible" not in page


def test_description_names_point_whose_plausibility_was_measured():
    """A range is proved, but only the counterfactual in it was compared with accepted people."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"income": rng.integers(10, 90, 300), "age": rng.integers(20, 70, 300)})
    net = pp.Network([([[10.0, 0.0]], [-5.0])])
    ranges = [pp.Continuous("income", 0, 100, step=1), pp.Continuous("age", 18, 90, step=1)]
    explainer = pp.Proplace(net, 0.001, schema=pp.Schema(ranges), k=5).fit(table)
    person = table[table["income"] < 40][:1]
    (e,) = explainer.explain(person, prefer="sparse", tolerance={"age": (0, 1)})
    text, age = str(e.describe()), int(person["age"].iloc[0])
    assert f"With income {e.counterfactual['income']:.0f}, the person would be" in text
    assert f"The same is proved with age {age} to {age + 1}." in text
    assert "within the declared range (0 to 100)" in text
