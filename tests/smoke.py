"""A short run through every dependency of the package, for `make oldest`: any failure is an error.

Usage: python tests/smoke.py [STEP ...], in an empty folder, with the package and all its extras.
"""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import proplace as pp
from proplace.certification import checker

DELTA = 0.002
STEPS = []


def step(function):
    """Register a step; steps run in the order of the file."""
    STEPS.append(function)
    return function


def run(*words):
    """Run a command of the package; return its standard output."""
    command = Path(sys.executable).with_name("proplace")
    done = subprocess.run([command, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"proplace {' '.join(map(str, words))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def lender(seed=0):
    """A pipeline over numbers and words, its table, and three refused people."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "income": rng.integers(10, 90, 300),
            "debt": rng.uniform(0, 60, 300).round(1),
            "job": rng.choice(["clerk", "cook", "pilot"], 300),
        }
    )
    repaid = table["income"] - table["debt"] + 5 * (table["job"] == "pilot") > 25
    encode = make_column_transformer(
        (StandardScaler(), ["income", "debt"]), (OneHotEncoder(), ["job"])
    )
    pipeline = make_pipeline(encode, MLPClassifier((6,), solver="lbfgs", alpha=0.1, random_state=0))
    pipeline.fit(table, repaid.astype(int))
    return pipeline, table, table[pipeline.predict(table) == 0][:3]


def plain_network(seed=0):
    """A network on two numbers, its table, and three refused people."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.random((120, 2)), columns=["a", "b"])
    hidden = ([[1.0, 1.0], [1.0, -1.0], [-1.0, 0.5]], [-0.2, 0.1, 0.3])
    network = pp.Network([hidden, ([[1.0, -0.3, 0.4]], [-0.7])])
    return network, table, table[network.predict(table.to_numpy()) == 0][:3]


def explained(model, table, people, **options):
    """Explain people and check every certificate; all must be robust."""
    answers = pp.Proplace(model, DELTA, k=5, **options).fit(table).explain(people)
    assert {answer.status for answer in answers} <= {"optimal", "feasible"}, answers.to_frame()
    network = model if isinstance(model, pp.Network) else pp.Model.of(model).network
    assert all(answer.certificate.check(network).accepted for answer in answers)
    return answers


@step
def explain_pipeline():
    pipeline, table, people = lender()
    answers = explained(pipeline, table, people)
    assert (pipeline.predict(answers.to_frame()[table.columns]) == 1).all()
    answers.report("report.html")
    assert "</html>" in Path("report.html").read_text(encoding="utf-8")


@step
def files_and_checker():
    network, table, people = plain_network()
    network.save("net.npz")
    again = pp.Network.load("net.npz")
    assert [layer.W.tolist() for layer in again.layers] == [
        layer.W.tolist() for layer in network.layers
    ]
    with np.load("net.npz") as arrays:
        assert "allow_pickle" not in arrays.files
    shifts = pp.Shifts.of(network, DELTA)
    shifts.save("shifts.npz")
    assert pp.Shifts.load("shifts.npz").digest == shifts.digest
    assert not pp.certify(network, people.to_numpy(), DELTA).robust.any()
    explained(network, table, people)[0].certificate.save("proof.json")
    done = subprocess.run(
        [sys.executable, "-I", checker.__file__, "proof.json", "net.npz"], check=False
    )
    assert done.returncode == 0
    schema = pp.Schema.infer(table)
    schema.write("schema.yaml")
    assert pp.Schema.read("schema.yaml") == schema


@step
def command_line():
    network, table, people = plain_network()
    network.save("net.npz")
    table.to_csv("train.csv", index=False)
    people.to_csv("people.csv.gz", index=False)
    people.reset_index(drop=True).to_parquet("people.parquet")
    model = ("--model", "net.npz", "--delta", DELTA)
    run("schema", "train.csv")
    run("certify", *model, "--input", "people.parquet", "--json")
    explain = ("explain", *model, "--train", "train.csv")
    run(*explain, "--input", "people.csv.gz", "--jobs", 2, "--out", "results")
    run(*explain, "--input", "people.parquet", "--out", "results-parquet")
    one, other = (
        pd.read_csv("results/results.csv"),
        pd.read_parquet("results-parquet/results.parquet"),
    )
    assert np.allclose(one["distance"], other["distance"])
    run("check", "results/certificates", "--model", "net.npz")
    run("report", "results", "--out", "page.html")
    run("--help")


@step
def ledger():
    pipeline, table, people = lender()
    answers = explained(pipeline, table, people)
    with pp.Ledger("promises.db", actor="smoke") as book:
        book.issue(answers, ids=["ann", "bob", "cy"], expires="2999-12-31")
        assert sum(book.audit(pipeline).counts.values()) == 3
        assert book.verify().valid
    import psycopg  # a server is not at hand

    assert callable(psycopg.connect)


@step
def onnx():
    from onnx import TensorProto, helper, numpy_helper, save

    network, table, people = plain_network()
    (first, second), nodes, constants = network.layers, [], []
    for name, layer in (("first", first), ("second", second)):
        constants += [
            numpy_helper.from_array(layer.W.astype(np.float32), f"{name}_W"),
            numpy_helper.from_array(layer.bias.astype(np.float32), f"{name}_b"),
        ]
    nodes = [
        helper.make_node("Gemm", ["x", "first_W", "first_b"], ["z"], transB=1),
        helper.make_node("Relu", ["z"], ["h"]),
        helper.make_node("Gemm", ["h", "second_W", "second_b"], ["y"], transB=1),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("x", 2), ("y", 1))
    ]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], constants)
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), "net.onnx")
    explained(pp.Model.of("net.onnx"), table, people)


@step
def torch():
    import torch

    network, table, people = plain_network()
    first, second = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
    with torch.no_grad():
        for layer, ours in zip((first, second), network.layers, strict=True):
            layer.weight.copy_(torch.tensor(ours.W))
            layer.bias.copy_(torch.tensor(ours.bias))
    explained(torch.nn.Sequential(first, torch.nn.ReLU(), second), table, people)


@step
def keras():
    import keras

    network, table, people = plain_network()
    scale = keras.layers.Normalization()
    scale.adapt(table.to_numpy("float32"))
    hidden, last = keras.layers.Dense(3, activation="relu"), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((2,)), scale, hidden, last])
    (first, second), mean, deviation = network.layers, table.mean(), table.std(ddof=0)
    hidden.set_weights([(first.W * deviation.to_numpy()).T, first.bias + first.W @ mean])
    last.set_weights([second.W.T, second.bias])
    explained(model, table, people)


@step
def gurobi():
    network, table, people = plain_network()
    near = explained(network, table, people).to_frame()["distance"]
    other = explained(network, table, people, search="bilevel", solver="gurobi").to_frame()[
        "distance"
    ]
    assert np.allclose(near, other)


@step
def dask():
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        explained(*plain_network(), n_jobs=2)


@step
def ray():
    import ray
    from ray.util.joblib import register_ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    register_ray()
    with joblib.parallel_config(backend="ray", n_jobs=2):
        explained(*plain_network(), n_jobs=2)
    ray.shutdown()


@step
def data():
    import pooch

    assert callable(pooch.retrieve)


@step
def demo():
    from proplace.demo import run as demonstrate

    demonstrate(Path("demo"), people=2, retrainings=2)
    assert Path("demo/report.html").is_file()


def main():
    names = sys.argv[1:] or [function.__name__ for function in STEPS]
    failed = []
    for function in STEPS:
        if function.__name__ not in names:
            continue
        try:
            function()
        except Exception as error:
            failed.append(function.__name__)
            print(f"FAILED {function.__name__}: {type(error).__name__}: {error}", flush=True)
        else:
            print(f"passed {function.__name__}", flush=True)
    if failed:
        installed = sorted(f"{d.name}=={d.version}" for d in metadata.distributions())
        sys.exit(f"{', '.join(failed)} failed with {', '.join(installed)}")


if __name__ == "__main__":
    main()
