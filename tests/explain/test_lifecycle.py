"""Common behaviour of all methods: parameters, certificates, streams, and workers that die."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils.validation import check_is_fitted

import proplace as pp
from proplace.baselines import METHODS, Baseline, Candidate, RobustBaseline
from proplace.batch import explain_file
from proplace.core.errors import NotFittedError, OptionError
from proplace.explain.parallel import Workers
from proplace.explain.results import STATUSES
from support.errors import raises

NET = pp.Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
RNG = np.random.default_rng(0)
TRAIN = RNG.random((60, 2))
REFUSED = TRAIN[NET.predict(TRAIN) == 0][:6]
ALL = {"PROPLACE": pp.Proplace, **METHODS}
QUICK = {"samples": 50, "iterations": 20, "candidates": 50}


def made(name, **options):
    kind = ALL[name]
    options |= {key: QUICK[key] for key in QUICK if key in kind._get_param_names()}
    delta = [0.02] if "delta" in kind._get_param_names() else []
    return kind(NET, *delta, **options)


@pytest.mark.parametrize("name", ALL)
def test_parameters_in_manner_of_scikit_learn(name):
    explainer = made(name)
    params = explainer.get_params(deep=False)
    assert params["model"] is NET
    assert set(params) == set(type(explainer)._get_param_names())
    copy = clone(explainer.fit(TRAIN))
    assert type(copy) is type(explainer)
    assert copy.get_params(deep=False).keys() == params.keys()
    assert all(copy.get_params(deep=False)[key] is params[key] for key in params)
    check_is_fitted(explainer)
    with pytest.raises(NotFittedError):
        copy.explain(REFUSED)
    with pytest.raises(NotFittedError):
        next(iter(copy.stream([REFUSED])))
    assert explainer.set_params(n_jobs=1) is explainer
    with pytest.raises(ValueError, match="epsilon"):
        explainer.set_params(epsilon=1)
    assert repr(explainer).startswith(f"{type(explainer).__name__}(")
    assert explainer.fit(TRAIN, NET.predict(TRAIN)) is explainer


def test_clone_of_explainer_keeps_fitted_model():
    """A pipeline inside is data: cloning it would make an untrained one of it."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pipe = make_pipeline(StandardScaler(), MLPClassifier((4,), max_iter=20, solver="lbfgs"))
    pipe.fit(TRAIN, NET.predict(TRAIN))
    copy = clone(pp.Proplace(pipe, 0.001, k=3))
    assert copy.model is pipe
    result = copy.fit(TRAIN).explain(TRAIN[pipe.predict(TRAIN) == 0][:3])
    assert all(pipe.predict(e.counterfactual.to_frame().T.to_numpy())[0] == 1 for e in result)


def test_n_jobs_may_change_after_fit():
    explainer = pp.Proplace(NET, 0.02).fit(TRAIN)
    before = explainer.explain(REFUSED).encoded_counterfactuals
    explainer.n_jobs = 2
    np.testing.assert_array_equal(explainer.explain(REFUSED).encoded_counterfactuals, before)


def test_parameters_are_kept_as_given_and_checked_in_fit():
    explainer = pp.Proplace(NET, -0.1, k="many")
    assert explainer.k == "many"
    with raises(OptionError, name="k", value="many"):
        explainer.fit(TRAIN)
    explainer.k = 3
    with pytest.raises(pp.errors.DeltaError):
        explainer.fit(TRAIN)
    with pytest.raises(NotFittedError):  # a fit that failed leaves nothing half made
        explainer.explain(REFUSED)


@pytest.mark.parametrize("name", ALL)
def test_certified_statuses_have_certificate(name):
    """And what has none is not called so: the checker and random shifts agree."""
    explainer = made(name).fit(TRAIN)
    result = explainer.explain(np.vstack([REFUSED, TRAIN[NET.predict(TRAIN) == 1][:2]]))
    assert any(e.found for e in result)
    for e in result:
        if STATUSES[e.status].certified:
            assert e.certificate.check(NET).accepted
            assert e.certificate.facts["target"] == 1
            assert e.certificate.facts["input"] == e.encoded_counterfactual.tolist()
            for _ in range(50):
                layers = [
                    (
                        layer.W + RNG.uniform(-0.02, 0.02, layer.W.shape),
                        layer.b + RNG.uniform(-0.02, 0.02, layer.b.shape),
                    )
                    for layer in NET.layers
                ]
                assert pp.Network(layers).predict(e.encoded_counterfactual)[0] == 1
        elif e.found:
            assert e.certificate is None
    statuses = {e.status for e in result}
    if not issubclass(ALL[name], (RobustBaseline, pp.Proplace)):
        assert not statuses & {"feasible", "optimal"}


@pytest.mark.parametrize("name", ["PROPLACE", "RNCE", "RobX"])
def test_every_method_streams_and_writes_batches(name, tmp_path):
    schema = pp.Schema([pp.Continuous("a", 0, 1), pp.Continuous("b", 0, 1)])
    table = pd.DataFrame(TRAIN, columns=["a", "b"])
    people = pd.DataFrame(REFUSED, columns=["a", "b"])
    people.to_csv(tmp_path / "people.csv", index=False)
    explainer = made(name, schema=schema).fit(table)
    result = explainer.explain(people)
    parts = list(explainer.stream([people[:2], people[2:]]))
    np.testing.assert_array_equal(
        np.vstack([part.encoded_counterfactuals for part in parts]), result.encoded_counterfactuals
    )
    summary = explain_file(explainer, tmp_path / "people.csv", tmp_path / "out")
    assert summary.rows == len(people)
    assert sum(summary.statuses.values()) == len(people)


class Ones(Baseline):
    """Proposes the same point to everybody."""

    def propose(self, X, target):
        return [Candidate(np.ones(2)) for _ in X]


def test_row_that_kills_worker_is_lost_alone(monkeypatch):
    """Rows that were lost in one block are tried again, each alone."""
    sizes, run = [], Workers.map

    def deadly(self, blocks):
        for block, found in zip(blocks, run(self, blocks), strict=True):
            sizes.append(len(block))
            yield None if any((x == REFUSED[2]).all() for x, _ in block) else found

    monkeypatch.setattr(Workers, "map", deadly)
    result = Ones(NET).fit(TRAIN).explain(REFUSED)
    assert sizes == [len(REFUSED)] + [1] * len(REFUSED)
    assert [e.status for e in result] == [
        "worker_died" if i == 2 else "valid" for i in range(len(REFUSED))
    ]


def test_baseline_gives_one_answer():
    with raises(OptionError, name="count", value=2):
        made("RNCE").fit(TRAIN).explain(REFUSED, count=2)


def test_reason_of_already_valid_names_label():
    frame = pd.DataFrame({"a": [0.0, 1.0, 2.0, 3.0]})
    model = LogisticRegression(C=100.0).fit(frame, ["refused"] * 2 + ["approved"] * 2)
    for explainer in (pp.Proplace(model, 0.01), pp.baselines.Wachter(model)):
        found = explainer.fit(frame).explain(frame[3:], target="approved")[0]
        assert found.status == "already_valid"
        assert found.reason.startswith("the current model already gives class 'approved'")


def test_times_of_fit_and_of_target_are_counted_and_shown(capsys, monkeypatch):
    monkeypatch.setattr("proplace.core.progress._SECONDS", 0.0)
    net = pp.Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
    train = np.array([[0.2, 0.1], [0.9, 0.8], [0.7, 1.0], [1.0, 0.6]])
    explainer = pp.Proplace(net, 0.05, k=3).fit(train, progress=True)
    assert "fit" in capsys.readouterr().err
    assert explainer.fit_seconds_ > 0.0
    assert explainer.prepare_seconds_ == 0.0
    (answer,) = explainer.explain([[0.2, 0.3]], progress=True)
    shown = capsys.readouterr().err
    assert "certify" in shown  # the robust rows of the target
    assert "explain" in shown
    before = explainer.prepare_seconds_
    assert before > 0.0
    assert answer.seconds > 0.0
    explainer.explain([[0.2, 0.3]], progress=True)
    assert "certify" not in capsys.readouterr().err
    assert explainer.prepare_seconds_ == before
