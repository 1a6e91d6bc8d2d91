# Every target sets up what it needs: a virtual environment in .venv, with CPU torch by constraints.txt.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test test-all test-latest test-connectors screenshot golden check docs format bench clean
help:            ## show this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/'

setup: $(READY)  ## create .venv with everything needed to work on prism-prm

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "prism-prm needs Python 3.11 or newer; found $$($(PYTHON) --version). Name one with: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)   ## run the whole pipeline in a small world (minutes)
	$(BIN)/prism demo

test: $(READY)   ## run the fast tests, as CI does (minutes)
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: export PRISM_FUZZ_CASES ?= 200000
test-all: $(READY)  ## run all tests in random order (hours; needs chromium)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'slow or not slow' -p randomly

# Packages with an upper bound in pyproject.toml. torch stays as in constraints.txt, since a newer one would pull in CUDA.
LATEST := .venv-latest
HELD_BACK := ray trl transformers uvicorn
test-latest:     ## run the tests with the newest version of every dependency, in .venv-latest
	rm -rf $(LATEST)
	$(PYTHON) -m venv $(LATEST)
	grep '^torch==' constraints.txt > $(LATEST)/torch.txt
	$(LATEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(LATEST)/torch.txt -e '.[dev]'
	$(LATEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(LATEST)/torch.txt --upgrade $(HELD_BACK)
	@echo "Versions that differ from constraints.txt:"; $(LATEST)/bin/python -m pip freeze --exclude-editable | grep -vxFf constraints.txt || true
	$(LATEST)/bin/python -m pytest -n 2 --dist worksteal $(ARGS)

test-connectors: $(READY)  ## run the connectors on the real frameworks, in .venv-connectors; ONLY=verl for one
	$(BIN)/python tests/connectors/run_connectors.py $(ONLY) -- $(ARGS)

screenshot: $(READY)  ## take the README's screenshot of the page (needs chromium)
	$(BIN)/python experiments/page_screenshot.py

golden: $(READY)  ## rewrite the golden files in tests/golden; ARGS='-k search' for some of them
	PRISM_WRITE_GOLDEN=1 $(BIN)/python -m pytest tests/golden $(ARGS)

check: $(READY)  ## lint and type-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)   ## build the docs site in site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(READY) ## format the code and apply safe lint fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Idle threads wait as in the prism command (see docs/lab/performance.md). Options for all: make bench ARGS='--busy 2'
bench: export GOMP_SPINCOUNT ?= $(shell sed -n 's/^SPIN_COUNT = "\(.*\)"/\1/p' src/prism_prm/cli/threads.py)
bench: $(READY)  ## run all benchmarks
	@for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python $$file $(ARGS) || exit 1; done

clean:           ## remove the virtual environment and caches
	rm -rf $(VENV) $(LATEST) .venv-connectors .pytest_cache .mypy_cache .ruff_cache .hypothesis site
