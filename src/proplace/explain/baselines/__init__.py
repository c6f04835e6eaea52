"""The methods PROPLACE is compared with, one file each, all with the interface of ``Proplace``."""

from proplace.explain.baselines.base import Baseline, Candidate, RobustBaseline
from proplace.explain.baselines.methods import METHODS
from proplace.explain.baselines.milpr import MilpR
from proplace.explain.baselines.protor import ProtoR
from proplace.explain.baselines.published import published
from proplace.explain.baselines.rbr import Rbr
from proplace.explain.baselines.rnce import Rnce
from proplace.explain.baselines.roar import Roar
from proplace.explain.baselines.robx import RobX
from proplace.explain.baselines.wachter import Wachter

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
