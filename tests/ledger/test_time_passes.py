"""A promise of a year survives a birthday, if its tolerance covers what time adds."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from proplace.report.letter import letter_fields
from proplace.schema.infer import grows_with_time

LAST = "2999-12-31"
NAMES = ["age", "income", "months_since_default"]


def table(count=400, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 70, count),
            "income": rng.integers(10, 90, count),
            "months_since_default": rng.integers(0, 60, count),
        }
    )


@pytest.fixture(scope="module")
def pipeline():
    """A pipeline that holds age against people."""
    rows = table()
    score = rows["income"] - rows["age"] + 0.2 * rows["months_since_default"]
    return make_pipeline(StandardScaler(), LogisticRegression(C=10)).fit(rows, score > 0)


@pytest.fixture(scope="module")
def explainer(pipeline):
    return pp.Proplace(pipeline, 0.005, k=5).fit(table())


@pytest.fixture(scope="module")
def people(pipeline):
    rows = table(100, 1)
    return rows[~pipeline.predict(rows)][:6]


def issue(ledger, explainer, people, name="p", **wishes):
    """Promises to people whose age and past cannot change, and the outcomes by person."""
    result = explainer.explain(people, True, immutable=["age", "months_since_default"], **wishes)
    return ledger.issue(result, [f"{name}{n}" for n in range(len(people))], expires=LAST)


def a_year_later(promise, months=12):
    row = promise.answer.to_dict()
    return row | {
        "age": row["age"] + 1,
        "months_since_default": row["months_since_default"] + months,
    }


YEAR = {"age": (0, 1), "months_since_default": (0, 12)}


def test_promise_with_tolerance_of_year_survives_birthday(ledger, pipeline, explainer, people):
    issued = issue(ledger, explainer, people, tolerance=YEAR)
    assert len(issued.new) >= 4
    for number in issued.new:
        promise = ledger.promise(number)
        for months in (0, 7, 12):
            person = a_year_later(promise, months)
            assert pipeline.predict(pd.DataFrame([person])[NAMES])[0]
            found = ledger.redeem(number, person, pipeline, record=False)
            assert found.verdict == "met_within_tolerance", str(found)
        assert ledger.redeem(number, promise.answer, pipeline, record=False).met == "met_exactly"
        for late in ({"age": 2}, {"age": -1}, {"months_since_default": 13}):
            person = promise.answer.to_dict()
            person |= {name: person[name] + by for name, by in late.items()}
            found = ledger.redeem(number, person, pipeline, record=False)
            assert [one.feature for one in found.unmet] == list(late)
    assert ledger.redeem(number, a_year_later(promise), pipeline).entry is not None
    assert ledger.promise(number).state == "redeemed"


def test_promise_without_tolerance_does_not_survive_birthday(ledger, pipeline, explainer, people):
    for number in issue(ledger, explainer, people).new:
        found = ledger.redeem(number, a_year_later(ledger.promise(number)), pipeline, record=False)
        assert [one.feature for one in found.unmet] == ["age", "months_since_default"]


def test_audit_evaluates_year_of_tolerance(ledger, pipeline, explainer, people):
    """A model that refuses the promised people once they are a year older breaks the promise."""
    exact = issue(ledger, explainer, people[:3]).new
    year = issue(ledger, explainer, people[3:], "q", tolerance=YEAR).new
    assert ledger.audit(pipeline).counts["proved"] == len(exact) + len(year)
    for number in (*exact, *year):
        promise = ledger.promise(number)
        stricter = copy.deepcopy(pipeline)
        margins = [
            float(pipeline.decision_function(pd.DataFrame([row])[NAMES])[0])
            for row in (
                promise.answer.to_dict(),
                promise.answer.to_dict() | {"age": promise.answer["age"] + 1},
            )
        ]
        assert margins[0] > margins[1]
        stricter[-1].intercept_ = stricter[-1].intercept_ - sum(margins) / 2
        wanted = "holds" if number in exact else "broken"
        assert ledger.audit(stricter, record=False).verdict(number) == wanted


def test_redeem_accepts_better_values_as_far_as_they_were_proved(
    ledger, pipeline, explainer, people
):
    better = 0
    for number in issue(ledger, explainer, people).new:
        promise = ledger.promise(number)
        for name, (_, high) in promise.guaranteed_ranges.items():
            if high > promise.answer[name]:
                person = promise.answer.to_dict() | {name: high}
                assert pipeline.predict(pd.DataFrame([person])[NAMES])[0]
                found = ledger.redeem(number, person, pipeline, record=False)
                assert found.verdict == "met_within_tolerance", str(found)
                better += 1
    assert better


def test_issue_points_out_features_that_grow_with_time(ledger, explainer, people):
    issued = issue(ledger, explainer, people)
    assert issued.growing == ("age", "months_since_default")
    assert "age, months_since_default" in str(issued)
    half = issue(ledger, explainer, people, "q", tolerance={"age": (0, 1)})
    assert half.growing == ("months_since_default",)
    fields = letter_fields(ledger.promise(half.new[0]))
    assert [fact.title for fact in fields["growing"]] == ["months_since_default"]
    assert [fact.title for fact in fields["unchanged"]] == ["age"]
    covered = issue(ledger, explainer, people, "r", tolerance=YEAR)
    assert letter_fields(ledger.promise(covered.new[0]))["growing"] == []
    assert covered.growing == ()
    assert "grow" not in str(covered)


def test_redeem_names_both_ends_of_tolerance_beyond_declared_range(ledger):
    """A person at the end of the range may still grow a year older, and not two."""
    schema = pp.Schema(
        [pp.Continuous("age", 18, 60, step=1), pp.Continuous("income", 0, 100, step=1)]
    )
    net = pp.Network([([[-1.0, 3.0]], [-0.5])])
    table = pd.DataFrame({"age": [60, 55, 50], "income": [10, 80, 90]})
    explainer = pp.Proplace(net, 0.001, schema=schema, k=2).fit(table)
    result = explainer.explain(table[:1], immutable=["age"], tolerance={"age": (0, 1)})
    (number,) = ledger.issue(result, ["anna"]).ids
    row = ledger.promise(number).answer.to_dict()
    assert ledger.redeem(number, row | {"age": 61}, record=False).met == "met_within_tolerance"
    (unmet,) = ledger.redeem(number, row | {"age": 59}, record=False).unmet
    assert "promised is 60 to 61" in unmet.words


def test_renewal_points_out_features_that_grow_with_time(ledger, pipeline, explainer, people):
    issue(ledger, explainer, people[:2])
    stricter = copy.deepcopy(pipeline)
    stricter[-1].intercept_ -= 2.0
    audit = ledger.audit(stricter)
    assert len(audit.broken) == 2
    renewal = audit.renew(pp.Proplace(stricter, 0.005, k=5).fit(table()))
    assert renewal.issue().growing == ("age", "months_since_default")


def test_issue_without_last_day_points_nothing_out(ledger, explainer, people):
    assert ledger.issue(explainer.explain(people, True), list("abcdef")).growing == ()


@pytest.mark.parametrize(
    ("name", "grows"),
    [
        ("age", True),
        ("Age", True),
        ("driver_age", True),
        ("ageOfOldestAccount", True),
        ("MSinceOldestTradeOpen", True),
        ("months since last default", True),
        ("years_at_address", True),
        ("tenure", True),
        ("average_balance", False),
        ("mileage", False),
        ("wage", False),
        ("months", False),
        ("income", False),
    ],
)
def test_names_of_features_that_grow_with_time(name, grows):
    assert grows_with_time(pp.Continuous(name, 0, 100)) == grows
    assert grows_with_time(pp.Continuous("x", 0, 100, label=name)) == grows
    assert not grows_with_time(pp.Categorical(name, ["low", "high"]))
