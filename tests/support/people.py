"""A small world of people, and every promise of an answer checked by other means."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from oracles import attack, sampled_margins, size_of
from proplace.schema import Schema, Then
from support.problems import hull_distance

# -- networks --------------------------------------------------------------------------------------


def random_network(seed, inputs, hidden=(5,), outputs=1, *, low=0.0, balanced=False):
    """A random network. With ``balanced``, it accepts about half of random rows."""
    rng = np.random.default_rng(seed)
    layers = [
        (rng.normal(0, 1, (rows, columns)), rng.normal(0, 0.3, rows))
        for columns, rows in itertools.pairwise([inputs, *hidden, outputs])
    ]
    layers[-1][1][:] -= low
    if balanced and outputs == 1:
        layers[-1][1][:] -= np.median(pp.Network(layers).logits(rng.random((200, inputs))))
    return pp.Network(layers)


def worst_logit(net, rows, delta, side=-1.0):
    """Least logit over all networks within delta, of a network with one hidden layer."""
    (W, b), (V, c) = ((np.array(layer.W), np.array(layer.b)) for layer in net.layers)
    rows = np.atleast_2d(rows)
    reach = delta * (np.abs(rows).sum(axis=1) + 1.0)[:, None]
    bad, good = (np.maximum(rows @ W.T + b + side * sign * reach, 0.0) for sign in (1.0, -1.0))
    v = V[0] + side * delta
    return np.where(v >= 0.0, v * bad, v * good).sum(axis=1) + c[0] + side * delta


def best_logit(net, rows, delta):
    """Greatest logit over all networks within delta, of a network with one hidden layer."""
    return worst_logit(net, rows, delta, side=1.0)


def debtors(rows=300, *, age=False):
    """A pipeline that looks at income, debt and home (and wants people of middle age), and a table."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "income": rng.uniform(10, 90, rows).round(1),
            "debt": rng.uniform(0, 60, rows).round(1),
        }
    )
    if age:
        table["age"] = rng.integers(20, 70, rows).astype(float)
    table["home"] = rng.integers(0, 2, rows)
    score = table["income"] - table["debt"] + 8 * table["home"]
    accepted = score - (table["age"] - 45).abs() > 10 if age else score > 25
    net = MLPClassifier(
        (8, 6) if age else (6, 5), max_iter=500, random_state=0, learning_rate_init=0.01
    )
    return make_pipeline(StandardScaler(), net).fit(table, accepted.astype(int)), table


# -- a small world ---------------------------------------------------------------------------------


def features(**changes):
    """One feature of each kind. ``changes`` are options by name of the feature."""
    kinds = [
        pp.Continuous("age", 20, 70, step=1, unit="years"),
        pp.Continuous("income", 0.0, 9.5),
        pp.Ordinal("grade", ["E", "D", "C", "B"], values=[0, 1, 2.5, 3]),
        pp.Categorical("job", ["clerk", "cook", "smith"]),
        pp.Categorical("town", ["north", "south", "west"], encoding="dropfirst"),
        pp.Binary("member", ["no", "yes"]),
    ]
    return [replace(kind, **changes.get(kind.name, {})) for kind in kinds]


def schema_of(rules=(), **changes):
    return Schema(features(**changes), rules=rules)


def people(rng, n):
    return pd.DataFrame(
        {
            "age": rng.integers(20, 71, n),
            "income": rng.uniform(0.0, 9.5, n),
            "grade": rng.choice(["E", "D", "C", "B"], n),
            "job": rng.choice(["clerk", "cook", "smith"], n),
            "town": rng.choice(["north", "south", "west"], n),
            "member": rng.choice(["no", "yes"], n),
        }
    )


def net_for(rng, width, hidden=(6,), outputs=1, inputs=None):
    """A network whose classes are about balanced on the rows ``inputs``."""
    sizes = [width, *hidden]
    layers = [
        (rng.normal(size=(m, n)) * 1.5 / np.sqrt(n), rng.normal(size=m) * 0.3)
        for n, m in itertools.pairwise(sizes)
    ]
    W = rng.normal(size=(outputs, sizes[-1])) * 1.5 / np.sqrt(sizes[-1])
    net = pp.Network([*layers, (W, np.zeros(outputs))])
    return pp.Network([*layers, (W, -np.median(net.logits(inputs), axis=0))])


class World:
    """A network, a table and people who are refused."""

    def __init__(self, seed, *, hidden=(6,), outputs=1, rows=250, rules=(), **changes):
        rng = np.random.default_rng(seed)
        self.schema = schema_of(rules, **changes)
        self.frame = people(rng, rows)
        self.X = self.schema.encode(self.frame)
        self.net = net_for(rng, self.schema.width, hidden, outputs, self.X)

    def refused(self, n, target=1):
        frame = self.frame[self.net.predict(self.X) != target].iloc[:n]
        return frame.set_index(pd.Index([f"p{i}" for i in range(len(frame))]))

    def explainer(self, delta=0.01, **options):
        options = {"k": 12, "schema": self.schema, **options}
        return pp.Proplace(self.net, delta, **options).fit(self.frame)


def outside_hull(point, neighbours, x):
    """Distance of a point from the hull of the neighbours and the person."""
    return hull_distance(point, np.vstack([x, neighbours]))


def check_bound(answer, gap):
    """Check that bound, status and region of a result agree."""
    assert answer.bound >= 0.0
    if answer.in_region:
        assert answer.bound <= answer.distance
        assert answer.gap == pytest.approx(1.0 - answer.bound / answer.distance, abs=1e-12)
    else:
        assert np.isnan(answer.gap)
    if answer.status == "optimal":
        assert answer.in_region
        assert not answer.timed_out
        assert answer.bound >= (1.0 - max(gap, 1e-7)) * answer.distance * (1.0 - 1e-9)


def check_promise(explainer, schema, answer, *, attacks=True, gap=0.0):
    """Everything that a found answer promises, by other means."""
    assert answer.found
    point, x = answer.encoded_counterfactual, answer.encoded_original
    changed = np.where(point == x, schema.canonical(x)[0], point)  # own values are legal
    assert schema.legal(changed)[0]
    assert schema.person(x).allowed(point)[0]
    if explainer.region == "hull":
        outside = outside_hull(point, answer.neighbours, x)
        assert outside <= 2e-6 if answer.in_region else outside > 0.0
    else:
        assert answer.in_region
    args = explainer.net_, point, explainer.shifts_, answer.target
    report = pp.certify(*args, margin=explainer.guarantee_.current.margin)
    assert report.robust[0]
    exact = pp.certify(*args, exact_margin=True)
    assert explainer.guarantee_.current.margin <= answer.margin <= exact.upper[0] + 1e-9
    between = float(explainer.distance_.between(x, point))
    assert answer.distance == pytest.approx(between, abs=1e-12)
    check_bound(answer, gap)
    facts = answer.certificate.facts
    assert (facts["verdict"], facts["input"]) == ("robust", point.tolist())
    assert facts["margin"] == explainer.guarantee_.current.margin
    assert answer.certificate.check(explainer.net_, explainer.shifts_).accepted
    if attacks:
        delta = explainer.shifts_
        rng = np.random.default_rng(0)
        least = sampled_margins(explainer.net_, point, delta, answer.target, rng, 100).min()
        T = rng.uniform(-1.0, 1.0, (8, size_of(explainer.net_)))
        least = min(least, attack(explainer.net_, point, delta, answer.target, T, steps=8))
        assert least >= explainer.guarantee_.current.margin - 1e-9


def check_table(schema, result):
    """The table that a user reads encodes to the certified bits."""
    names = [feature.name for feature in schema.features]
    for answer, (_, row) in zip(result, result.to_frame().iterrows(), strict=True):
        if answer.found:
            table = pd.DataFrame([row[names]])
            assert schema.encode(table).tobytes() == answer.encoded_counterfactual[None].tobytes()
            series = pd.DataFrame([answer.counterfactual])
            assert schema.encode(series).tobytes() == answer.encoded_counterfactual[None].tobytes()


def rules():
    return [
        pp.schema.Linear(
            {"age": 1.0, "income": -10.0}, lower=-60.0, name="not too rich for the age"
        ),
        pp.schema.IfThen({"job": "smith"}, [Then("age", at_least=2, change=True)]),
        pp.schema.IfThen({"town": "west"}, [Then("income", at_most=6.0)], becomes=False),
        pp.schema.IfThen({"member": "yes"}, [Then("job", ["cook", "smith"])]),
    ]


LIMITS = {
    "age": {"direction": "increasing", "max_increase": 15},
    "income": {"max_increase": 4.0, "max_decrease": 2.0},
    "grade": {"direction": "increasing"},
    "town": {"immutable": True},
}


WITHOUT_STEPS = {"age": {"step": None}, "grade": {"immutable": True}}
"""Changes of the features after which no value has to be rounded, so that searches are exact."""


def two_columns():
    """Class 1 iff a + b >= 1, with four training rows, three of them robust."""
    net = pp.Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
    train = np.array([[0.2, 0.1], [0.9, 0.8], [0.7, 1.0], [1.0, 0.6]])
    return net, train


def same(a, b):
    assert len(a) == len(b)
    for p, q in zip(a, b, strict=True):
        assert (p.index, p.status, p.reason, p.rank) == (q.index, q.status, q.reason, q.rank)
        np.testing.assert_array_equal([p.distance, p.bound], [q.distance, q.bound])
        if p.encoded_counterfactual is not None:
            assert p.encoded_counterfactual.tobytes() == q.encoded_counterfactual.tobytes()
