"""Habits of the prose that a machine can see: docstrings, comments and pages.

``python tests/test_words.py [ROOT ...]`` prints the counts of checkouts or of installed packages.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CLEAN = (
    "baselines",
    "batch",
    "calibrate",
    "certification",
    "cli",
    "core",
    "demo",
    "experiment",
    "explain",
    "ledger",
    "loaders",
    "region",
    "report",
    "retrain",
    "schema",
    "search",
    "serve",
    "solvers",
    "tables",
    "verify",
)
"""Packages whose prose has been rewritten. The list grows until it holds all of them."""
CLEAN_TESTS = (
    *(name for name in CLEAN if name not in ("demo", "ledger", "loaders")),
    "end_to_end",
    "support",
)
"""Folders of tests that are held to the same habits."""
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/api.md",
    "docs/architecture.md",
    "docs/batches.md",
    "docs/benchmarks.md",
    "docs/certificates.md",
    "docs/cli.md",
    "docs/challenge.md",
    "docs/delta.md",
    "docs/guarantee.md",
    "docs/mathematics.md",
    "docs/methods.md",
    "docs/models.md",
    "docs/paper.md",
    "docs/promises.md",
    "docs/requests.md",
    "docs/schema.md",
    "docs/security.md",
    "docs/tutorial.md",
    "docs/workbench.md",
)
"""Pages that are held to the same habits."""

OPENINGS = re.compile(r"(What|Which|Whether|How|Why|Where|That)\b(?!.*\?)")
HABITS = {
    "semicolon": re.compile(";"),
    "code that speaks": re.compile(
        r"\b(says?|said|tells?|told|speaks?|spoken?|asks?|asked|knows?|knew)\b", re.IGNORECASE
    ),
    "conditional where": re.compile(
        r"[a-z0-9)\]],? where (?:it|they|that|this|there|none|no|nothing|one|some|any|all|only|"
        r"either|neither|both|(?:a|an|the|its|their) \w+ (?:is|are|has|have|was|were|does|do|can))\b"
        r"|(?:^|\. )Where (?!clause)\w+ (?:\w+ )?(?:is|are|has|have|was|were|does|do|can)\b"
    ),
    "retired": re.compile(
        r"\b(?:bare networks?|whole models?|in service|models? in use|networks? in use"
        r"|the model itself|what was read|referees?|input maps?|has a say|have a say"
        r"|voters?|boxe?s? of networks|sets? of networks|worst margins?|least margins?"
        r"|least distance|wanted class|hairs?|rooms?|floors?|upstairs|doors?|troubles?|gave up"
        r"|given up|give or take|open neurons?|open signs?|beside the grid|filled in|bad rows?"
        r"|broken rows?|whoever|somebody|go or no-?go|cannot be told|last day|judged?"
        r"|as the network sees|changeable)\b",
        re.IGNORECASE,
    ),
}
TEST_NAMES = re.compile(
    r"_(?:the|an?|what|whatever|whoever|somebody|nobody|says?|said|tells?|told|speaks?|asks?|asked"
    r"|knows?|knew|ours|hair|room|judged?)(?=_|$)"
)
LIMIT = {"semicolon": 15.0, "code that speaks": 2.5, "conditional where": 2.5, "retired": 0.0}
"""Allowed matches in 10,000 words; scikit-learn has 8, 0.3 and 2.5 of the first three."""


def docstrings(tree):
    """All docstrings of a module, with those of attributes."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        body = node.body if isinstance(node, kinds) else []
        for statement in body:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value.strip()


def comments(source):
    """All comments, except directives of tools."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("#: ").strip()
        if token.type == tokenize.COMMENT and not re.match(r"noqa|type:|pragma|ruff|!", text):
            yield text


def plain(text):
    """Text without code, mathematics, doctests and literal blocks."""
    text = re.sub(r";$", "", text, flags=re.MULTILINE)  # at the end of an item of a list
    text = re.sub(r"(?m)^( *)\.\. (?:math|code-block)::.*\n(?:\1 +.*\n|\s*\n)*", "\n", text)
    text = re.sub(r"(?m)^ *(?:>>>|\.\.\.).*\n(?: *\S.*\n)*", "", text + "\n")
    text = re.sub(r"(?s)```.*?```|``.*?``|`[^`]*`|\$\$.*?\$\$|\$[^$\n]*\$|https?://\S+", "x", text)
    return re.sub(r"(?m)^(?:    .*|\s*\|[-| :]+\|)$\n?", "", text) if "\n#" in text else text


def prose(paths):
    """The docstrings and comments of Python files, the text of pages."""
    found, texts = [], []
    for path in paths:
        source = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            written = list(docstrings(ast.parse(source)))
            found += written
            texts += [*written, *comments(source)]
        else:
            texts.append(source)
    return found, [re.sub(r"\s+", " ", plain(text)).strip() for text in texts]


def counts(paths):
    """Share of docstrings with a bad opening, and habits in 10,000 words."""
    written, texts = prose(paths)
    words = sum(len(text.split()) for text in texts)
    opened = sum(bool(OPENINGS.match(text.splitlines()[0])) for text in written if text)
    rates = {
        name: 10_000 * sum(len(habit.findall(text)) for text in texts) / max(words, 1)
        for name, habit in HABITS.items()
    }
    return {"words": words, "opening": 100 * opened / max(len(written), 1)} | rates


@pytest.mark.parametrize(
    "package", [*(f"src/proplace/{name}" for name in CLEAN), *(f"tests/{n}" for n in CLEAN_TESTS)]
)
def test_prose_of_package_is_free_of_habits(package):
    files = sorted((ROOT / package).rglob("*.py"))
    written, texts = prose(files)
    assert not [text for text in written if OPENINGS.match(text)]
    words = sum(len(text.split()) for text in texts)
    for name, habit in HABITS.items():
        examples = [(m.group(), text[:80]) for text in texts for m in habit.finditer(text)]
        allowed = 1 + LIMIT[name] * words / 10_000 if LIMIT[name] else 0
        assert len(examples) <= allowed, f"{package}, {name}: {examples}"


@pytest.mark.parametrize("page", PAGES)
def test_page_is_free_of_habits(page):
    _, texts = prose([ROOT / page])
    words = sum(len(text.split()) for text in texts)
    for name, habit in HABITS.items():
        examples = [
            text[max(0, m.start() - 40) :][:80] for text in texts for m in habit.finditer(text)
        ]
        allowed = 1 + LIMIT[name] * words / 10_000 if LIMIT[name] else 0
        assert len(examples) <= allowed, f"{page}, {name}: {examples}"


@pytest.mark.parametrize("package", CLEAN)
def test_names_of_tests_state_subject_and_verb(package):
    names = [
        node.name
        for path in sorted((ROOT / "tests" / package).rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert not [name for name in names if TEST_NAMES.search(name)]


def test_habits_are_found():
    written, texts = prose([Path(__file__)])
    assert len(written) >= 6
    assert "All comments, except directives of tools." in texts
    assert OPENINGS.match("Whether it holds.")
    assert not OPENINGS.match("How large should delta be?")
    assert HABITS["semicolon"].findall(plain("one; two ``a; b`` >>> c; d")) == [";", ";"]
    assert HABITS["conditional where"].search("None where nothing is known")
    assert not HABITS["conditional where"].search("the sum, where x is a row")


def _table(roots):
    """Print one line of counts for each part of each checkout."""
    for root in map(Path, roots):
        source = root / "src/proplace" if (root / "src").exists() else root
        parts = {"src": source.rglob("*.py"), "tests": (root / "tests").rglob("*.py")}
        parts["docs"] = (*root.glob("README.md"), *(root / "docs").rglob("*.md"))
        packages = {f"src/{p}": (source / p).rglob("*.py") for p in _packages(source)}
        for part, files in (parts | packages).items():
            if paths := sorted(files):
                figures = "  ".join(f"{k} {v:.1f}" for k, v in counts(paths).items())
                print(f"{root} {part}: {figures}")


def _packages(source):
    return sorted(path.parent.name for path in source.glob("*/__init__.py"))


if __name__ == "__main__":
    _table(sys.argv[1:] or [ROOT])
