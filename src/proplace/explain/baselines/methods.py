"""The methods by their names; one that is added here is known wherever methods are named."""

from __future__ import annotations

from typing import Any

from proplace.explain.baselines.milpr import MilpR
from proplace.explain.baselines.protor import ProtoR
from proplace.explain.baselines.rbr import Rbr
from proplace.explain.baselines.rnce import Rnce
from proplace.explain.baselines.roar import Roar
from proplace.explain.baselines.robx import RobX
from proplace.explain.baselines.wachter import Wachter

METHODS: dict[str, type[Any]] = {
    "WCE": Wachter,
    "RBR": Rbr,
    "RobX": RobX,
    "ROAR": Roar,
    "PROTO-R": ProtoR,
    "MILP-R": MilpR,
    "RNCE": Rnce,
}
"""Methods by the name they have in tables."""
