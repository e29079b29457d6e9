# Thin targets; `make help` lists them. Ports and PRESET come from the environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# What pip installs for real training; a CPU build is enough for the tests.
TORCH ?= torch>=2.6
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help setup setup-all lab lab-real test lint generate golden bench soak practice-scores pictures docs docs-serve clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.lab  ## make the virtual environment with what the lab needs

setup-all: $(VENV)/.test  ## add what the tests and real training need, PyTorch among it

$(VENV)/.lab: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[lab]'
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.lab
	$(PIP) '$(TORCH)'
	$(PIP) --editable '.[test]'
	@touch $@

$(VENV)/.bench: pyproject.toml | $(VENV)/.test
	$(PIP) --editable '.[bench]'
	@touch $@

$(VENV)/.pictures: pyproject.toml | $(VENV)/.lab
	$(PIP) --editable '.[lab,pictures]'
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.lab
	$(PIP) --editable '.[lab,docs]'
	@touch $@

lab: setup  ## run the lab on this machine without Docker, until Ctrl-C
	@exec $(BIN)/stepscope lab $(LAB_FLAGS)

lab-real: setup-all  ## train a small GPT for real in place of the simulator, until Ctrl-C
	@exec $(BIN)/stepscope lab-real $(LAB_FLAGS)

test: setup-all  ## run the tests
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

lint: setup-all  ## check style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

generate: setup  ## write anew what is generated: dashboards, manifests, the tables of the documentation
	$(BIN)/python grafana/dashboards.py
	$(BIN)/python docs/metrics.py
	$(BIN)/python docs/cli.py
	$(BIN)/python docs/incidents.py
	$(BIN)/python docs/faults.py
	$(BIN)/python deploy/kubernetes/generate.py
	$(BIN)/python deploy/cardinality.py

golden: setup-all  ## write the golden scrapes anew
	$(BIN)/python -m pytest tests/stepscope/test_exposition.py --golden

bench: $(VENV)/.bench  ## measure speed; writes build/bench.json
	@PYTHONPATH=grafana OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python bench/bench.py

soak: setup-all  ## long runs without a fault must fire nothing and accuse nobody
	$(BIN)/python -m pytest tests/rules/test_quiet.py tests/real/test_quiet.py --quiet-hours 168 --quiet-minutes 10

practice-scores: setup  ## grade all rule sets over all drills, and write the tables of docs/alert-practice.md
	$(BIN)/python docs/practice_scores.py

pictures: $(VENV)/.pictures  ## take a picture of every dashboard of a running Grafana, healthy and in each main fault
	@$(BIN)/python grafana/pictures.py $(PICTURES_FLAGS)

docs: $(VENV)/.docs  ## build the documentation site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo build/site/index.html

docs-serve: $(VENV)/.docs  ## serve it on 127.0.0.1:8008, with its search, until Ctrl-C
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --quiet --dev-addr 127.0.0.1:8008

clean:  ## remove what was built and the lab's data
	rm -rf build dist $(VENV)
