"""Delta-robustness: whether every network within delta keeps the verdict."""

from proplace.certification.api import Report, WorstCase, certify, output_range, worst_case

__all__ = ["Report", "WorstCase", "certify", "output_range", "worst_case"]
