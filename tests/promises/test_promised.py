"""What was promised, as a model encodes it."""

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from proplace.core.errors import InputError, TargetError
from support.errors import raises

NET = pp.Network([([[1.0, -1.0]], [0.0])])


def test_a_pair_of_rows_and_classes():
    model = pp.Model.of(NET)
    found = pp.Promised.of(model, ([[2.0, 1.0], [0.0, 1.0]], [1, 0]))
    assert found.names == ("0", "1")
    assert found.targets.tolist() == [1, 0]
    assert found.box is None
    assert pp.Promised.of(model, found) is found
    assert pp.Promised.of(model, ([2.0, 1.0], 1)).points.shape == (1, 2)


class Book:
    def __init__(self, found):
        self.found = found

    def promised(self, model):
        self.model = model
        return self.found


def test_anything_that_holds_promises():
    model = pp.Model.of(NET)
    book = Book(pp.Promised.of(model, ([[2.0, 1.0]], 1)))
    assert pp.Promised.of(model, book) is book.found
    assert book.model is model


def tables_and_pipes():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.integers(20, 70, 200), "rate": rng.uniform(0, 2, 200)})
    label = np.where(table["age"] > 30 + 10 * table["rate"], "yes", "no")
    pipes = [
        make_pipeline(StandardScaler(), LogisticRegression()).fit(table[rows], label[rows])
        for rows in (slice(None), slice(0, 100))
    ]
    return table, pipes


def test_a_table_in_original_units_is_encoded_by_the_model():
    table, (old, new) = tables_and_pipes()
    answers = table[old.predict(table) == "yes"][5:9]
    for pipe in (old, new):
        found = pp.Promised.of(pp.Model.of(pipe), (answers, "yes"))
        assert found.names == tuple(map(str, answers.index))
        assert np.allclose(found.points, pipe[0].transform(answers))
        assert found.targets.tolist() == [1] * 4
    with raises(TargetError, name="target", value="maybe"):
        pp.Promised.of(pp.Model.of(old), (answers, "maybe"))


def test_certified_answers_and_their_tolerance_for_another_scaler():
    table, (old, new) = tables_and_pipes()
    refused = table[old.predict(table) == "no"][:6]
    explainer = pp.Proplace(old, 0.01, tolerance={"age": 2}).fit(table)
    result = explainer.explain(refused, target="yes")
    certified = [e for e in result if e.found]
    assert certified
    for pipe in (old, new):
        found = pp.Promised.of(pp.Model.of(pipe), result)
        assert len(found) == len(certified)
        assert found.names == tuple(str(e.index) for e in certified)
        cells = pd.DataFrame([e.counterfactual for e in certified])
        scaler = pipe[0]
        assert np.allclose(found.points, scaler.transform(cells[["age", "rate"]]))
        reach = 2.0 / scaler.scale_[0]
        assert np.allclose(found.high - found.points, [[reach, 0.0]] * len(found), rtol=1e-6)
        assert (found.high[:, 0] - found.points[:, 0] >= reach * (1 - 1e-12)).all()
        assert np.allclose(found.points - found.low, [[reach, 0.0]] * len(found), rtol=1e-6)
    model = pp.repair(new, result).model
    for e in certified:
        for age in (-2, 0, 2):
            cell = pd.DataFrame([e.counterfactual])
            cell["age"] += age
            assert model.predict(cell)[0] == "yes"


def test_what_is_said_to_hold_is_promised():
    """ "At least": all of it is kept by a repair of another model, by the model's own predict."""
    table, (old, new) = tables_and_pipes()
    refused = table[old.predict(table) == "no"][:6]
    result = pp.Proplace(old, 0.01, holds=True).fit(table).explain(refused, target="yes")
    wide = [e for e in result if e.holds]
    assert wide
    found = pp.Promised.of(pp.Model.of(new), result)
    model = pp.repair(new, result).model
    for e in wide:
        row = found.names.index(str(e.index))
        for name, ends in e.holds.items():
            cells = pd.DataFrame([e.counterfactual] * 21)
            cells[name] = np.linspace(*ends, 21)
            codes = pp.Model.of(new).encode(cells)[:, (column := table.columns.get_loc(name))]
            assert (found.low[row, column] <= codes).all()
            assert (codes <= found.high[row, column]).all()
            assert (model.predict(cells.infer_objects()) == "yes").all()


def test_answers_of_a_bare_network_are_taken_as_they_are():
    rng = np.random.default_rng(0)
    rows = rng.uniform(0, 1, (60, 2))
    result = pp.Proplace(NET, 0.01).fit(rows).explain([[0.2, 0.6]])
    found = pp.Promised.of(pp.Model.of(NET), result)
    assert np.array_equal(found.points, [result[0].point])
    without = pp.Proplace(NET, 0.01).fit(rows).explain([[0.6, 0.2]])
    assert not without[0].found
    with raises(InputError, name="promises", match="certified"):
        pp.Promised.of(pp.Model.of(NET), without)


def test_what_is_wrong_is_said():
    point, one = np.zeros((1, 2)), np.array([1])
    with raises(InputError, name="points", match="2 names"):
        pp.Promised(("a", "b"), point, one)
    with raises(InputError, name="targets"):
        pp.Promised(("a",), point, np.array([1.0]))
    with raises(InputError, name="high"):
        pp.Promised(("a",), point, one, low=point)
    with raises(InputError, name="points", row=0, match="tolerance"):
        pp.Promised(("a",), point, one, point + 1, point + 2)
    with raises(InputError, name="low, high"):
        pp.Promised(("a",), point, one, point[:, :1], point)
    with raises(InputError, name="points", row=0, match="finite"):
        pp.Promised(("a",), point + np.nan, one)
    with raises(InputError, name="people"):
        pp.Promised(("a",), point, one, people=("x", "y"))
    model = pp.Model.of(NET)
    with raises(InputError, name="promises"):
        pp.Promised.of(model, [1, 2, 3])
    with raises(InputError, name="points", match="columns"):
        pp.Promised.of(model, pp.Promised(("a",), np.zeros((1, 3)), one))
    with raises(TargetError, name="target", value=7):
        pp.Promised.of(model, pp.Promised(("a",), point, np.array([7])))
    with raises(InputError, name="target"):
        pp.Promised.of(model, (point, [1, 0]))


def test_some_of_them():
    whole = pp.Promised(
        ("a", "b", "c"), np.eye(3), np.array([0, 1, 0]), np.eye(3) - 1, np.eye(3), ("x", "y", "z")
    )
    part = whole.take(np.array([2, 1]))
    assert (part.names, part.people) == (("c", "b"), ("z", "y"))
    assert np.array_equal(part.low, np.eye(3)[[2, 1]] - 1)
    assert [(t, rows.tolist()) for t, rows in whole.by_target()] == [(0, [0, 2]), (1, [1])]
    assert repr(whole) == "Promised(3 promises, with a tolerance)"
