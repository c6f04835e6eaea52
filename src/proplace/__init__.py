"""Recourse that survives retraining: provably robust and plausible counterfactual explanations."""

from proplace.network import Network
from proplace.shifts import Shifts

__all__ = ["Network", "Shifts"]
__version__ = "0.1.0"
