"""Recourse that survives retraining: provably robust and plausible counterfactual explanations."""

from proplace.core import errors as errors
from proplace.core.lazy_names import lazy_names

__version__ = "0.3.0"
__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
