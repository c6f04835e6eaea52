"""The methods by their names; one that is added here is known wherever methods are named."""

from __future__ import annotations

from typing import Any

from proplace.baselines.milpr import MilpR
from proplace.baselines.protor import ProtoR
from proplace.baselines.rbr import Rbr
from proplace.baselines.rnce import Rnce
from proplace.baselines.roar import Roar
from proplace.baselines.robx import RobX
from proplace.baselines.wachter import Wachter

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
