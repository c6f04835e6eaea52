"""Delta-robustness: whether every network within delta keeps the verdict, with proofs.

What other packages may use is listed here; modules inside are not for them, except
:mod:`proplace.certification.checker`, which stands alone. May import: network, shifts, errors, files,
progress and the linear programs.
"""

from proplace.certification.api import Report, WorstCase, certify, output_range, worst_case
from proplace.certification.attacks import Attack, PointRobustness
from proplace.certification.certificates import Certificates, Evidence
from proplace.certification.checker import Verdict
from proplace.certification.precision_margin import Margin, thresholds
from proplace.certification.proof import Certificate, parameters
from proplace.certification.shift_recovery import shifted_network

__all__ = [
    "Attack",
    "Certificate",
    "Certificates",
    "Evidence",
    "Margin",
    "PointRobustness",
    "Report",
    "Verdict",
    "WorstCase",
    "certify",
    "output_range",
    "parameters",
    "shifted_network",
    "thresholds",
    "worst_case",
]
