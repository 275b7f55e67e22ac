# Each target does all its own set-up on a fresh machine: a virtual environment with the versions in constraints.txt.
# make test OLDEST=1: with the oldest torch, numba and numpy that are supported, those of constraints-oldest.txt.
PYTHON ?= python3
PINS := constraints.txt $(if $(OLDEST),constraints-oldest.txt)
CONSTRAINTS := .venv/$(if $(OLDEST),oldest,newest).txt
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --constraint $(CONSTRAINTS)
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test test-integrations lint docs bench torture clean

# Dense SGD, SFW-IF and 5 % of the edges on the digits that come with scikit-learn; the report is inface-demo/report.html.
demo: .venv/lab
	$(BIN)/inface demo

test: .venv/ready
	$(BIN)/python -m pytest -n 2 --dist worksteal

# Real training inside of Lightning, transformers, Accelerate and skorch, and the loggers; sharded training; Triton's
# kernels, interpreted and compiled for GPUs that need not be here. All this has an environment of its own.
# WHOLE=1: all cases of the long matrices, which take an hour; otherwise a part of them.
INTEGRATIONS := .venv-integrations/bin
test-integrations: .venv-integrations/ready
	$(INTEGRATIONS)/python -m pytest -n 2 --dist worksteal $(if $(WHOLE),--whole) tests/integrations tests/distributed src/inface/integrations

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The pages' examples are run, the tutorials are executed, a warning is an error. It starts at docs/_build/html/index.html.
docs: .venv/docs
	$(BIN)/python -m pytest README.md docs/start.md docs/laboratory.md docs/concepts docs/howto
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

# On an idle machine: about five minutes. OMP_NUM_THREADS must not hold it to one thread.
bench: .venv/ready
	env -u OMP_NUM_THREADS $(BIN)/python -m benchmarks

# Random runs, kills and damaged files for so many minutes; writes docs/reliability.md. PostgreSQL is tried if it is installed.
MINUTES ?= 60
torture: .venv/torture
	$(BIN)/python -m torture --minutes $(MINUTES) --write

clean:
	rm -rf .venv .venv-integrations build dist docs/_build docs/results docs/project

# All pins in one file; a later file has the last word. With other pins everything is installed again.
$(CONSTRAINTS): $(PINS)
	$(PYTHON) -m venv .venv
	rm -f .venv/*.txt .venv/lab .venv/ready .venv/torture .venv/docs
	awk -F== 'NF == 2 { pin[$$1] = $$2 } END { for (name in pin) print name "==" pin[name] }' $(PINS) >$@

# torch first and by itself: its pinned version decides which build is taken, and everything else must then fit it.
# Then what builds the package, so that it is pinned too.
.venv/lab: pyproject.toml $(CONSTRAINTS)
	$(INSTALL) torch
	$(INSTALL) editables hatchling
	$(INSTALL) --no-build-isolation --editable ".[lab]"
	touch $@

.venv/ready: .venv/lab
	$(INSTALL) --no-build-isolation --editable ".[test,lint]"
	touch $@

.venv/torture: .venv/ready
	$(INSTALL) --no-build-isolation --editable ".[torture]"
	touch $@

.venv/docs: .venv/ready
	$(INSTALL) --no-build-isolation --editable ".[docs]"
	touch $@

INSTALL_INTEGRATIONS := $(INTEGRATIONS)/pip install --quiet --constraint constraints.txt
.venv-integrations/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-integrations
	$(INSTALL_INTEGRATIONS) torch
	$(INSTALL_INTEGRATIONS) editables hatchling
	$(INSTALL_INTEGRATIONS) --no-build-isolation --editable ".[integrations,gpu,test]"
	touch $@
