"""Errors and warnings of the package. Each is also the standard one a caller would expect.

Import of frameworks that may not be installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import ModuleType


class ProplaceError(Exception):
    """Base of every error raised on purpose by this package.

    Attributes
    ----------
    name
        The option, feature, column or file that is wrong; None if the error concerns no single one.
    value
        The value that was given for it.
    row
        Position of the row that is wrong.
    """

    def __init__(
        self,
        message: str = "",
        *,
        name: str | None = None,
        value: object = None,
        row: int | None = None,
    ) -> None:
        super().__init__(message)
        self.name = name
        self.value = value
        self.row = row

    def __reduce__(self) -> tuple[object, ...]:
        # Python 3.11 forgets the name of an AttributeError or ImportError that is pickled.
        return type(self), self.args, {**vars(self), "name": self.name}


class NetworkError(ProplaceError, ValueError):
    """The layers do not form a network: wrong shapes, no layers, NaN or infinite parameters."""


class InputError(ProplaceError, ValueError):
    """Rows do not fit the network: wrong number of columns, not numeric, NaN or infinite."""


class TargetError(ProplaceError, ValueError):
    """The wanted class does not exist in this network."""


class DeltaError(ProplaceError, ValueError):
    """The size of the parameter shifts is not a finite, non-negative number per layer."""


class ModelNotSupportedError(ProplaceError, ValueError):
    """A model of another framework holds something that is not a plain ReLU network."""


class ModelMismatchError(ProplaceError, ValueError):
    """A model itself and what was read of it give a row different classes."""


class ModelFileError(ProplaceError, ValueError):
    """A model file is missing, damaged or of a kind that is not read."""


class SchemaError(ProplaceError, ValueError):
    """A schema, or a table read through it, is not as declared."""


class OptionError(ProplaceError, ValueError):
    """An option of a call has a value outside what it allows."""


class NotFittedError(OptionError, AttributeError):
    """An explainer was used before ``fit``."""


class CertificateError(ProplaceError, ValueError):
    """A file is not a certificate, or a certificate could not be made."""


class SolverError(ProplaceError, RuntimeError):
    """A linear or mixed-integer solver did not do what it was asked."""


class MissingExtraError(ProplaceError, ImportError):
    """An optional dependency is needed and not installed."""

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> Self:
        """Return the error about a package, with the command that installs it."""
        return cls(
            f"{purpose} needs the package {package!r}; "
            f"install it with: pip install 'proplace[{extra}]'",
            name=package,
        )


class TableError(ProplaceError, ValueError):
    """A table file is missing, damaged, or does not hold the columns that are needed."""


class RowsSkippedWarning(UserWarning):
    """Rows of a training table cannot be used and were left out; the text says how many, and why."""


class OutputError(ProplaceError, OSError):
    """A result cannot be written, or would take the place of something else."""


class WorkerError(ProplaceError, RuntimeError):
    """The processes that explain rows do not work."""


class ResultsError(ProplaceError, ValueError):
    """A folder of results cannot be read: it is unfinished, damaged or of another version."""


class LedgerError(ProplaceError, ValueError):
    """A ledger of promises cannot be opened, or refuses what it is asked to write."""


class NotInLedgerError(LedgerError, LookupError):
    """There is no promise or audit of this number in a ledger."""


class TamperedError(LedgerError):
    """The content of a ledger was changed after it was written."""


def require(package: str, extra: str, purpose: str) -> ModuleType:
    """Import ``package``, or say which extra installs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError.of(package, extra, purpose) from error
