"""The command: its first line, what it refuses, and that no kill loses or doubles a promise."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest
import yaml

import proplace as pp
from commands import run
from proplace.cli.serve import listen
from served import API
from support.clocks import PATIENCE
from support.lenders import INCOME_DEBT, NET, TRAINING, refused

TOKEN = "a token of sixteen characters"
PROJECT = {
    "model": "lender.npz",
    "schema": "schema.yaml",
    "tables": {"train": "train.csv", "people": "people.csv", "id": "customer"},
    "delta": 0.01,
    "ledger": "promises.db",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project in the current folder."""
    NET.save(tmp_path / "lender.npz")
    INCOME_DEBT.write(tmp_path / "schema.yaml")
    TRAINING.to_csv(tmp_path / "train.csv", index=False)
    refused(5).assign(customer=range(5)).to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "proplace.yaml").write_text(yaml.safe_dump(PROJECT))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_serve_creates_no_ledger_unless_requested(folder):
    words = [sys.executable, "-m", "proplace", "serve", "--port", "0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert "there is no ledger" in done.stderr
    assert not (folder / "promises.db").exists()


def test_problems_of_file_are_reported_at_once(folder):
    wrong = PROJECT | {"model": "gone.npz", "delta": "x", "serve": {"path": "bench"}}
    (folder / "proplace.yaml").write_text(yaml.safe_dump(wrong))
    found = run("serve")
    assert found.returncode == 1
    assert "model: there is no file" in found.stderr
    assert "delta: there is no file" in found.stderr
    assert "serve.path: give a path that begins with a slash" in found.stderr


@pytest.mark.parametrize(
    ("words", "token", "text"),
    [
        (["--host", "0.0.0.0"], "", "set a secret as PROPLACE_TOKEN"),
        (["--host", "0.0.0.0"], "short", "at least 16"),
        (["--config", "nowhere.yaml"], "", "cannot be read"),
    ],
)
def test_wrong_options_are_one_sentence(folder, words, token, text):
    found = run("serve", *words, PROPLACE_TOKEN=token)
    assert found.returncode == 1
    assert text in " ".join(found.stderr.split())


def test_port_current_is_one_sentence(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = run("serve", "--port", taken.getsockname()[1])
    assert found.returncode == 1
    assert "Give another --port" in " ".join(found.stderr.split())


class Command:
    """A workbench that runs in a process of its own."""

    def __init__(self, folder, *words):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "proplace", "serve", "--port", "0", *words],
            cwd=folder,
            env=os.environ | {"PROPLACE_TOKEN": TOKEN},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        self.address = re.search(r"(http://[^/]+)/login\?code=\S+", line)[1]
        head = {"authorization": f"Bearer {TOKEN}"}
        self.client = httpx.Client(base_url=self.address + API, headers=head, timeout=PATIENCE)

    def wait(self):
        """Wait until it is ready."""
        while not self.client.get("/health").json()["ready"]:
            assert self.process.poll() is None
            time.sleep(0.05)

    def end(self, number=signal.SIGINT):
        self.client.close()
        self.process.send_signal(number)
        self.process.stdout.close()
        self.process.stderr.read()
        self.process.stderr.close()
        return self.process.wait(PATIENCE)


@pytest.mark.slow
def test_link_comes_first_and_interrupts_end_server(folder):
    command = Command(folder, "--create-ledger")
    command.wait()
    assert command.client.get("/model").json()["ledger"]
    assert command.end() in (0, 130)


@pytest.mark.slow
def test_project_that_cannot_be_opened_ends_server_with_its_sentence(folder):
    (folder / "schema.yaml").write_text("format: nothing")
    words = [sys.executable, "-m", "proplace", "serve", "--port", "0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert "/login?code=" in done.stdout, "the link comes before the project is opened"
    assert "not a schema file" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_twenty_kills_lose_and_double_no_confirmed_promise(folder):
    """Promises are issued until the process is killed, and the last ones are repeated after it."""
    confirmed = {}
    for kill in range(20):
        command = Command(folder, "--create-ledger")
        command.wait()
        end = time.monotonic() + 0.05 * (kill % 7)
        for n in range(200):
            person = f"p{kill}-{n}"
            asked = {"person": {"income": n % 30, "debt": 20 + kill}, "request": {"count": 1}}
            found = command.client.post("/explain", json=asked).json()
            body = {"answer": found["answer"], "person": person, "expires": "2999-12-31"}
            confirmed[person] = command.client.post("/promises", json=body).json()["promise"]
            if time.monotonic() > end:
                break
        command.client.close()
        late = subprocess.Popen(
            [
                sys.executable,
                "-c",
                LATE,
                command.address + API,
                TOKEN,
                found["answer"],
                f"late{kill}",
            ]
        )
        time.sleep(0.3 + 0.02 * kill)
        command.end(signal.SIGKILL)
        late.wait(PATIENCE)
    with pp.Ledger(folder / "promises.db", create=False) as ledger:
        assert ledger.verify().valid
        table = ledger.promises()
        for person, number in confirmed.items():
            assert table[table["person"] == person].index.tolist() == [number]
        assert not table["person"].duplicated().any()


LATE = """
import sys, httpx
address, token, answer, person = sys.argv[1:]
with httpx.Client(base_url=address, headers={"authorization": f"Bearer {token}"}) as client:
    try:
        for n in range(500):
            body = {"answer": answer, "person": f"{person}-{n}", "expires": "2999-12-31"}
            client.post("/promises", json=body)
    except httpx.HTTPError:
        pass
"""


def test_small_packets_are_not_delayed():
    """Sockets without the protocol's name answer 40 ms later on Linux."""
    with listen("127.0.0.1", 0) as found:
        assert found.proto == socket.IPPROTO_TCP
