"""Plant faults, one at a time, and see which of them the tests notice.

``python tests/mutants/run.py [--only PATTERN] [--sample N --seed S] [--jobs J] [--json FILE]``

Each ``[[mutant]]`` of ``tests/mutants/*.toml`` is a small fault: a text of one file and what to put in
its place, with the tests that should notice it. The faults are planted in throw-away copies of the
tree. The same tests run there without any fault first, so that a test that fails anyway is not taken
for one that notices something. ``docs/testing.md`` says how to write a mutant.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import contextlib
import fnmatch
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]

_NOT_COPIED = (".*", "build", "dist", "results", "shared", "proplace-demo")  # of the top folder
_OF_THE_CALLER = ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST")  # where a test runs this
_PATIENCE = 60.0  # seconds beyond ten times what the tests take without a fault
_LATER = 10.0  # seconds: a mutated file must look newer than what was compiled from the original


class BadMutant(Exception):
    """A list of mutants, or one of them, cannot be used."""


@dataclass(frozen=True)
class Mutant:
    """A fault, where it goes, and the tests that should notice it."""

    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    why: str
    area: str
    equivalent: str = ""

    def planted(self, text: str) -> str:
        """The text of the file with the fault in it."""
        if text.count(self.find) != 1:
            raise BadMutant(
                f"{self.name}: the text to find occurs {text.count(self.find)} times in "
                f"{self.file}, not once"
            )
        if self.find == self.replace:
            raise BadMutant(f"{self.name}: the replacement is the text itself")
        mutated = text.replace(self.find, self.replace)
        if error := _error_of(self.file, mutated):
            raise BadMutant(f"{self.name}: {self.file} no longer compiles ({error})")
        return mutated

    def covers(self, case: Case) -> bool:
        """Whether one of the named tests is, or contains, a test that ran."""
        return any(_contains(test, case) for test in self.tests)


@dataclass(frozen=True)
class Case:
    """One test that ran: its file, its name with parameters, what came out, and how long it took."""

    file: str
    name: str
    outcome: str  # passed, failed or skipped
    seconds: float


@dataclass(frozen=True)
class Finding:
    """What became of one mutant."""

    name: str
    area: str
    file: str
    outcome: str  # noticed, not noticed, not run, or equivalent
    by: str  # the test that noticed it, or what else is to be said
    seconds: float
    good: bool


# -- the lists -------------------------------------------------------------------------------------


def read(root: Path) -> list[Mutant]:
    """All mutants of a tree, in the order of their names."""
    known = {field.name for field in fields(Mutant)} - {"area"}
    mutants = []
    for path in sorted((root / "tests" / "mutants").glob("*.toml")):
        for entry in tomllib.loads(path.read_text()).get("mutant", []):
            name = entry.get("name", "a mutant without a name")
            if wrong := (set(entry) - known) | (known - {"equivalent"} - set(entry)):
                raise BadMutant(f"{path.name}: {name}: missing or unknown: {sorted(wrong)}")
            if not entry["tests"]:
                raise BadMutant(f"{path.name}: {name}: no test is named")
            tests = tuple(entry.pop("tests"))
            mutants.append(Mutant(**entry, tests=tests, area=path.stem))
    if twice := [name for name, n in Counter(mutant.name for mutant in mutants).items() if n > 1]:
        raise BadMutant(f"names must differ: {', '.join(twice)}")
    return sorted(mutants, key=lambda mutant: mutant.name)


def chosen(
    mutants: Sequence[Mutant], only: str | None, sample: int | None, seed: str
) -> list[Mutant]:
    """The mutants asked for; a sample is drawn from those that should be noticed."""
    found = [
        mutant
        for mutant in mutants
        if not only
        or any(fnmatch.fnmatch(text, only) for text in (mutant.name, mutant.file, mutant.area))
    ]
    if sample is None:
        return found
    found = [mutant for mutant in found if not mutant.equivalent]
    return random.Random(seed).sample(found, min(sample, len(found)))


def _error_of(file: str, text: str) -> str:
    """Why a file of Python, or of JavaScript where there is node, does not compile; else empty."""
    if file.endswith(".js"):
        node = shutil.which("node")
        words = [node or "true", "--check", "-"]
        done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
        return done.stderr.strip()[-200:] if done.returncode else ""
    if file.endswith(".py"):
        try:
            ast.parse(text)
        except SyntaxError as error:
            return str(error)
    return ""


def missing_tests(mutant: Mutant, root: Path) -> list[str]:
    """Those of a mutant's tests that are not there; parameters in brackets are not looked at."""
    return [test for test in mutant.tests if not _is_there(root, *test.split("::", 1))]


def _is_there(root: Path, file: str, name: str = "") -> bool:
    path = root / file
    if not name or not path.exists():
        return path.exists()
    last = name.partition("[")[0].replace("::", ".").rpartition(".")[2]
    return last in _names(path)


@cache
def _names(path: Path) -> set[str]:
    """What a file defines, and its own name: a doctest may be that of the module."""
    nodes = ast.walk(ast.parse(path.read_text()))
    defined = (node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return {path.stem, *defined}


def _contains(test: str, case: Case) -> bool:
    file, _, name = test.partition("::")
    if not name:
        return case.file == file or case.file.startswith(file.rstrip("/") + "/")
    return case.file == file and (case.name == name or case.name.startswith(f"{name}["))


# -- running tests ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What pytest made of some tests; ``code`` is None if it was stopped."""

    code: int | None
    cases: tuple[Case, ...]
    output: str
    seconds: float


class Copy:
    """A throw-away copy of the tree, in which one run at a time takes place."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder, self.tree = folder, folder / "tree"
        self.process: subprocess.Popen[bytes] | None = None
        shutil.copytree(root, self.tree, ignore=partial(_not_copied, root))
        compileall.compile_dir(self.tree / "src", quiet=2)
        self.environment = {
            **{key: value for key, value in os.environ.items() if key not in _OF_THE_CALLER},
            "PYTHONPATH": str(self.tree / "src"),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "KERAS_BACKEND": "torch",
        }

    @contextlib.contextmanager
    def with_fault(self, mutant: Mutant) -> Iterator[None]:
        """Plant a fault, and take it out again."""
        path = self.tree / mutant.file
        text, then = path.read_bytes(), path.stat().st_mtime
        path.write_text(mutant.planted(text.decode()))
        os.utime(path, (then + _LATER, then + _LATER))
        try:
            yield
        finally:
            path.write_bytes(text)
            os.utime(path, (then, then))

    def run(self, tests: Iterable[str], limit: float | None, *options: str) -> Run:
        """Run tests with pytest, in a process of its own that leaves none behind."""
        report, output = self.folder / "report.xml", self.folder / "output.txt"
        report.unlink(missing_ok=True)
        words = ["-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]
        words += [f"--junitxml={report}", f"--basetemp={self.folder / 'tmp'}", *options, *tests]
        start = time.monotonic()
        with output.open("wb") as file:
            self.process = process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *words],
                cwd=self.tree,
                env={**self.environment, "PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            self.stop()  # also what the tests have left behind
            process.wait()
        said = output.read_text(errors="replace")
        return Run(code, tuple(_cases(report)), said, time.monotonic() - start)

    def stop(self) -> None:
        """End the run, if there is one, with all of its processes."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def _not_copied(root: Path, folder: str, names: list[str]) -> set[str]:
    patterns = _NOT_COPIED if Path(folder) == root else ("__pycache__",)
    return {name for name in names for pattern in patterns if fnmatch.fnmatch(name, pattern)}


def _cases(report: Path) -> Iterator[Case]:
    if not report.exists():  # pytest did not come to its end
        return
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {part.tag for part in case}
        bad = "failed" if kinds & {"failure", "error"} else ""
        outcome = bad or ("skipped" if "skipped" in kinds else "passed")
        seconds = float(case.get("time", 0.0))
        yield Case(case.get("file", ""), case.get("name", ""), outcome, seconds)


class Pool:
    """Copies of the tree that take turns."""

    def __init__(self, root: Path, folder: Path, jobs: int) -> None:
        self.threads = ThreadPoolExecutor(jobs)
        self.copies = [*self.threads.map(lambda n: Copy(root, folder / str(n)), range(jobs))]
        self.idle: queue.Queue[Copy] = queue.Queue()
        for copy in self.copies:
            self.idle.put(copy)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)
        for copy in self.copies:
            copy.stop()
        self.threads.shutdown()

    def each(self, work: Callable[[Any, Copy], Any], things: Iterable[Any]) -> Iterator[Any]:
        """What ``work`` makes of each thing, as it comes."""

        def one(thing: Any) -> Any:
            copy = self.idle.get()
            try:
                return work(thing, copy)
            finally:
                self.idle.put(copy)

        for future in as_completed([self.threads.submit(one, thing) for thing in things]):
            yield future.result()


# -- what they notice ------------------------------------------------------------------------------


def unmutated(mutants: Iterable[Mutant], pool: Pool) -> list[Case]:
    """Run all named tests once without any fault: one process for each file or folder."""
    groups: dict[str, list[str]] = {}
    for test in sorted({test for mutant in mutants for test in mutant.tests}):
        groups.setdefault(test.partition("::")[0], []).append(test)
    cases: list[Case] = []
    for run in pool.each(lambda tests, copy: copy.run(tests, None), groups.values()):
        cases += run.cases
        if run.code not in (0, 1):
            print(run.output[-1000:], file=sys.stderr)
    return cases


def judge(mutant: Mutant, copy: Copy, cases: Sequence[Case], patience: float) -> Finding:
    """Plant one fault and run its tests."""
    mine = [case for case in cases if mutant.covers(case)]
    finding = partial(Finding, mutant.name, mutant.area, mutant.file)
    if failing := [case.name for case in mine if case.outcome == "failed"]:
        return finding("not run", f"fails without the fault: {failing[0]}", 0.0, good=False)
    if not any(case.outcome == "passed" for case in mine):
        return finding("not run", "its tests are missing or skipped", 0.0, good=False)
    limit = patience + 10.0 * sum(case.seconds for case in mine)
    with copy.with_fault(mutant):
        run = copy.run(mutant.tests, limit, "-x")
    outcome, by = _outcome(run)
    good = outcome == "noticed"
    if mutant.equivalent and outcome == "not noticed":
        outcome, by, good = "equivalent", mutant.equivalent, True
    elif mutant.equivalent and good:
        by, good = f"though said to be equivalent: {by}", False
    return finding(outcome, by, run.seconds, good=good)


def _outcome(run: Run) -> tuple[str, str]:
    failed = [case for case in run.cases if case.outcome == "failed"]
    if run.code is None:
        return "noticed", "it hangs"
    if run.code < 0:
        return "noticed", f"it crashes ({signal.Signals(-run.code).name})"
    if run.code and failed:  # a test, or the reading of its file
        return "noticed", "::".join(filter(None, (failed[0].file, failed[0].name)))
    if run.code == 0 and any(case.outcome == "passed" for case in run.cases):
        return "not noticed", ""
    if run.code == 0:
        return "not run", "all of its tests are skipped"
    return "not run", " ".join(run.output.split())[-200:]


# -- the command -----------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the command; 0 if every fault was noticed, or is known to be none."""
    options = _options(words)
    try:
        mutants = chosen(read(root), options.only, options.sample, options.seed)
        for mutant in mutants:
            mutant.planted((root / mutant.file).read_text())
            if missing := missing_tests(mutant, root):
                raise BadMutant(f"{mutant.name}: there is no test {missing[0]}")
    except (BadMutant, OSError) as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    if not mutants:
        print("mutants: none has such a name, file or area", file=sys.stderr)
        return 2
    start, findings = time.monotonic(), []
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        Pool(root, Path(folder), options.jobs) as pool,
    ):
        cases = unmutated(mutants, pool)
        print(f"{len(cases)} tests without a fault: {time.monotonic() - start:.0f} s", flush=True)
        work = partial(judge, cases=cases, patience=options.patience)
        for finding in pool.each(work, mutants):
            findings.append(finding)
            print(_line(finding), flush=True)
    findings.sort(key=lambda finding: finding.name)
    if options.json:
        text = json.dumps([asdict(finding) for finding in findings], indent=1)
        options.json.write_text(text + "\n")
    return _close(findings, {mutant.name: mutant.why for mutant in mutants}, start)


def _line(finding: Finding) -> str:
    return f"{finding.outcome:12}{finding.seconds:6.1f} s  {finding.name}  ({finding.by or '-'})"


def _close(findings: Sequence[Finding], why: dict[str, str], start: float) -> int:
    count = Counter(finding.outcome for finding in findings)
    faults = len(findings) - count["equivalent"]
    share = 100.0 * count["noticed"] / faults if faults else 100.0
    for finding in findings:
        if not finding.good:
            print(f"  {finding.name} in {finding.file}: {finding.outcome} {finding.by}")
            print(f"    what it does: {why[finding.name]}")
    print(
        f"{count['noticed']} of {faults} faults noticed ({share:.1f}%), "
        f"{count['not noticed']} not noticed, {count['not run']} not run, "
        f"{count['equivalent']} equivalent: {time.monotonic() - start:.0f} s"
    )
    return 0 if all(finding.good for finding in findings) else 1


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="glob: mutants of this name, file or area alone")
    parser.add_argument("--sample", type=int, help="so many of them, drawn at random")
    parser.add_argument("--seed", default="0", help="of the sample; any text")
    parser.add_argument("--jobs", type=int, default=2, help="copies of the tree at work at once")
    parser.add_argument("--json", type=Path, help="write the findings to this file")
    parser.add_argument(
        "--patience",
        type=float,
        default=_PATIENCE,
        help="seconds beyond ten times the usual ones after which tests count as hanging",
    )
    return parser.parse_args(words)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as for Ctrl-C, nothing is left behind
    sys.exit(main())
