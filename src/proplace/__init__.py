"""Counterfactual explanations with a proof that they survive small changes to the model."""

from proplace.core import errors as errors
from proplace.core.lazy_names import lazy_names

__version__ = "0.3.0"
__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
