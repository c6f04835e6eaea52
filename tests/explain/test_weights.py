"""Weights of features in the distance."""

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

SCHEMA = pp.Schema(
    [
        pp.Continuous("a", 0, 1),
        pp.Continuous("b", 0, 10, step=1, direction="increasing"),
        pp.Categorical("c", ["p", "q", "r"]),
        pp.Binary("d"),
        pp.Continuous("e", 0, 1, immutable=True),
    ]
)
NET = pp.Network([(np.ones((1, SCHEMA.width)), [-3.0])])


def fitted(**options):
    rows = SCHEMA.canonical(np.random.default_rng(0).random((30, SCHEMA.width)))
    return pp.Proplace(NET, 0.01, schema=SCHEMA, **options).fit(rows)


def test_weights_by_name_go_to_all_columns_of_a_feature():
    explainer = fitted(weights={"c": 2.0, "d": 0.5})
    expected = np.array([1.0, 1.0, 2.0, 2.0, 2.0, 0.5, 1.0]) / 7
    np.testing.assert_array_equal(explainer.distance_.weights, expected)
    default = fitted().distance_.weights
    np.testing.assert_array_equal(fitted(weights={}).distance_.weights, default)
    np.testing.assert_array_equal(default, np.full(7, 1.0 / 7))


def test_mad_counts_columns_in_units_of_their_spread():
    """Medians of the absolute deviations 1 and 2; the whole range plays no part."""
    rows = pd.DataFrame({"a": [0.0, 1.0, 2.0], "b": [1.0, 3.0, 11.0]})
    explainer = pp.Proplace(pp.Network([([[1.0, 1.0]], [-2.0])]), 0.01, weights="mad").fit(rows)
    np.testing.assert_array_equal(explainer.distance_.weights, [0.5 / 1.0, 0.5 / 2.0])


def test_weights_count_the_whole_range_where_the_model_scales_itself():
    """One encoded unit of a standard scaler is a standard deviation, which no user counts in."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.integers(20, 70, 300), "rate": rng.uniform(0, 1.5, 300)})
    pipe = make_pipeline(StandardScaler(), LogisticRegression())
    pipe.fit(table, (table["age"] / 50 + table["rate"] > 1.7).astype(int))
    person = pd.DataFrame({"age": [30], "rate": [0.9]})
    explainer = pp.Proplace(pipe, 0.01, weights={"age": 2.0}).fit(table)
    (answer,) = explainer.explain(person, immutable=["rate"])
    change = answer.counterfactual["age"] - 30
    assert change > 0
    spread = table["age"].max() - table["age"].min()
    assert answer.distance == pytest.approx(2.0 * change / spread / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("weights", "name"),
    [
        ({"z": 1.0}, "weights"),
        ({"a": -1.0}, "the weight of a"),
        ({"a": "much"}, "the weight of a"),
        (dict.fromkeys("abcde", 0.0), "weights"),
        ([1.0] * 7, "weights"),
        ("l2", "weights"),
    ],
)
def test_wrong_weights_are_rejected(weights, name):
    with raises(OptionError, name=name):
        fitted(weights=weights)
