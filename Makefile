# Two commands: `make demo` trains the embedded default, `make test` runs the tests. Both set up the same virtual environment first.
PYTHON ?= python3
VENV ?= .venv
RUN ?= runs/demo

# pip compiles no bytecode: most of what is installed is never imported. Python keeps what it compiles at the first import, for the tests' workers and the processes that they start.
unexport PYTHONDONTWRITEBYTECODE
INSTALL = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile

.PHONY: check demo format test venv setup setup-test

venv:
	@echo "== Setting up $(VENV) with grre_jax (made once; pip only checks it afterwards)"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "grre_jax needs Python 3.11 or newer: make demo PYTHON=python3.12" >&2; exit 2; }

setup: venv
	@$(INSTALL) -e .

setup-test: venv
	@$(INSTALL) -e '.[test]'

demo: setup
	@echo "== Training the embedded default (configs/arithmetic.py) off-policy into $(RUN), replacing an earlier run there: 1.5 to 3 minutes on 2 cores"
	$(VENV)/bin/grre train configs/arithmetic.py --run-dir $(RUN) --overwrite

test: setup-test
	@echo "== Running the tests (tests/; without those marked slow, distributed or parity), four files at a time"
	$(VENV)/bin/python -m pytest -q -n 4 --dist loadfile --no-loadscope-reorder

PAGES = README.md CONTRIBUTING.md docs/*.md

format: setup-test
	$(VENV)/bin/python -m ruff format .
	$(VENV)/bin/python -m mdformat $(PAGES)

check: setup-test
	@echo "== Checking lint, formatting (make format) and the types of the public modules"
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m mdformat --check $(PAGES)
	$(VENV)/bin/pyrefly check --python-interpreter-path $(VENV)/bin/python
