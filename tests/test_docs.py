"""Run what README and docs tell people to run: Python and shell, page by page, in their order.

A block behind ``<!-- test -->`` is run. Shell commands that cannot be run here stand behind ``<!-- not
run: why -->``; their options, packages and targets must exist all the same.
"""

import io
import json
import pydoc
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer.main

import notebooks
import proplace
import real_data
import reference
from commands import run
from docs_files import PREPARED
from proplace.cli import app
from support.tiers import only

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
NOTEBOOKS = sorted(ROOT.glob("examples/*.ipynb"))
PAGES = sorted([README, *ROOT.glob("docs/*.md")])
BLOCK = re.compile(
    r"(?:^<!-- (test|prints|not run: [^>]*) -->\n)?^```(\w*)\n(.*?)^```", re.S | re.M
)
COMMAND = re.compile(r"^(proplace|python|make|pip)\b")


@dataclass(frozen=True)
class Block:
    """A fenced block: what stands above it, its language and its text."""

    mark: str
    language: str
    text: str

    @property
    def commands(self):
        """Command lines of a shell block, as lists of words."""
        return [
            words
            for line in self.text.replace("\\\n", " ").splitlines()
            if (words := shlex.split(line, comments=True))
        ]


def blocks(page):
    return [Block(*found) for found in BLOCK.findall(page.read_text(encoding="utf-8"))]


def run_shell(words):
    """Run a command line of a page, in the current folder; it must succeed."""
    if words[0] == "proplace":
        done = run(*words[1:])
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return
    assert words[0] == "python", f"{words} cannot be run here: put it behind <!-- not run: why -->"
    if words[1] == "checker.py":
        shutil.copy(ROOT / "src" / "proplace" / "certification" / "checker.py", "checker.py")
    subprocess.run([sys.executable, *words[1:]], check=True, capture_output=True)


def assert_same_output(printed, shown):
    """Compare words exactly and numbers to 5%: training differs a little by processor."""
    printed, shown = printed.split(), shown.split()
    assert len(printed) == len(shown), " ".join(printed)
    for found, expected in zip(printed, shown, strict=True):
        try:
            assert number(found) == pytest.approx(number(expected), rel=0.05)
        except ValueError:
            assert found == expected, " ".join(printed)


def number(word):
    """Read a number of a sentence: 37, $47,000, (75%), or 0.01 at its end."""
    return float(re.sub(r"[$,%():]|\.$", "", word))


def check_rules(text, schema):
    """Rules of a page must fit the schema before them, and be its own where it has some."""
    proplace.Schema(schema.features).write("features.yaml")
    whole = Path("features.yaml").read_text(encoding="utf-8").partition("rules:")[0] + text
    Path("whole.yaml").write_text(whole, encoding="utf-8")
    rules = proplace.Schema.read("whole.yaml").rules
    assert rules
    assert rules == (schema.rules or rules)


@pytest.mark.filterwarnings("ignore::proplace.calibrate.delta.CalibrationWarning")
@pytest.mark.parametrize("page", only([str(README)], PAGES), ids=lambda page: page.name)
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PREPARED.get(page.name, lambda: None)()
    names, printed = {}, ""
    for block in blocks(page):
        if block.mark == "test" and block.language == "python":
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(block.text, page.name, "exec"), names)
            printed = out.getvalue()
        elif block.mark == "prints":
            assert_same_output(printed, block.text)
        elif block.mark == "test" and block.language == "yaml":
            check_rules(block.text, names["schema"])
        elif block.mark == "test":
            for words in block.commands:
                run_shell(words)


def test_every_block_is_run_or_reports_why_not():
    for page in PAGES:
        for block in blocks(page):
            if block.language in ("python", "yaml"):
                assert block.mark == "test", (page.name, block.text)
            elif block.language == "sh":
                assert block.mark, (page.name, block.text)
            else:
                lines = block.text.splitlines()
                assert not any(map(COMMAND.match, lines)), (page.name, block.text)


# -- what is not run must exist ----------------------------------------------------------------


def told():
    """Every command of the pages, in blocks and within lines, and of the help of the commands."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in blocks(page):
            if block.language == "sh":
                yield from ((page.name, words) for words in block.commands)
        for line in re.findall(r"`((?:proplace|make|pip) [^`]+)`", BLOCK.sub("", text)):
            yield page.name, shlex.split(line)
    for name, command in all_commands().items():
        for line in re.findall(r"^ *(proplace .+)$", command.help, re.M):
            yield f"{name} --help", shlex.split(line)


def all_commands():
    """Every command by its words, those of a group of commands too."""

    def within(group, words):
        for name, command in getattr(group, "commands", {}).items():
            yield " ".join([*words, name]), command
            yield from within(command, [*words, name])

    return dict(within(typer.main.get_command(app), []))


def test_commands_and_options_exist():
    commands = all_commands()
    seen = 0
    for where, words in told():
        if words[0] != "proplace" or words[1] in ("COMMAND", "--install-completion"):
            continue
        assert words[1] in commands, (where, words)
        longest = (" ".join(words[1:n]) for n in (4, 3, 2))
        command = next(commands[name] for name in longest if name in commands)
        options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
        for word in words[2:]:
            if word.startswith("--"):
                assert word in options | {"--help", "--debug", "--quiet"}, (where, words)
        seen += 1
    assert seen > 20


def test_reference_is_that_of_code():
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), "run make reference"


def test_packages_and_targets_exist():
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = facts["project"]["optional-dependencies"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for where, words in told():
        if words[0] == "make":
            assert re.search(rf"^{re.escape(words[1])}:", makefile, re.M), (where, words)
        for named in re.findall(r"proplace\[([\w,]+)\]", " ".join(words)):
            assert set(named.split(",")) <= set(extras), (where, words)


def test_hints_of_missing_packages_name_extras_that_bring_them():
    """``require("onnx", "onnx", ...)``: the extra that is told to install holds the package."""
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = facts["project"]["optional-dependencies"]

    def brought(extra):
        """Packages of an extra, those of the extras in it among them."""
        found = set()
        for entry in extras[extra]:
            inner = re.match(r"proplace\[([\w,]+)\]", entry)
            if inner:
                found |= set().union(*(brought(name) for name in inner[1].split(",")))
            else:
                found.add(re.split(r"[<>=\[ ]", entry)[0].lower())
        return found

    package = Path(proplace.__file__).parent
    asked = {
        found
        for file in package.rglob("*.py")
        for found in re.findall(r'require\(\s*"([\w.]+)",\s*"(\w+)"', file.read_text("utf-8"))
    }
    assert len(asked) > 8
    for module, extra in asked:
        assert module.split(".")[0] in brought(extra), (module, extra)


def test_links_of_pages_lead_somewhere():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text):
            other = page.parent / target if target else page
            assert other.exists(), f"{page.name}: {target}"
            assert not heading or heading in anchors(other), f"{page.name}: {target}#{heading}"


def anchors(page):
    """Names by which links find the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_paths_in_pages_exist():
    """A path is relative to the repository, the package or the tests; a bare name is any file."""
    roots = (ROOT, ROOT / "src" / "proplace", ROOT / "tests")
    files = {
        path.name
        for folder in ("src", "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    }
    seen = 0
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]:
        text = page.read_text(encoding="utf-8")
        paths = re.findall(r"(?<![\w./-])((?:[\w.-]+/)*[\w-]+\.py)\b", text)
        folders = re.findall(r"`((?:src|tests|benchmarks|examples|docs)/[\w/]*)`", text)
        for path in [*paths, *folders]:
            known = (
                path in files if "/" not in path else any((root / path).exists() for root in roots)
            )
            assert known, f"{page.name}: {path}"
        for path, name in re.findall(r"`([\w/]+\.py)`: `(\w+)`", text):
            module = next(root / path for root in roots if (root / path).exists())
            assert re.search(rf"\b{name}\b", module.read_text("utf-8")), (
                f"{page.name}: {path} {name}"
            )
        seen += len(paths)
    assert seen > 100


def test_map_of_paper_names_module_and_test_in_every_line():
    text = (ROOT / "docs/paper.md").read_text(encoding="utf-8").partition("## Differences")[0]
    lines = [line.split(" | ") for line in re.findall(r"^\| (.+) \|$", text, re.M)]
    lines = [line for line in lines if line[-1] != "test" and not line[0].startswith("---")]
    for line in lines:
        for cell, folder in ((line[-2], "src/proplace"), (line[-1], "tests")):
            paths = re.findall(r"`([\w/]+\.py)`", cell)
            assert paths, (line, folder)
            for path in paths:
                assert (ROOT / folder / path).is_file(), path
    names = " ".join(line[0] for line in lines)
    assert re.findall(r"Definition (\d+)", names) == [str(n) for n in range(1, 13)]
    for each in ("Algorithm 1", "Proposition 1", "Proposition 2", "Table 1", "metrics"):
        assert each in names


def test_architecture_is_one_page():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    assert len(re.findall(r"!\[", text)) == 1


def test_names_in_pages_exist():
    """``pp.Shifts.learn`` and ``proplace.experiment.metrics`` name something that Python finds."""
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]:
        text = page.read_text(encoding="utf-8")
        names = set(
            re.findall(r"(?<![\w./-])(?:pp|proplace)\.((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)", text)
        )
        for name in names - {"yaml", "db"}:
            assert pydoc.locate(f"proplace.{name}") is not None, f"{page.name}: proplace.{name}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_small_and_has_outputs(path):
    assert path.stat().st_size < 300_000
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert sum(bool(cell["outputs"]) for cell in code) > len(code) / 2
    assert all(cell["execution_count"] for cell in code)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs_without_error(path, tmp_path, monkeypatch):
    if path.name == "comparison.ipynb":
        real_data.folder()
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(path.read_text(encoding="utf-8"))
    found = notebooks.run(notebook)
    stored = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for now, before in zip(found, stored, strict=True):
        assert [output["output_type"] for output in now] == [o["output_type"] for o in before]


def test_readme_example_gives_certified_answers(tmp_path, monkeypatch):
    """The pipeline accepts each counterfactual of the README, and the checker each certificate."""
    monkeypatch.chdir(tmp_path)
    code = [b.text for b in blocks(ROOT / "README.md") if b.language == "python"]
    names = {}
    exec(compile(code[0], "README.md", "exec"), names)
    result, pipeline = names["result"], names["pipeline"]
    network = proplace.Model.of(pipeline).network
    assert [e.found for e in result] == [True] * 3
    for e in result:
        assert pipeline.predict(e.counterfactual.to_frame().T) == ["approved"]
        assert e.certificate.check(network).accepted


def test_readme_has_at_most_700_words():
    assert len(README.read_text(encoding="utf-8").split()) <= 700


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md"])
def test_speed_table_matches_results(page):
    """Ranges over the data sets of the medians to a proved 1%, without and with steps."""
    text = (ROOT / "docs/results/own_models.md").read_text(encoding="utf-8")
    cells = [row.split(" | ") for row in re.findall(r"^\| (\w+ \w+ 2x\d+ .*) \|$", text, re.M)]
    shown = (ROOT / page).read_text(encoding="utf-8")
    for scaler, column, label in (
        ("standard", 2, "`StandardScaler`"),
        ("standard", 5, "steps"),
        ("minmax", 2, "`MinMaxScaler`"),
    ):
        line = next(
            line for line in shown.splitlines() if re.match(rf"\| [^|]*{label}[^|]* \| \.", line)
        )
        for size, cell in zip(("2x10", "2x30", "2x50"), line.split("|")[2:5], strict=True):
            medians = [
                float(row[column].split(" / ")[0])
                for row in cells
                if row[0].split()[1:] == [scaler, size]
            ]
            assert len(medians) == 4
            low, high = map(float, cell.split(" to "))
            assert [low, high] == pytest.approx([min(medians), max(medians)], rel=0.06, abs=0.0006)
    scaled = [row for row in cells if row[0].split()[1] != "none"]
    farthest = max(float(row[6].split(" / ")[1]) for row in scaled)
    assert f"{farthest:.2f} times as far" in " ".join(shown.split())


def test_guarantee_states_validity_of_results():
    """Accepted shares of networks that were trained from scratch, from the table of the experiment."""
    overview = (ROOT / "docs/results/overview.md").read_text(encoding="utf-8")
    lines = [line.strip("| ").split(" | ") for line in overview.splitlines()]
    heads = next(line for line in lines if line[0] == "method")
    ours = dict(zip(heads, next(line for line in lines if line[0] == "PROPLACE"), strict=True))
    text = " ".join((ROOT / "docs/guarantee.md").read_text(encoding="utf-8").split())
    for head in heads[1:5]:
        share = ours[head].partition(",")[0]
        assert re.search(rf"{share}% (of the counterfactuals )?on {head.split()[0]}", text), head


def test_tables_and_intervals_of_experiment_are_those_of_results():
    page = (ROOT / "docs/experiment.md").read_text(encoding="utf-8")
    results = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("docs/results/*.md"))
    page = page.partition("## Results")[2]
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    intervals = re.findall(r"[-+]?[\d.]+ \[[-+]?[\d.]+, [-+]?[\d.]+\]", page)
    assert len(rows) > 14
    assert len(intervals) > 4
    for figure in (*rows, *intervals):
        assert figure in results, figure


def test_public_names_are_on_page_of_api():
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    for name in set(proplace.__all__) - {"errors"}:
        assert re.search(rf"(?:class|function):: {name}$", text, re.M), name


def test_release_is_dated_alike_in_change_log_and_citation():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.findall(r"^## (\S+) - (\d{4}-\d\d-\d\d)$", changes, re.M)[0]
    assert version == proplace.__version__
    parts = changes.partition(f"## {version}")[2].partition("\n## ")[0]
    assert re.findall(r"^### (\w+)$", parts, re.M) == ["Added", "Changed", "Removed", "Fixed"]
    assert len(changes.split()) <= 900
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {version}\n" in citation
    assert f'date-released: "{date}"' in citation
