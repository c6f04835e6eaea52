"""Errors and warnings of the package, and the import of optional frameworks.

Each error is also a subclass of the standard one that a caller would expect.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


class ProplaceError(Exception):
    """Base of every error raised on purpose by this package.

    Attributes
    ----------
    name
        The wrong option, feature, column or file, or None if several are wrong.
    value
        Its value.
    row
        Position of the wrong row.
    code
        Lines of Python that solve the problem. The message ends with them.
    """

    def __init__(
        self,
        message: str = "",
        *,
        name: str | None = None,
        value: object = None,
        row: int | None = None,
        code: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.code = tuple(code)
        self.name = name
        self.value = value
        self.row = row

    def __str__(self) -> str:
        """Return the message and the lines of Python."""
        return "".join([super().__str__(), *(f"\n    {line}" for line in self.code)])

    def __reduce__(self) -> tuple[object, ...]:
        # Python 3.11 loses the name of an AttributeError or ImportError that is pickled.
        return type(self), self.args, {**vars(self), "name": self.name}


class NetworkError(ProplaceError, ValueError):
    """The layers do not form a network: wrong shapes, no layers, NaN or infinite parameters."""


class InputError(ProplaceError, ValueError):
    """Rows do not fit the network: wrong number of columns, not numeric, NaN or infinite."""


class TargetError(ProplaceError, ValueError):
    """The target class does not exist in this network."""


class DeltaError(ProplaceError, ValueError):
    """The size of the parameter shifts is not a finite, non-negative number per layer."""


class ModelNotSupportedError(ProplaceError, ValueError):
    """A model of another framework has a part that is not a plain ReLU network."""


class ModelMismatchError(ProplaceError, ValueError):
    """The original model and the imported network give a row different classes."""


class ModelFileError(ProplaceError, ValueError):
    """A model file is missing, damaged or of an unsupported kind."""


class SchemaError(ProplaceError, ValueError):
    """A schema is invalid, or a table does not match it.

    Attributes
    ----------
    problems
        A sentence for each invalid field of a feature, a rule or a schema.
    """

    problems: tuple[str, ...] = ()


class OptionError(ProplaceError, ValueError):
    """An option of a call has a value that is not allowed."""


class NotFittedError(OptionError, AttributeError):
    """An explainer was used before ``fit``."""


class CertificateError(ProplaceError, ValueError):
    """A file is not a certificate, or a certificate could not be made."""


class SolverError(ProplaceError, RuntimeError):
    """A linear or mixed-integer solver failed or returned an invalid result."""


class MissingExtraError(ProplaceError, ImportError):
    """An optional dependency is needed but not installed."""

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> Self:
        """Return the error about a package, with the command that installs it."""
        return cls(
            f"{purpose} needs the package {package!r}. "
            f"Install it with: pip install 'proplace[{extra}]'",
            name=package,
        )


class TableError(ProplaceError, ValueError):
    """A table file is missing or damaged, or lacks a required column."""


class RowsSkippedWarning(UserWarning):
    """Unusable rows of a training table were left out. The text has their number and the reason."""


class DraftWarning(UserWarning):
    """A feature drafted from a table needs a decision, for example about a code such as -9."""


class OutputError(ProplaceError, OSError):
    """A result cannot be written, or would overwrite something else."""


class WorkerError(ProplaceError, RuntimeError):
    """The processes that explain rows failed."""


class ResultsError(ProplaceError, ValueError):
    """A folder of results is unfinished, damaged or of another version."""


class LedgerError(ProplaceError, ValueError):
    """A ledger of promises cannot be opened, or rejects an entry."""


class NotInLedgerError(LedgerError, LookupError):
    """A ledger has no promise or audit with this number."""


class TamperedError(LedgerError):
    """The content of a ledger was changed after it was written."""


def require(package: str, extra: str, purpose: str) -> ModuleType:
    """Import ``package``, or raise an error that names the extra to install."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError.of(package, extra, purpose) from error
