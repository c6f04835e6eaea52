"""Recourse that survives retraining: provably robust and plausible counterfactual explanations."""

from proplace.calibration import Calibration, calibrate_delta
from proplace.certification import (
    Certificate,
    Report,
    WorstCase,
    certify,
    output_range,
    worst_case,
)
from proplace.explainer import Proplace
from proplace.explanations import Explanation, Explanations
from proplace.methods import MilpR, ProtoR, Rbr, Rnce, Roar, RobX, Wachter
from proplace.network import Network
from proplace.report import Wording
from proplace.schema import Binary, Categorical, Continuous, IfThen, Linear, Ordinal, Schema
from proplace.shifts import Shifts

__all__ = [
    "Binary",
    "Calibration",
    "Categorical",
    "Certificate",
    "Continuous",
    "Explanation",
    "Explanations",
    "IfThen",
    "Linear",
    "MilpR",
    "Network",
    "Ordinal",
    "Proplace",
    "ProtoR",
    "Rbr",
    "Report",
    "Rnce",
    "Roar",
    "RobX",
    "Schema",
    "Shifts",
    "Wachter",
    "Wording",
    "WorstCase",
    "calibrate_delta",
    "certify",
    "output_range",
    "worst_case",
]
__version__ = "0.1.0"
