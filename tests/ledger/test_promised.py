"""The promises of results and of a ledger, as a model encodes them."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import proplace as pp
from proplace.core.errors import InputError, TargetError
from support.errors import raises
from support.lenders import JOBS, NUMBERS, TOLERANCE, applicants, deciding

NET = pp.Network([([[1.0, -1.0]], [0.0])])


def test_pair_of_rows_and_classes():
    model = pp.Model.of(NET)
    found = pp.retrain.Promised.of(model, ([[2.0, 1.0], [0.0, 1.0]], [1, 0]))
    assert found.names == ("0", "1")
    assert found.targets.tolist() == [1, 0]
    assert found.box is None
    assert pp.retrain.Promised.of(model, found) is found
    assert pp.retrain.Promised.of(model, ([2.0, 1.0], 1)).points.shape == (1, 2)


class Book:
    def __init__(self, found):
        self.found = found

    def promised(self, model):
        self.model = model
        return self.found


def test_anything_that_holds_promises():
    model = pp.Model.of(NET)
    book = Book(pp.retrain.Promised.of(model, ([[2.0, 1.0]], 1)))
    assert pp.retrain.Promised.of(model, book) is book.found
    assert book.model is model


def test_table_in_original_units_is_encoded_by_model(lender):
    answers = lender.frame[lender.pipe.predict(lender.frame) == "granted"][5:9]
    for pipe in (lender.pipe, deciding(applicants(300, 1))):
        found = pp.retrain.Promised.of(pp.Model.of(pipe), (answers, "granted"))
        assert found.names == tuple(map(str, answers.index))
        assert np.allclose(found.points, pipe[0].transform(answers))
        assert [pipe.classes_[t] for t in found.targets] == ["granted"] * 4
    with raises(TargetError, name="target", value="maybe"):
        pp.retrain.Promised.of(pp.Model.of(lender.pipe), (answers, "maybe"))


@pytest.fixture(params=["results", "ledger"])
def source(request, lender, ledger):
    """Answers with a tolerance and with ranges that hold: as they were found, and as promises."""
    if request.param == "results":
        return lender.result
    ledger.issue(lender.result, ids={e.index: f"p{e.index}" for e in lender.result})
    return ledger


def answered(lender):
    return [e for e in lender.result if e.found]


@pytest.mark.parametrize("scaler", [StandardScaler, MinMaxScaler])
@pytest.mark.parametrize("jobs", [JOBS, JOBS[::-1]])
def test_answers_are_encoded_as_another_model_does(lender, source, scaler, jobs):
    new = pp.Model.of(deciding(applicants(300, 1), 1, jobs=jobs, scaler=scaler))
    found = pp.retrain.Promised.of(new, source)
    rows = pd.DataFrame([e.counterfactual for e in answered(lender)]).infer_objects()
    assert len(found) == len(rows) > 3
    assert np.abs(new.encode(rows) - found.points).max() <= 1e-12
    assert [new.classes[t] for t in found.targets] == ["granted"] * len(found)
    for n, e in enumerate(answered(lender)):  # the box is exactly the promised one
        for column, name in enumerate(NUMBERS):
            value = e.counterfactual[name]
            miss = TOLERANCE.get(name, 0.0)
            low, high = e.guaranteed_ranges.get(name, (value - miss, value + miss))
            cells = pd.concat([rows.iloc[[n]]] * 3).assign(**{name: [low, value, high]})
            codes = new.encode(cells)[:, column]
            ends = [found.low[n, column], found.high[n, column]]
            assert ends == pytest.approx([codes.min(), codes.max()], abs=1e-6)
            if name in e.guaranteed_ranges:
                assert ends[0] <= codes.min()
                assert ends[1] >= codes.max()


def test_repair_keeps_all_that_is_promised(lender, source):
    """The retrained pipeline breaks some. The repaired one accepts all, by its own predict."""
    new = lender.refusing(2.0)
    rows = pd.DataFrame([e.counterfactual for e in answered(lender)]).infer_objects()
    assert (new.predict(rows) == lender.other).any()
    found = pp.retrain.repair(new, source)
    assert found.repaired_promises
    for n, e in enumerate(answered(lender)):
        for name, ends in e.guaranteed_ranges.items():
            some = pd.concat([rows.iloc[[n]]] * 21).assign(**{name: np.linspace(*ends, 21)})
            assert (found.model.predict(some) == lender.wanted).all(), (n, name)


def test_names_and_people_of_promises(lender, ledger):
    issued = ledger.issue(lender.result, ids={e.index: f"p{e.index}" for e in lender.result})
    found = ledger.promised(lender.pipe)
    assert found.names == tuple(map(str, issued.ids))
    assert found.people == tuple(f"p{e.index}" for e in answered(lender))
    by_row = pp.retrain.Promised.of(pp.Model.of(lender.pipe), lender.result)
    assert by_row.names == tuple(str(e.index) for e in answered(lender))


def test_bare_network_takes_rows_as_they_are(lender, source):
    """Its classes have no labels: they count as those of the current model, in its order."""
    model = pp.Model.of(lender.pipe)
    whole, bare = (
        pp.retrain.Promised.of(one, source) for one in (model, pp.Model.of(model.network))
    )
    assert np.array_equal(whole.points, bare.points)
    assert np.array_equal(whole.targets, bare.targets)
    with raises(InputError, match="3 columns"):
        pp.retrain.Promised.of(pp.Model.of(pp.Network([(np.ones((1, 3)), [0.0])])), source)


def test_other_columns_are_refused(lender, source):
    table = lender.frame[["income", "share"]].assign(rooms=4.0)
    other = make_pipeline(StandardScaler(), LogisticRegression()).fit(
        table, lender.pipe.predict(lender.frame)
    )
    with raises(InputError, match="rooms"):
        pp.retrain.Promised.of(pp.Model.of(other), source)


def test_empty_ledger_promises_nothing(lender, ledger):
    assert len(ledger.promised(lender.pipe)) == 0


def test_answers_of_bare_network_are_taken_as_they_are():
    rng = np.random.default_rng(0)
    rows = rng.uniform(0, 1, (60, 2))
    result = pp.Proplace(NET, 0.01).fit(rows).explain([[0.2, 0.6]])
    found = pp.retrain.Promised.of(pp.Model.of(NET), result)
    assert np.array_equal(found.points, [result[0].encoded_counterfactual])
    without = pp.Proplace(NET, 0.01).fit(rows).explain([[0.6, 0.2]])
    assert not without[0].found
    with raises(InputError, name="promises", match="certified"):
        pp.retrain.Promised.of(pp.Model.of(NET), without)


def test_promised_inputs_reject_invalid_rows():
    point, one = np.zeros((1, 2)), np.array([1])
    with raises(InputError, name="points", match="2 names"):
        pp.retrain.Promised(("a", "b"), point, one)
    with raises(InputError, name="targets"):
        pp.retrain.Promised(("a",), point, np.array([1.0]))
    with raises(InputError, name="high"):
        pp.retrain.Promised(("a",), point, one, low=point)
    with raises(InputError, name="points", row=0, match="tolerance"):
        pp.retrain.Promised(("a",), point, one, point + 1, point + 2)
    with raises(InputError, name="low, high"):
        pp.retrain.Promised(("a",), point, one, point[:, :1], point)
    with raises(InputError, name="points", row=0, match="finite"):
        pp.retrain.Promised(("a",), point + np.nan, one)
    with raises(InputError, name="people"):
        pp.retrain.Promised(("a",), point, one, people=("x", "y"))
    model = pp.Model.of(NET)
    with raises(InputError, name="promises"):
        pp.retrain.Promised.of(model, [1, 2, 3])
    with raises(InputError, name="points", match="columns"):
        pp.retrain.Promised.of(model, pp.retrain.Promised(("a",), np.zeros((1, 3)), one))
    with raises(TargetError, name="target", value=7):
        pp.retrain.Promised.of(model, pp.retrain.Promised(("a",), point, np.array([7])))
    with raises(InputError, name="target"):
        pp.retrain.Promised.of(model, (point, [1, 0]))


def test_promised_take_selects_rows_in_given_order():
    whole = pp.retrain.Promised(
        ("a", "b", "c"), np.eye(3), np.array([0, 1, 0]), np.eye(3) - 1, np.eye(3), ("x", "y", "z")
    )
    part = whole.take(np.array([2, 1]))
    assert (part.names, part.people) == (("c", "b"), ("z", "y"))
    assert np.array_equal(part.low, np.eye(3)[[2, 1]] - 1)
    assert [(t, rows.tolist()) for t, rows in whole.by_target()] == [(0, [0, 2]), (1, [1])]
    assert repr(whole) == "Promised(3 promises, with a tolerance)"
