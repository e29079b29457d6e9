# Thin targets; `make help` lists them. Ports and PRESET come from the environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help setup lab test lint generate golden bench soak clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.installed  ## make the virtual environment with all that the lab and the tests need

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

lab: setup  ## run the lab on this machine without Docker, until Ctrl-C
	@exec $(BIN)/stepscope lab $(LAB_FLAGS)

test: setup  ## run the tests
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

lint: setup  ## check style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

generate: setup  ## write the dashboards' JSON and the metric table of the documentation anew
	$(BIN)/python grafana/dashboards.py
	$(BIN)/python docs/metrics.py

golden: setup  ## write the golden scrapes anew
	$(BIN)/python -m pytest tests/stepscope/test_exposition.py --golden

bench: setup  ## measure speed; writes build/bench.json
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python bench/bench.py

soak: setup  ## 24 simulated hours without a fault must fire nothing
	$(BIN)/python -m pytest tests/rules/test_quiet.py --quiet-hours 24

clean:  ## remove what was built and the lab's data
	rm -rf build dist $(VENV)
