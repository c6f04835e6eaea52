"""The data sets: encoding, split, repair, files."""

from __future__ import annotations

import gzip
import hashlib
import sys
import types

import numpy as np
import pandas as pd
import pytest

from proplace.core.errors import InputError, MissingExtraError, OptionError
from proplace.experiment import data
from proplace.experiment.output import LEAKS
from real_data import NAMES, dataset, folder
from support.errors import raises

COUNTS = {  # first half: rows, train label 0 / 1, test label 0 / 1, as in the authors' notebooks
    "adult": (24_415, 14_854, 4_678, 3_713, 1_170),
    "compas": (3_085, 470, 1_998, 117, 500),
    "gmc": (57_762, 3_093, 43_116, 773, 10_780),
    "heloc": (4_934, 2_045, 1_902, 511, 476),
}
SIZES = {"adult": (48_832, 13), "compas": (6_172, 7), "gmc": (115_527, 10), "heloc": (9_871, 21)}
TARGETS = {
    "adult": "income",
    "compas": "score",
    "gmc": "SeriousDlqin2yrs",
    "heloc": "RiskPerformance",
}


@pytest.mark.parametrize("name", NAMES)
def test_split_equals_published_split(name):
    d = dataset(name)
    first = d.first
    counts = [*np.bincount(d.y[first.train]), *np.bincount(d.y[first.test])]
    assert (len(first.rows), *counts) == COUNTS[name]
    everything = np.concatenate([first.train, first.test, d.second.train, d.second.test])
    assert np.array_equal(np.sort(everything), np.arange(len(d.y)))
    assert (np.diff(first.rows) > 0).all()
    share = len(d.second.test) / len(d.second.rows)
    assert share == pytest.approx(0.2, abs=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_encoding_equals_that_of_paper(name):
    d = dataset(name)
    frame = pd.read_csv(folder() / f"{name}.csv.gz")
    y = frame.pop(TARGETS[name])
    assert (y == d.y).all()
    numbers = frame.select_dtypes("number").astype(float)
    numbers = (numbers - numbers.min()) / (numbers.max() - numbers.min())
    words = frame.drop(columns=numbers.columns)
    flags = [(words[c] == sorted(words[c].unique())[1]).astype(float) for c in sorted(words)]
    expected = np.column_stack([numbers.to_numpy(), *flags])
    assert d.X.shape == SIZES[name]
    assert np.abs(d.X - expected).max() < 1e-15
    assert d.X.min() == 0.0
    assert d.X.max() == 1.0
    assert np.array_equal(d.free.encode(d.frame), d.X)
    np.testing.assert_array_equal(d.desired, d.X[d.first.rows][d.y[d.first.rows] == 1])


@pytest.mark.parametrize("name", NAMES)
def test_free_schema_restricts_nothing_but_categories(name):
    d = dataset(name)
    person = d.free.person(d.X[0])
    assert person.allowed(d.X[:3000]).all()
    fixed = [feature.name for feature in d.schema.features if feature.immutable]
    if fixed:
        assert not d.schema.person(d.X[0]).allowed(d.X[:3000]).all()
    assert {f.name for f in d.free.features} == {f.name for f in d.schema.features}


def test_immutable_features():
    def fixed(name):
        return {f.name for f in dataset(name).schema.features if f.immutable}

    assert fixed("compas") == {"age", "two_year_recid", "race", "sex"}
    assert {"sex", "race", "native-country", "fnlwgt"} <= fixed("adult")
    assert fixed("gmc") == {"age", "NumberOfDependents"}


def test_repaired_heloc_has_whole_numbers_only():
    leaky, fair = dataset("heloc"), dataset("heloc", repaired=True)
    assert (leaky.name, fair.name) == ("heloc", "heloc-repaired")
    decimals = (leaky.frame % 1 != 0).to_numpy()
    assert decimals.any(axis=1).sum() == 4_229  # rows that give their label away
    assert (fair.frame % 1 == 0).all(axis=None)
    assert np.array_equal(fair.frame.to_numpy()[~decimals], leaky.frame.to_numpy()[~decimals])
    # The imputed value is one number per column, whatever the label.
    for j, name in enumerate(fair.frame):
        if decimals[:, j].any():
            put = fair.frame[name].to_numpy()[decimals[:, j]]
            assert len(set(put)) == 1
            train = leaky.frame[name].to_numpy()[leaky.first.train]
            known = np.sort(train[train % 1 == 0])
            assert put[0] == known[(len(known) - 1) // 2]
    # As published, a leaked cell decides the label: class means differ.
    column = "NetFractionInstallBurden"
    leaked = leaky.frame[column] % 1 != 0
    values, labels = leaky.frame.loc[leaked, column].to_numpy(), leaky.y[leaked]
    assert all(len(set(labels[values == value])) == 1 for value in set(values))
    assert np.array_equal(fair.y, leaky.y)


def test_stated_leak_matches_file():
    data = dataset("heloc")
    mean = data.frame % 1 != 0
    stated = [f"{mean.any(axis=1).sum():,} of its {len(mean):,} rows"]
    assert mean.any().sum() == 10
    stated.append("ten columns")
    column = data.frame["NetFractionInstallBurden"][mean["NetFractionInstallBurden"]]
    for value, count in column.round(4).value_counts().items():
        (label,) = set(data.y[column.index[column.round(4) == value]])
        stated.append(f"{value} in {count:,} rows, all of class {label}")
    assert len(stated) == 4
    assert [each for each in stated if each not in LEAKS["heloc"]] == []


def test_unknown_names_are_rejected():
    with raises(OptionError, name="name", value="iris", match="heloc"):
        data.load("iris")
    with raises(OptionError, name="repaired", value=True):
        data.load("adult", repaired=True)


def test_changed_file_is_refused(tmp_path):
    content = gzip.decompress((folder() / "compas.csv.gz").read_bytes())
    (tmp_path / "compas.csv").write_bytes(content)
    assert len(data.load("compas", tmp_path).y) == 6_172
    (tmp_path / "compas.csv").write_bytes(content.replace(b"F", b"M", 1))
    with raises(InputError, name="compas.csv", match="SHA-256"):
        data.load("compas", tmp_path)


def test_empty_folder_is_rejected_with_names_of_files(tmp_path):
    with raises(InputError, name="folder", match="give_me_some_credit"):
        data.load("gmc", tmp_path)


def test_folder_comes_from_environment(monkeypatch):
    monkeypatch.setenv("PROPLACE_DATA", str(folder()))
    assert len(data.load("compas").y) == 6_172


def pooch_that(tmp_path, behaviour):
    fake = types.ModuleType("pooch")
    fake.os_cache = lambda name: tmp_path / name
    fake.retrieve = behaviour
    return fake


def test_download_is_pinned_and_checked_and_falls_back(monkeypatch, tmp_path):
    content = gzip.decompress((folder() / "compas.csv.gz").read_bytes())
    (tmp_path / "compas.csv").write_bytes(content)
    asked = []

    def retrieve(url, known_hash, fname, path):
        asked.append(url)
        assert known_hash == f"sha256:{hashlib.sha256(content).hexdigest()}"
        if "/main/" not in url:
            raise OSError("gone")
        return str(tmp_path / fname)

    monkeypatch.delenv("PROPLACE_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", pooch_that(tmp_path, retrieve))
    assert len(data.load("compas").y) == 6_172
    assert ["2d56677095bd11deba5d8e3731f8941b95e0a880" in url for url in asked] == [True, False]


def test_no_download_and_no_folder(monkeypatch, tmp_path):
    def retrieve(url, known_hash, fname, path):
        raise OSError("no route to host")

    monkeypatch.delenv("PROPLACE_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", pooch_that(tmp_path, retrieve))
    with raises(InputError, name="compas.csv", match="PROPLACE_DATA"):
        data.load("compas")
    monkeypatch.setitem(sys.modules, "pooch", None)
    with raises(MissingExtraError, name="pooch"):
        data.load("compas")
