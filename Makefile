# Fresh Debian or Ubuntu: apt install git make python3-venv, then `make run`.
#
# torch from PyPI brings gigabytes of CUDA libraries. Without an NVIDIA GPU, take the CPU build:
#   make run TORCH_INDEX=https://download.pytorch.org/whl/cpu
# (the first time only: an up-to-date installation is left alone)
#
# Without RUN_CONFIG, `make run` demonstrates a rare outcome: it removes positives from the training samples.

PYTHON      ?= python3
TORCH_INDEX ?=
RUN_CONFIG  ?= thin-share=0.1
PYTEST      ?=

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
        $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

export RUN_CONFIG # through the environment, because it may contain both kinds of quotes

.PHONY: help run demo test deployments everything containers lint docs site clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

run: $(VENV)/.run ## Train in Flower's simulation, on a rare outcome; RUN_CONFIG='algorithm="coda-plus" rounds=5', or a TOML file, changes the job
	@$(BIN)/python bin/run.py --run-config "$$RUN_CONFIG"

demo: $(VENV)/.run ## Start a coordinator, three hospitals and both pages on this machine, for a look
	@$(BIN)/python bin/demo.py

test deployments everything: export PYTHONDONTWRITEBYTECODE :=# each of their processes would compile everything anew
test: $(VENV)/.dev ## Run the tests that are quick; PYTEST='-k compose' selects some
	@$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal -m "not slow" $(PYTEST)

deployments: $(VENV)/.dev ## Run the slow tests: Flower's servers and real sites, Ray, the wheel, every command in docs/
	@$(BIN)/python -m pytest -n 3 --dist worksteal -m "deployments or slow" $(PYTEST)

everything: $(VENV)/.dev ## Run the tests of both in one go, a file at a time in each of three processes
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "deployments or not containers" $(PYTEST)

containers: $(VENV)/.dev ## Build the image and try docker-compose.yml with the Docker engine, TORCH_INDEX as above
	@TORCH_INDEX=$(TORCH_INDEX) $(BIN)/python -m pytest -m containers tests/deployment $(PYTEST)

lint: $(VENV)/.dev ## Check style (ruff) and types (mypy)
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m mypy

docs: $(VENV)/.dev ## Update the generated tables: the keys in pyproject.toml, algorithms, problems, papers
	@$(BIN)/python bin/docs.py

site: $(VENV)/.dev ## Build the documentation with its API reference into site/; REPO_URL=... links to the sources
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict # with --quiet, it would count no warnings

clean: ## Remove the environment and all caches; runs/ and data/ stay
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist site *.fab
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamp files: nothing is installed again until its requirements change.
$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/.made
	@echo "Installing what the app needs into $(VENV) (minutes the first time, see TORCH_INDEX in the Makefile)"
	@$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "Installing what tests, checks and the documentation need into $(VENV)"
	@$(PIP) -e '.[test,lint,docs]'
	@touch $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Edelweiss needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "Python's venv module is missing: apt install python3-venv" >&2; exit 1; }
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@
