"""Delta-robustness: whether every network within delta keeps the verdict."""

from proplace.certification.api import Report, WorstCase, certify, output_range, worst_case
from proplace.certification.checker import Verdict
from proplace.certification.proof import Certificate

__all__ = [
    "Certificate",
    "Report",
    "Verdict",
    "WorstCase",
    "certify",
    "output_range",
    "worst_case",
]
