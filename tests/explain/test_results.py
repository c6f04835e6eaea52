"""Results as a user meets them: tables in and out, repeated calls, and errors."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.core.errors import (
    DeltaError,
    InputError,
    NotFittedError,
    OptionError,
    ProplaceError,
    SchemaError,
    TargetError,
)
from proplace.explain import base
from proplace.schema import Schema
from support.errors import raises
from support.people import (
    WITHOUT_STEPS,
    World,
    same,
    two_columns,
)


def test_repeated_runs_agree():
    world = World(2)
    frame = world.refused(6)
    one = world.explainer().explain(frame)
    same(one, world.explainer().explain(frame))
    explainer = world.explainer()
    same(one, explainer.explain(frame))
    same(one, explainer.explain(frame))  # nothing is carried over
    same(one[2:3], explainer.explain(frame.iloc[2:3]))  # nor from other rows


def test_second_fit_forgets_first():
    world, other = World(2), World(2, rows=90)
    frame = world.refused(4)
    explainer = world.explainer()
    first = explainer.explain(frame)
    fresh = pp.Proplace(world.net, 0.01, k=12, schema=world.schema).fit(other.frame)
    second = explainer.fit(other.frame).explain(frame)
    same(second, fresh.explain(frame))
    assert [e.distance for e in second] != [e.distance for e in first]
    assert len(explainer.robust_rows()) < 90


def test_tables_and_arrays_agree():
    world = World(2)
    frame = world.refused(4)
    table = world.explainer().explain(frame)
    array = world.explainer().explain(world.schema.encode(frame))
    assert [e.index for e in array] == [0, 1, 2, 3]
    fitted = pp.Proplace(world.net, 0.01, k=12, schema=world.schema).fit(world.X)
    for a, b, c in zip(table, array, fitted.explain(frame), strict=True):
        assert a.distance == b.distance == c.distance
        assert (
            a.encoded_counterfactual.tobytes()
            == b.encoded_counterfactual.tobytes()
            == c.encoded_counterfactual.tobytes()
        )
        assert a.counterfactual.astype(object).equals(b.counterfactual.astype(object))


def test_unchanged_cells_keep_every_digit():
    world = World(7)
    frame = world.refused(8)
    for answer, (_, old) in zip(world.explainer().explain(frame), frame.iterrows(), strict=True):
        changed = set(answer.changes.index)
        for name in frame.columns:
            assert (answer.counterfactual[name] != old[name]) == (name in changed)
            assert answer.original[name] == old[name]
        # A value that looks unchanged to a reader is unchanged.
        if "income" in changed:
            assert abs(answer.counterfactual["income"] - old["income"]) > 1e-8


@pytest.mark.parametrize("index", [[7, 7, 3], ["b", "a", "b"]])
def test_repeated_labels(index):
    world = World(0)
    frame = world.refused(3).set_index(pd.Index(index))
    result = world.explainer().explain(frame)
    assert [e.index for e in result] == index
    assert list(result.to_frame().index) == index


def test_tables_without_schema():
    net, train = two_columns()
    for columns in (["a", "b"], [0, 1]):
        table = pd.DataFrame(train, columns=columns)
        explainer = pp.Proplace(net, 0.05, k=3).fit(table)
        person = pd.DataFrame([[0.2, 0.3]], columns=columns, index=["me"])
        result = explainer.explain(person)
        assert result[0].status == "optimal"
        assert result[0].index == "me"
        assert list(result.to_frame().columns[:2]) == [str(name) for name in columns]


def test_interrupt_returns_finished_explanations(monkeypatch):
    world = World(0)
    frame = world.refused(5)
    explainer = world.explainer()
    whole = explainer.explain(frame)
    calls = itertools.count()
    original = base._explain_block

    def stops(*args):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(base, "_explain_block", stops)
    result = explainer.explain(frame)
    assert not result.complete
    assert "interrupted" in repr(result)
    same(result, whole[:3])
    assert not result[:2].complete


def test_progress_bar(capsys):
    world = World(0)
    shown = world.explainer().explain(world.refused(2), progress=True)
    same(shown, world.explainer().explain(world.refused(2)))
    assert capsys.readouterr().out == ""


def test_signed_zero_is_zero():
    """-0.0 in a binary column is legal: the person still joins the hull of its own profile."""
    world = World(6)
    X = world.schema.encode(world.refused(4))
    minus = X.copy()
    minus[:, world.schema.profile_columns] = np.where(
        X[:, world.schema.profile_columns] == 0.0, -0.0, 1.0
    )
    explainer = world.explainer()
    for a, b in zip(explainer.explain(X), explainer.explain(minus), strict=True):
        assert a.status == b.status
        assert a.distance == pytest.approx(b.distance, abs=1e-7)


def test_count_of_people_without_answer():
    net, train = two_columns()
    result = pp.Proplace(net, 5.0).fit(train).explain([[0.2, 0.3], [0.9, 0.9]], count=3)
    assert [e.status for e in result] == ["no_robust_neighbour", "already_valid"]


def test_explanations_as_sequence():
    world = World(0, **WITHOUT_STEPS)
    result = world.explainer().explain(world.refused(4))
    assert len(result) == 4
    assert [e.index for e in result[1:3]] == ["p1", "p2"]
    assert isinstance(result[1:3], pp.Explanations)
    assert result[-1].index == "p3"
    with pytest.raises(IndexError):
        result[4]
    assert repr(result) == "Explanations(4 optimal)"
    assert result.encoded_counterfactuals.shape == (4, world.schema.width)
    text = repr(result[0])
    assert text.startswith("Explanation('p0', optimal, distance")
    assert "->" in text
    table = result.to_frame()
    assert list(table.columns) == [
        *world.frame.columns,
        *("status", "distance", "bound", "gap", "in_region", "timed_out"),
        *("margin", "plausibility", "nearest_row", "rank", "reason"),
        *("target", "delta", "changes", "sentence", "certificate", "imputed", "guaranteed_ranges"),
        "checked_with_original",
        *(f"original_{name}" for name in world.frame.columns),
    ]


def test_column_names_that_collide():
    net, train = two_columns()
    schema = Schema([pp.Continuous("status", 0, 1), pp.Continuous("margin", 0, 1)])
    explainer = pp.Proplace(net, 0.05, k=3, schema=schema).fit(train)
    for rows in ([[0.2, 0.3], [0.9, 0.9]], [[0.9, 0.9]], [[0.9, 0.9], [0.2, 0.3]]):
        table = explainer.explain(rows).to_frame()
        assert list(table.columns[:2]) == ["status", "margin"]
        assert {"ce_status", "ce_margin", "distance"} <= set(table.columns)
        valid = table[table["ce_status"] == "already_valid"]
        np.testing.assert_array_equal(
            valid[["status", "margin"]].to_numpy(float), [[0.9, 0.9]] * len(valid)
        )


def test_tables_without_answers():
    net, train = two_columns()
    explainer = pp.Proplace(net, 0.05, k=3).fit(train)
    table = explainer.explain([[np.nan, 0.3], [0.9, 0.9]]).to_frame()
    assert list(table["status"]) == ["bad_input", "already_valid"]
    np.testing.assert_array_equal(table.loc[1, ["x0", "x1"]].to_numpy(float), [0.9, 0.9])
    table = explainer.explain([[np.nan, 0.3]]).to_frame()
    assert list(table["status"]) == ["bad_input"]


def test_empty_tables():
    world = World(0)
    explainer = world.explainer()
    for empty in (world.frame.iloc[:0], np.zeros((0, world.schema.width))):
        result = explainer.explain(empty)
        assert len(result) == 0
        assert result.complete
        assert repr(result) == "Explanations(none)"
        assert len(result.to_frame()) == 0
        assert len(result.encoded_counterfactuals) == 0


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"k": 0}, OptionError, "k"),
        ({"k": 2.5}, OptionError, "k"),
        ({"k": True}, OptionError, "k"),
        ({"margin": float("nan")}, OptionError, "margin"),
        ({"margin": -1.0}, OptionError, "margin"),
        ({"margin": "float16"}, OptionError, "margin"),
        ({"region": "ball"}, OptionError, "region"),
        ({"search": "magic"}, OptionError, "search"),
        ({"weights": "l7"}, OptionError, "weights"),
        ({"weights": [1.0]}, OptionError, "weights"),
        ({"time_limit": 0}, OptionError, "time_limit"),
        ({"time_limit": -3.0}, OptionError, "time_limit"),
        ({"time_limit": float("nan")}, OptionError, "time_limit"),
        ({"delta": -0.1}, DeltaError, "delta"),
        ({"delta": [(0.1, 0.1)]}, DeltaError, "delta"),
        ({"schema": Schema.encoded(3)}, SchemaError, "schema"),
    ],
)
def test_options(options, error, name):
    net, train = two_columns()
    options = {"delta": 0.05, **options}
    with raises(error, name=name) as caught:
        pp.Proplace(net, **options).fit(train)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ProplaceError)


def test_errors_of_calls():
    net, train = two_columns()
    explainer = pp.Proplace(net, 0.05)
    for call in (lambda: explainer.explain(train), explainer.robust_rows):
        with pytest.raises(NotFittedError):
            call()
    with raises(InputError, name="X", match="training row"):
        explainer.fit(np.zeros((0, 2)))
    with pytest.raises(InputError):
        explainer.fit([[0.1, np.nan]])
    with pytest.raises(InputError):
        explainer.fit([[0.1, 0.2, 0.3]])
    explainer.fit(train)
    with raises(InputError, name="X", match="shape"):
        explainer.explain([[0.1, 0.2, 0.3]])
    with raises(InputError, name="X", match="numbers"):
        explainer.explain([["a", "b"]])
    with raises(OptionError, name="count", value=0):
        explainer.explain(train, count=0)
    with pytest.raises(TargetError):
        explainer.explain(train, target=2)
    world = World(0)
    with raises(SchemaError, name="job"):
        world.explainer().explain(world.frame.drop(columns="job"))
    with raises(SchemaError, name="X", row=0):
        pp.Proplace(world.net, 0.01, schema=world.schema).fit(world.X + 0.3)
    with pytest.raises(SchemaError):
        pp.Proplace(world.net, 0.01, schema=world.schema).fit(world.frame.assign(age=-5))
