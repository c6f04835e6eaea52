"""Project files: what they hold, and that all of their problems are reported at once."""

from __future__ import annotations

import pytest
import yaml

import proplace as pp
from proplace.core.errors import OptionError
from proplace.project import Project
from support.lenders import INCOME_DEBT, LATER, NET, TRAINING, refused


@pytest.fixture
def folder(tmp_path):
    """The files of a small lender."""
    NET.save(tmp_path / "lender.npz")
    INCOME_DEBT.write(tmp_path / "schema.yaml")
    TRAINING.assign(approved=1).to_csv(tmp_path / "train.csv", index=False)
    refused(3).assign(customer=["c0", "c1", "c2"]).to_csv(tmp_path / "people.csv", index=False)
    return tmp_path


WHOLE = {
    "model": "lender.npz",
    "schema": "schema.yaml",
    "tables": {
        "train": "train.csv",
        "people": "people.csv",
        "id": "customer",
        "drop": ["approved"],
    },
    "delta": 0.01,
    "target": 1,
    "request": {"tolerance": {"income": 2}},
    "wording": {"subject": "the loan", "outcomes": {0: "refused", 1: "approved"}},
    "ledger": "promises.db",
}


def read(folder, **changes):
    """The project with some keys changed; None removes a key."""
    content = {k: v for k, v in (WHOLE | changes).items() if v is not None}
    path = folder / "proplace.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return Project.read(path)


def test_project_opens_with_model_tables_words_and_ledger(folder):
    opened = read(folder).open()
    assert opened.model.schema == INCOME_DEBT
    assert opened.train[["income", "debt"]].to_numpy().tolist() == TRAINING.to_numpy().tolist()
    assert opened.people.index.tolist() == ["c0", "c1", "c2"]
    assert opened.people.loc["c1"].to_dict() == {"income": 1, "debt": 20}
    assert (opened.target, opened.delta) == (1, 0.01)
    assert opened.request == {"tolerance": {"income": 2}}
    assert opened.wording.outcome(1, opened.model.classes) == "approved"
    assert opened.ledger == str(folder / "promises.db")
    assert not (folder / "promises.db").exists()


def test_project_without_schema_takes_names_and_order_from_table(folder):
    opened = read(folder, schema=None).open()
    assert list(opened.model.schema.by_name) == ["income", "debt"]


def test_project_takes_shift_set_in_place_of_delta(folder):
    model = pp.Model.of(folder / "lender.npz")
    pp.Shifts.bounding([NET, LATER], source=model).save(folder / "shifts.npz")
    assert isinstance(read(folder, delta="shifts.npz").open().delta, pp.Shifts)


def test_read_reports_all_problems_of_file_at_once(folder):
    with pytest.raises(OptionError) as caught:
        read(folder, model="gone.npz", delta=-1, modle="x", request={"prefer": "few", "gapp": 1})
    text = str(caught.value)
    for part in (
        "'modle' is not a known key (did you mean 'model'?)",
        "model: there is no file",
        "delta: give a positive number",
        "request: 'gapp' is not a known key (did you mean 'gap'?)",
        "request: prefer must be one of 'nearest', 'sparse'",
    ):
        assert part in text


def test_open_reports_all_problems_of_parts_at_once(folder):
    wrong = read(
        folder,
        target="yes",
        request={"tolerance": {"incom": 2}},
        tables=WHOLE["tables"] | {"id": "client"},
        wording={"outcomes": {2: "approved"}},
    )
    with pytest.raises(OptionError) as caught:
        wrong.open()
    text = str(caught.value)
    assert "target: target" in text
    assert "tables.people: people.csv has no column 'client'" in text
    assert "tolerance: 'incom' is not a feature (did you mean 'income'?)" in text
    assert "wording: outcomes has a word for 2, which is not a class" in text


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        (["a", "b", " a "], "row 2 has the same 'customer' as row 0"),
        (["a", "", "c"], "row 1 has no 'customer'"),
    ],
)
def test_people_need_unique_ids(folder, ids, problem):
    refused(3).assign(customer=ids).to_csv(folder / "people.csv", index=False)
    with pytest.raises(OptionError, match=problem):
        read(folder).open()


@pytest.mark.parametrize("text", ["", "[1, 2]", "model: [", "a: &a [*a]", "\x00"])
def test_file_that_is_not_mapping_is_one_sentence(folder, text):
    path = folder / "proplace.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(OptionError, match=r"proplace\.yaml"):
        Project.read(path)
