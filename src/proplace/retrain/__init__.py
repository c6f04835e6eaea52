"""Training that keeps promises: inside a shift set, or by the smallest change of the last layer."""

from proplace.core.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
