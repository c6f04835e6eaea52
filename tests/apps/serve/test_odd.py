"""Odd levels, odd numbers, odd names of hosts: what is refused, and what is taken as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("jinja2")

from starlette.datastructures import FormData

import proplace as pp
import small_promises as small
from proplace.apps.serve.config import config_of
from proplace.apps.serve.models import engines_of
from proplace.apps.serve.pages.fields import fields_of, person_from
from proplace.core.errors import OptionError
from served import API, PERSON, opened, settings, write_files


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


# -- what may change, who can be looked up, and what the model itself says ---------------------------


def test_an_empty_list_of_what_may_change_frees_nothing(served):
    """Also where something is locked beside it: the others stay as they are."""
    for more in ({}, {"locked": ["debt"]}):
        asked = {"people": [PERSON], "options": {"changeable": [], **more}}
        answer = served.client("reader").post(f"{API}/models/lender/explain", json=asked)
        assert answer.status_code == 422
        assert "nothing is left that may change" in answer.text


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "b", "a"], "rows 0 and 2 have the same 'customer' \\(a\\)"),
        (["a", "b", " b "], "rows 1 and 2 have the same"),
        (["a", "", "c"], "row 1 has no 'customer'"),
        (["a", "b", "  "], "row 2 has no 'customer'"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_everybody_who_can_be_looked_up_has_an_id_of_their_own(tmp_path, ids, message, kind):
    """Else somebody would be shown in the place of somebody else."""
    write_files(tmp_path)
    table = small.refused(3).assign(customer=ids)
    if kind == "csv":
        table.to_csv(tmp_path / "people.csv", index=False)
    else:
        table.replace({"customer": {"": None}}).to_parquet(tmp_path / "people.parquet", index=False)
    facts = settings(tmp_path)
    facts["models"]["lender"]["people"] = tmp_path / f"people.{kind}"
    with pytest.raises(OptionError, match=message):
        engines_of(config_of(facts))


def test_ids_are_found_without_the_spaces_around_them(tmp_path):
    write_files(tmp_path)
    small.refused(2).assign(customer=[" a", "b"]).to_csv(tmp_path / "people.csv", index=False)
    engine = engines_of(config_of(settings(tmp_path)))["lender"]
    assert [engine.person(number) is None for number in ("a", "b", " a")] == [False, False, True]


def test_a_verdict_has_the_decision_of_the_model_itself(served, monkeypatch):
    """Its own arithmetic decides at ties, in certify as in predict."""
    engine = served.service.engines["lender"]
    today = served.client("reader").post(f"{API}/models/lender/predict", json={"people": [PERSON]})
    other = 1 - today.json()[0]["label"]
    model = replace(engine.model, _original=lambda table: [other] * len(table))
    monkeypatch.setattr(engine, "model", model)
    for path in ("predict", "certify"):
        asked = {"people": [PERSON]}
        (found,) = served.client("reader").post(f"{API}/models/lender/{path}", json=asked).json()
        assert (found["label"], found["accepted"]) == (other, other == engine.target), path
