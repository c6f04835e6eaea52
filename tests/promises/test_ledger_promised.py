"""Open promises of a ledger as another model encodes them, up to the frameworks' own predictions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

import proplace as pp
from proplace.core.errors import InputError
from support.errors import raises

JOBS = ["clerk", "cook", "nurse"]


def lender(seed=0, rows=500):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "income": rng.uniform(10, 90, rows).round(1),
            "debt": rng.uniform(0, 60, rows).round(1),
            "job": rng.choice(JOBS, rows),
        }
    )
    good = table["income"] - table["debt"] + 8.0 * (table["job"] == "nurse") > 25
    return table, good.map({True: "yes", False: "no"})


def pipeline(table, labels, *, jobs=JOBS, scaler=StandardScaler, seed=0):
    steps = make_column_transformer(
        (scaler(), ["income", "debt"]), (OneHotEncoder(categories=[jobs]), ["job"])
    )
    net = MLPClassifier((6, 5), max_iter=300, random_state=seed, learning_rate_init=0.01)
    return make_pipeline(steps, net).fit(table, labels)


@pytest.fixture(scope="module")
def promised(tmp_path_factory):
    table, labels = lender()
    old = pipeline(table, labels)
    refused = table[old.predict(table) == "no"][:15]
    explainer = pp.Proplace(old, 0.005, holds=True, tolerance={"debt": 0.5}).fit(table)
    result = explainer.explain(refused, target="yes")
    ledger = pp.Ledger(tmp_path_factory.mktemp("ledger") / "promises.db")
    ledger.issue(result, ids={i: f"p{i}" for i in refused.index})
    return ledger, old


def answers(ledger, names):
    return pd.DataFrame([ledger.promise(int(name)).answer for name in names]).infer_objects()


@pytest.mark.parametrize("scaler", [StandardScaler, MinMaxScaler])
@pytest.mark.parametrize("jobs", [JOBS, JOBS[::-1]])
def test_promises_are_encoded_as_another_model_does(promised, scaler, jobs):
    ledger, _ = promised
    table, labels = lender(seed=1)
    new = pipeline(table, labels, jobs=jobs, scaler=scaler, seed=1)
    found = ledger.promised(new)
    assert len(found) >= 10
    rows = answers(ledger, found.names)
    model = pp.Model.of(new)
    assert np.abs(model.encode(rows) - found.points).max() <= 1e-12
    assert [model.classes[t] for t in found.targets] == ["yes"] * len(found)
    assert found.people == tuple(
        f"p{ledger.promise(int(n)).explanation.index}" for n in found.names
    )
    boxed = 0
    for n, name in enumerate(found.names):  # every value that the promise names lies in the box
        for feature, ends in ledger.promise(int(name)).holds.items():
            for value in (*ends, np.mean(ends)):
                row = rows.iloc[[n]].copy()
                row[feature] = value
                column = list(rows.columns).index(feature)  # numbers come first
                code = model.encode(row)[0, column]
                assert found.low[n, column] <= code <= found.high[n, column]
                boxed += 1
    assert boxed


def test_a_repair_keeps_what_the_ledger_holds(promised):
    """The retrained pipeline breaks some; the repaired one accepts all, by its own predict."""
    ledger, old = promised
    table, labels = lender(seed=2)
    new = pipeline(table.assign(income=1.15 * table["income"]), labels, seed=0)
    found = ledger.promised(old)
    rows = answers(ledger, found.names)
    assert (new.predict(rows) == "no").any()
    repaired = pp.repair(new, ledger)
    assert repaired.mended
    assert (repaired.model.predict(rows) == "yes").all()
    for n, name in enumerate(found.names):
        for feature, ends in ledger.promise(int(name)).holds.items():
            row = pd.concat([rows.iloc[[n]]] * 21)
            row[feature] = np.linspace(*ends, 21)
            assert (repaired.model.predict(row) == "yes").all(), (name, feature)


def test_a_bare_network_takes_the_rows_as_they_are(promised):
    """Its classes have no labels: they count as those of the model in use, in its order."""
    ledger, old = promised
    whole, bare = ledger.promised(old), ledger.promised(pp.Model.of(old).network)
    assert np.array_equal(whole.points, bare.points)
    assert np.array_equal(whole.targets, bare.targets)
    with raises(InputError, match="3 columns"):
        ledger.promised(pp.Network([(np.ones((1, 3)), [0.0])]))


def test_other_columns_are_refused(promised):
    ledger, _ = promised
    table, labels = lender(seed=3)
    other = make_pipeline(StandardScaler(), MLPClassifier((3,), max_iter=5)).fit(
        table[["income", "debt"]].assign(age=40.0), labels
    )
    with raises(InputError, match="'age'"):
        ledger.promised(other)


def test_an_empty_ledger_promises_nothing(tmp_path, promised):
    _, old = promised
    with pp.Ledger(tmp_path / "empty.db") as ledger:
        assert len(ledger.promised(old)) == 0
