"""Calibration of delta on networks whose answer is known."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import proplace as pp
from proplace.calibration import NoRobustRows, _short
from proplace.errors import InputError, MissingExtra, OptionError


def threshold(t):
    """A network of one input that accepts x >= t."""
    return pp.Network([([[1.0]], [-t])])


ROWS = [[0.1], [0.2], [0.8], [0.9], [1.0]]
REFUSED = [[0.1], [0.3]]


def least_delta(t, new):
    """The answer at delta solves (1 - d) x = t + d; it is accepted by the new network from here."""
    return (new - t) / (1.0 + new)


def test_the_smallest_delta_whose_answers_stay_valid():
    exact = least_delta(0.5, 0.6)
    deltas = [0.5 * exact, 0.99 * exact, 1.01 * exact, 2.0 * exact]
    found = pp.calibrate_delta(threshold(0.5), [threshold(0.6)], ROWS, REFUSED, deltas=deltas)
    assert found.reached
    assert found.delta == deltas[2]
    assert found.curve["validity"].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert found.curve["robust"].tolist() == [0.6, 0.6, 0.6, 0.6]
    assert found.curve["answered"].tolist() == [1.0] * 4
    answers = [(0.5 + d) / (1.0 - d) for d in deltas]
    expected = [np.mean([a - 0.1, a - 0.3]) for a in answers]
    np.testing.assert_allclose(found.curve["distance"], expected, atol=1e-3)


def test_without_a_list_the_delta_is_found_within_the_last_step():
    exact = least_delta(0.5, 0.6)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoRobustRows)
        found = pp.calibrate_delta(threshold(0.5), [threshold(0.6)], ROWS, REFUSED)
    assert exact * 0.99 <= found.delta <= exact * 1.07
    below = found.curve.loc[found.curve["delta"] < found.delta, "validity"]
    assert (below < 1.0).all()
    # No row is robust beyond (1 - d) = 0.5 + d, and the curve comes near to that.
    assert 0.23 <= found.curve["delta"].max() <= 0.25


def test_rows_that_occur_twice_count_once():
    found = pp.calibrate_delta(
        threshold(0.5),
        [threshold(0.6)],
        ROWS + ROWS[:1] * 5 + ROWS[-1:] * 2,
        REFUSED,
        deltas=[0.07],
    )
    assert found.curve["robust"].tolist() == [0.6]


@pytest.mark.parametrize("bad", [[[0.1], [np.nan]], [[np.nan]]])
def test_a_validation_row_that_cannot_be_read_is_named(bad):
    """It was left out without a word, or taken for one that is accepted already."""
    row = len(bad) - 1
    with pytest.raises(InputError, match=rf"a validation row cannot be read: row {row}, column"):
        pp.calibrate_delta(threshold(0.5), [threshold(0.6)], ROWS, bad, deltas=[0.07])
    schema = pp.Schema([pp.Continuous("x", 0, 1)])
    frame = pd.DataFrame({"x": [0.1, "[/b]"]}, dtype=object)
    with pytest.raises(InputError, match=r"row 1, column 'x': '\[/b\]' is not a number"):
        pp.calibrate_delta(
            threshold(0.5), [threshold(0.6)], ROWS, frame, schema=schema, deltas=[0.07]
        )


@given(st.floats(1e-6, 9e4))
def test_deltas_are_written_with_three_digits_and_never_upwards(delta):
    """What is tried is what is printed, and not beyond the largest delta that leaves a row."""
    short = _short(delta)
    assert float(f"{short:.3g}") == short
    assert 0.99 * delta <= short <= delta * (1 + 1e-15)


def test_validity_counts_pairs_of_answers_and_networks():
    others = [threshold(0.4), threshold(0.5), threshold(0.9)]
    found = pp.calibrate_delta(
        threshold(0.5), others, ROWS, REFUSED, deltas=[0.1], wanted=0.6, quantile=0.6
    )
    assert found.curve["validity"].tolist() == pytest.approx([2 / 3])
    assert found.reached
    assert found.changes.tolist() == pytest.approx([0.1, 0.0, 0.4])
    assert found.change == pytest.approx(0.4)


def test_a_delta_as_large_as_every_change_proves_validity():
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
    found = pp.calibrate_delta(net, moved, X, refused, deltas=[0.0, 0.001, largest])
    assert found.change == largest
    assert found.reached
    assert found.curve["validity"].iloc[-1] == 1.0
    assert found.curve["validity"].iloc[0] < 1.0
    again = pp.calibrate_delta(net, moved, X, refused, deltas=[0.0, 0.001, largest], n_jobs=2)
    pd.testing.assert_frame_equal(found.curve, again.curve)


def test_unreachable_validity_gives_the_best_and_warns():
    with pytest.warns(NoRobustRows, match="no delta gives a validity of 100.0%"):
        found = pp.calibrate_delta(
            threshold(0.5),
            [threshold(0.6), threshold(2.0)],
            ROWS,
            REFUSED,
            deltas=[0.01, 0.1, 0.12],
        )
    assert not found.reached
    assert found.delta == 0.1
    assert found.curve["validity"].tolist() == [0.0, 0.5, 0.5]


def test_a_delta_without_robust_rows_warns():
    with pytest.warns(NoRobustRows, match=r"no training row is robust at delta 0\.3"):
        found = pp.calibrate_delta(
            threshold(0.5), [threshold(0.55)], ROWS, REFUSED, deltas=[0.1, 0.3]
        )
    assert found.delta == 0.1
    assert found.curve["answered"].tolist() == [1.0, 0.0]
    assert np.isnan(found.curve["validity"].iloc[1])
    with pytest.raises(InputError, match="no delta leaves a robust row"):
        pp.calibrate_delta(threshold(0.5), [threshold(0.55)], ROWS, REFUSED, deltas=[0.3])


def test_changes_beyond_every_robust_row_warn():
    far = pp.Network([([[3.0]], [-1.5])])
    with pytest.warns(NoRobustRows, match="moved by 2"):
        pp.calibrate_delta(threshold(0.5), [far], ROWS, REFUSED, deltas=[0.1])


def test_a_schema_and_a_table_in_original_units():
    schema = pp.Schema([pp.Continuous("income", 0, 1000)])
    table = pd.DataFrame({"income": [100.0, 200.0, 800.0, 900.0, 1000.0]})
    found = pp.calibrate_delta(
        threshold(0.5),
        [threshold(0.6)],
        table,
        table.iloc[:2],
        schema=schema,
        deltas=[0.01, 0.07],
    )
    assert found.delta == 0.07


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"retrained": []}, "at least one retrained"),
        ({"quantile": 1.5}, "quantile must be between 0 and 1"),
        ({"wanted": -0.1}, "wanted must be between 0 and 1"),
        ({"n_jobs": 0}, "n_jobs must be a whole number >= 1, or -1"),
        ({"deltas": []}, "deltas must be"),
        ({"deltas": [float("nan")]}, "deltas must be"),
        ({"X_valid": [[0.9]]}, "no validation row is refused"),
        ({"X_train": [[0.1]]}, "no training row has class 1"),
    ],
)
def test_wrong_calls_say_what_is_wrong(change, words):
    call = {
        "net": threshold(0.5),
        "retrained": [threshold(0.6)],
        "X_train": ROWS,
        "X_valid": REFUSED,
    }
    with pytest.raises((InputError, OptionError), match=words):
        pp.calibrate_delta(**{**call, **change})


def test_the_plot_shows_the_curve(tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    found = pp.calibrate_delta(threshold(0.5), [threshold(0.6)], ROWS, REFUSED)
    found.plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    figure, axes = pyplot.subplots()
    assert found.plot(axes) is axes
    assert axes.get_xscale() == "log"
    drawn = {line.get_label(): line for line in axes.lines}
    np.testing.assert_array_equal(
        drawn["valid after retraining"].get_ydata(), found.curve["validity"]
    )
    np.testing.assert_array_equal(drawn["training rows robust"].get_ydata(), found.curve["robust"])
    pyplot.close(figure)
    with_zero = pp.calibrate_delta(
        threshold(0.5), [threshold(0.6)], ROWS, REFUSED, deltas=[0.0, 0.07]
    )
    figure, axes = pyplot.subplots()
    assert with_zero.plot(axes).get_xscale() == "linear"  # zero has no place on a logarithmic axis
    pyplot.close(figure)


def test_the_plot_without_matplotlib_names_the_extra(monkeypatch, tmp_path):
    found = pp.calibrate_delta(threshold(0.5), [threshold(0.6)], ROWS, REFUSED, deltas=[0.07])
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingExtra, match=r"proplace\[plot\]"):
        found.plot(tmp_path / "curve.png")
