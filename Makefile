# One line a target. Everything runs in .venv, which `setup` makes and keeps up to date.
PYTHON ?= python3
RUN = .venv/bin/python
PIP = $(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: setup tools demo test unit faults soak check bench clean

SECONDS ?= 60  # of `make soak`; SEED=… repeats the faults of a run

setup: .venv/dev

.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv && $(PIP) --editable '.[demo]' && touch $@

.venv/dev: .venv/demo
	$(PIP) --editable '.[dev]' && touch $@

# What the tests of faults need from Debian. Without it, or without root, those that need it are skipped and say so.
TOOLS = nft ip tc ss ethtool faketime

tools:
	-@which $(TOOLS) > /dev/null || test "$$(id -u)" != 0 || { apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq nftables iproute2 ethtool faketime; }

demo: .venv/demo
	$(RUN) -m examples.digits

test: .venv/dev tools
	$(RUN) -m pytest

unit: .venv/dev
	$(RUN) -m pytest -m 'not slow'

faults: .venv/dev tools
	$(RUN) -m pytest tests/faults

soak: .venv/dev
	$(RUN) -m tests.soak --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

bench: .venv/dev
	$(RUN) -m benchmarks

check: .venv/dev
	.venv/bin/ruff format --check . && .venv/bin/ruff check . && .venv/bin/mypy && $(RUN) -m pytest -q tests/test_layers.py

clean:
	rm -rf .venv build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
