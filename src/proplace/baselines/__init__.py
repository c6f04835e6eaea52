"""The methods PROPLACE is compared with, one file each, all with the interface of ``Proplace``."""

from __future__ import annotations

from typing import Any

from proplace.baselines.base import Baseline, Candidate, RobustBaseline
from proplace.baselines.milpr import MilpR
from proplace.baselines.protor import ProtoR
from proplace.baselines.rbr import Rbr
from proplace.baselines.rnce import Rnce
from proplace.baselines.roar import Roar
from proplace.baselines.robx import RobX
from proplace.baselines.wachter import Wachter
from proplace.core.errors import OptionError

__all__ = [
    "METHODS",
    "Baseline",
    "Candidate",
    "MilpR",
    "ProtoR",
    "Rbr",
    "Rnce",
    "Roar",
    "RobX",
    "RobustBaseline",
    "Wachter",
    "published",
]

METHODS: dict[str, type[Any]] = {
    "WCE": Wachter,
    "RBR": Rbr,
    "RobX": RobX,
    "ROAR": Roar,
    "PROTO-R": ProtoR,
    "MILP-R": MilpR,
    "RNCE": Rnce,
}
"""Methods by their name in tables. A method that is added here is known wherever methods are named."""

_EVERYWHERE: dict[str, dict[str, Any]] = {
    "WCE": {"rate": 0.01, "penalty": 0.01, "iterations": 100},
    "RBR": {
        "delta_plus": 1.0,
        "sigma": 1.0,
        "epsilon_op": 1.0,
        "epsilon_pe": 1.0,
        "samples": 200,
        "candidates": 1000,
        "iterations": 500,
    },
    "RobX": {"tau": 0.5, "sigma": 0.1, "samples": 1000},
    "ROAR": {},
    "PROTO-R": {"kappas": (0.1, 0.8, 1.0), "theta": 10.0, "k": 20},
    "MILP-R": {"start": 0.02, "step": 0.2},
    "RNCE": {},
}

_ROAR = ("rate", "penalty", "delta_max")
_BY_DATA: dict[str, dict[str, dict[str, Any]]] = {
    "adult": {
        "ROAR": dict(zip(_ROAR, (0.04, 0.1, 0.001), strict=True)),
        "MILP-R": {"delta": 0.05},
    },
    "compas": {
        "ROAR": dict(zip(_ROAR, (0.01, 0.01, 0.004), strict=True)),
        "MILP-R": {"delta": 0.03},
    },
    "gmc": {
        "WCE": {"rate": 0.1, "penalty": 0.001},
        "RobX": {"tau": 0.6},
        "ROAR": dict(zip(_ROAR, (0.1, 0.08, 0.2), strict=True)),
        "MILP-R": {"delta": 0.08},
    },
    "heloc": {
        "ROAR": dict(zip(_ROAR, (0.008, 0.02, 0.01), strict=True)),
        "MILP-R": {"delta": 0.04},
    },
}


def published(name: str, dataset: str) -> dict[str, Any]:
    """Return the keyword arguments of a method in the published run on a data set.

    ``delta`` is among them for MILP-R only, which was run at a larger delta than it was measured at.
    PROTO-R (and RNCE, which was not in the table) take the delta of the evaluation. A method that
    was added to ``METHODS`` since then has no such arguments: it runs with its defaults.

    Examples
    --------
    >>> published("MILP-R", "compas")
    {'start': 0.02, 'step': 0.2, 'delta': 0.03}
    """
    key = dataset.lower()
    if name not in METHODS:
        raise OptionError(
            f"{name!r} is not a method; methods: {', '.join(METHODS)}", name="name", value=name
        )
    if key not in _BY_DATA:
        raise OptionError(
            f"{dataset!r} was not in the comparison; data: {', '.join(_BY_DATA)}",
            name="dataset",
            value=dataset,
        )
    return _EVERYWHERE.get(name, {}) | _BY_DATA[key].get(name, {})
