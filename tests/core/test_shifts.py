"""The box of parameter changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import proplace as pp
from proplace.core.errors import DeltaError, ProplaceError

NET = pp.Network([([[1.0, 2.0]], [0.5]), ([[1.0]], None), ([[1.0], [2.0]], [0.0, 1.0])])
RADII = st.floats(0, 1e6)


@pytest.mark.parametrize("delta", [0.25, np.float32(0.25), np.float64(0.25)])
def test_one_number_holds_for_all_layers(delta):
    shifts = pp.Shifts.of(NET, delta)
    assert shifts.weight == (0.25, 0.25, 0.25)
    assert shifts.bias == (0.25, 0.0, 0.25)  # no bias, nothing to shift


@pytest.mark.parametrize("delta", [0, 1, np.int64(1)])
def test_whole_numbers(delta):
    shifts = pp.Shifts.of(NET, delta)
    assert shifts.weight == (float(delta),) * 3
    assert all(isinstance(radius, float) for radius in shifts.weight + shifts.bias)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.tuples(RADII, RADII), min_size=3, max_size=3))
def test_one_pair_per_layer(pairs):
    for delta in (pairs, tuple(pairs), np.array(pairs)):
        shifts = pp.Shifts.of(NET, delta)
        assert shifts.weight == tuple(w for w, _ in pairs)
        assert shifts.bias == (pairs[0][1], 0.0, pairs[2][1])
    assert pp.Shifts.of(NET, shifts) == shifts
    assert hash(pp.Shifts.of(NET, pairs)) == hash(shifts)


@pytest.mark.parametrize(
    ("delta", "message"),
    [
        (-0.1, "finite and not negative; layer 1"),
        (np.nan, "finite and not negative"),
        (np.inf, "finite and not negative"),
        ([(0.1, 0.1), (0.1, -0.1), (0.1, 0.1)], "layer 2 has"),
        ([(0.1, 0.1), (0.1, 0.1), (np.nan, 0.1)], "layer 3 has"),
        ([(0.1, 0.1)], r"1 \(weight, bias\) pairs but the network has 3"),
        ([(0.1, 0.1)] * 4, r"4 \(weight, bias\) pairs but the network has 3"),
        ([], r"0 \(weight, bias\) pairs"),
        ([0.1, 0.1, 0.1], r"one \(weight, bias\) pair per layer"),
        ([(0.1, 0.1, 0.1)] * 3, r"one \(weight, bias\) pair per layer"),
        ("0.1", r"a number or one"),
        ([("a", "b")] * 3, "a number or one"),
        (None, "a number or one"),
        (True, "a number or one"),
        (pp.Shifts((0.1,), (0.1,)), "1 .* pairs but the network has 3"),
        (pp.Shifts((0.1, np.nan, 0.1), (0.1, 0.1, 0.1)), "layer 2 has"),
        (pp.Shifts((0.1, -1.0, 0.1), (0.1, 0.1, 0.1)), "layer 2 has"),
    ],
)
def test_what_is_not_a_delta(delta, message):
    calls = [
        lambda: pp.Shifts.of(NET, delta),
        lambda: pp.certify(NET, [[0.0, 0.0]], delta),
        lambda: pp.worst_case(NET, [0.0, 0.0], delta),
        lambda: pp.output_range(NET, [[0.0, 0.0]], delta),
    ]
    for call in calls:
        with pytest.raises(DeltaError, match=message) as caught:
            call()
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, ProplaceError)


def test_shifts_of_another_network_do_not_move_a_bias_that_is_absent():
    shifts = pp.Shifts.of(NET, pp.Shifts((0.1, 0.1, 0.1), (0.1, 0.1, 0.1)))
    assert shifts.bias == (0.1, 0.0, 0.1)


def test_as_many_weight_radii_as_bias_radii():
    with pytest.raises(DeltaError, match="2 weight radii but 1 bias radii"):
        pp.Shifts((0.1, 0.1), (0.1,))


def test_shifts_are_immutable():
    with pytest.raises(AttributeError):
        pp.Shifts.of(NET, 0.1).weight = (0.0,)


def test_one_radius_is_that_of_every_parameter():
    assert pp.Shifts.of(NET, 0.25).radius(NET) == 0.25  # the layer without bias has none to shift
    assert pp.Shifts.of(NET, 0.0).radius(NET) == 0.0
    for frozen in ([(0.1, 0.0)] * 3, [(0.1, 0.1), (0.1, 0.0), (0.1, 0.0)], [(0.1, 0.2)] * 3):
        assert pp.Shifts.of(NET, frozen).radius(NET) is None
    assert pp.Shifts.of(NET, [(0.1, 0.1), (0.1, 0.7), (0.1, 0.1)]).radius(NET) == 0.1
