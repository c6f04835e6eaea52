"""scikit-learn networks that are trained within a box, alone and in pipelines."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import proplace as pp
from proplace.core.errors import DeltaError, InputError, ModelNotSupportedError, OptionError
from support.errors import raises

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3)) * [1.0, 10.0, 0.1] + [0.0, 5.0, 1.0]
SCORE = X[:, 0] + X[:, 1] / 10 - 10 * X[:, 2]
NEW = X + 0.3 * X.std(axis=0)


def labels(classes):
    ends = np.quantile(SCORE, np.arange(1, classes) / classes)
    return np.array(["no", "maybe", "yes"] if classes == 3 else ["no", "yes"])[
        np.digitize(SCORE, ends)
    ]


def fitted(*steps, rows=X, y=None, hidden=(5, 4), **settings):
    options = {"max_iter": 60, "learning_rate_init": 0.01, "random_state": 0} | settings
    model = MLPClassifier(hidden, **options)
    if steps:
        model = make_pipeline(*steps, model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(rows, labels(2) if y is None else y)


def network(model):
    return pp.Model.of(model).network


def turned(y):
    return np.where(y == "no", "yes", "no")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("hidden", [(), (4,), (4, 3), (3, 4, 3), (3, 3, 3, 3)], ids=str)
def test_trained_copy_lies_in_box(hidden, classes, dtype):
    y = labels(classes)
    model = fitted(rows=X.astype(dtype), y=y, hidden=hidden, max_iter=20)
    before = network(model)
    shifts = pp.Shifts.of(before, 0.02)
    later = pp.retrain.refit_within(model, NEW.astype(dtype), turned(y), shifts, epochs=4)
    assert shifts.contains(network(later))
    assert before.distance(network(later)) > 0.015  # it was trained, up to the ends
    assert network(model) == before
    assert later.coefs_[0].dtype == dtype
    free = copy.deepcopy(model)
    for _ in range(8):
        free.partial_fit(NEW.astype(dtype), turned(y))
    assert not shifts.contains(network(free))


def history(model, count):
    found = []
    for seed in range(count):
        rows = np.random.default_rng(seed).choice(len(X), len(X))
        later = copy.deepcopy(model)
        mlp = later[-1] if hasattr(later, "steps") else later
        inputs = later[:-1].transform(X) if hasattr(later, "steps") else X
        mlp.partial_fit(inputs[rows], labels(2)[rows])
        found.append(later)
    return found


@pytest.mark.parametrize(
    "make",
    [
        lambda model: pp.Shifts.bounding([network(m) for m in history(model, 3)]),
        lambda model: pp.Shifts.learn([network(m) for m in history(model, 9)], coverage=0.7),
        lambda model: pp.Shifts.of(
            network(model), [(0.0, 0.0), (np.full((4, 5), 0.01) * np.eye(4, 5), 0.02), (0.03, 0.0)]
        ),
        lambda model: pp.Shifts(
            network(model),
            network(model).with_layers((v.W + 0.1, v.b + 0.2) for v in network(model).layers),
        ),
    ],
    ids=["hull", "learned", "uneven", "one-sided"],
)
@pytest.mark.parametrize("scaled", [False, True])
def test_boxes_of_every_kind(make, scaled):
    model = fitted(*[StandardScaler()] * scaled)
    shifts = make(model).assume_encoding_of(model)
    later = pp.retrain.refit_within(model, NEW, labels(2), shifts)
    assert shifts.contains(network(later))
    entered = shifts.project(network(model))
    assert entered.distance(network(later)) > 0.0


def test_pipeline_keeps_its_scaler_and_its_answers():
    """Swapped labels break promises after free training, but not within the shift set, by predict."""
    model = fitted(StandardScaler())
    y, shifts = labels(2), 0.05
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    explainer = pp.Proplace(model, shifts, k=10).fit(table)
    refused = table[model.predict(X) == "no"][:15]
    answers = [e for e in explainer.explain(refused, target="yes") if e.found and e.certificate]
    assert len(answers) >= 10
    points = np.array([e.counterfactual for e in answers], dtype=float)
    later = pp.retrain.refit_within(model, NEW, turned(y), shifts, epochs=30)
    assert (later.predict(points) == "yes").all()
    free = copy.deepcopy(model)
    for _ in range(60):
        free[-1].partial_fit(free[:-1].transform(NEW), turned(y))
    assert not (free.predict(points) == "yes").all()
    assert pp.Shifts.of(network(model), shifts).contains(network(later))
    assert pp.Shifts.of(pp.Model.of(model).network, shifts).contains(pp.Model.of(later).network)
    assert np.array_equal(later[0].mean_, model[0].mean_)
    assert 0.04 < network(model).distance(network(later)) <= 0.05


def categories():
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame["job"] = np.where(RNG.random(300) < 0.5, "cook", "clerk")
    steps = make_column_transformer((StandardScaler(), ["a", "b", "c"]), (OneHotEncoder(), ["job"]))
    return frame, steps


@pytest.mark.parametrize("sparse", [0.0, 1.0])
def test_pipeline_with_categories_and_box_of_models(sparse):
    frame, steps = categories()
    steps.sparse_threshold = sparse
    model = fitted(make_pipeline(steps), rows=frame)  # a pipeline in a pipeline
    later = copy.deepcopy(model)
    later[-1].partial_fit(later[:-1].transform(frame), labels(2))
    shifts = pp.Shifts.bounding([model, later])
    found = pp.retrain.refit_within(model, frame, turned(labels(2)), shifts)
    assert shifts.contains(pp.Model.of(found).network)
    assert pp.Model.of(model).network.distance(pp.Model.of(found).network) > 1e-4
    inside = pp.retrain.refit_within(model, frame, labels(2), 0.01)
    assert 0.009 < pp.Model.of(model).network.distance(pp.Model.of(inside).network) <= 0.01


def test_pipeline_that_hands_on_frames():
    model = fitted(
        StandardScaler().set_output(transform="pandas"), rows=pd.DataFrame(X, columns=list("abc"))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        later = pp.retrain.refit_within(
            model, pd.DataFrame(NEW, columns=list("abc")), labels(2), 0.01
        )
    assert pp.Shifts.of(pp.Model.of(model).network, 0.01).contains(pp.Model.of(later).network)


def test_best_model_of_search():
    search = GridSearchCV(fitted(), {"alpha": [0.1]}, cv=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(X, labels(2))
    later = pp.retrain.refit_within(search, NEW, labels(2), 0.01)
    assert 0.005 < network(search).distance(network(later)) <= 0.01


@pytest.mark.parametrize("settings", [{}, {"solver": "sgd", "learning_rate": "adaptive"}], ids=str)
def test_same_random_state_gives_same_model(settings):
    """Also for a model without a random state, whatever numpy's own is."""
    model = fitted(random_state=None, **settings)
    found = []
    for seed in (0, 0, 1):
        np.random.seed(np.random.default_rng().integers(2**31))  # noqa: NPY002
        found.append(
            network(pp.retrain.refit_within(model, NEW, labels(2), 0.05, random_state=seed))
        )
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_one_step_for_each_mini_batch_and_projection_behind_each(monkeypatch):
    model = fitted(batch_size=32)
    shifts = pp.Shifts.of(network(model), 1e-3)
    sizes, inside = [], []
    original = MLPClassifier.partial_fit

    def spying(self, rows, y):
        sizes.append(len(rows))
        inside.append(shifts.contains(network(self)))
        assert self.batch_size == len(rows)
        return original(self, rows, y)

    monkeypatch.setattr(MLPClassifier, "partial_fit", spying)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        later = pp.retrain.refit_within(model, NEW, labels(2), shifts, epochs=2)
    assert sizes == [*[32] * 9, 12] * 2
    assert all(inside)
    assert later.get_params() == model.get_params()
    sizes.clear()
    pp.retrain.refit_within(model, NEW, labels(2), shifts, epochs=1, batch_size=250)
    assert sizes == [250, 50]


def test_settings_are_those_of_model():
    """A learning rate that is set after fitting counts."""
    model = fitted()
    before = network(model)
    slow = copy.deepcopy(model).set_params(learning_rate_init=1e-7)
    assert before.distance(network(pp.retrain.refit_within(slow, NEW, labels(2), 0.1))) < 1e-5
    assert before.distance(network(pp.retrain.refit_within(model, NEW, labels(2), 0.1))) > 1e-3
    warm = copy.deepcopy(model).set_params(warm_start=True, shuffle=False)
    later = pp.retrain.refit_within(warm, NEW[:3], labels(2)[:1].repeat(3), 0.1)
    assert later.warm_start
    assert not later.shuffle


def test_untrainable_model_is_rejected_with_working_advice():
    y = labels(2)
    with raises(ModelNotSupportedError, name="solver", value="lbfgs", match="adam"):
        pp.retrain.refit_within(fitted(solver="lbfgs"), NEW, y, 0.1)
    pp.retrain.refit_within(fitted(solver="lbfgs").set_params(solver="adam"), NEW, y, 0.1, epochs=1)
    with raises(ModelNotSupportedError, name="early_stopping", value=True, match="set_params"):
        pp.retrain.refit_within(fitted(early_stopping=True), NEW, y, 0.1)
    stopping = fitted(early_stopping=True).set_params(early_stopping=False)
    pp.retrain.refit_within(stopping, NEW, y, 0.1, epochs=1)
    with raises(ModelNotSupportedError, name=None, match="MLPClassifier"):
        pp.retrain.refit_within(LogisticRegression().fit(X, y), NEW, y, 0.1)
    with raises(InputError, name="y", match="new"):
        pp.retrain.refit_within(fitted(), NEW, np.where(y == "no", "new", y), 0.1)
    with raises(InputError, name="y", match="shape"):
        pp.retrain.refit_within(fitted(), NEW, y[:-1], 0.1)
    with raises(OptionError, name="epochs", value=0):
        pp.retrain.refit_within(fitted(), NEW, y, 0.1, epochs=0)
    with raises(OptionError, name="batch_size", value=1.5):
        pp.retrain.refit_within(fitted(), NEW, y, 0.1, batch_size=1.5)
    with raises(OptionError, name="random_state"):
        pp.retrain.refit_within(fitted(), NEW, y, 0.1, random_state=None)


def test_box_of_another_model_is_refused():
    model = fitted(StandardScaler())
    with raises(DeltaError, name=None, match="architecture"):
        pp.retrain.refit_within(
            model, NEW, labels(2), pp.Shifts.of(network(fitted(hidden=(6,))), 0.1)
        )
    refitted = fitted(StandardScaler(), rows=NEW)
    with pytest.raises(DeltaError):
        pp.retrain.refit_within(refitted, NEW, labels(2), pp.Shifts.of(network(model), 0.1))
    hull = pp.Shifts.bounding([model, *history(model, 2)])
    with raises(DeltaError, name="delta", match="another way"):
        pp.retrain.refit_within(refitted, NEW, labels(2), hull)
    bare = pp.Shifts.bounding([network(model[-1]), network(history(model, 1)[0][-1])])
    with raises(DeltaError, name="delta", match="assume_encoding_of"):
        pp.retrain.refit_within(model, NEW, labels(2), bare)
    pp.retrain.refit_within(model, NEW, labels(2), bare.assume_encoding_of(model), epochs=1)
