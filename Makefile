# One line a target. Everything runs in .venv, which `setup` makes and keeps up to date.
PYTHON ?= python3
RUN = .venv/bin/python
PIP = $(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: setup demo test unit check bench clean

setup: .venv/dev

.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv && $(PIP) --editable '.[demo]' && touch $@

.venv/dev: .venv/demo
	$(PIP) --editable '.[dev]' && touch $@

demo: .venv/demo
	$(RUN) -m examples.digits

test: .venv/dev
	$(RUN) -m pytest

unit: .venv/dev
	$(RUN) -m pytest -m 'not slow'

bench: .venv/dev
	$(RUN) -m benchmarks

check: .venv/dev
	.venv/bin/ruff format --check . && .venv/bin/ruff check . && .venv/bin/mypy && $(RUN) -m pytest -q tests/test_layers.py

clean:
	rm -rf .venv build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
