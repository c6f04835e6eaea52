"""PROPLACE in the tables: its two exact searches, its shift sets, and its requests.

- ``PROPLACE``: the tree search within delta. ``PROPLACE-Algorithm-1``: the algorithm of the paper.
- ``PROPLACE-calibrated``: the smallest delta at which 99.9% of the counterfactuals of the calibration
  are valid.
- ``PROPLACE-networks``: the networks of the calibration are required beside the current one, all within
  one radius. With half of them required, it is the smallest at which nine of ten others accept every
  counterfactual of the calibration.
- ``PROPLACE-learned``: a shift set learned from incremental retrainings, with a coverage of 90%.
- ``PROPLACE-sparse`` and ``PROPLACE-typical``: requests for few changes and for typical points.

No row has a time limit, since results would depend on the speed of the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.shifts import Shifts
from proplace.explain.proplace import Proplace

if TYPE_CHECKING:
    from collections.abc import Callable

    from proplace.core.network import Array, Network
    from proplace.experiment.protocol import Problem

    Options = dict[str, Any]

EXACT: Options = {"gap": 0.0, "typical": False}
"""The request of the paper: the nearest counterfactual, without a gap and without a filter."""
COVERAGE = 0.9
_CALIBRATED = 0.999
_JUDGED = 10  # people of the calibration by whom a radius is chosen
_AGREEING = 0.9
_RADII = (0.125, 0.25, 0.5, 1.0)  # over delta


def by_delta(made: Problem) -> Options:
    """Return the options of a shift set of one delta."""
    return {"delta": made.delta}


def by_calibrated_delta(made: Problem) -> Options:
    """Return the smallest delta of the curve that is valid enough, or the most valid one."""
    curve = made.curve[made.curve["robust"] * len(made.rows) >= made.settings.k]
    good = curve[curve["validity"] >= _CALIBRATED]
    if len(good):
        return {"delta": float(good["delta"].min())}
    return {"delta": float(curve["delta"].to_numpy()[curve["validity"].argmax()])}


def by_networks(made: Problem) -> Options:
    """Return the known networks and a radius around each of them."""
    known = made.nets.calibration
    required, judges = known[::2], known[1::2]
    radius = _RADII[0] * made.delta
    for factor in _RADII:
        options = _within(factor * made.delta, required)
        found = answers(made, options, EXACT, made.validation[:_JUDGED])
        if np.isnan(found).any():
            break  # too few rows are robust
        radius = factor * made.delta
        if np.mean([(net.predict(found) == 1).all() for net in judges]) >= _AGREEING:
            break
    return _within(radius, known)


def _within(radius: float, required: list[Network]) -> Options:
    return {"delta": radius, "required_models": [(net, radius) for net in required]}


def by_learned_set(made: Problem) -> Options:
    """Return a shift set learned from incremental retrainings."""
    return {"delta": Shifts.learn(made.nets.history, COVERAGE)}


OURS: dict[str, tuple[Callable[[Problem], Options], Options, Options]] = {
    "PROPLACE": (by_delta, {}, EXACT),
    "PROPLACE-Algorithm-1": (by_delta, {"search": "bilevel"}, EXACT),
    "PROPLACE-calibrated": (by_calibrated_delta, {}, EXACT),
    "PROPLACE-networks": (by_networks, {}, EXACT),
    "PROPLACE-learned": (by_learned_set, {}, EXACT),
    "PROPLACE-sparse": (by_delta, {}, {"prefer": "sparse"}),
    "PROPLACE-typical": (by_delta, {}, {"gap": 0.0, "typical": True}),
}
"""Shift set, other options and request of each row."""


def explainer(made: Problem, options: Options) -> Proplace:
    """Return PROPLACE with the k of the data set, fitted to the rows of the problem."""
    plain: Options = {"schema": made.schema, "k": made.settings.k, "time_limit": None}
    method = Proplace(made.net, **plain, **options)
    method.proves_ranges = False  # the paper proves none
    return method.fit(made.rows)


def answers(made: Problem, options: Options, request: Options, people: Array) -> Array:
    """Return one counterfactual per person, or a row of NaN."""
    return points(explainer(made, options).explain(people, **request), made.net)


def points(found: Any, net: Network) -> Array:
    """Return the encoded counterfactuals of explanations, with NaN for a person without one."""
    none = np.full(net.inputs, np.nan)
    return np.array(
        [none if e.encoded_counterfactual is None else e.encoded_counterfactual for e in found]
    ).reshape(-1, net.inputs)
