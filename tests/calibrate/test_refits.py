"""Calibration from a pipeline and labels: the refits, the people held out, and what is printed."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import proplace as pp
from proplace.calibrate import delta as calibration
from proplace.calibrate import refits
from proplace.calibrate.delta import CalibrationWarning
from proplace.calibrate.refits import Rows, refitted
from proplace.core.errors import InputError, OptionError
from proplace.tables.rows import model_of, training_rows
from refits import SHAPES, fitted, people
from support.errors import raises


@pytest.fixture(scope="module")
def lender():
    table, decided = people(300, 0)
    return fitted(SHAPES["standard"](), table, decided), table, decided


@pytest.fixture(scope="module")
def found(lender):
    pipe, table, decided = lender
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no ConvergenceWarning, no CalibrationWarning
        return pp.calibrate_delta(pipe, table, decided, refits=6, target="yes", k=5)


@pytest.fixture
def recorded(monkeypatch):
    """The rows and the models that a calibration makes."""
    kept = {}

    def recording(source, rows, *args, **options):
        kept["rows"], kept["models"] = rows, refitted(source, rows, *args, **options)
        return kept["models"]

    monkeypatch.setattr(calibration, "refitted", recording)
    return kept


def test_validity_agrees_with_refitted_pipelines_on_held_out_people(lender, recorded):
    """The counterfactuals are made again, and each refit predicts them in original units."""
    pipe, table, decided = lender
    found = pp.calibrate_delta(
        pipe, table, decided, refits=3, target="yes", k=5, deltas=[0.003, 0.02], validity=0.5
    )
    rows, models = recorded["rows"], recorded["models"]
    assert len(models) == 3
    held_out = table.iloc[rows.people]
    assert (pipe.predict(held_out) == "no").all()
    assert 1 <= len(held_out) == found.people <= 40
    assert not set(rows.people) & set(rows.train)
    for delta, (_, row) in zip([0.003, 0.02], found.curve.iterrows(), strict=True):
        explainer = pp.Proplace(pipe, delta, k=5).fit(table.iloc[rows.train])
        result = explainer.explain(held_out, "yes", gap=0.05)
        points = pd.DataFrame([e.counterfactual for e in result if e.found])
        assert row["validity"] == np.mean([m.predict(points) == "yes" for m in models])
        assert row["share_explained"] == len(points) / len(held_out)
        assert row["distance"] == pytest.approx(np.mean([e.distance for e in result if e.found]))
    plain = pp.Proplace(pipe, 0.0, k=5).fit(table.iloc[rows.train])
    points = plain.explain(held_out, "yes", gap=0.05)
    points = pd.DataFrame([e.counterfactual for e in points if e.found])
    assert found.nearest["validity"] == np.mean([m.predict(points) == "yes" for m in models])


def test_delta_is_smallest_tried_that_reaches_validity(found):
    assert found.success
    assert found.delta > 0.0
    curve = found.curve.set_index("delta")["validity"]
    assert curve[found.delta] >= 0.95
    assert (curve[curve.index < found.delta] < 0.95).all()
    assert found.shortfall == ""


def test_printing_takes_two_lines_with_measured_figures(found):
    validity, cost = str(found).splitlines()
    at = found.curve.set_index("delta").loc[found.delta]
    assert validity == (
        f"Delta {found.delta:g}: 6 refits accept {at['validity']:.1%} of the counterfactuals of "
        f"{found.people} people (delta 0: {found.nearest['validity']:.1%})."
    )
    assert cost.startswith(
        f"Mean distance {at['distance']:.3g} (delta 0: {found.nearest['distance']:.3g}). "
    )
    assert f"{at['robust_rows']:.0f} of {found.accepted} accepted training rows" in cost
    assert "6 refits on bootstrap rows with other seeds" in found.statement
    assert "not a promise about the next retraining" in found.statement


@pytest.mark.slow
def test_refits_are_same_for_any_number_of_processes_and_differ_by_seed(lender):
    pipe, table, decided = lender
    asked = {"refits": 3, "target": "yes", "k": 5, "deltas": [0.001], "validity": 0}
    one = pp.calibrate_delta(pipe, table, decided, **asked)
    again = pp.calibrate_delta(pipe, table, pd.Series(decided), **asked, n_jobs=2)
    np.testing.assert_array_equal(again.change_per_model, one.change_per_model)
    pd.testing.assert_frame_equal(again.curve, one.curve)
    other = pp.calibrate_delta(pipe, table, decided, **asked, seed=1)
    assert not set(other.change_per_model) & set(one.change_per_model)
    assert len(set(one.change_per_model)) == 3


def test_every_random_state_is_set_and_pipeline_is_left_alone(lender, recorded):
    pipe, table, decided = lender
    before = pipe[-1].coefs_[0].copy()
    pp.calibrate_delta(pipe, table, decided, refits=3, target="yes", k=5, deltas=[0.01], validity=0)
    states = [model[-1].random_state for model in recorded["models"]]
    assert len({pipe[-1].random_state, *states}) == 4
    np.testing.assert_array_equal(pipe[-1].coefs_[0], before)
    rows = recorded["rows"]
    copy = clone(pipe).set_params(mlpclassifier__random_state=states[0])
    draw = rows.sample(np.random.default_rng([0, 0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        copy.fit(table.iloc[draw], decided[draw])
    np.testing.assert_array_equal(copy[-1].coefs_[0], recorded["models"][0][-1].coefs_[0])


def test_rare_categories_missing_cells_and_classes_stay_in_each_sample():
    """Encoders that reject unknown categories and an imputer whose columns depend on missing cells."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(40.0, 9.0, 200), "job": ["cook"] * 198 + ["smith"] * 2})
    table["rank"] = np.where(np.arange(200) == 7, 3, np.arange(200) % 2)  # categories as numbers
    table.loc[11, "age"] = np.nan
    labels = np.where(table["age"].fillna(0.0) > 45.0, 1, 0)
    front = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["age"]),
        (OneHotEncoder(), ["job", "rank"]),
    )
    pipe = make_pipeline(front, LogisticRegression()).fit(table, labels)
    rows = Rows.of(pp.Model.of(pipe), table, labels, 1, seed=0, split=True)
    lost = 0
    for seed in range(30):
        drawn = rows.sample(np.random.default_rng(seed))
        assert set(drawn) <= set(rows.train)
        sample = table.iloc[drawn]
        assert set(sample["job"]) == {"cook", "smith"}
        assert set(sample["rank"]) == {0, 1, 3}
        assert sample["age"].isna().any()
        lost += 7 not in drawn[: len(rows.train)]
    assert lost > 5  # without the rows that are added the category would be missing
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        found = pp.calibrate_delta(pipe, table, labels, refits=4, deltas=[0.001], validity=0, k=3)
    assert found.success


def test_refit_that_cannot_read_counterfactual_refuses_it_with_note(monkeypatch, lender):
    """Without the rows that are added, one refit has lost the cooks."""
    pipe, table, decided = lender
    cooks = np.flatnonzero(table["job"] == "cook")
    plain = Rows.sample

    def without_cooks(self, rng):
        return np.setdiff1d(plain(self, rng), cooks)

    monkeypatch.setattr(Rows, "sample", without_cooks)
    asked = table.iloc[[i for i in cooks if pipe.predict(table.iloc[[i]])[0] == "no"][:4]]
    with pytest.warns(CalibrationWarning, match=r"cannot read .*refused; the first: refits\[0\]: "):
        found = pp.calibrate_delta(
            pipe,
            table,
            decided,
            refits=2,
            target="yes",
            people=asked,
            k=5,
            deltas=[0.001],
            validity=0.0,
        )
    assert found.curve["validity"].iloc[0] < 1.0


@pytest.mark.slow
def test_without_sufficient_delta_advice_works(lender):
    """So many rows must stay robust that all deltas are small."""
    pipe, table, decided = lender
    asked = {"refits": 4, "target": "yes", "k": 5, "min_robust_share": 0.97}
    with pytest.warns(CalibrationWarning, match="No delta reaches a validity of 100.0%"):
        found = pp.calibrate_delta(pipe, table, decided, **asked, validity=1.0)
    assert not found.success
    assert str(found).splitlines()[0] == found.shortfall
    assert len(str(found).splitlines()) == 3
    advice = float(found.shortfall.split("(validity=")[1].split(",")[0])
    assert 0.0 < advice < 1.0
    again = pp.calibrate_delta(pipe, table, decided, **asked, validity=advice)
    assert again.success
    assert again.delta <= found.delta
    assert "min_robust_share=0)" in found.shortfall
    larger = pp.calibrate_delta(
        pipe, table, decided, refits=4, target="yes", k=5, min_robust_share=0, validity=0.95
    )
    assert larger.delta > found.delta


def test_function_trains_models_of_other_kinds():
    """It receives positions of rows that are not held out, as many as there are and more."""
    rng = np.random.default_rng(1)
    X = rng.random((200, 2))
    y = (X.sum(axis=1) > 1.0).astype(int)
    seen = []

    def train(rows):
        seen.append(rows)
        model = LogisticRegression(C=10.0).fit(X[rows], y[rows])
        return pp.Network([(model.coef_, model.intercept_)])

    net = train(np.arange(200))
    found = pp.calibrate_delta(net, X, refits=5, train=train, k=5)
    assert found.success
    assert len(seen) == 6
    assert len(np.unique(np.concatenate(seen[1:]))) < 200
    assert all(len(rows) >= 160 for rows in seen)
    with raises(OptionError, name="train", match="twice"):
        pp.calibrate_delta(net, X, refits=2, train=lambda rows: net)


@pytest.mark.slow
def test_torch_module_is_retrained_by_function():
    torch = pytest.importorskip("torch")
    X = np.random.default_rng(2).random((120, 2)).astype(np.float32)
    y = (X.sum(axis=1) > 1.0).astype(np.float32)

    def train(rows):
        module = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        best = torch.optim.Adam(module.parameters(), lr=0.05)
        for _ in range(60):
            best.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                module(torch.tensor(X[rows]))[:, 0], torch.tensor(y[rows])
            )
            loss.backward()
            best.step()
        return module

    torch.manual_seed(0)
    module = train(np.arange(120))
    found = pp.calibrate_delta(module, X, refits=2, train=train, k=5, validity=0.5)
    assert len(found.change_per_model) == 2
    assert found.people > 0


def test_people_and_retrained_models_can_be_given(lender):
    pipe, table, decided = lender
    refused = table[pipe.predict(table) == "no"].head(5)
    asked = {"target": "yes", "k": 5, "deltas": [0.001], "validity": 0.0}
    found = pp.calibrate_delta(pipe, table, decided, refits=2, people=refused, **asked)
    assert found.people == 5
    given = pp.calibrate_delta(pipe, table, retrained=[pipe], **asked)
    assert given.curve["validity"].tolist() == [1.0]
    assert not given.refits


def test_risk_and_held_out_models_work_with_refits(lender):
    pipe, table, decided = lender
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        found = pp.calibrate_delta(
            pipe,
            table,
            decided,
            refits=6,
            held_out=0.5,
            risk=0.4,
            target="yes",
            k=5,
            deltas=[0.001, 0.02],
        )
    assert len(found.change_per_model) == 3
    assert found.held_out.models == 3
    assert "N = 3 refits on bootstrap rows" in found.statement or not found.success


def test_progress_is_shown_when_requested(lender, capsys, monkeypatch):
    monkeypatch.setattr("proplace.core.progress._SECONDS", 0.0)  # between two lines
    pipe, table, decided = lender
    asked = {"refits": 2, "target": "yes", "k": 5, "deltas": [0.001], "validity": 0.0}
    pp.calibrate_delta(pipe, table, decided, **asked)
    assert capsys.readouterr().err == ""
    pp.calibrate_delta(pipe, table, decided, **asked, progress=True)
    shown = capsys.readouterr().err
    assert "refit" in shown
    assert "delta" in shown


@pytest.mark.parametrize(
    ("change", "error", "name", "match"),
    [
        ({"refits": None}, OptionError, "refits", "retrained="),
        ({"retrained": [1]}, OptionError, "refits", "either"),
        ({"refits": 0}, OptionError, "refits", ">= 1"),
        ({"refits": None, "retrained": [1], "train": print}, OptionError, "train", "refits=10"),
        ({"train": 5}, OptionError, "train", "function"),
        ({"train": lambda rows: None}, OptionError, "train", "returned None"),
        ({"deltas": 0.1}, OptionError, "deltas", "list"),
        ({"deltas": "0.1"}, OptionError, "deltas", ">= 0"),
        ({"deltas": ["0.1"]}, OptionError, "deltas", ">= 0"),
        ({"deltas": []}, OptionError, "deltas", "list"),
        ({"validity": "high"}, OptionError, "validity", "number"),
        ({"validity": 2}, OptionError, "validity", "between 0 and 1"),
        ({"seed": -1}, OptionError, "seed", ">= 0"),
        ({"y": None}, OptionError, "y", "y_train"),
        ({"y": ["yes"] * 7}, InputError, "y", "300 labels"),
        ({"y": [0, 1] * 150}, InputError, "y", "'no', 'yes'"),
        ({"risk": 0.05}, InputError, "risk", "19"),
    ],
)
def test_wrong_calls_name_fix(lender, monkeypatch, change, error, name, match):
    """None of them trains anything."""
    monkeypatch.setattr(refits, "_fit", None)
    pipe, table, decided = lender
    call = {"model": pipe, "X": table, "y": decided, "refits": 3, "target": "yes"}
    with raises(error, name=name, match=match):
        pp.calibrate_delta(**{**call, **change})


def test_sources_that_cannot_be_cloned_require_function(lender):
    pipe, table, decided = lender
    with raises(OptionError, name="train", match="train=..."):
        pp.calibrate_delta(pp.Model.of(pipe), table, decided, refits=3, target="yes")


def test_people_that_cannot_be_read_are_not_called_accepted(lender):
    pipe, table, _ = lender
    model, *_ = training_rows(model_of(pp.Model.of(pipe), None), table, declared=False)
    number = next(f.name for f in model.schema.features if f.kind == "continuous")
    far = pd.concat([table, table.iloc[:1].assign(**{number: "many"})], ignore_index=True)
    held = Rows(far, None, [], np.arange(len(table)), np.array([len(table)]))
    with raises(InputError, name="people", match="people="):
        held.readable(model)


def test_without_refused_people_to_hold_out_error_names_people():
    net = pp.Network([([[1.0]], [-0.5])])
    with raises(InputError, name="people", match="people="):
        pp.calibrate_delta(net, [[0.9]] * 20, retrained=[net])


# -- a missing delta -----------------------------------------------------------------------------


def test_proplace_without_delta_raises_line_that_measures_one(lender):
    pipe, table, decided = lender
    with raises(OptionError, name="delta") as caught:
        pp.Proplace(pipe)
    _, measure, use = str(caught.value).splitlines()
    call = "proplace.calibrate_delta(pipeline, X_train, y_train, refits=10, target='no')"
    assert measure == f"found = {call}"
    assert use == "explainer = proplace.Proplace(pipeline, found.delta)"
    given = {"proplace": pp, "pipeline": pipe, "X_train": table, "y_train": decided}
    measure = measure.replace("refits=10", "refits=2, validity=0.5")
    exec(f"{measure}\n{use}", given)
    assert given["explainer"].delta == given["found"].delta


def test_delta_that_is_taken_away_raises_same_text(lender):
    pipe, table, _ = lender
    explainer = clone(pp.Proplace(pipe, 0.01)).set_params(delta=None)
    assert explainer.get_params()["delta"] is None
    with raises(OptionError, name="delta", match="calibrate_delta"):
        explainer.fit(table)


def test_refits_decide_with_cutoff(lender, recorded):
    """The validity is recounted from the probabilities of the refits."""
    pipe, table, decided = lender
    with raises(OptionError, name="delta") as caught:
        pp.Proplace(pipe, cutoff={"yes": 0.8})
    _, measure, use = str(caught.value).splitlines()
    given = {"proplace": pp, "pipeline": pipe, "X_train": table, "y_train": decided}
    measure = measure.replace("refits=10", "refits=3, k=5, deltas=[0.003], validity=0.5")
    exec(f"{measure}\n{use}", given)
    found, explainer = given["found"], given["explainer"]
    rows = recorded["rows"]
    explainer.set_params(k=5).fit(rows.taken(rows.train))
    asked = explainer.explain(rows.readable(explainer.model_), "yes", gap=0.05)
    points = pd.DataFrame([e.counterfactual for e in asked if e.found])
    accepted = [
        model.predict_proba(points)[:, list(model.classes_).index("yes")] >= 0.8
        for model in recorded["models"]
    ]
    (validity,) = found.curve.loc[found.curve["delta"] == 0.003, "validity"]
    assert validity == pytest.approx(np.mean(accepted))
    plain = [model.predict(points) == "yes" for model in recorded["models"]]
    assert np.mean(plain) > validity
