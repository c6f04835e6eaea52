"""Measure the service under load: whether answers are right, how long they take, what kills cost.

``python benchmarks/serve.py [--clients 50] [--seconds 60] [--pause 1.0] [--workers 2] [--smoke]``

The demonstration's model is served by a process of its own. Clients in threads ask for predictions,
verdicts and answers, and pause between two questions, at random and ``--pause`` seconds on average. A
job for many people keeps the processes that search busy all the while, and one client issues promises.
Every answer is compared with what the library says without a service. Then the same goes on while
workers and the server itself are killed (SIGKILL) and the server is started again.

It ends with status 1 if an answer was wrong or lost, a promise that was confirmed is not there, a job
did not end, or the chain does not hold. Times are printed; they are what the machine gives.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import psutil
import yaml

import proplace as pp
from common import machine
from proplace.apps.demo import load_loans, loan_schema, train
from proplace.apps.serve.store import Store
from proplace.client import Client, Job

if TYPE_CHECKING:
    import pandas as pd

DELTA = 0.0193
MIX = {"predict": 0.45, "certify": 0.45, "explain": 0.1}
NAME = "mortgages"


# -- the service -----------------------------------------------------------------------------------


class Server:
    """A service in a process, which can be killed and started again on the same port."""

    def __init__(self, folder: Path, net: pp.Network, frame: pd.DataFrame, workers: int) -> None:
        self.folder, self.port, self.log = folder, 0, folder / "log.txt"
        self.process: subprocess.Popen[bytes] | None = None
        net.save(folder / "model.npz")
        loan_schema().write(folder / "schema.yaml")
        frame.to_csv(folder / "train.csv", index=False)
        served = {
            "model": "model.npz", "train": "train.csv", "schema": "schema.yaml", "delta": DELTA,
        }  # fmt: skip
        self.facts = {
            "models": {NAME: served}, "ledger": "promises.db", "state": "serve.db",
            "limits": {"workers": workers, "requests": 1_000_000},
        }  # fmt: skip

    def start(self) -> None:
        """Start it and wait until it answers."""
        config = self.folder / "serve.yaml"
        config.write_text(yaml.safe_dump({**self.facts, "port": self.port}))
        command = [sys.executable, "-m", "proplace", "serve", "--config", str(config)]
        with self.log.open("ab") as log:
            environment = {**os.environ, "COLUMNS": "200"}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        for _ in range(1200):
            if self.process.poll() is not None:
                raise SystemExit(f"the service ended: {self.log.read_text()[-2000:]}")
            found = re.findall(r"serving .* on http://127\.0\.0\.1:(\d+)", self.log.read_text())
            self.port = int(found[-1]) if found else 0
            try:
                if self.port and httpx.get(f"{self.url}/api/v1/health", trust_env=False).is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise SystemExit("the service does not answer")

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def client(self, name: str, role: str = "admin") -> Client:
        """A client with a key of its own."""
        store = Store(self.folder / "serve.db")
        key = store.add_key(name, role)
        store.close()
        return Client(self.url, key, model=NAME, patience=300.0)

    def own(self) -> psutil.Process:
        """The process that serves."""
        assert self.process is not None
        return psutil.Process(self.process.pid)

    def workers(self) -> list[psutil.Process]:
        """The processes that search."""
        return [p for p in self.own().children() if "spawn_main" in " ".join(p.cmdline())]

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it in good order."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(60)


# -- what is right ---------------------------------------------------------------------------------


class Library:
    """What the library says of each person, computed before anything is served."""

    def __init__(self, net: pp.Network, frame: pd.DataFrame, people: int, searched: int) -> None:
        schema = loan_schema()
        X = schema.encode(frame)
        refused = np.flatnonzero(net.predict(X) == 0)
        accepted = np.flatnonzero(net.predict(X) == 1)
        chosen = [*refused[:searched], *accepted[: max(0, people - searched)]]
        self.frame, self.searched = frame.iloc[chosen].reset_index(drop=True), searched
        rows = X[chosen]
        self.labels, self.margins = net.predict(rows), net.margin(rows, 1)
        report = pp.certify(net, rows, DELTA)
        self.robust, self.lower = report.robust, report.lower
        fitted = pp.Proplace(net, DELTA, schema=schema, prefer="few", holds=True).fit(frame)
        self.answers = list(fitted.explain(self.frame[:searched]))

    def person(self, n: int) -> pd.DataFrame:
        """One person as a table of one row."""
        return self.frame.iloc[[n]]

    def right(self, kind: str, n: int, said: object) -> bool:
        """Whether an answer about a person is the library's own."""
        (one,) = said  # type: ignore[misc]
        if kind == "explain":
            ours = self.answers[n]
            proof = None if ours.certificate is None else ours.certificate.digest
            theirs = None if one.certificate is None else one.certificate.digest
            return (one.status, theirs, one.changed) == (ours.status, proof, ours.changed)
        if one.label != self.labels[n] or one.accepted != (self.labels[n] == 1):
            return False
        if kind == "predict":
            return bool(np.isclose(one.margin, self.margins[n], rtol=1e-9))
        return bool(
            one.robust == self.robust[n] and np.isclose(one.margin, self.lower[n], rtol=1e-9)
        )


# -- load ------------------------------------------------------------------------------------------


@dataclass
class Load:
    """Clients that ask, until they are told to end."""

    server: Server
    library: Library
    clients: list[Client]
    pause: float
    asked: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    memory: list[tuple[float, float]] = field(default_factory=list)
    confirmed: dict[int, str] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def begin(self, first: int) -> None:
        """Start all threads; ``first`` is the number of the first person who gets a promise."""
        for number, client in enumerate(self.clients[1:]):
            self._start(self._ask, client, random.Random(number))
        self._start(self._promise, self.clients[0], first)
        self._start(self._watch)

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)  # type: ignore[arg-type]
        self.threads.append(thread)
        thread.start()

    def end(self) -> None:
        """Let each finish its question."""
        self.over.set()
        for thread in self.threads:
            thread.join()

    def _ask(self, client: Client, chance: random.Random) -> None:
        self.over.wait(chance.uniform(0.0, self.pause))
        while not self.over.is_set():
            (kind,) = chance.choices(list(MIX), list(MIX.values()))
            most = self.library.searched if kind == "explain" else len(self.library.frame)
            n = chance.randrange(most)
            start = time.perf_counter()
            try:
                said = getattr(client, kind)(self.library.person(n))
            except Exception as error:
                self.lost.append(f"{kind} {n}: {type(error).__name__}: {error}")
                continue
            self.seconds[kind].append(time.perf_counter() - start)
            self.asked[kind] += 1
            if not self.library.right(kind, n, said):
                self.wrong.append(f"{kind} {n}: {said}")
            self.over.wait(chance.expovariate(1.0 / self.pause))

    def _promise(self, client: Client, first: int) -> None:
        for number in itertools.count(first):
            if self.over.wait(0.5):
                return
            person = f"person-{number}"
            n = number % self.library.searched
            try:
                (answer,) = client.explain(self.library.person(n))
                if answer.found:
                    start = time.perf_counter()
                    self.confirmed[client.issue(answer, person).promise] = person
                    self.seconds["issue"].append(time.perf_counter() - start)
                    self.asked["issue"] += 1
            except Exception as error:
                self.lost.append(f"issue {number}: {type(error).__name__}: {error}")

    def _watch(self) -> None:
        start = time.monotonic()
        while not self.over.wait(0.5):
            try:
                size = self.server.own().memory_info().rss / 2**20
            except psutil.Error:
                continue
            self.memory.append((time.monotonic() - start, size))


def told(title: str, load: Load, took: float) -> None:
    """Print what a phase has shown."""
    total = sum(load.asked.values())
    print(f"\n{title}: {total:,} questions in {took:.0f} s, {total / took:.1f} a second; "
          f"{len(load.wrong)} wrong, {len(load.lost)} lost")  # fmt: skip
    print(f"  {'':8s} {'number':>7s} {'median':>8s} {'p95':>8s} {'p99':>8s} {'most':>8s}  ms")
    for kind in ("predict", "certify", "explain", "issue"):
        if found := load.seconds.get(kind):
            cells = [1e3 * np.quantile(found, q) for q in (0.5, 0.95, 0.99, 1.0)]
            print(f"  {kind:8s} {len(found):7,d} " + " ".join(f"{cell:8.1f}" for cell in cells))
    for text in [*load.wrong[:5], *load.lost[:5]]:
        print(f"  {text[:300]}")


def told_by_the_server(server: Server) -> None:
    """Print how long the server itself took, by its log."""
    found = defaultdict(list)
    for line in server.log.read_text().splitlines():
        if line.startswith("{") and (facts := json.loads(line)).get("status") == 200:
            found[facts["route"].rsplit("/", 1)[-1]].append(facts["ms"])
    for kind in ("predict", "certify"):
        if found[kind]:
            middle, high = np.quantile(found[kind], [0.5, 0.95])
            print(f"  {kind} without the client: median {middle:.1f} ms, p95 {high:.1f} ms")


def told_memory(load: Load) -> None:
    """Print how the memory of the process that serves has grown."""
    if len(load.memory) < 4:
        return
    sizes = [size for _, size in load.memory]
    quarter = len(sizes) // 4
    early, late = np.median(sizes[quarter : 2 * quarter]), np.median(sizes[-quarter:])
    print(f"  memory of the server: second quarter {early:.1f} MB, last quarter {late:.1f} MB, "
          f"most {max(sizes):.1f} MB")  # fmt: skip


# -- kills -----------------------------------------------------------------------------------------


def kill_some(server: Server, seconds: float, kills: int) -> None:
    """Kill workers and the server in turn, at random moments of so many seconds."""
    chance = random.Random(5)
    for number in range(2 * kills):
        time.sleep(chance.uniform(0.3, 1.0) * seconds / (2 * kills))
        if number % 2:
            server.kill()
            server.start()
        elif workers := server.workers():
            chance.choice(workers).kill()
    time.sleep(0.2 * seconds)


def checked(server: Server, load: Load, job: str, library: Library, people: list[int]) -> list[str]:
    """What is not as it must be after everything."""
    client, problems = load.clients[0], []
    end = time.monotonic() + 600
    while not (state := job_state(client, job)).ended and time.monotonic() < end:
        time.sleep(0.5)
    print(f"\nthe job: {state.state}, {state.done} of {state.total} people")
    if state.state != "done":
        problems.append(f"the job is {state.state}: {state.reason}")
    answers = client._http.ask("GET", f"jobs/{job}/answers")["answers"]
    for number, n in enumerate(people):
        ours, theirs = library.answers[n], answers[str(number)]
        proof = None if ours.certificate is None else ours.certificate.digest
        if isinstance(theirs, dict) or theirs[0]["certificate_digest"] != proof:
            problems.append(f"the job's answer for {number} is another one")
    table = client.promises()
    kept = [p for p, person in load.confirmed.items()
            if p in table.index and table.loc[p, "person"] == person]  # fmt: skip
    people_known = table["person"].duplicated().sum()
    verified = client.verify()
    print(f"promises: {len(load.confirmed)} confirmed, {len(kept)} of them in the ledger, "
          f"{people_known} issued twice; {verified.entries} entries, chain "
          f"{'valid' if verified.good else 'BROKEN'}")  # fmt: skip
    if len(load.confirmed) > 1000:
        raise SystemExit("more promises than can be listed; take fewer seconds")
    if len(kept) != len(load.confirmed) or people_known or not verified.good:
        problems.append("promises were lost, or the chain does not hold")
    return problems


def job_state(client: Client, job: str) -> Job:
    """How far a job is."""
    return next(one for one in client.jobs() if one.id == job)


# -- all of it -------------------------------------------------------------------------------------


def measure(given: argparse.Namespace, folder: Path) -> list[str]:
    """Print all figures; return what is wrong."""
    loans = load_loans()
    net = train(loan_schema().encode(loans.frame), loans.approved)
    library = Library(net, loans.frame, given.people, given.searched)
    server = Server(folder, net, loans.frame, given.workers)
    server.start()
    try:
        clients = [server.client(f"client-{n}") for n in range(given.clients + 1)]
        for n in range(given.searched):  # every worker has fitted its explainer
            clients[0].explain(library.person(n))
        people = [n % library.searched for n in range(given.job)]
        asked = {"people": [p.iloc[0].to_dict() for p in map(library.person, people)]}
        job = clients[0]._http.ask("POST", f"models/{NAME}/explain", json=asked)["job"]
        quiet = Load(server, library, clients, given.pause)
        phase(quiet, "load", 0, lambda: time.sleep(given.seconds))
        state = job_state(clients[0], job)
        print(f"  beside a job: {state.done} of {state.total} people, {state.state}")
        told_by_the_server(server)
        told_memory(quiet)
        rough = Load(server, library, clients, given.pause, confirmed=dict(quiet.confirmed))
        phase(rough, f"{given.kills} kills of a worker and of the server", 1_000_000,
              lambda: kill_some(server, given.rough, given.kills))  # fmt: skip
        problems = checked(server, rough, job, library, people)
    finally:
        server.stop()
    return [*problems, *quiet.wrong, *quiet.lost, *rough.wrong, *rough.lost]


def phase(load: Load, title: str, first: int, meanwhile: object) -> None:
    """Load the service while something else happens."""
    start = time.monotonic()
    load.begin(first)
    try:
        meanwhile()  # type: ignore[operator]
    finally:
        load.end()
    told(title, load, time.monotonic() - start)


def main() -> None:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load without kills")
    parser.add_argument("--rough", type=float, default=40.0, help="seconds of load with kills")
    parser.add_argument(
        "--pause", type=float, default=1.0, help="between two questions, on average"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--people", type=int, default=200)
    parser.add_argument(
        "--searched", type=int, default=30, help="people for whom answers are found"
    )
    parser.add_argument("--job", type=int, default=1100, help="people of the job")
    parser.add_argument("--smoke", action="store_true", help="a few seconds of everything")
    given = parser.parse_args()
    if given.smoke:
        small = {"clients": 8, "seconds": 3.0, "rough": 5.0, "kills": 1, "people": 20, "pause": 0.3,
                 "searched": 4, "job": 20}  # fmt: skip
        vars(given).update(small)
    print(f"{machine()}; {given.clients} clients, pause {given.pause:g} s, {given.workers} workers; "
          f"load of the machine before: {os.getloadavg()[0]:.2f}")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        problems = measure(given, Path(folder))
    print(f"\n{len(problems)} problems")
    for text in problems[:20]:
        print(f"  {text[:300]}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
