"""Recourse that survives retraining: provably robust and plausible counterfactual explanations."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from proplace.core import errors

if TYPE_CHECKING:
    from proplace.baselines import MilpR, ProtoR, Rbr, Rnce, Roar, RobX, Wachter
    from proplace.batch import read_results
    from proplace.calibrate.delta import Calibration, calibrate_delta
    from proplace.certification import (
        Certificate,
        CertificateBundle,
        CertificationResult,
        FixedPrediction,
        WorstCase,
    )
    from proplace.core.network import Network
    from proplace.core.shifts import Shifts
    from proplace.explain.proplace import Proplace
    from proplace.explain.results import Explanation, Explanations
    from proplace.explain.robustness import certify, output_range, worst_case
    from proplace.explain.words import Wording
    from proplace.ledger.audit import Audit
    from proplace.ledger.ledger import Ledger
    from proplace.loaders.model import Model
    from proplace.retrain.keras import StayWithin
    from proplace.retrain.promised import Promised
    from proplace.retrain.last_layer import Repair, repair
    from proplace.retrain.sklearn import refit_within
    from proplace.retrain.torch import stay_within
    from proplace.schema import Binary, Categorical, Continuous, IfThen, Linear, Ordinal, Schema

__all__ = [
    "Audit",
    "Binary",
    "Calibration",
    "Categorical",
    "Certificate",
    "CertificateBundle",
    "CertificationResult",
    "Continuous",
    "Explanation",
    "Explanations",
    "FixedPrediction",
    "IfThen",
    "Ledger",
    "Linear",
    "MilpR",
    "Model",
    "Network",
    "Ordinal",
    "Promised",
    "Proplace",
    "ProtoR",
    "Rbr",
    "Repair",
    "Rnce",
    "Roar",
    "RobX",
    "Schema",
    "Shifts",
    "StayWithin",
    "Wachter",
    "Wording",
    "WorstCase",
    "calibrate_delta",
    "certify",
    "errors",
    "output_range",
    "read_results",
    "refit_within",
    "repair",
    "stay_within",
    "worst_case",
]
__version__ = "0.2.0"

# Where each name is made; imported when it is first asked for, so that commands start quickly.
_HOMES = {
    "read_results": "batch",
    "Calibration": "calibrate.delta",
    "calibrate_delta": "calibrate.delta",
    "CertificateBundle": "certification",
    "Certificate": "certification",
    "FixedPrediction": "certification",
    "CertificationResult": "certification",
    "WorstCase": "certification",
    "certify": "explain.robustness",
    "output_range": "explain.robustness",
    "worst_case": "explain.robustness",
    "Proplace": "explain.proplace",
    "Explanation": "explain.results",
    "Explanations": "explain.results",
    "MilpR": "baselines",
    "ProtoR": "baselines",
    "Rbr": "baselines",
    "Rnce": "baselines",
    "Roar": "baselines",
    "RobX": "baselines",
    "Wachter": "baselines",
    "Audit": "ledger.audit",
    "Ledger": "ledger.ledger",
    "Promised": "retrain.promised",
    "Repair": "retrain.last_layer",
    "repair": "retrain.last_layer",
    "Model": "loaders.model",
    "Network": "core.network",
    "Wording": "explain.words",
    "Binary": "schema",
    "Categorical": "schema",
    "Continuous": "schema",
    "IfThen": "schema",
    "Linear": "schema",
    "Ordinal": "schema",
    "Schema": "schema",
    "Shifts": "core.shifts",
    "StayWithin": "retrain.keras",
    "refit_within": "retrain.sklearn",
    "stay_within": "retrain.torch",
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
