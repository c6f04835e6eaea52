"""Recourse that survives retraining: provably robust and plausible counterfactual explanations."""

from proplace.certification import Report, WorstCase, certify, output_range, worst_case
from proplace.network import Network
from proplace.shifts import Shifts

__all__ = ["Network", "Report", "Shifts", "WorstCase", "certify", "output_range", "worst_case"]
__version__ = "0.1.0"
