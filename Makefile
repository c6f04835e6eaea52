# Two commands do everything on a machine with Python >= 3.11, make and git:
#   make demo    make test
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# One BLAS thread a process: the matrices are small and the tests run in parallel.
export OMP_NUM_THREADS = 1
export OPENBLAS_NUM_THREADS = 1
export KERAS_BACKEND = torch

define ENVIRONMENT
$(PYTHON) -c 'import sys; sys.exit("proplace needs Python >= 3.11; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" if sys.version_info < (3, 11) else 0)'
$(PYTHON) -m venv $(VENV)
$(BIN)/pip install --quiet --upgrade pip
endef

.PHONY: demo picture test test-slow test-all mutants fuzz kills golden sentences wheel-test oldest notebooks docs reference lint format bench clean

# torch is asked for by its exact version first: that takes a CPU build where one is at hand.
$(VENV)/test.stamp: pyproject.toml
	$(ENVIRONMENT)
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[test,lint]'
	touch $@

$(VENV)/demo.stamp: pyproject.toml
	$(ENVIRONMENT)
	$(BIN)/pip install --quiet --editable '.[demo]'
	touch $@

demo: $(VENV)/demo.stamp
	$(BIN)/proplace demo

# The picture of the README.
picture: $(VENV)/demo.stamp
	$(BIN)/proplace demo --out build/demo
	cp build/demo/picture.png docs/img/demo.png

# CONTRIBUTING.md: quick tests after every change; CI runs test and test-slow.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile

test: $(VENV)/test.stamp
	$(PYTEST) -m "not slow" --hypothesis-profile=quick

test-slow: $(VENV)/test.stamp
	$(PYTEST) -m "slow or hypothesis" --hypothesis-profile=all

test-all: $(VENV)/test.stamp
	$(PYTEST) --hypothesis-profile=all

# Mutation testing of one module: make mutants ONLY=certification.bounds (CONTRIBUTING.md)
MUTMUT := 3.8.1
mutants: $(VENV)/test.stamp
	@test -n "$(ONLY)" || { echo "name a module: make mutants ONLY=certification.bounds"; exit 2; }
	$(BIN)/pip install --quiet mutmut==$(MUTMUT)
	$(BIN)/mutmut run "proplace.$(ONLY).*" --max-children 2
	$(BIN)/mutmut results | grep "proplace.$(ONLY)" || echo "no survivors"

# The readers of files from outside under damaged input, for some seconds: make fuzz SECONDS=600
SECONDS ?= 60
fuzz: $(VENV)/test.stamp
	$(BIN)/python tests/fuzz/run.py --seconds $(SECONDS) $(if $(ONLY),--only '$(ONLY)')

# Batches that are killed a hundred times: parents by three signals, and workers.
kills: $(VENV)/test.stamp
	PROPLACE_KILLS=100 $(BIN)/python -m pytest -s tests/cli/test_kills.py

# Golden data: prints every moved status, distance and digest, and saves the new ones.
golden: $(VENV)/test.stamp
	PYTHONPATH=tests $(BIN)/python -W ignore -m golden.make $(if $(ONLY),--only '$(ONLY)')

# Sentences that are read back and compared with an exact oracle; none may claim more than was proved.
sentences: $(VENV)/test.stamp
	PYTHONPATH=tests $(BIN)/python -W ignore -m sentences 100000

wheel-test:
	tests/wheel.sh $(PYTHON)

# The lower bounds of pyproject.toml: the oldest versions in a throw-away environment, a run through each.
oldest:
	$(PYTHON) tests/oldest.py $(FOLDER)

# The notebooks of examples/ with their outputs; comparison.ipynb needs the data sets.
notebooks: $(VENV)/test.stamp
	$(BIN)/python -W ignore tests/notebooks.py examples/*.ipynb

# The site: the pages of docs/, the API and the mathematics from the docstrings, into build/docs.
docs: $(VENV)/test.stamp
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs build/docs

# docs/reference.md, from the code.
reference: $(VENV)/test.stamp
	PYTHONPATH=tests $(BIN)/python -W ignore -m reference

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/test.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The tables of docs/benchmarks.md: make bench DATA=/path/to/data. Without DATA, the data sets are
# downloaded. own_models.py continues an interrupted run; delete build/own_models.jsonl to start anew.
DATA ?= $(PROPLACE_DATA)
BENCH := $(if $(DATA),PROPLACE_DATA='$(abspath $(DATA))') $(BIN)/python -W ignore
bench: $(VENV)/test.stamp
	$(if $(DATA),,$(BIN)/pip install --quiet --editable '.[data]')
	$(BENCH) benchmarks/oracle.py
	$(BENCH) benchmarks/certify.py --rows 20
	$(BENCH) benchmarks/search.py
	$(BENCH) benchmarks/proof.py
	$(BENCH) benchmarks/releases.py --dry
	$(BENCH) benchmarks/limits.py --limits 1 3 10 --people 5
	$(BENCH) benchmarks/own_models.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis mutants
