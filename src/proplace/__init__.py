"""Recourse that survives retraining: provably robust and plausible counterfactual explanations."""

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
from proplace.network import Network
from proplace.schema import Binary, Categorical, Continuous, IfThen, Linear, Ordinal, Schema
from proplace.shifts import Shifts

__all__ = [
    "Binary",
    "Categorical",
    "Certificate",
    "Continuous",
    "Explanation",
    "Explanations",
    "IfThen",
    "Linear",
    "Network",
    "Ordinal",
    "Proplace",
    "Report",
    "Schema",
    "Shifts",
    "WorstCase",
    "certify",
    "output_range",
    "worst_case",
]
__version__ = "0.1.0"
