"""Choosing delta: trials on retrained models, refits, and conformal statements."""

from proplace.calibrate.conformal import HeldOutResult
from proplace.calibrate.delta import Calibration, CalibrationWarning, calibrate_delta

__all__ = ["Calibration", "CalibrationWarning", "HeldOutResult", "calibrate_delta"]
