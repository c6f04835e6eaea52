"""Weights of features in the distance."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import skl2onnx
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from proplace.core.errors import OptionError
from proplace.core.transforms import InputTransform
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


def test_weights_by_name_go_to_all_columns_of_feature():
    explainer = fitted(weights={"c": 2.0, "d": 0.5})
    expected = np.array([1.0, 1.0, 2.0, 2.0, 2.0, 0.5, 1.0]) / 7
    np.testing.assert_array_equal(explainer.distance_.weights, expected)
    default = fitted().distance_.weights
    np.testing.assert_array_equal(fitted(weights={}).distance_.weights, default)
    np.testing.assert_array_equal(default, np.full(7, 1.0 / 7))


def test_mad_counts_columns_in_units_of_their_spread():
    """Medians of the absolute deviations are 1 and 2. The whole range plays no part."""
    rows = pd.DataFrame({"a": [0.0, 1.0, 2.0], "b": [1.0, 3.0, 11.0]})
    explainer = pp.Proplace(pp.Network([([[1.0, 1.0]], [-2.0])]), 0.01, weights="mad").fit(rows)
    np.testing.assert_array_equal(explainer.distance_.weights, [0.5 / 1.0, 0.5 / 2.0])


def test_weights_count_whole_range_where_model_scales_itself():
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


NUMBERS = pd.DataFrame(
    {
        "age": np.random.default_rng(0).integers(20, 70, 300).astype(float),
        "rate": np.random.default_rng(1).uniform(0, 1.5, 300).round(3),
    }
)


def ways_in(folder):
    """One model as a pipeline, an ONNX file, a network with a schema and a torch module."""
    net = MLPClassifier((4,), max_iter=400, random_state=0)
    pipe = make_pipeline(StandardScaler(), net)
    pipe.fit(NUMBERS, (NUMBERS["age"] / 50 + NUMBERS["rate"] > 1.7).astype(int))
    file = skl2onnx.to_onnx(pipe, NUMBERS[:1].astype(np.float32), options={"zipmap": False})
    (folder / "model.onnx").write_bytes(file.SerializeToString())
    first, second = (torch.nn.Linear(*W.shape) for W in net.coefs_)
    module = torch.nn.Sequential(first, torch.nn.ReLU(), second).double()
    with torch.no_grad():
        for layer, W, b in zip((first, second), net.coefs_, net.intercepts_, strict=True):
            layer.weight.copy_(torch.as_tensor(W.T))
            layer.bias.copy_(torch.as_tensor(b))
        first.weight.div_(torch.as_tensor(pipe[0].scale_))  # the scaler is folded in
        first.bias.sub_(first.weight @ torch.as_tensor(pipe[0].mean_))
    return pipe, folder / "model.onnx", pp.Model.of(pipe).network, module


@pytest.mark.parametrize("declared", [False, True])
def test_distance_does_not_depend_on_way_model_came_in(tmp_path, declared):
    pipe, file, network, module = ways_in(tmp_path)
    ends = {"age": (0, 100), "rate": (0, 2)} if declared else dict.fromkeys(NUMBERS, (None, None))
    scaled = pp.Schema(
        [
            pp.Continuous(name, *ends[name], scaling=(pipe[0].mean_[i], pipe[0].scale_[i]))
            for i, name in enumerate(NUMBERS)
        ]
    )
    plain = pp.Schema([pp.Continuous(n, *ends[n], scaling="none") for n in NUMBERS])
    own = pp.Schema([pp.Continuous(n, *ends[n]) for n in NUMBERS]) if declared else None
    units = np.array([100.0, 2.0]) if declared else np.ptp(NUMBERS.to_numpy(), axis=0)
    for model, schema in ((pipe, own), (file, own), (network, scaled), (module, plain)):
        explainer = pp.Proplace(model, 0.001, schema=schema, k=5).fit(NUMBERS)
        scale = np.array([f.scale for f in explainer.schema_.features])
        weights = explainer.distance_.weights / scale
        np.testing.assert_allclose(weights, 0.5 / units, rtol=1e-6)


def test_array_for_network_counts_encoded_units():
    rows = np.random.default_rng(0).uniform(0, 5, (40, 2))
    network = pp.Network([([[1.0, 1.0]], [-5.0])])
    explainer = pp.Proplace(network, 0.01).fit(rows)
    np.testing.assert_array_equal(explainer.distance_.weights, [0.5, 0.5])
    explainer = pp.Proplace(network, 0.01).fit(pd.DataFrame(rows, columns=["a", "b"]))
    np.testing.assert_allclose(explainer.distance_.weights, 0.5 / np.ptp(rows, axis=0))


def test_array_counts_ranges_if_model_scales_column():
    rows = np.random.default_rng(0).uniform(0, 5, (40, 2))
    network = pp.Network([([[1.0, 1.0]], [-5.0])]).with_input_transform(
        InputTransform(np.array([0.2, 1.0]))
    )
    explainer = pp.Proplace(network, 0.01).fit(rows)
    np.testing.assert_allclose(explainer.distance_.weights, [0.5 / np.ptp(rows[:, 0]), 0.5])


def test_drafted_range_is_not_unit():
    table = pd.DataFrame({"a": [0.03, 0.41, 0.98], "b": [1.0, 4.0, 7.0]})
    schema = pp.Schema.infer(table)
    network = pp.Network([([[1.0, 1.0]], [-1.0])])
    explainer = pp.Proplace(network, 0.01, schema=schema).fit(table)
    scale = np.array([f.scale for f in explainer.schema_.features])
    np.testing.assert_allclose(explainer.distance_.weights / scale, [0.5 / 0.95, 0.5 / 6.0])


def test_request_does_not_change_unit():
    table = pd.DataFrame({"a": [0.0, 1.0, 2.0, 3.0], "b": [1.0, 3.0, 7.0, 9.0]})
    explainer = pp.Proplace(pp.Network([([[1.0, 1.0]], [-6.0])]), 0.01).fit(table)
    for ranges in ({}, {"b": (0, 10)}):
        (e,) = explainer.explain(table[:1], ranges=ranges)
        np.testing.assert_array_equal(e.setting.distance.weights, explainer.distance_.weights)


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
