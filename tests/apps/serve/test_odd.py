"""Odd levels, odd numbers, odd names of hosts: what is refused, and what is taken as it is."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("jinja2")

from starlette.datastructures import FormData

import proplace as pp
from proplace.apps.serve.pages.fields import fields_of, person_from
from served import opened


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with opened(tmp_path_factory.mktemp("odd")) as found:
        yield found


# -- levels and numbers of a form --------------------------------------------------------------------

ODD = (
    pp.Categorical("job", [" cook", "cook", "cook ", "1", "1.0", " "]),
    pp.Ordinal("grade", [" low", " high"]),
    pp.Binary("own", ["no ", "no"]),
)


@pytest.mark.parametrize("feature", ODD, ids=lambda feature: feature.name)
def test_a_form_brings_back_the_level_that_was_chosen(feature):
    """Whatever spaces are around it: another level would have another decision."""
    for label in feature.labels:
        (field,) = fields_of([feature], {feature.name: label}, lambda key, **_: key)
        assert field.text in [choice.text for choice in field.choices]
        assert person_from(FormData({field.key: field.text}), [feature]) == {feature.name: label}


def test_spaces_around_a_level_that_has_none_are_forgiven():
    feature = pp.Categorical("job", ["cook", " clerk"])
    for sent, found in (("cook ", "cook"), ("clerk", "clerk"), (" clerk", " clerk")):
        assert person_from(FormData({"is:job": sent}), [feature]) == {"job": found}
    for blank in ("", " ", "\t"):
        assert person_from(FormData({"is:job": blank}), [feature]) == {}
