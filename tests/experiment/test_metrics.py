"""Metrics against values computed by hand or by another formula."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.core.errors import InputError, SchemaError
from proplace.experiment import metrics
from support.errors import raises


def threshold(t):
    return pp.Network([([[1.0]], [-t])])


def lof_by_definition(point, data, k=10):
    """Breunig et al. 2000, for a point outside the data, with Euclidean distances."""

    def nearest(x, exclude=None):
        d = np.linalg.norm(data - x, axis=1)
        if exclude is not None:
            d[exclude] = np.inf
        order = np.argsort(d, kind="stable")[:k]
        return order, d[order]

    def density(x, exclude=None):
        order, d = nearest(x, exclude)
        reach = [max(nearest(data[o], o)[1][-1], dist) for o, dist in zip(order, d, strict=True)]
        return 1.0 / np.mean(reach), order

    own, order = density(point)
    return np.mean([density(data[o], o)[0] for o in order]) / own


def test_l1_is_mean_over_columns():
    x = [[0.0, 0.0, 1.0, 0.5], [1.0, 1.0, 1.0, 1.0]]
    y = [[0.1, 0.0, 0.0, 0.5], [1.0, 1.0, 1.0, 0.0]]
    np.testing.assert_allclose(metrics.l1(x, y), [1.1 / 4, 0.25])
    with raises(InputError, name="counterfactuals"):
        metrics.l1(x, y[:1])


def test_lof_is_definition():
    rng = np.random.default_rng(0)
    data = rng.normal(size=(60, 3))
    points = np.vstack([rng.normal(size=(4, 3)), [[4.0, 4.0, 4.0]]])
    expected = [lof_by_definition(p, data) for p in points]
    np.testing.assert_allclose(metrics.lof(points, data), expected, rtol=1e-6)
    np.testing.assert_allclose(
        metrics.lof(points, metrics.outlier_model(data)), expected, rtol=1e-6
    )
    assert expected[-1] > 2.0
    with raises(InputError, name="reference"):
        metrics.lof(points, data[:10])


def test_vr_counts_networks():
    nets = [threshold(0.3), threshold(0.5), threshold(0.7), threshold(0.9)]
    np.testing.assert_allclose(metrics.vr(nets, [[0.6], [0.2], [1.0]]), [0.5, 0.0, 1.0])
    np.testing.assert_allclose(metrics.vr(nets, [[0.6], [0.2], [1.0]], target=0), [0.5, 1.0, 0.0])
    with raises(InputError, name="retrained"):
        metrics.vr([], [[0.6]])


def test_vdelta_is_exact_at_edge():
    # Accepted by every network within 0.1 iff 0.9 x >= 0.5 + 0.1.
    edge = 0.6 / 0.9
    points = [[edge - 1e-9], [edge + 1e-9]]
    assert metrics.vdelta(threshold(0.5), points, 0.1).tolist() == [False, True]


def test_every_column_is_about_target():
    # Refused by every network within 0.1 iff 1.1 x <= 0.5 - 0.1.
    points = [[0.3], [0.45], [0.9]]
    table = metrics.evaluate(
        points, [[0.9]] * 3, threshold(0.5), delta=0.1, retrained=[threshold(0.4)], target=0
    )
    assert table["valid"].tolist() == [1.0, 1.0, 0.0]
    assert table["vdelta"].tolist() == [1.0, 0.0, 0.0]
    assert table["vr"].tolist() == [1.0, 0.0, 0.0]


RETRAINED = [threshold(0.4), threshold(0.75)]
ORIGINALS = [[0.2], [0.1], [0.3]]


def test_evaluate_gives_one_row_each_and_counts_missing_answers_as_failures():
    data = np.linspace(0.5, 1.0, 30)[:, None]
    table = metrics.evaluate(
        [[0.8], [np.nan], [0.6]],
        ORIGINALS,
        threshold(0.5),
        retrained=RETRAINED,
        delta=0.1,
        reference=data,
    )
    assert table["found"].tolist() == [True, False, True]
    assert table["valid"].tolist() == [1.0, 0.0, 1.0]
    assert table["vr"].tolist() == [1.0, 0.0, 0.5]
    assert table["vdelta"].tolist() == [1.0, 0.0, 0.0]
    np.testing.assert_allclose(table["l1"], [0.6, np.nan, 0.3])
    expected = [lof_by_definition(np.array([p]), data) for p in (0.8, 0.6)]
    np.testing.assert_allclose(table["lof"].dropna(), expected, rtol=1e-6)


def test_evaluate_omits_columns_without_argument():
    table = metrics.evaluate([[0.8]] * 3, ORIGINALS, threshold(0.5))
    assert list(table) == ["found", "valid", "l1", "changed"]


def test_evaluate_all_missing():
    table = metrics.evaluate(
        [[np.nan]] * 3, ORIGINALS, threshold(0.5), retrained=RETRAINED, delta=0.1
    )
    assert table["vr"].tolist() == [0.0] * 3
    assert table["l1"].isna().all()


def test_evaluate_reads_csv_made_elsewhere(tmp_path):
    schema = pp.Schema([pp.Continuous("income", 0, 1000), pp.Binary("owner", ["no", "yes"])])
    net = pp.Network([([[1.0, 0.2]], [-0.5])])
    people = pd.DataFrame({"income": [100.0, 200.0], "owner": ["no", "yes"]}, index=["a", "b"])
    (tmp_path / "ces.csv").write_text("owner,note,income\nyes,fine,450\n,none,\n")
    table = metrics.evaluate(tmp_path / "ces.csv", people, net, schema=schema, retrained=[net])
    assert table.index.tolist() == ["a", "b"]
    assert table["found"].tolist() == [True, False]
    assert table["valid"].tolist() == [1.0, 0.0]
    assert table["l1"].iloc[0] == pytest.approx((0.35 + 1.0) / 2)
    (tmp_path / "plain.csv").write_text("x0,x1\n0.45,1.0\n,\n")
    plain = metrics.evaluate(
        str(tmp_path / "plain.csv"), schema.encode(people), net, retrained=[net]
    )
    assert plain["l1"].iloc[0] == pytest.approx(table["l1"].iloc[0])


@pytest.mark.parametrize("with_schema", [True, False])
def test_row_with_one_missing_value_is_none_found(with_schema):
    schema = pp.Schema([pp.Continuous("a", 0, 1), pp.Continuous("b", 0, 1)])
    net = pp.Network([([[1.0, 1.0]], [-0.5])])
    answers = pd.DataFrame({"a": [0.5, 0.5, np.nan], "b": [0.5, np.nan, 0.5]})
    table = metrics.evaluate(
        answers, np.zeros((3, 2)), net, schema=schema if with_schema else None, delta=0.01
    )
    assert table["found"].tolist() == [True, False, False]
    assert table["vdelta"].tolist() == [1.0, 0.0, 0.0]


def test_evaluate_reads_labels_of_schema(tmp_path):
    """A category "None" is no missing cell, and "017" is no number."""
    schema = pp.Schema([pp.Categorical("c", ["None", "017", "17"])])
    net = pp.Network([([[1.0, 2.0, -1.0]], [-0.5])])
    (tmp_path / "ces.csv").write_text("c,status\nNone,optimal\n017,optimal\n17,optimal\n,none\n")
    originals = pd.DataFrame({"c": ["17"] * 4})
    table = metrics.evaluate(tmp_path / "ces.csv", originals, net, schema=schema)
    assert table["found"].tolist() == [True, True, True, False]
    assert table["valid"].tolist() == [1.0, 1.0, 0.0, 0.0]
    (tmp_path / "ces.csv").write_text("c\nNone\n18\n")
    with raises(SchemaError, name="c", row=1):
        metrics.evaluate(tmp_path / "ces.csv", originals[:2], net, schema=schema)
    (tmp_path / "ces.csv").write_text("c\nNone,1\n017\n")
    with raises(InputError, name="ces.csv", row=0):
        metrics.evaluate(tmp_path / "ces.csv", originals[:2], net, schema=schema)


def test_infinite_answer_is_not_taken_for_none():
    with raises(InputError, name="counterfactuals", row=1):
        metrics.evaluate([[0.8], [np.inf], [0.6]], ORIGINALS, threshold(0.5))


def test_evaluate_takes_explanations_and_keeps_only_first_answer_of_row():
    net = pp.Network([([[1.0, 1.0]], [-1.0])])
    train = [[1.0, 0.1], [0.2, 1.0], [1.0, 1.0], [0.4, 1.0]]
    X = np.array([[0.2, 0.1], [0.4, 0.1]])
    result = pp.Proplace(net, 0.01).fit(train).explain(X, count=2)
    assert len(result) > 2
    table = metrics.evaluate(result, X, net, delta=0.01)
    assert len(table) == 2
    first = [e.distance for e in result if e.rank == 0]
    np.testing.assert_allclose(table["l1"], first)
    assert table["vdelta"].tolist() == [1.0, 1.0]
    none = pp.Proplace(net, 0.9).fit(train).explain(X)
    assert metrics.evaluate(none, X, net)["found"].tolist() == [False, False]


@pytest.mark.parametrize(
    ("answers", "name"),
    [
        ([[0.5]], "counterfactuals"),
        ([[0.5, 0.5]] * 3, "counterfactuals"),
        ("nowhere.csv", "nowhere.csv"),
    ],
)
def test_evaluate_rejects_wrong_input(answers, name):
    with raises(InputError, name=name):
        metrics.evaluate(answers, ORIGINALS, threshold(0.5))


def test_evaluate_names_missing_column():
    schema = pp.Schema([pp.Continuous("income", 0, 1)])
    with raises(InputError, name="income"):
        metrics.evaluate(pd.DataFrame({"x": [1.0]}), [[0.2]], threshold(0.5), schema=schema)
