# One command a task. Every target first makes .venv when it is missing or older than the two files
# that say what belongs in it. PIP_ARGS goes to pip (an index, say), ARGS to the command of a target.
PYTHON   ?= python3
PIP_ARGS ?=
ARGS     ?=
N        ?= 200
INTERRUPTS ?= 50
SAMPLE   ?= 10
SEED     ?= 0
MODULES  ?=
MINUTES  ?= 60
VENV     := .venv
BIN      := $(VENV)/bin
STAMP    := $(VENV)/.installed
TOOLS    := $(VENV)/.extra-dev
FLOORS   := .venv-floors

.PHONY: help train train-2 test test-vision floors torture coverage mutants check types lines lint bench nbs docs ui clean

help: ## show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r target text; do printf '%-11s %s\n' "$$target" "$$text"; done

$(STAMP): settings.ini constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("minilearn needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12")'
	@echo "Installing minilearn and what it depends on into $(VENV): one to two minutes, longer where downloads are slow."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e .
	@touch $@

# What only some tasks need is installed with them: the extras `dev`, `docs`, `mutants` and `ui` of settings.ini.
$(VENV)/.extra-%: $(STAMP)
	@echo "Installing the tools of the extra '$*': two minutes at most, longer where downloads are slow."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e ".[$*]"
	@touch $@

train: $(STAMP) ## train on the Fashion-MNIST sample; results go to runs/
	@$(BIN)/minilearn train $(ARGS)

train-2: $(VENV)/.extra-processes ## the same on two processes, each with its shard of the data
	@OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node 2 -m minilearn train --out runs/two_$$(date +%Y-%m-%d_%H-%M-%S) $(ARGS)

test: $(TOOLS) ## the whole test suite, but for what `make ui` runs
	@$(BIN)/python -m pytest -n 2 -m "not browser" $(ARGS)

torture: $(TOOLS) ## kill N runs and compare their resumes; INTERRUPTS within updates; then MINUTES of random fits: does memory grow?
	@$(BIN)/python tests/resumable.py $(N)
	@$(BIN)/python tests/interrupted.py $(INTERRUPTS)
	@$(BIN)/python tests/soak.py $(MINUTES)

coverage: $(TOOLS) ## the test suite with branch coverage of the package; takes long
	@$(BIN)/python -m pytest --cov=minilearn --cov-branch --cov-report=term-missing:skip-covered $(ARGS)

mutants: $(TOOLS) $(VENV)/.extra-mutants ## make SAMPLE small changes a module (0: all), by SEED; see which no test notices
	@SAMPLE=$(SAMPLE) SEED=$(SEED) MODULES="$(MODULES)" $(BIN)/python scripts/mutants.py

check: lint types lines test nbs docs ## everything that can be checked, one after the other

types: $(TOOLS) ## pyright: the package's types
	@$(BIN)/pyright

lines: $(STAMP) ## the lines of each folder: code, text, blank
	@$(BIN)/python scripts/count_lines.py $(ARGS)

test-vision: ## timm and torchvision, by hand: .venv-vision with both is made where it is missing (5 GB)
	@test -x .venv-vision/bin/python || $(PYTHON) -m venv .venv-vision
	@.venv-vision/bin/python -c "import timm, torchvision, minilearn, pytest" 2>/dev/null || .venv-vision/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e ".[vision]" pytest pytest-timeout hypothesis
	@.venv-vision/bin/python -m pytest tests/vision $(ARGS)

floors: ## the quick tests with the lowest versions that settings.ini allows, in .venv-floors
	@test -x $(FLOORS)/bin/python || $(PYTHON) -m venv $(FLOORS)
	@$(FLOORS)/bin/python scripts/floors.py > $(FLOORS)/floors.txt
	@$(FLOORS)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c $(FLOORS)/floors.txt -e ".[onnx,processes]" \
		tensorboard wandb scikit-learn torchmetrics pytest pytest-timeout pytest-xdist hypothesis build nbclient nbformat ipykernel
	@$(FLOORS)/bin/python -m pytest -n 2 -m "not slow" $(ARGS)

lint: $(TOOLS) ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

nbs: $(TOOLS) ## run every notebook; an error in a cell fails
	@for nb in $(wildcard nbs/*.ipynb); do echo "$$nb"; $(BIN)/jupyter-execute --timeout=600 "$$nb" || exit 1; done

docs: $(TOOLS) $(VENV)/.extra-docs ## build the reference site into site/; a dead link or a missing docstring fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

ui: $(TOOLS) $(VENV)/.extra-docs $(VENV)/.extra-ui ## check the site, and a fit in JupyterLab, with a browser; screenshots go to build/screenshots/
	@$(BIN)/python -m pytest tests/progress/test_notebook_ui.py tests/test_site_in_browser.py $(ARGS)

bench: $(TOOLS) ## run every benchmark; each prints its figures
	@for file in $$(grep -ls __main__ benchmarks/*.py); do echo "$$file"; $(BIN)/python "$$file" || exit 1; done

clean: ## remove what can be made again; .venv and runs/ stay
	@rm -rf build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis .coverage htmlcov
	@find $(wildcard minilearn tests examples benchmarks nbs) \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
