"""Fixed predictions: people whom no network of Delta accepts, against an enumeration of legal rows.

The oracle computes the largest logit over Delta of a network with one hidden layer in closed form, and
enumerates the values of every feature with plain Python.
"""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from proplace.explain.prove import fixed_prediction
from proplace.region.pieces import MOST_VALUES, admissible
from proplace.schema import Then
from support.people import best_logit, random_network
from support.tiers import seeds

DELTA = 0.02


SCHEMA = pp.Schema(
    [
        pp.Continuous("age", 0, 8, step=1, direction="increasing", max_increase=3),
        pp.Continuous("debt", -4, 4, step=1, scaling="none"),
        pp.Binary("home"),
        pp.Categorical("job", ["clerk", "cook", "guard"]),
        pp.Binary("sex", immutable=True),
    ],
    rules=[
        pp.schema.IfThen({"job": "guard"}, [Then("age", at_least=2, change=True)]),
    ],
)


def legal(person):
    """All rows that the rules allow, in original units and encoded."""
    jobs = ["clerk", "cook", "guard"]
    found = []
    for age, debt, home, job in itertools.product(range(9), range(-4, 5), (0, 1), jobs):
        if not person.age <= age <= person.age + 3:
            continue
        if job == "guard" and person.job != "guard" and age < person.age + 2:
            continue
        found.append([age / 8, debt, home, *(job == j for j in jobs), person.sex])
    return np.array(found, dtype=float)


def people(seed, count=24):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(0, 9, count),
            "debt": rng.integers(-4, 5, count),
            "home": rng.integers(0, 2, count),
            "job": rng.choice(["clerk", "cook", "guard"], count),
            "sex": rng.integers(0, 2, count),
        }
    )


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_prediction_is_fixed_iff_no_network_accepts_legal_input(seed):
    net, table = random_network(seed, 7, low=3.0), people(seed)
    result = pp.Proplace(net, DELTA, schema=SCHEMA, k=5).fit(table).explain(table)
    seen = set()
    for e, person in zip(result, table.itertuples(), strict=True):
        most = best_logit(net, legal(person), DELTA).max()
        seen.add(e.status)
        if e.found or e.status == "already_valid":
            assert most >= 0.0
        else:
            assert (e.status == "fixed_prediction") == (most < 0.0), (e.status, most)
        if e.status == "fixed_prediction":
            assert e.encoded_counterfactual is None
            assert "after any change within the declared ranges" in str(e.describe())
    assert seen - {"already_valid"}


def test_cases_above_are_of_both_kinds():
    """Else the test above would show nothing."""
    counts = {True: 0, False: 0}
    for seed in range(6):
        net, table = random_network(seed, 7, low=3.0), people(seed)
        for person in table.itertuples():
            counts[bool(best_logit(net, legal(person), DELTA).max() < 0.0)] += 1
    assert min(counts.values()) >= 12


@pytest.mark.parametrize("seed", seeds(2, 4))
def test_admissible_spaces_hold_all_that_is_allowed(seed):
    """Every legal row lies in a space. Without linear rules and long grids, no other row does."""
    table = people(seed, 12)
    for x, person in zip(SCHEMA.encode(table), table.itertuples(), strict=True):
        spaces = admissible(SCHEMA, x)
        expected = {tuple(row) for row in legal(person)}
        held = set()
        for space in spaces:
            parts = [[((j,), (v,)) for v in {space.low[j], space.high[j]}] for j in range(7)]
            for choice in space.choices:
                for j in choice.columns:
                    parts[j] = [((), ())]
                rows = choice.values  # noqa: PD011  (no table)
                parts.append([(tuple(choice.columns), tuple(v)) for v in rows])
            for point in itertools.product(*parts):
                row = np.full(7, np.nan)
                for columns, values in point:
                    row[list(columns)] = values
                held.add(tuple(row))
        assert held == expected


def test_linear_rules_narrow_spaces_and_never_too_far():
    schema = pp.Schema(
        [pp.Continuous(name, 0, 10, scaling="none") for name in ("a", "b", "c")],
        rules=[
            pp.schema.Linear({"a": 2.0, "b": -1.0}, upper=-3.0),
            pp.schema.Linear({"c": 3.0}, lower=6.0),
        ],
    )
    (space,) = admissible(schema, np.array([1.0, 9.0, 4.0]))
    assert space.low == pytest.approx([0.0, 3.0, 2.0], abs=1e-6)
    assert space.high == pytest.approx([3.5, 10.0, 10.0], abs=1e-6)
    rng = np.random.default_rng(0)
    rows = rng.uniform(0, 10, (20_000, 3))
    rows = rows[schema.person(np.array([1.0, 9.0, 4.0])).allowed(rows)]
    assert len(rows) > 500
    assert ((rows >= space.low) & (rows <= space.high)).all()


def test_contradictory_rules_prove_no_fixed_prediction():
    schema = pp.Schema(
        [pp.Continuous(name, 0, 1, scaling="none") for name in ("a", "b")],
        rules=[pp.schema.Linear({"a": 1.0, "b": 1.0}, lower=3.0)],
    )
    assert admissible(schema, np.array([0.5, 0.5])) == []
    net = pp.Network([([[1.0, 1.0]], [-9.0])])
    (answer,) = pp.Proplace(net, 0.01, schema=schema).fit([[0.1, 0.2]]).explain([[0.5, 0.5]])
    assert answer.status == "no_robust_neighbour"


def test_without_ranges_nothing_is_proved():
    net = pp.Network([([[1.0, 1.0]], [-9.0])])
    (answer,) = pp.Proplace(net, 0.01).fit([[0.1, 0.2]]).explain([[0.5, 0.5]])
    assert answer.status == "no_robust_neighbour"
    ranged = pp.Schema.encoded(2, lower=0.0, upper=1.0)
    (answer,) = pp.Proplace(net, 0.01, schema=ranged).fit([[0.1, 0.2]]).explain([[0.5, 0.5]])
    assert answer.status == "fixed_prediction"
    assert (
        answer.reason
        == "every network within delta refuses all values of x0 (0 to 1) and x1 (0 to 1). "
        "This is proved"
    )


def test_spaces_hold_value_out_of_range():
    """The person is refused outside the range, but all inputs inside are accepted: not fixed."""
    schema = pp.Schema([pp.Continuous("a", 0, 8, step=1), pp.Binary("b", immutable=True)])
    (space,) = admissible(schema, np.array([9.9 / 8, 0.0]))
    assert space.low.tolist() == [0.0, 0.0]
    assert space.high.tolist() == [10 / 8, 0.0]
    found = {int(each.columns[0]): np.ravel(each.values).tolist() for each in space.choices}
    assert found[0] == [*(np.arange(10) / 8), 9.9 / 8, 10 / 8]
    train = pd.DataFrame({"a": [8, 8], "b": [0, 1]})
    for shift, status in ((8.5, "feasible"), (-0.5, "fixed_prediction")):
        net = pp.Network([([[-8.0, 1.0]], [shift])])  # accepted up to a = 8 shift
        explainer = pp.Proplace(net, 0.01, schema=schema, region="box").fit(train)
        (answer,) = explainer.explain(pd.DataFrame({"a": [9.9], "b": [0]}))
        assert answer.status == status


def test_long_grids_are_intervals():
    schema = pp.Schema([pp.Continuous("a", 0, 1000, step=1), pp.Continuous("b", 0, 20, step=1)])
    (space,) = admissible(schema, np.array([0.5, 0.5]))
    assert [len(choice.values) for choice in space.choices] == [21]
    assert 21 <= MOST_VALUES < 1001


def test_one_of_several_sets_that_refuses_is_enough():
    schema = pp.Schema.encoded(1, lower=0.0, upper=1.0)
    yes, no = pp.Network([([[1.0]], [-0.5])]), pp.Network([([[1.0]], [-3.0])])
    explainer = pp.Proplace(yes, 0.01, required_models=[(no, 0.02)], schema=schema, region="box")
    (answer,) = explainer.fit([[0.9]]).explain([[0.2]])
    assert answer.status == "fixed_prediction"
    assert answer.reason.startswith("every network within delta of network 2 refuses all values of")
    explainer = pp.Proplace(yes, 0.01, required_models=[no], schema=schema, region="box")
    (answer,) = explainer.fit([[0.9]]).explain([[0.2]])
    assert answer.reason.startswith("network 2 refuses all values of x0 (0 to 1)")
    # Each refuses somewhere, and neither everywhere: no answer, and no proof that it is fixed.
    other = pp.Network([([[-1.0]], [0.4])])
    explainer = pp.Proplace(yes, 0.01, required_models=[(other, 0.01)], schema=schema, region="box")
    (answer,) = explainer.fit([[0.9]]).explain([[0.2]])
    assert answer.status == "no_robust_neighbour"


def test_rounding_of_float32_model_is_covered():
    """The refusal is smaller than the rounding of float32: the deployed model may accept."""
    schema = pp.Schema.encoded(2, lower=0.0, upper=1.0)
    layers = [([[1000.0, -1000.0]], [-1000.0 - 2e-5])]
    for precision, status in (("float64", "fixed_prediction"), ("float32", "no_robust_neighbour")):
        net = pp.Network(layers, precision=precision)
        explainer = pp.Proplace(net, 0.0, schema=schema, region="box").fit([[0.5, 0.5]])
        (answer,) = explainer.explain([[0.1, 0.9]])
        assert answer.status == status


def test_fixed_prediction_is_not_tried_for_people_with_counterfactuals(monkeypatch):
    net, table = random_network(1, 7), people(1)
    explainer = pp.Proplace(net, DELTA, schema=SCHEMA, k=5).fit(table)
    asked = []
    monkeypatch.setattr(
        "proplace.explain.answer.fixed_prediction",
        lambda *args: asked.append(args) or fixed_prediction(*args),
    )
    result = explainer.explain(table)
    without = sum(not e.found and e.status != "already_valid" for e in result)
    assert len(asked) == without < len(result)


def test_box_without_its_network_can_be_fixed():
    """The current model accepts a known row. This proves nothing about a set that it does not lie in."""
    schema = pp.Schema.encoded(1, lower=0.0, upper=1.0)
    net = pp.Network([([[1.0]], [-0.5])])
    low, high = (pp.Network([([[1.0]], [bias])]) for bias in (-2.1, -1.9))
    box = pp.Shifts(low, high)
    assert not box.contains(net)
    assert net.predict([[0.9]])[0] == 1
    (answer,) = pp.Proplace(net, box, schema=schema).fit([[0.9]]).explain([[0.2]])
    assert answer.status == "fixed_prediction"
    assert answer.reason.startswith("every network of the shift set of the current model refuses ")


def test_ranges_drafted_from_table_prove_no_fixed_prediction():
    """The pipeline accepts a larger income than any in the table, so the outcome is not fixed."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"income": rng.integers(20, 60, 300), "debt": rng.integers(0, 50, 300)})
    good = (table.income - table.debt > 45) & (rng.random(300) < 0.6)
    pipe = make_pipeline(StandardScaler(), LogisticRegression(C=0.05))
    pipe.fit(table, np.where(good, "yes", "no"))
    person = pd.DataFrame({"income": [22], "debt": [10]})
    assert pipe.predict(person.assign(income=150)) == ["yes"]
    (drafted,) = pp.Proplace(pipe, 0.001).fit(table).explain(person, "yes")
    assert drafted.status != "fixed_prediction"
    assert "proved" not in str(drafted.describe())
    schema = pp.Schema([pp.Continuous("income", 0, 60), pp.Continuous("debt", 0, 50)])
    (declared,) = pp.Proplace(pipe, 0.001, schema=schema).fit(table).explain(person, "yes")
    assert declared.status == "fixed_prediction"
