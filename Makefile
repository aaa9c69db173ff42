PYTHON ?= $(shell command -v python3.11 || command -v python3)
DEV := .venv-dev
DEMO := .venv-demo

.PHONY: demo test check rows bench clean

demo: $(DEMO)/.installed
	@$(DEMO)/bin/livestream-env demo

test: $(DEV)/.installed
	$(DEV)/bin/python -m pytest $(PYTEST_ARGS)

check: $(DEV)/.installed
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/mypy

rows: $(DEV)/.installed
	@$(DEV)/bin/python -m pytest --rows -q --no-header

bench: $(DEV)/.installed
	$(DEV)/bin/python benchmarks/step.py

clean:
	rm -rf $(DEV) $(DEMO) dist build .pytest_cache .mypy_cache .ruff_cache

$(DEMO)/.installed: pyproject.toml
	@echo "making $(DEMO) with the core dependencies ..."
	@$(PYTHON) -m venv $(DEMO)
	@$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(DEV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DEV)
	$(DEV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@
