"""Delta-robustness: prove that every network within delta gives a class, or find one that does not.

Other packages use only the names listed here, and :mod:`proplace.certification.checker`, which
stands alone.
"""

from proplace.certification.attacks import Attack, PointRobustness
from proplace.certification.certificate import (
    Certificate,
    CertificateBundle,
    FixedPrediction,
    Proof,
    canonical,
    covers,
    digest,
    parameters,
    parameters_of_shifts,
    read_proof,
    written,
)
from proplace.certification.checker import Verdict
from proplace.certification.engine import FULL, Budget
from proplace.certification.fixed import STRICT, Choice, FixedPredictionSearch, Space
from proplace.certification.guarantee import GuaranteeResult, prove, together
from proplace.certification.input_boxes import InputBox, InputBoxes
from proplace.certification.proofs import Certificates, Evidence
from proplace.certification.robustness import (
    CertificationResult,
    WorstCase,
    certify,
    lower_margins,
    output_range,
    worst_case,
)
from proplace.certification.roundoff import (
    DOUBLE,
    UNCOVERED_ADVICE,
    Margin,
    checked_margin,
    required_margins,
    rounding_error,
    thresholds,
)

__all__ = [
    "DOUBLE",
    "FULL",
    "STRICT",
    "UNCOVERED_ADVICE",
    "Attack",
    "Budget",
    "Certificate",
    "CertificateBundle",
    "Certificates",
    "CertificationResult",
    "Choice",
    "Evidence",
    "FixedPrediction",
    "FixedPredictionSearch",
    "GuaranteeResult",
    "InputBox",
    "InputBoxes",
    "Margin",
    "PointRobustness",
    "Proof",
    "Space",
    "Verdict",
    "WorstCase",
    "canonical",
    "certify",
    "checked_margin",
    "covers",
    "digest",
    "lower_margins",
    "output_range",
    "parameters",
    "parameters_of_shifts",
    "prove",
    "read_proof",
    "required_margins",
    "rounding_error",
    "thresholds",
    "together",
    "worst_case",
    "written",
]
