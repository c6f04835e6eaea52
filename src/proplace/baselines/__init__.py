"""The methods PROPLACE is compared with, one file each, all with the interface of ``Proplace``."""

from proplace.baselines.base import Baseline, Candidate, RobustBaseline
from proplace.baselines.methods import METHODS
from proplace.baselines.milpr import MilpR
from proplace.baselines.protor import ProtoR
from proplace.baselines.published import published
from proplace.baselines.rbr import Rbr
from proplace.baselines.rnce import Rnce
from proplace.baselines.roar import Roar
from proplace.baselines.robx import RobX
from proplace.baselines.wachter import Wachter

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
