"""Calibration of delta on networks whose answer is known."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import proplace as pp
from proplace.calibrate.delta import CalibrationWarning, _short
from proplace.core.errors import InputError, MissingExtraError, ModelMismatchError, OptionError
from proplace.loaders.align import in_coordinates_of
from refits import SHAPES, fitted, people, retrained
from support.errors import raises
from support.tiers import quick


def threshold(t):
    """A network of one input that accepts x >= t."""
    return pp.Network([([[1.0]], [-t])])


ROWS = [[0.1], [0.2], [0.8], [0.9], [1.0]]
REFUSED = [[0.1], [0.3]]


def least_delta(t, new):
    """The counterfactual at delta solves (1 - d) x = t + d, and the new network accepts it."""
    return (new - t) / (1.0 + new)


def test_smallest_delta_whose_answers_stay_valid():
    exact = least_delta(0.5, 0.6)
    deltas = [0.5 * exact, 0.9 * exact, 1.01 * exact, 2.0 * exact]  # counterfactuals within 1%
    found = pp.calibrate_delta(
        threshold(0.5), ROWS, retrained=[threshold(0.6)], people=REFUSED, deltas=deltas
    )
    assert found.success
    assert found.delta == deltas[2]
    assert found.curve["validity"].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert found.curve["robust"].tolist() == [0.6, 0.6, 0.6, 0.6]
    assert found.curve["share_explained"].tolist() == [1.0] * 4
    answers = [(0.5 + d) / (1.0 - d) for d in deltas]
    expected = [np.mean([a - 0.1, a - 0.3]) for a in answers]
    np.testing.assert_allclose(found.curve["distance"], expected, rtol=0.01, atol=1e-3)


def test_without_list_delta_is_found_within_last_step():
    exact = least_delta(0.5, 0.6)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        found = pp.calibrate_delta(threshold(0.5), ROWS, retrained=[threshold(0.6)], people=REFUSED)
    assert exact * 0.99 <= found.delta <= exact * 2 ** (1 / 8)
    below = found.curve.loc[found.curve["delta"] < found.delta, "validity"]
    assert (below < 1.0).all()
    # No row is robust beyond (1 - d) = 0.5 + d: larger deltas than needed are not tried.
    assert found.curve["delta"].max() <= 2.0 * exact


def test_rows_that_occur_twice_count_once():
    found = pp.calibrate_delta(
        threshold(0.5),
        ROWS + ROWS[:1] * 5 + ROWS[-1:] * 2,
        retrained=[threshold(0.6)],
        people=REFUSED,
        deltas=[0.07],
    )
    assert found.curve["robust"].tolist() == [0.6]


@pytest.mark.parametrize("bad", [[[0.1], [np.nan]], [[np.nan]]])
def test_validation_row_that_cannot_be_read_is_named(bad):
    """It was left out without a word, or taken for one that is accepted already."""
    row = len(bad) - 1
    with raises(InputError, name="people", match=f"row {row}"):
        pp.calibrate_delta(
            threshold(0.5), ROWS, retrained=[threshold(0.6)], people=bad, deltas=[0.07]
        )
    schema = pp.Schema([pp.Continuous("x", 0, 1)])
    frame = pd.DataFrame({"x": [0.1, "[/b]"]}, dtype=object)
    with raises(InputError, name="people", match="row 1"):
        pp.calibrate_delta(
            threshold(0.5),
            ROWS,
            retrained=[threshold(0.6)],
            people=frame,
            schema=schema,
            deltas=[0.07],
        )


@given(st.floats(1e-6, 9e4))
def test_deltas_are_written_with_three_digits_and_never_upwards(delta):
    """The printed deltas are those that were tried, none beyond the largest delta that leaves a row."""
    short = _short(delta)
    assert float(f"{short:.3g}") == short
    assert 0.99 * delta <= short <= delta * (1 + 1e-15)


def test_validity_counts_pairs_of_answers_and_networks():
    others = [threshold(0.4), threshold(0.5), threshold(0.9)]
    with pytest.warns(CalibrationWarning, match="moved by 0.4"):
        found = pp.calibrate_delta(
            threshold(0.5),
            ROWS,
            retrained=others,
            people=REFUSED,
            deltas=[0.1],
            validity=0.6,
            quantile=0.6,
        )
    assert found.curve["validity"].tolist() == pytest.approx([2 / 3])
    assert found.success
    assert found.change_per_model.tolist() == pytest.approx([0.1, 0.0, 0.4])
    assert found.max_change == pytest.approx(0.4)


@pytest.mark.parametrize("n_jobs", quick(1, [1, 2]))
def test_delta_as_large_as_every_change_proves_validity(n_jobs):
    rng = np.random.default_rng(3)
    X = rng.random((200, 3))
    net = pp.Network([(rng.normal(size=(6, 3)), np.zeros(6)), (rng.normal(size=(1, 6)), [-0.2])])
    moved = [
        pp.Network(
            [
                (layer.W + rng.uniform(-0.02, 0.02, layer.W.shape), layer.bias + 0.01)
                for layer in net.layers
            ]
        )
        for _ in range(5)
    ]
    largest = max(net.distance(other) for other in moved)
    refused = X[net.predict(X) == 0][:8]
    found = pp.calibrate_delta(
        net, X, retrained=moved, people=refused, deltas=[0.0, 0.001, largest]
    )
    assert found.max_change == largest
    assert found.success
    assert found.curve["validity"].iloc[-1] == 1.0
    assert found.curve["validity"].iloc[0] < 1.0
    deltas = [0.0, 0.001, largest]
    again = pp.calibrate_delta(
        net, X, retrained=moved, people=refused, deltas=deltas, n_jobs=n_jobs
    )
    pd.testing.assert_frame_equal(found.curve, again.curve)


def test_unreachable_validity_gives_best_and_warns():
    with (
        pytest.warns(CalibrationWarning, match=r"validity of 95\.0%.*50\.0%.*validity=0\.5,"),
        pytest.warns(CalibrationWarning, match="moved by 1.5"),
    ):
        found = pp.calibrate_delta(
            threshold(0.5),
            ROWS,
            retrained=[threshold(0.6), threshold(2.0)],
            people=REFUSED,
            deltas=[0.01, 0.1, 0.12],
        )
    assert not found.success
    assert found.delta == 0.1
    assert found.curve["validity"].tolist() == [0.0, 0.5, 0.5]


def test_delta_without_robust_rows_warns():
    with pytest.warns(CalibrationWarning, match="delta 0.3"):
        found = pp.calibrate_delta(
            threshold(0.5), ROWS, retrained=[threshold(0.55)], people=REFUSED, deltas=[0.1, 0.3]
        )
    assert found.delta == 0.1
    assert found.curve["share_explained"].tolist() == [1.0, 0.0]
    assert np.isnan(found.curve["validity"].iloc[1])
    with raises(InputError, name="deltas"):
        pp.calibrate_delta(
            threshold(0.5), ROWS, retrained=[threshold(0.55)], people=REFUSED, deltas=[0.3]
        )


def test_changes_beyond_every_robust_row_warn():
    far = pp.Network([([[3.0]], [-1.5])])
    with pytest.warns(CalibrationWarning, match="moved by 2"):
        pp.calibrate_delta(threshold(0.5), ROWS, retrained=[far], people=REFUSED, deltas=[0.1])


def test_schema_and_table_in_original_units():
    schema = pp.Schema([pp.Continuous("income", 0, 1000)])
    table = pd.DataFrame({"income": [100.0, 200.0, 800.0, 900.0, 1000.0]})
    found = pp.calibrate_delta(
        threshold(0.5),
        table,
        retrained=[threshold(0.6)],
        people=table.iloc[:2],
        schema=schema,
        deltas=[0.01, 0.07],
    )
    assert found.delta == 0.07


@pytest.mark.parametrize(
    ("change", "error", "name"),
    [
        ({"retrained": []}, InputError, "retrained"),
        ({"quantile": 1.5}, OptionError, "quantile"),
        ({"validity": -0.1}, OptionError, "validity"),
        ({"min_robust_share": 2}, OptionError, "min_robust_share"),
        ({"n_jobs": 0}, OptionError, "n_jobs"),
        ({"deltas": []}, OptionError, "deltas"),
        ({"deltas": [float("nan")]}, OptionError, "deltas"),
        ({"people": [[0.9]]}, InputError, "people"),
        ({"X": [[0.1]]}, InputError, "X"),
    ],
)
def test_wrong_calls_name_problem(change, error, name):
    call = {
        "model": threshold(0.5),
        "retrained": [threshold(0.6)],
        "X": ROWS,
        "people": REFUSED,
    }
    with raises(error, name=name):
        pp.calibrate_delta(**{**call, **change})


def test_plot_shows_curve(tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    found = pp.calibrate_delta(threshold(0.5), ROWS, retrained=[threshold(0.6)], people=REFUSED)
    found.plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    figure, axes = pyplot.subplots()
    assert found.plot(axes) is axes
    assert axes.get_xscale() == "log"
    drawn = {line.get_label(): line for line in axes.lines}
    np.testing.assert_array_equal(
        drawn["valid after retraining"].get_ydata(), found.curve["validity"]
    )
    robust = drawn["accepted rows robust"].get_ydata()
    np.testing.assert_array_equal(robust, found.curve["robust_of_accepted"])
    pyplot.close(figure)
    with_zero = pp.calibrate_delta(
        threshold(0.5), ROWS, retrained=[threshold(0.6)], people=REFUSED, deltas=[0.0, 0.07]
    )
    figure, axes = pyplot.subplots()
    assert with_zero.plot(axes).get_xscale() == "linear"  # zero has no place on a logarithmic axis
    pyplot.close(figure)


def test_plot_without_matplotlib_names_extra(monkeypatch, tmp_path):
    found = pp.calibrate_delta(
        threshold(0.5), ROWS, retrained=[threshold(0.6)], people=REFUSED, deltas=[0.07]
    )
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.pyplot", None)
    with raises(MissingExtraError, name="matplotlib.pyplot"):
        found.plot(tmp_path / "curve.png")


# -- pipelines, and the number of robust rows ------------------------------------------------------


@pytest.fixture(scope="module")
def lender():
    """A pipeline in use, two that were fitted again with their scalers, and tables."""
    table, decided = people(160, 0)
    pipe = fitted(SHAPES["standard"](), table, decided)
    later = []
    for seed in (1, 2):
        sample, new = people(8, seed)
        rows, labels = pd.concat([table, sample], ignore_index=True), [*decided, *new]
        later.append(retrained(pipe, SHAPES["standard"](), rows, labels, epochs=1))
    refused = table[pipe.predict(table) == "no"].head(6)
    return pipe, later, table, refused


def test_pipelines_whose_scalers_were_fitted_again(lender):
    """The retrained pipelines themselves predict each counterfactual."""
    pipe, later, table, refused = lender
    deltas = [0.0005, 0.002]
    found = pp.calibrate_delta(
        pipe, table, retrained=later, people=refused, target="yes", deltas=deltas, k=5
    )
    base = pp.Model.of(pipe)
    moved = [base.network.distance(in_coordinates_of(base, pp.Model.of(p))) for p in later]
    assert found.change_per_model.tolist() == moved
    accepted = table[pipe.predict(table) == "yes"]
    assert found.accepted == len(accepted)
    for delta, (_, row) in zip(deltas, found.curve.iterrows(), strict=True):
        answers = pp.Proplace(pipe, delta, k=5).fit(table).explain(refused, "yes")
        changed = pd.DataFrame([e.counterfactual for e in answers])
        valid = np.mean([p.predict(changed) == "yes" for p in later])
        assert row["validity"] == valid
        robust = int(pp.certify(pipe, accepted, delta, "yes", margin=1.01e-4).robust.sum())
        assert row["robust_rows"] == robust
        assert row["robust_of_accepted"] == robust / len(accepted)
    assert found.delta in deltas


def test_distance_is_mean_of_answers(lender):
    pipe, later, table, refused = lender
    words = {"target": "yes", "deltas": [0.001], "k": 5}
    found = pp.calibrate_delta(pipe, table, retrained=later, people=refused, **words)
    explainer = pp.Proplace(pipe, 0.001, k=5).fit(table)
    expected = np.mean([e.distance for e in explainer.explain(refused, "yes")])
    assert found.curve["distance"].iloc[0] == pytest.approx(expected)


def test_model_that_differs_from_original_is_rejected_by_number(lender):
    pipe, later, table, refused = lender
    strange = pp.Model.of(later[0])
    later[0][-1].intercepts_[-1] += 50.0
    try:
        with raises(ModelMismatchError, name="retrained[0]", match="original model predicts"):
            pp.calibrate_delta(
                pipe, table, retrained=[strange], people=refused, target="yes", deltas=[0.001]
            )
    finally:
        later[0][-1].intercepts_[-1] -= 50.0


CROWD = [[0.55]] * 1 + [[x] for x in np.linspace(0.51, 0.54, 30)] + [[1.0], [0.1]]


def test_delta_that_leaves_next_to_no_robust_row_is_not_chosen_silently():
    """Only one of 32 accepted rows is robust at the delta of the stricter network."""
    with pytest.warns(CalibrationWarning) as caught:
        found = pp.calibrate_delta(
            threshold(0.5), CROWD, retrained=[threshold(0.6)], people=REFUSED, deltas=[0.001, 0.07]
        )
    assert found.curve["robust_rows"].tolist() == [32, 1]
    assert found.curve["validity"].tolist() == [0.0, 1.0]
    assert found.delta == 0.001
    assert found.too_few_robust_rows
    assert not found.success
    words = "\n".join(str(w.message) for w in caught)
    assert "delta 0.07, with a validity of 100.0%, leaves 1 of 32 accepted training rows" in words
    assert "(3.1%), and at least 10% is required" in words
    assert "the best is delta 0.001" in words
    assert "min_robust_share=0.031" in words
    assert "32 of 32 accepted rows robust" in repr(found)


@pytest.mark.parametrize("least", [0.0, 0.03])
def test_useless_delta_is_chosen_with_zero_min_robust_share(least):
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        found = pp.calibrate_delta(
            threshold(0.5),
            CROWD,
            retrained=[threshold(0.6)],
            people=REFUSED,
            deltas=[0.001, 0.07],
            min_robust_share=least,
        )
    assert found.delta == 0.07
    assert found.success
    assert not found.too_few_robust_rows


def test_default_grid_does_not_choose_useless_delta():
    with pytest.warns(CalibrationWarning, match="min_robust_share=0"):
        found = pp.calibrate_delta(
            threshold(0.5), CROWD, retrained=[threshold(0.6)], people=REFUSED
        )
    assert not found.success
    at = found.curve.loc[found.curve["delta"] == found.delta].iloc[0]
    assert at["robust_of_accepted"] >= found.min_robust_share == 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        allowed = pp.calibrate_delta(
            threshold(0.5), CROWD, retrained=[threshold(0.6)], people=REFUSED, min_robust_share=0
        )
    assert allowed.success
    assert allowed.delta > found.delta


def test_where_every_delta_leaves_too_few_best_is_named_and_scarce():
    with pytest.warns(CalibrationWarning, match="1 of 32"):
        found = pp.calibrate_delta(
            threshold(0.5), CROWD, retrained=[threshold(0.6)], people=REFUSED, deltas=[0.07]
        )
    assert found.delta == 0.07
    assert found.too_few_robust_rows
    assert not found.success
