"""The request of one call: defaults and limits of its fields."""

from __future__ import annotations

import dataclasses
import inspect
import json

import numpy as np
import pytest
import typer.main

import proplace as pp
from proplace.cli import app
from proplace.core.errors import OptionError
from proplace.core.request import DEFAULT_GAP, DEFAULT_TIME_LIMIT, Request
from support.errors import raises


def test_request_keeps_its_fields():
    assert Request(1) == Request(1, count=1, gap=DEFAULT_GAP)
    assert Request(0, 3, gap=np.float32(0.5)).gap == 0.5
    assert Request(0, gap=1).gap == 1


@pytest.mark.parametrize("gap", [-0.01, 1.01, np.nan, np.inf, "5%", None, True])
def test_request_rejects_gap_that_is_not_share(gap):
    with raises(OptionError, name="gap"):
        Request(1, gap=gap)


@pytest.mark.parametrize("count", [0, -1, 1.5, "2"])
def test_request_rejects_count_that_is_not_number_of_alternatives(count):
    with raises(OptionError, name="count"):
        Request(1, count=count)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prefer", "few"),
        ("prefer", "near"),
        ("max_changes", 0),
        ("max_changes", 1.5),
        ("typical", "yes"),
        ("typical", 2),
    ],
)
def test_request_rejects_unknown_field(name, value):
    with raises(OptionError, name=name, value=value):
        Request(1, **{name: value})


def test_request_is_sparse_if_changes_are_limited_or_preferred():
    assert not Request(1).sparse
    assert Request(1, prefer="sparse").sparse
    assert Request(1, max_changes=2).sparse
    assert Request(1).description == ""
    text = Request(1, prefer="sparse", max_changes=2, typical=False).description
    assert text == "few changes, at most 2 changes, atypical points too"


def test_library_and_command_line_share_their_defaults():
    """Options of the command line are None by default, and the help shows defaults of requests."""
    library = inspect.signature(pp.Proplace).parameters["time_limit"].default
    assert library == DEFAULT_TIME_LIMIT == 10.0
    gap = inspect.signature(pp.Proplace.explain).parameters["gap"].default
    assert gap == DEFAULT_GAP == 0.01
    line = {p.name: p for p in typer.main.get_command(app).commands["explain"].params}
    for field in dataclasses.fields(Request)[1:]:
        option = line[field.name]
        assert option.default is None
    for name, default in (
        ("gap", "0.01"),
        ("time_limit", "10"),
        ("count", "1"),
        ("prefer", "nearest"),
    ):
        assert f"Default: {default}." in line[name].help


def test_request_is_read_back_from_json():
    request = Request(
        1,
        count=3,
        prefer="sparse",
        immutable=["age", "age", "job"],
        increasing=("savings",),
        ranges={"income": (0, 90_000), "debt": [None, 5]},
    )
    assert request.immutable == ("age", "job")
    assert Request.from_dict(json.loads(json.dumps(request.to_dict()))) == request
    text = request.description
    assert (
        text
        == "few changes, age, job immutable, savings increasing, income 0 to 90000, debt at most 5"
    )
    with raises(OptionError, name="request"):
        Request.from_dict({"target": 1})
