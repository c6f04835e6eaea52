"""Problems of the experiment: what is trained on what, who is explained, which delta."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from experiment.toy import SETTINGS, toy
from proplace.core.errors import InputError
from proplace.experiment import protocol
from proplace.experiment.protocol import PUBLISHED, Settings, Task, assemble
from support.errors import raises

TASK = Task("compas", seed=0, inputs=6, retrained=2)


@pytest.fixture(scope="module")
def data():
    return toy()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def made(data, folder):
    return assemble(TASK, data, SETTINGS, folder)


def index_of(X, rows):
    return [int(np.flatnonzero((row == X).all(axis=1))[0]) for row in rows]


def test_inputs_are_refused_by_all_and_unseen_in_training(made, data):
    assert made.X.shape == (6, 4)
    assert made.fresh == 6
    for net in (made.net, *made.retrained):
        assert (net.predict(made.X) == 0).all()
    unseen = {*data.first.test.tolist(), *data.second.test.tolist()}
    where = index_of(data.X, made.X)
    assert len(set(where)) == 6
    assert set(where) <= unseen


def test_training_rows_fill_up_where_unseen_ones_are_too_few(data, made, folder):
    many = assemble(dataclasses.replace(TASK, inputs=90), data, SETTINGS, folder)
    assert 0 < many.fresh < 90
    assert len(many.X) == 90
    unseen = {*data.first.test.tolist(), *data.second.test.tolist()}
    where = index_of(data.X, many.X)
    assert [w in unseen for w in where] == [i < many.fresh for i in range(90)]
    assert set(where[many.fresh :]) <= set(data.first.train.tolist())


class Verdicts:
    """A stand-in for a network: it refuses every row except some."""

    def __init__(self, accepted=()):
        self.accepted = np.array(accepted)

    def predict(self, X):
        return np.isin(X[:, 0], self.accepted).astype(int)


def test_changed_verdict_moves_no_other_person():
    numbers = np.random.default_rng(0).permutation(np.repeat(np.arange(60.0), 2))  # every row twice
    rows = np.arange(len(numbers))

    def people(*accepted):
        drawn = protocol._refused(
            rows, numbers[:, None], [Verdicts(), Verdicts(accepted)], np.random.default_rng([3, 7])
        )
        return numbers[drawn].tolist()

    everybody = people()
    assert sorted(everybody) == list(range(60))
    assert everybody != sorted(everybody)
    for accepted in ([0.0], [59.0], [3.0, 17.0, 40.0]):
        assert people(*accepted) == [each for each in everybody if each not in accepted]


def test_networks_are_retrained_on_both_halves_and_without_a_different_percent(
    data, monkeypatch, tmp_path
):
    seen = []
    train = protocol.train

    def recording(X, y, rows, **options):
        seen.extend(zip(map(frozenset, rows), options["seeds"], strict=True))
        assert options["widths"] == SETTINGS.widths
        assert options["epochs"] == SETTINGS.epochs
        return train(X, y, rows, **options)

    monkeypatch.setattr(protocol, "train", recording)
    assemble(TASK, data, SETTINGS, tmp_path)
    first = frozenset(data.first.train)
    both = first | frozenset(data.second.train)
    rows = [part for part, _ in seen]
    assert len({seed for _, seed in seen}) == len(seen) == 1 + 4 + 4
    assert rows[0] == first
    for both_halves, without in ((rows[1:3], rows[3:5]), (rows[5:7], rows[7:9])):
        assert both_halves == [both, both]
        assert all(part < first for part in without)
        assert all(len(part) == len(first) - len(first) // 100 for part in without)
    left_out = [first - part for part in (*rows[3:5], *rows[7:9])]
    assert len(set(left_out)) == 4


def test_nothing_is_trained_twice(made, data, folder, monkeypatch):
    def never(*_, **__):
        raise AssertionError("it was in the cache")

    monkeypatch.setattr(protocol, "train", never)
    monkeypatch.setattr(protocol, "calibrate_delta", never)
    again = assemble(TASK, data, SETTINGS, folder)
    assert again.net == made.net
    assert again.retrained == made.retrained
    np.testing.assert_array_equal(again.X, made.X)
    assert again.delta == made.delta
    pd.testing.assert_frame_equal(again.curve, made.curve)


def test_the_curve_holds_the_published_delta_and_uses_other_networks(made):
    assert SETTINGS.delta in made.curve["delta"].to_numpy()
    assert made.curve["delta"].tolist() == [f * SETTINGS.delta for f in protocol.FACTORS]
    at = made.curve[made.curve["delta"] == SETTINGS.delta].iloc[0]
    robust = pp.certify(made.net, np.unique(made.rows, axis=0), SETTINGS.delta, margin=1.01e-4)
    assert at["robust"] == pytest.approx(robust.robust.mean())


def test_accuracy_is_on_the_test_part(made, data):
    test = data.first.test
    assert made.accuracy == (made.net.predict(data.X[test]) == data.y[test]).mean()
    assert made.accuracy > 0.8


def test_actionable_binds_people(data, folder, made):
    assert made.schema == data.free
    bound = assemble(dataclasses.replace(TASK, actionable=True), data, SETTINGS, folder)
    assert bound.schema == data.schema


def curve(*rows):
    return pd.DataFrame(rows, columns=["delta", "validity", "robust"])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # The published delta does it, though a smaller one would too.
        ([(0.01, 1.0, 0.5), (0.02, 0.99, 0.4), (0.05, 1.0, 0.1)], 0.02),
        # It does not: the smallest that does.
        ([(0.01, 0.7, 0.5), (0.02, 0.98, 0.4), (0.03, 0.995, 0.2), (0.05, 1.0, 0.1)], 0.03),
        # It leaves fewer than k of the 100 rows robust: a smaller one.
        ([(0.01, 0.99, 0.5), (0.02, 1.0, 0.07)], 0.01),
        # There is none at all at the published delta, and no delta does: the best.
        ([(0.005, 0.7, 0.5), (0.01, 0.9, 0.5), (0.015, 0.8, 0.4)], 0.01),
    ],
)
def test_choice_of_delta(rows, expected):
    assert protocol._delta(curve(*rows), SETTINGS, 100) == expected


def test_a_delta_that_leaves_nobody_is_replaced_and_said_so(data, folder, made):
    settings = Settings(SETTINGS.widths, SETTINGS.epochs, delta=5.0, k=SETTINGS.k)
    (curve,) = folder.glob("curve-*.csv")
    curve.rename(folder / "kept.csv")
    other = assemble(TASK, data, settings, folder)
    (folder / "kept.csv").rename(curve)
    assert other.calibrated
    assert other.delta < 1.0
    assert not made.calibrated


def test_a_network_that_accepts_everybody_is_trained_again(data, monkeypatch, tmp_path):
    dead = pp.Network(
        [(np.zeros((6, 4)), None), (np.zeros((6, 6)), None), (np.zeros((1, 6)), [1.0])]
    )
    train, calls = protocol.train, []

    def sometimes_dead(X, y, rows, **options):
        calls.append(options["seeds"])
        nets = train(X, y, rows, **options)
        return [dead, *nets[1:]] if len(calls) == 2 else nets

    monkeypatch.setattr(protocol, "train", sometimes_dead)
    made = assemble(TASK, data, SETTINGS, tmp_path)
    assert calls[2] == [calls[1][0] + 1]
    assert len(calls) == 6
    assert all(len(set(net.predict(data.X))) == 2 for net in made.retrained)


def test_too_few_refused_rows_are_an_error(data, monkeypatch, tmp_path):
    monkeypatch.setattr(protocol, "_refused", lambda rows, X, networks, rng: rows[:0])
    with raises(InputError, match="compas, seed 0"):
        assemble(TASK, data, SETTINGS, tmp_path)


def test_every_setting_has_a_folder_of_its_own(tmp_path, monkeypatch):
    folders = {
        dataclasses.replace(TASK, **{name: value}).folder(tmp_path)
        for name, value in [
            ("seed", 0),
            ("seed", 1),
            ("inputs", 7),
            ("retrained", 3),
            ("actionable", True),
            ("data", "heloc"),
            ("data", "heloc-repaired"),
        ]
    }
    assert len(folders) == 7
    before = TASK.folder(tmp_path)
    monkeypatch.setitem(protocol.SETTINGS, "compas", SETTINGS)
    assert TASK.folder(tmp_path) != before


def test_published_figures_are_complete():
    assert all(set(row) == set(protocol.SETTINGS) for row in PUBLISHED.values())
    assert PUBLISHED["PROPLACE"]["heloc"] == (100, 100, 0.057, 1.04)
