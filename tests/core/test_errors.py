"""Fields of errors survive pickling, because workers send errors back."""

from __future__ import annotations

import pickle

import pytest

from proplace.core import errors
from proplace.core.options import integer, not_negative, one_of, positive, processes
from support.errors import raises

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.ProplaceError)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_error_keeps_message_and_fields_when_pickled(kind):
    error = kind("k is wrong", name="k", value=[3], row=7)
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is kind
    assert str(found) == str(error)
    for field in ("name", "value", "row"):
        assert getattr(found, field) == getattr(error, field)


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (integer, 0),
        (processes, 0),
        (positive, 0.0),
        (not_negative, -1.0),
        (lambda name, value: one_of(name, value, ("a", "b")), "c"),
    ],
)
def test_option_errors_carry_name_and_value(check, value):
    with raises(errors.OptionError, name="size", value=value):
        check("size", value)


def test_error_is_standard_exception_that_it_resembles():
    standard = {
        errors.ModelMismatchError: ValueError,
        errors.ModelNotSupportedError: ValueError,
        errors.MissingExtraError: ImportError,
        errors.NotInLedgerError: LookupError,
        errors.OptionError: ValueError,
        errors.NotFittedError: AttributeError,
        errors.OutputError: OSError,
        errors.SolverError: RuntimeError,
        errors.DraftWarning: UserWarning,
        errors.RowsSkippedWarning: UserWarning,
    }
    for kind, expected in standard.items():
        assert issubclass(kind, expected), kind


def test_names_of_errors_end_in_error():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert len(kinds) > 15
    for kind in kinds:
        assert kind.__name__.endswith("Warning" if issubclass(kind, Warning) else "Error")
