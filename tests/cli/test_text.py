"""Text of users' files is shown as it is: on terminals with colours, in errors and in files."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import proplace as pp
from commands import good, named, run, run_on_a_terminal
from proplace.core.errors import ModelFileError, OptionError
from proplace.core.text import MESSAGE, UNSEEN, VALUE, clipped, short, visible
from support.errors import failed

NASTY = {
    "[none]": "[none]",
    "[/b]": "[/b]",
    "[bold red]x[/]": "[bold red]x[/]",
    ":smile:": ":smile:",
    "\x1b[31mred": r"\x1b[31mred",
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "\u202egnp.exe": r"\u202egnp.exe",
    "a\rb\nc": r"a\rb\nc",
    "=cmd|' /C calc'!A0": "=cmd|' /C calc'!A0",
    "https://x.y/[z]": "https://x.y/[z]",
    "\\[b]": "\\[b]",
}
WORST = "[b]:smile:[]]\x1b[31m\u202e"  # and no slash: it is part of file names
SPELT = r"[b]:smile:[]]\x1b[31m\u202e"


class Folder:
    """A model, a schema and tables in which every text is nasty."""

    def __init__(self, path):
        self.path = path
        self.schema = pp.Schema(
            [
                *(pp.Binary(f"{WORST}{n}", [word, "fine"]) for n, word in enumerate(NASTY)),
                pp.Continuous("n", 0, 10, step=1, unit=f"u{WORST}", label=f"l{WORST}"),
            ],
            rules=[pp.schema.Linear({"n": 1.0}, upper=9.0, name=f"r{WORST}")],
        )
        width = self.schema.width
        self.net = pp.Network([(np.ones((1, width)), [0.7 - width])])  # all of them must change
        row = [*NASTY, 0]
        frame = pd.DataFrame(
            [row, ["fine"] * len(NASTY) + [8]], columns=[f.name for f in self.schema.features]
        )
        self.net.save(path / "net.npz")
        self.schema.write(path / "schema.yaml")
        frame.to_csv(path / "train.csv", index=False)
        frame[:1].to_csv(path / "people.csv", index=False)
        self.frame = frame

    def words(self, command, **options):
        given = {
            "model": "net.npz",
            "train": "train.csv",
            "schema": "schema.yaml",
            "input": "people.csv",
            "delta": 0.001,
            **options,
        }
        files = ("model", "schema", "input", "train", "out")
        found = {n: self.path / v if n in files and v else v for n, v in given.items()}
        return [command, *named(command, **found)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("folder"))


def literal(shown, *texts):
    """Every text is printed, and only our own colours and lines act on the terminal."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    for text in texts:
        assert text in plain, plain
    assert "\x1b[31m" not in shown
    assert not UNSEEN.search(re.sub(r"[\r\n]", "", plain)), plain
    return plain


def test_answer_on_terminal(folder):
    status, shown = run_on_a_terminal(*folder.words("explain"), "--row", 0)
    assert status == 0, shown
    rows = [line.split("│")[1:-1] for line in literal(shown).splitlines() if "│" in line]
    cells = [[cell.strip() for cell in row] for row in rows]
    expected = [[f"{SPELT}{n}", word, "fine"] for n, word in enumerate(NASTY.values())]
    assert cells == [*expected, [f"l{SPELT}", f"0 u{SPELT}", f"8 u{SPELT}"]]


def test_long_word_is_broken_and_not_cut(tmp_path):
    long = "x" * 150
    schema = pp.Schema([pp.Binary("b", [long, "y"])])
    pp.Network([([[1.0]], [-0.7])]).save(tmp_path / "net.npz")
    schema.write(tmp_path / "schema.yaml")
    pd.DataFrame({"b": [long, "y"]}).to_csv(tmp_path / "train.csv", index=False)
    options = ["--model", "net.npz", "--train", "train.csv", "--schema", "schema.yaml"]
    words = [tmp_path / word if word[:2] != "--" else word for word in options]
    done = good("explain", *words, "--delta", 0.001, f"b={long}")
    table = "".join(line for line in done.stdout.splitlines() if "│" in line)
    assert table.count("x") == 150


def test_batch_on_terminal(folder):
    status, shown = run_on_a_terminal(*folder.words("explain", out=f"out {WORST}"))
    assert status == 0, shown
    moves = r"\x1b\[(?:\d*[ABCDGJK]|\?25[hl])"  # those of the progress bar
    literal(re.sub(moves, "", shown), f"out {SPELT}/results.csv", "1 optimal")


def test_answers_for_machines(folder):
    done = good(*folder.words("explain"), "--row", 0, "--json")
    assert done.stdout.isascii()
    (answer,) = done.json
    assert list(answer["original"].values()) == [*NASTY, 0]


def _column(folder, path):
    frame = folder.frame.rename(columns={folder.frame.columns[0]: WORST})
    frame.to_csv(path, index=False)


def _commands(folder, bad):
    """Commands that end with an error about something nasty."""
    return {
        "explain": folder.words("explain", train=bad, row=0),
        "explain words": [*folder.words("explain", input=None), f"{WORST}=1"],
        "certify": folder.words("certify", input=bad),
        "calibrate": [
            *folder.words("calibrate", train=bad, input=bad, delta=None),
            folder.path / "net.npz",
        ],
        "schema": ["schema", bad, "--drop", WORST + "!"],
        "check": ["check", bad, "--model", bad.parent / f"{WORST}.npz"],
        "experiment": ["experiment", "--data", WORST],
    }


@pytest.mark.parametrize(
    "command",
    ["explain", "explain words", "certify", "calibrate", "schema", "check", "experiment"],
)
def test_errors_of_every_command_on_terminal(folder, tmp_path, command):
    if command == "experiment":
        pytest.importorskip("matplotlib")
    bad = tmp_path / f"{WORST}.csv"
    _column(folder, bad)
    status, shown = run_on_a_terminal(*_commands(folder, bad)[command])
    assert status == 1
    assert shown.count("\n") == 1
    literal(shown, SPELT)


@pytest.mark.parametrize("words", [["explain", f"--{WORST}"], [WORST], ["demo", WORST]])
def test_wrong_usage_on_terminal(words):
    status, shown = run_on_a_terminal(*words)
    assert status == 2
    assert re.fullmatch(r".* proplace( \w+)? --help\n", shown)
    literal(shown, SPELT)


def test_notes_on_terminal(folder, tmp_path):
    frame = folder.frame.copy()
    frame.loc[2] = frame.loc[0]
    frame.iloc[2, 0] = f"more {WORST}"
    frame.to_csv(tmp_path / f"{WORST}.csv", index=False)
    words = folder.words("explain", train=tmp_path / f"{WORST}.csv")
    status, shown = run_on_a_terminal(*words, "--row", 0)
    assert status == 0
    note = literal(shown, f"{SPELT}.csv", "1 of 3").splitlines()[0]
    assert f"'more {SPELT}'" in note


def test_files_that_are_checked_on_terminal(folder, tmp_path):
    (tmp_path / f"{WORST}.json").write_text("{}")
    status, shown = run_on_a_terminal("check", tmp_path, "--model", folder.path / "net.npz")
    assert status == 1
    literal(shown, f"{SPELT}.json")


def test_schema_on_terminal(tmp_path):
    frame = pd.DataFrame({WORST: list(NASTY), "code": [f"{n:03d}" for n in range(len(NASTY))]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    status, shown = run_on_a_terminal("schema", tmp_path / "t.csv")
    assert status == 0, shown
    literal(shown)
    found = yaml.safe_load(shown)["features"]
    assert found[0]["name"] == WORST
    assert sorted(found[0]["categories"]) == sorted(NASTY)
    assert found[1]["categories"][1] == "001"


def test_terminal_that_cannot_write_it(tmp_path):
    words = ["explain", "--model", "é.npz", "--train", "é.csv", "--delta", 0.1, "é=1"]
    done = run(*words, encoding="ascii")
    failed(done, ModelFileError)
    assert r"\xe9.npz" in done.stderr


@pytest.mark.parametrize("command", ["explain", "experiment"])
@pytest.mark.parametrize("jobs", [0, "much"])
def test_numbers_of_processes(folder, command, jobs):
    words = {
        "explain": [*folder.words("explain"), "--out", folder.path / "never"],
        "experiment": ["experiment", "--data", "nothing", "--out", folder.path / "never"],
    }[command]
    done = run(*words, "--jobs", jobs)
    if jobs == "much":
        assert done.returncode == 2
    else:
        failed(done, OptionError, name="--jobs", value=0)
    assert not (folder.path / "never").exists()


# -- the helpers -----------------------------------------------------------------------------------


@given(st.text())
def test_visible_text_has_nothing_unseen(text):
    shown = visible(text)
    assert not UNSEEN.search(shown)
    assert shown.isprintable() or not all(c.isprintable() or UNSEEN.match(c) for c in text)
    if not UNSEEN.search(text):
        assert shown == text


@pytest.mark.parametrize(
    "text", ["é", "日本", "مرحبا", "नमस्ते", "می\u200cخواهم", "👩\u200d👧", "a b"]
)
def test_text_of_people_is_unchanged(text):
    assert visible(text) == text


def test_values_in_messages_are_short():
    deep: object = "x"
    for _ in range(60):
        deep = [deep] * 9  # 9 ** 60 values
    for value in (deep, "x" * 10**6, b"x" * 10**6, list(range(10**6)), 2**10**6, {1: deep}):
        assert len(short(value)) <= VALUE
    assert short("cook") == "'cook'"
    assert short("\x1b") == r"'\x1b'"
    assert short("\u202e") == r"'\u202e'"
    assert clipped("abc", 3) == "abc"
    assert clipped("abcd", 3) == "ab…"


def test_message_fits_on_screen(tmp_path):
    """The text of any error."""
    done = run("check", "x", "--model", "/".join(["y" * 200] * 19) + ".npz")
    assert done.returncode == 1
    assert len(done.stderr) <= MESSAGE + 1
