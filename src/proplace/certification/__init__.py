"""Delta-robustness: whether every network within delta keeps the verdict, with proofs.

What other packages may use is listed here; modules inside are not for them, except
:mod:`proplace.certification.checker`, which stands alone.
"""

from proplace.certification.api import Report, WorstCase, certify, output_range, worst_case
from proplace.certification.attacks import Attack, PointRobustness
from proplace.certification.bundle import Bundle, Proof, read_proof
from proplace.certification.certificates import Certificates, Evidence
from proplace.certification.checker import Verdict
from proplace.certification.document import canonical
from proplace.certification.engine import FULL, Budget
from proplace.certification.fixed_prediction import FixedPrediction, written
from proplace.certification.input_boxes import InputBox, InputBoxes
from proplace.certification.precision_margin import (
    DOUBLE,
    UNCOVERED_ADVICE,
    Margin,
    rounding_error,
    thresholds,
)
from proplace.certification.proof import (
    Certificate,
    covers,
    digest,
    parameters,
    parameters_of_shifts,
)
from proplace.certification.quick import lower_margins
from proplace.certification.refusal import STRICT, Choice, Refusal, Space
from proplace.certification.shift_recovery import shifted_network

__all__ = [
    "DOUBLE",
    "FULL",
    "STRICT",
    "UNCOVERED_ADVICE",
    "Attack",
    "Budget",
    "Bundle",
    "Certificate",
    "Certificates",
    "Choice",
    "Evidence",
    "FixedPrediction",
    "InputBox",
    "InputBoxes",
    "Margin",
    "PointRobustness",
    "Proof",
    "Refusal",
    "Report",
    "Space",
    "Verdict",
    "WorstCase",
    "canonical",
    "certify",
    "covers",
    "digest",
    "lower_margins",
    "output_range",
    "parameters",
    "parameters_of_shifts",
    "read_proof",
    "rounding_error",
    "shifted_network",
    "thresholds",
    "worst_case",
    "written",
]
