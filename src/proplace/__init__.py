"""Recourse that survives retraining: provably robust and plausible counterfactual explanations."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from proplace import errors

if TYPE_CHECKING:
    from proplace.batch import read_results
    from proplace.calibration import Calibration, calibrate_delta
    from proplace.certification import Certificate, Report, WorstCase
    from proplace.explainer import Proplace
    from proplace.explanations import Explanation, Explanations
    from proplace.methods import MilpR, ProtoR, Rbr, Rnce, Roar, RobX, Wachter
    from proplace.model import Model
    from proplace.network import Network
    from proplace.report import Wording
    from proplace.robustness import certify, output_range, worst_case
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
    "Model",
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
    "errors",
    "output_range",
    "read_results",
    "worst_case",
]
__version__ = "0.1.0"

# Where each name is made; imported when it is first asked for, so that commands start quickly.
_HOMES = {
    "read_results": "batch",
    "Calibration": "calibration",
    "calibrate_delta": "calibration",
    "Certificate": "certification",
    "Report": "certification",
    "WorstCase": "certification",
    "certify": "robustness",
    "output_range": "robustness",
    "worst_case": "robustness",
    "Proplace": "explainer",
    "Explanation": "explanations",
    "Explanations": "explanations",
    "MilpR": "methods",
    "ProtoR": "methods",
    "Rbr": "methods",
    "Rnce": "methods",
    "Roar": "methods",
    "RobX": "methods",
    "Wachter": "methods",
    "Model": "model",
    "Network": "network",
    "Wording": "report",
    "Binary": "schema",
    "Categorical": "schema",
    "Continuous": "schema",
    "IfThen": "schema",
    "Linear": "schema",
    "Ordinal": "schema",
    "Schema": "schema",
    "Shifts": "shifts",
}


if not TYPE_CHECKING:  # for type checkers a name that is not imported above is an error

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
