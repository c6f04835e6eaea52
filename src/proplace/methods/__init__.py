"""The methods PROPLACE is compared with, one file each, all with the interface of ``Proplace``."""

from typing import Any

from proplace.methods.base import Baseline, Candidate, RobustBaseline
from proplace.methods.milpr import MilpR
from proplace.methods.protor import ProtoR
from proplace.methods.published import published
from proplace.methods.rbr import Rbr
from proplace.methods.rnce import Rnce
from proplace.methods.roar import Roar
from proplace.methods.robx import RobX
from proplace.methods.wachter import Wachter

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
