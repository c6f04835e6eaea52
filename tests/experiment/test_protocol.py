"""Problems of the experiment: people, delta and the curve."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from experiment.toy import SETTINGS, toy
from proplace.experiment import protocol
from proplace.experiment.archive import train_all
from proplace.experiment.protocol import assemble
from proplace.experiment.settings import PUBLISHED, Task
from proplace.experiment.settings import SETTINGS as REAL

TASK = Task("compas", seed=0, people=6)


@pytest.fixture(scope="module")
def data():
    return toy()


@pytest.fixture(scope="module")
def nets(data):
    return train_all(data, SETTINGS, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def made(data, nets, folder):
    return assemble(TASK, data, SETTINGS, nets, folder)


def test_people_are_first_of_archive(made, data, nets):
    np.testing.assert_array_equal(made.X, data.X[nets.people[:6]])
    np.testing.assert_array_equal(made.validation, data.X[nets.validation])
    assert (made.net.predict(np.vstack([made.X, made.validation])) == 0).all()


def test_curve_is_read_from_its_file_with_all_digits(made, data, nets, folder, monkeypatch):
    monkeypatch.setattr(protocol, "calibrate_delta", None)
    again = assemble(TASK, data, SETTINGS, nets, folder)
    pd.testing.assert_frame_equal(again.curve, made.curve, check_exact=True)
    assert again.curve["delta"].tolist() == [f * SETTINGS.delta for f in protocol.FACTORS]


def test_curve_uses_networks_and_people_of_calibration(made, nets):
    at = made.curve[made.curve["delta"] == SETTINGS.delta].iloc[0]
    robust = pp.certify(made.net, np.unique(made.rows, axis=0), SETTINGS.delta, margin=1.01e-4)
    assert at["robust"] == pytest.approx(robust.robust.mean())
    method = pp.Proplace(nets.net, SETTINGS.delta, schema=made.schema, k=SETTINGS.k).fit(made.rows)
    points = method.explain(made.validation).encoded_counterfactuals
    valid = np.mean([net.predict(points) == 1 for net in nets.calibration])
    assert at["validity"] == pytest.approx(valid)


def test_accuracy_is_on_test_part(made, data):
    test = data.first.test
    assert made.accuracy == (made.net.predict(data.X[test]) == data.y[test]).mean()
    assert made.accuracy > 0.8


def test_actionable_binds_people(data, nets, folder, made):
    assert made.schema == data.free
    bound = assemble(dataclasses.replace(TASK, actionable=True), data, SETTINGS, nets, folder)
    assert bound.schema == data.schema
    assert len(list(folder.glob("curve-*.csv"))) == 2


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # The published delta, though others are more valid.
        ([(0.01, 1.0, 0.5), (0.02, 0.9, 0.4), (0.05, 1.0, 0.1)], 0.02),
        # Fewer than k of the 100 rows are robust at it: the largest smaller one.
        ([(0.005, 0.9, 0.6), (0.01, 0.99, 0.5), (0.02, 1.0, 0.07)], 0.01),
        # No row is robust at it, and the calibration tried others.
        ([(0.005, 0.7, 0.5), (0.015, 0.8, 0.4)], 0.015),
    ],
)
def test_choice_of_delta(rows, expected):
    curve = pd.DataFrame(rows, columns=["delta", "validity", "robust"])
    assert protocol._delta(curve, SETTINGS, 100) == expected


def test_delta_without_robust_rows_is_replaced(data, nets, tmp_path):
    settings = dataclasses.replace(SETTINGS, delta=5.0)
    assert 0.0 < assemble(TASK, data, settings, nets, tmp_path).delta < 1.0


def test_published_figures_are_complete():
    assert all(set(row) == set(REAL) for row in PUBLISHED.values())
    assert PUBLISHED["PROPLACE"]["heloc"] == (100, 100, 0.057, 1.04)
