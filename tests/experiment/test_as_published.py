"""Conditions of the published runs: pairs of columns, ranges, and who counts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from proplace.baselines import Roar
from proplace.experiment import as_published
from proplace.experiment import run as experiment
from proplace.experiment.archive import BUNDLED, Archive
from proplace.experiment.protocol import problem
from proplace.experiment.settings import Task
from real_data import folder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    task = Task("compas", 0, people=8, as_published=True)
    return problem(task, tmp_path_factory.mktemp("cache"), str(folder()), Archive(BUNDLED))


def test_adjacent_categories_are_read_as_pair(made):
    moved = as_published.people("WCE", made)
    pair = moved[:, 4:6]  # c_charge_degree and race, without sex
    assert (pair.sum(axis=1) == 1.0).all()
    expected = np.where(made.X[:, 4] >= made.X[:, 5], 1.0, 0.0)
    np.testing.assert_array_equal(pair[:, 0], expected)
    np.testing.assert_array_equal(
        np.delete(moved, (4, 5), axis=1), np.delete(made.X, (4, 5), axis=1)
    )
    np.testing.assert_array_equal(as_published.people("RBR", made), made.X)


def test_pairs_stay_and_other_columns_leave_range(made):
    found = experiment.answered("WCE", made)
    start = as_published.people("WCE", made)
    np.testing.assert_array_equal(found[:, 4:6], start[:, 4:6])
    fractions = found[:, 1]
    assert ((fractions != 0.0) & (fractions != 1.0)).any()
    near = experiment.answered("WCE", dataclasses.replace(made, task=Task("compas", 0, people=8)))
    assert np.isin(near[:, 1], [0.0, 1.0]).all()
    assert as_published.schema("RobX", made) is made.schema


def test_people_without_counterfactual_do_not_count_in_vdelta(made):
    found = made.X.copy()
    found[0] = np.nan
    reference = experiment.outlier_model(made.rows)
    table = experiment.measure(found, made, reference)
    assert np.isnan(table["vdelta"][0])
    assert table["vr"][0] == 0.0
    plain = dataclasses.replace(made, task=Task("compas", 0, people=8))
    assert experiment.measure(found, plain, reference)["vdelta"][0] == 0.0


def test_roar_takes_coefficients_of_standardised_columns_as_they_are(made):
    right, raw = (
        Roar(made.net, schema=made.schema, standardised=flag).fit(made.rows)
        for flag in (False, True)
    )
    w, b = right.surrogate(made.X, 1)
    v, c = raw.surrogate(made.X, 1)
    centre, spread = made.rows.mean(axis=0), made.rows.std(axis=0)
    np.testing.assert_allclose(v, w * spread)
    np.testing.assert_allclose(c, b + w @ centre)
    assert as_published.options("ROAR") == {"standardised": True}
    assert as_published.options("WCE") == {}
