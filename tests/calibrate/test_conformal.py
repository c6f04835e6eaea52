"""Statements about the next retraining: the stated risk by simulation, and held-out models."""

from __future__ import annotations

import functools
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from proplace.calibrate import conformal
from proplace.calibrate import delta as calibration
from proplace.calibrate.conformal import HeldOutResult, bounds
from proplace.calibrate.delta import CalibrationWarning
from proplace.calibrate.trials import Retrained
from proplace.core.errors import InputError, OptionError
from support.errors import raises

ROWS = [[0.1], [0.2], *([x] for x in np.linspace(0.55, 2.0, 12))]
REFUSED = [[0.1], [0.3]]
DELTAS = [0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2]


def threshold(t):
    """A network of one input that accepts x >= t."""
    return pp.Network([([[1.0]], [-t])])


BASE = threshold(0.5)


def quiet(*args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return pp.calibrate_delta(*args, **options)


# -- risk control, in general ----------------------------------------------------------------------


def step_losses(rng, n, sizes):
    """Each retraining breaks all promises below a size of its own."""
    return (sizes[None] < rng.random(n)[:, None]).astype(float)


def shares(rng, n, sizes):
    """Each breaks a share that falls with the size at its own speed."""
    return np.clip(1.0 - sizes[None] / rng.exponential(0.3, size=(n, 1)), 0.0, 1.0)


def bumpy(rng, n, sizes):
    """Losses that rise again here and there."""
    waves = 0.5 + 0.5 * np.sin(20.0 * (sizes[None] + rng.random((n, 1))))
    return shares(rng, n, sizes) * waves


def rare(rng, n, sizes):
    """Every tenth retraining breaks everything up to a large size."""
    return ((rng.random((n, 1)) < 0.1) & (sizes[None] < 0.9)).astype(float)


@pytest.mark.parametrize("draw", [step_losses, shares, bumpy, rare], ids=lambda d: d.__name__)
@pytest.mark.parametrize(("n", "risk"), [(9, 0.2), (10, 0.2), (19, 0.1)])
def test_expected_loss_of_next_retraining_is_within_risk(draw, n, risk):
    rng, sizes, losses = np.random.default_rng(2), np.linspace(0.0, 1.0, 101), []
    for _ in range(600):
        found = draw(rng, n + 20, sizes)
        bound = conformal.risk_bound(conformal.monotone(found[:n]))
        assert (np.diff(bound) <= 0.0).all()
        fine = bound <= risk
        losses.append(found[n:, fine.argmax()].mean() if fine.any() else 0.0)
    error = max(np.std(losses), 0.05) / math.sqrt(len(losses))
    assert np.mean(losses) <= risk + 3.5 * error


def test_risk_is_used_up():
    """With steps, 9 retrainings and a risk of 20%, the expected loss is 20% itself."""
    rng, sizes, losses = np.random.default_rng(4), np.linspace(0.0, 1.0, 501), []
    for _ in range(2000):
        found = step_losses(rng, 10, sizes)
        bound = conformal.risk_bound(conformal.monotone(found[:9]))
        losses.append(found[9, (bound <= 0.2).argmax()])
    assert abs(np.mean(losses) - 0.2) <= 3.5 * np.std(losses) / math.sqrt(len(losses))


def test_losses_that_rise_are_made_monotone():
    losses = np.array([[0.5, 0.0, 0.25, 0.0], [0.0, 1.0, 0.0, 0.0]])
    np.testing.assert_array_equal(
        conformal.monotone(losses), [[0.5, 0.25, 0.25, 0.0], [1.0, 1.0, 0.0, 0.0]]
    )
    honours = [np.array([[True, False], [True, True]]), np.zeros((2, 0), bool)]
    np.testing.assert_allclose(bounds(honours), [(0.5 + 1.0) / 3.0, 1.0 / 3.0])


# -- risk control, with networks ---------------------------------------------------------------------


@functools.cache
def explainer(delta):
    return pp.Proplace(BASE, delta, k=3).fit(ROWS)


@functools.cache
def explained(delta):
    return explainer(delta).explain(REFUSED)


class Remembering:
    """The explainers of a calibration, each of them fitted and called once."""

    def __init__(self, source, delta, **options):
        self._delta = delta

    def fit(self, X):
        return self

    def robust_rows(self, target):
        return explainer(self._delta).robust_rows(target)

    def explain(self, X, target, **_):
        return explained(self._delta)


def retrainings(rng, n):
    """Thresholds that move, at times far. Weights move with them."""
    moves = np.where(rng.random(n) < 0.2, 0.15, 0.04) * rng.standard_normal(n)
    return [
        pp.Network([([[w]], [-(0.5 + m) * w])])
        for m, w in zip(moves, rng.uniform(0.8, 1.2, n), strict=True)
    ]


def test_next_network_breaks_no_more_promises_than_stated(monkeypatch):
    """200 histories of networks, each with networks to come, through the whole calibration."""
    monkeypatch.setattr(calibration, "Proplace", Remembering)
    monkeypatch.setattr(Retrained, "_labels", lambda self, table: self.model.network.predict(table))
    rng, losses, stated, n, risk = np.random.default_rng(6), [], 0, 9, 0.2
    for _ in range(200):
        nets = retrainings(rng, n + 5)
        found = quiet(
            BASE,
            ROWS,
            retrained=nets[:n],
            people=REFUSED,
            deltas=[0.02, 0.06, 0.12],
            k=3,
            risk=risk,
            quantile=0.5,
        )
        if not found.success:
            losses.append(0.0)  # nothing is promised
            continue
        stated += 1
        answers = explained(found.delta).encoded_counterfactuals
        losses.append(np.mean([net.predict(answers) != 1 for net in nets[n:]]))
    assert stated >= 100
    assert np.mean(losses) <= risk + 3.5 * np.std(losses) / math.sqrt(len(losses))


@pytest.mark.slow
def test_risk_holds_on_average_and_not_for_draws_that_get_statement(monkeypatch):
    """Each model breaks every promise by a chance of 0.3, so that what is stated is always wrong."""
    monkeypatch.setattr(calibration, "Proplace", Remembering)
    monkeypatch.setattr(Retrained, "_labels", lambda self, table: self.model.network.predict(table))
    rng, losses, histories, risk, chance = np.random.default_rng(0), [], 200, 0.1, 0.3
    for _ in range(histories):
        nets = [threshold(3.0) if bad else BASE for bad in rng.random(9 + 20) < chance]
        found = quiet(
            BASE,
            ROWS,
            retrained=nets[:9],
            people=REFUSED,
            deltas=[0.02, 0.06],
            risk=risk,
            quantile=0.0,
        )
        if not found.success:  # nothing is promised
            assert "cannot be stated" in found.statement
            continue
        assert "average over all draws" in found.statement
        assert "a draw for which no size suffices counts as no broken promise" in found.statement
        assert "not conditional on this draw" in found.statement
        answers = explained(found.delta).encoded_counterfactuals
        losses.append(np.mean([net.predict(answers) != 1 for net in nets[9:]]))
    assert len(losses) >= 3
    assert np.mean(losses) > 2.0 * risk  # the reason why the condition is stated
    assert np.sum(losses) / histories <= risk


def test_smallest_delta_whose_bound_is_within_risk():
    """19 networks, one of them far away: (1 + 1) / 20 is within 10%, and not within 9%."""
    later = [threshold(0.5 + 0.005 * n) for n in range(18)] + [threshold(1.9)]
    found = quiet(BASE, ROWS, retrained=later, people=REFUSED, deltas=DELTAS, risk=0.1)
    answers = {d: (0.5 + d) / (1.0 - d) for d in DELTAS}
    broken = [
        np.mean([(0.5 - net.layers[0].b[0]) - 0.5 > a for net in later]) for a in answers.values()
    ]
    np.testing.assert_allclose(found.curve["risk"], (19 * np.array(broken) + 1) / 20, atol=1e-12)
    assert found.success
    assert found.delta == next(
        d for d, r in zip(DELTAS, found.curve["risk"], strict=True) if r <= 0.1
    )
    assert found.risk == 0.1
    assert found.shifts == pp.Shifts.of(BASE, found.delta)
    with (
        pytest.warns(CalibrationWarning, match="moved by 1.4"),
        pytest.warns(CalibrationWarning, match="No size") as caught,
    ):
        found = pp.calibrate_delta(
            BASE, ROWS, retrained=later, people=REFUSED, deltas=DELTAS, risk=0.09
        )
    assert not found.success
    words = str(caught[0].message)
    assert "Shifts.learn" in words
    assert "required_models=" in words
    assert "cannot be stated" in found.statement


@pytest.mark.parametrize(("models", "risk", "least"), [(18, 0.05, 19), (8, 0.1, 9), (1, 0.3, 3)])
def test_too_few_models_for_risk_report_how_many_are_needed(models, risk, least):
    later = [threshold(0.5)] * models
    with raises(InputError, name="risk", value=risk, match=f"at least {least}") as caught:
        pp.calibrate_delta(BASE, ROWS, retrained=later, people=REFUSED, deltas=[0.1], risk=risk)
    allowed = float(str(caught.value).split("risk=")[1].rstrip("."))
    assert quiet(BASE, ROWS, retrained=later, people=REFUSED, deltas=[0.1], risk=allowed).success
    enough = [threshold(0.5)] * least
    assert quiet(BASE, ROWS, retrained=enough, people=REFUSED, deltas=[0.1], risk=risk).success


def test_sizes_that_are_tried_do_not_depend_on_retrained_models():
    """Otherwise, the choice would depend on its own test."""
    curves = [
        quiet(BASE, ROWS, retrained=[threshold(t)] * 9, people=REFUSED, risk=0.1)
        .curve["delta"]
        .tolist()
        for t in (0.51, 0.6)
    ]
    assert curves[0] == curves[1]
    assert len(curves[0]) == 19


# -- the sizes of a box ------------------------------------------------------------------------------


def test_size_of_box_is_chosen_in_place_of_delta():
    """A box in which only the bias moves. Its centre is not the current model."""
    box = pp.Shifts(threshold(0.62), threshold(0.5))
    later = [threshold(0.5 + 0.006 * n) for n in range(19)]
    sizes = [0.01, 0.5, 1.0, 2.0]
    found = quiet(BASE, ROWS, retrained=later, people=REFUSED, shifts=box, deltas=sizes, risk=0.05)
    assert found.success
    assert found.delta == 1.0
    assert found.shifts == box
    assert found.label == "1 times the shift set"
    assert "with 1 times the shift set" in found.statement
    half = box.scaled(0.5)
    answer = pp.Proplace(BASE, half).fit(ROWS).explain(REFUSED).encoded_counterfactuals
    share = np.mean([net.predict(answer) != 1 for net in later])
    assert found.curve["risk"].iloc[1] == pytest.approx((19 * share + 1) / 20)
    grid = quiet(BASE, ROWS, retrained=later, people=REFUSED, shifts=box, risk=0.05)
    assert grid.success
    assert 0.5 < grid.delta <= 1.3
    with raises(OptionError, name="shifts"):
        pp.calibrate_delta(
            BASE, ROWS, retrained=later, people=REFUSED, shifts=pp.Shifts.of(BASE, 0.0), risk=0.05
        )


def test_box_in_which_nothing_that_counts_moves_has_no_largest_size():
    """The next layer gives the second neuron the weight 0, so its own weights have no effect."""
    layers = [([[1.0], [1.0]], [0.0, 0.0]), ([[1.0, 0.0]], [-0.5])]
    net = pp.Network(layers)
    box = pp.Shifts.of(net, [([[0.0], [0.1]], 0.0), (0.0, 0.0)])
    found = quiet(net, ROWS, retrained=[net] * 9, people=REFUSED, shifts=box, risk=0.1)
    assert found.success


# -- who reports -------------------------------------------------------------------------------------


def test_models_that_are_held_out_report_and_do_not_choose():
    later = [threshold(0.5 + 0.005 * n) for n in range(19)]
    strict = [threshold(0.52), threshold(0.9), threshold(0.5), threshold(0.55)]
    alone = quiet(BASE, ROWS, retrained=later, people=REFUSED, deltas=DELTAS, risk=0.1)
    assert alone.held_out is None
    assert "No model was held out" in alone.statement
    found = quiet(
        BASE, ROWS, retrained=later, people=REFUSED, deltas=DELTAS, risk=0.1, held_out=strict
    )
    assert found.delta == alone.delta
    pd.testing.assert_frame_equal(found.curve, alone.curve)
    assert found.change_per_model.tolist() == alone.change_per_model.tolist()
    held_out = found.held_out
    assert (held_out.models, held_out.promises, held_out.whole, held_out.share) == (4, 2, 3, 0.75)
    expected = stats.beta.ppf(0.05, 3, 2)
    assert held_out.least_whole == held_out.least_each == pytest.approx(expected)


def test_share_is_put_aside_by_seed():
    later = [threshold(0.5 + 0.005 * n) for n in range(30)]
    options = {"deltas": [0.05, 0.1], "risk": 0.1, "held_out": 0.3}
    found = quiet(BASE, ROWS, retrained=later, people=REFUSED, **options)
    assert len(found.change_per_model) == 21
    assert found.held_out.models == 9
    again = quiet(BASE, ROWS, retrained=later, people=REFUSED, **options)
    assert again.change_per_model.tolist() == found.change_per_model.tolist()
    other = quiet(BASE, ROWS, retrained=later, people=REFUSED, **options, seed=1)
    assert sorted(other.change_per_model) != sorted(found.change_per_model)
    with raises(InputError, name="held_out", value=0.5):
        pp.calibrate_delta(BASE, ROWS, retrained=later[:1], people=REFUSED, held_out=0.5)
    with raises(InputError, name="risk", value=0.05, match="19"):  # 21 less 6
        pp.calibrate_delta(
            BASE, ROWS, retrained=later[:21], people=REFUSED, held_out=0.3, risk=0.05
        )


def test_bounds_of_single_promises_and_of_all():
    """The first model breaks the first promise, the second another."""
    honours = np.ones((60, 5), dtype=bool)
    honours[0, 0] = honours[1, 1] = False
    found = HeldOutResult.of(honours, 0.95)
    assert found.whole == 58
    assert found.least_each == pytest.approx(stats.beta.ppf(0.05, 59, 2))
    assert found.least_whole == pytest.approx(stats.beta.ppf(0.05, 58, 3))
    assert found.share == 298 / 300
    assert HeldOutResult.of(honours[:0], 0.95) is None
    assert HeldOutResult.of(honours[:, :0], 0.95) is None
    shown = str(found)
    assert "at least 92.3% of future models" in shown  # 0.9234
    assert "all of them by at least 89.8%" in shown  # 0.8989: rounded down


def test_bound_holds_for_promise_and_for_all_as_often_as_stated():
    """Models that honour each of three promises with chances of their own, all at once or not."""
    rng, wrong = np.random.default_rng(0), np.zeros(2)
    for _ in range(400):
        luck = rng.random((30, 1))  # a model that is strict is strict with all
        honours = luck + 0.1 * rng.random((30, 3)) < [0.95, 0.9, 0.85]
        found = HeldOutResult.of(honours, 0.9)
        least, whole = 0.8, 0.8 - 1e-3  # chance of the third alone: 0.8, and of all: about the same
        wrong += [found.least_each > least, found.least_whole > whole]
    assert (wrong / 400 <= 0.1 + 3.5 * math.sqrt(0.09 / 400)).all()


# -- statements --------------------------------------------------------------------------------------


def test_statement_names_number_risk_condition_and_confidence():
    later = [threshold(0.5 + 0.005 * n) for n in range(19)]
    found = quiet(
        BASE,
        ROWS,
        retrained=later,
        people=REFUSED,
        deltas=DELTAS,
        risk=0.05,
        held_out=[threshold(0.5)] * 59,
    )
    assert found.statement == (
        f"Of the promises made to 2 people with delta {found.delta:g}, an expected share of at most "
        "5.0% is broken at the next retraining (conformal risk control by N = 19 retrained models), if "
        "it is exchangeable with them. This is an average over all draws of these models, and a draw "
        "for which no size suffices counts as no broken promise. It is not conditional on this draw: "
        "draws for which a size suffices may break a larger share. Of 59 other retrained models, "
        "which did not choose it, 59 honour all 2 promises and 100.0% of the promises are "
        "honoured on average: with 95% confidence any one promise is honoured by at least 95.0% of "
        "future models, and all of them by at least 95.0%, if models are retrained independently and "
        "in the same way."
    )
    measured = quiet(BASE, ROWS, retrained=later, people=REFUSED, deltas=DELTAS)
    assert "19 retrained models honoured 100.0%. They also chose it" in measured.statement
    assert "not a promise about the next retraining" in measured.statement
    for statement in (found.statement, measured.statement):
        assert "prove" not in statement
        assert "guarantee" not in statement


def test_set_that_leaves_hardly_answer_is_warning():
    """All rows stay robust, but the rules let one person in twenty get there."""
    schema = pp.Schema([pp.Continuous("x", 0, 2), pp.Continuous("fixed", 0, 1, immutable=True)])
    net = pp.Network([([[1.0, 2.0]], [-1.5])])
    table = pd.DataFrame({"x": [0.1, 1.9, 2.0], "fixed": [0.0, 0.5, 0.5]})
    people = pd.DataFrame({"x": [0.1] * 20, "fixed": [0.5] + [0.0] * 19})
    with pytest.warns(CalibrationWarning, match="5.0%"):
        found = pp.calibrate_delta(
            net, table, retrained=[net], people=people, schema=schema, deltas=[0.01], k=2
        )
    assert found.too_few_robust_rows
    assert not found.success


# -- models that share nothing but the table ------------------------------------------------------------


def test_other_architectures_scalers_and_training_from_scratch():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(50.0, 9.0, 300), "b": rng.normal(0.0, 1.0, 300)})
    labels = np.where(table["a"] / 9.0 + table["b"] > 5.6, "yes", "no")
    pipe = make_pipeline(StandardScaler(), LogisticRegression()).fit(table, labels)
    later = []
    for seed in range(6):
        part = np.random.default_rng(seed).choice(300, 250)
        last = (
            LogisticRegression(C=1.0)
            if seed % 2
            else MLPClassifier((3 + seed,), max_iter=40, random_state=seed)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            later.append(make_pipeline(StandardScaler(), last).fit(table.iloc[part], labels[part]))
    refused = table[pipe.predict(table) == "no"].head(5)
    deltas = [0.01, 0.1]
    found = quiet(
        pipe,
        table,
        retrained=later[:4],
        people=refused,
        target="yes",
        deltas=deltas,
        risk=0.3,
        k=5,
        held_out=later[4:],
    )
    assert np.isnan(found.change_per_model).tolist() == [True, False, True, False]
    assert np.isfinite(found.max_change)
    for delta, (_, row) in zip(deltas, found.curve.iterrows(), strict=True):
        answers = pp.Proplace(pipe, delta, k=5).fit(table).explain(refused, "yes")
        changed = pd.DataFrame([e.counterfactual for e in answers])
        assert row["validity"] == np.mean([p.predict(changed) == "yes" for p in later[:4]])
        if delta == found.delta:
            kept = [p.predict(changed) == "yes" for p in later[4:]]
            assert found.held_out.share == np.mean(kept)
    nothing = quiet(
        pipe, table, retrained=later[:1], people=refused, target="yes", deltas=[0.01], k=5
    )
    assert math.isnan(nothing.max_change)


def test_model_of_other_classes_is_refused_with_its_number():
    table = pd.DataFrame({"x": np.linspace(0.0, 1.0, 20)})
    models = [
        LogisticRegression().fit(table, np.where(table["x"] > 0.5, *names))
        for names in (("yes", "no"), ("good", "bad"))
    ]
    with raises(InputError, name="held_out[0]"):
        pp.calibrate_delta(
            models[0],
            table,
            retrained=models[:1],
            people=table.head(3),
            target="yes",
            deltas=[0.01],
            held_out=models[1:],
        )


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"risk": 0.0}, "risk"),
        ({"risk": 1.5}, "risk"),
        ({"confidence": 1.0}, "confidence"),
        ({"held_out": 1.0}, "held_out"),
    ],
)
def test_wrong_calls_name_problem(change, name):
    with raises(OptionError, name=name):
        pp.calibrate_delta(
            BASE, ROWS, retrained=[BASE] * 20, people=REFUSED, deltas=[0.1], **change
        )
