# One line a target. Everything runs in .venv, which `setup` makes and keeps up to date.
PYTHON ?= python3
RUN = .venv/bin/python
# Many tests start processes: without compiled files, each of them would compile netq again.
export PYTHONDONTWRITEBYTECODE =
PIP = $(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: setup tools broker demo test unit other flower faults fuzz soak check docs pictures bench bench-federation bench-privacy bench-simulation wheel wheel-aarch64 bundle test-aarch64 clean

# PROTOCOL of `make demo`: tcp, mqtt, grpc or shm. SECONDS of `make soak`; SEED=… repeats the faults of a run.
PROTOCOL ?= tcp
OTHER ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.13.*/bin/python3.13) python3.13)
SECONDS ?= 60
# Of `make bundle`: the boards' versions of Python, and what their agents need besides the standard library.
PYTHONS ?= 3.11
EXTRAS ?= fl,security
BUNDLE = dist/bundle-aarch64
AARCH64_WHEELS = $(RUN) -m pip download --quiet --disable-pip-version-check --constraint constraints.txt \
	--only-binary :all: --implementation cp \
	$(foreach name,manylinux_2_28 manylinux_2_17 manylinux2014 linux,--platform $(name)_aarch64)

setup: .venv/dev

.venv/demo: pyproject.toml constraints.txt netq/protocol/_codec.c
	$(PYTHON) -m venv .venv && $(PIP) --editable '.[demo]' && touch $@

.venv/dev: .venv/demo
	$(PIP) --editable '.[dev]' && touch $@

.venv/fuzz: .venv/dev
	$(PIP) --editable '.[fuzz]' && touch $@

.venv/docs: .venv/dev
	$(PIP) --editable '.[docs]' && touch $@

.venv/bench: .venv/dev
	$(PIP) --editable '.[bench]' && touch $@

# What tests need from Debian: tools that make faults, a broker, proxies, a browser. Without them, or without root, the
# tests that need them are skipped and say so.
INSTALL = DEBIAN_FRONTEND=noninteractive apt-get install -y -qq

tools:
	-@which nft ip tc ss ethtool faketime mosquitto nginx tinyproxy microsocks chromium > /dev/null || test "$$(id -u)" != 0 || { \
	apt-get update -qq && $(INSTALL) nftables iproute2 ethtool faketime mosquitto nginx-light tinyproxy microsocks chromium; }

broker:
	-@which mosquitto > /dev/null || test "$$(id -u)" != 0 || { apt-get update -qq && $(INSTALL) mosquitto; }

demo: .venv/demo $(if $(filter mqtt,$(PROTOCOL)),broker)
	$(RUN) -m examples.digits --protocol $(PROTOCOL)

# In five processes, because most of the time is waiting. The plugin runs tests that need the whole machine alone. If a
# process crashes the run ends: the others would wait for it for ever.
SPREAD = -p tests.faults.plugin -n 5 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test: .venv/dev tools
	$(RUN) -m pytest $(SPREAD)

unit: .venv/dev
	$(RUN) -m pytest $(SPREAD) -m 'not slow'

# The quick tests of what needs no torch, under another Python, and without the compiled codec.
other: tools
	$(OTHER) -m venv .venv-other
	.venv-other/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	NETQ_PURE=1 .venv-other/bin/python -m pytest $(SPREAD) -m 'not slow' tests/netq tests/edge

# The tests that need Flower, in an environment of their own: it has upper bounds for much that others want newer.
.venv-flower: pyproject.toml constraints.txt netq/protocol/_codec.c
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	--editable '.[test,torch,flower]' 'flwr[simulation]' xgboost-cpu && touch $@

flower: .venv-flower tools
	.venv-flower/bin/python -m pytest $(SPREAD) tests/fl/flower tests/fl/simulation/test_ray_pool.py tests/edge/test_flower.py tests/edge/test_flower_restart.py tests/edge/test_flower_policy.py tests/edge/test_flower_masked.py

faults: .venv/dev tools
	NETQ_FAULTS=full $(RUN) -m pytest tests/faults

# Each fuzz target for SECONDS, by atheris; an input that fails is kept in build/fuzz (tests/fuzz).
fuzz: .venv/fuzz
	for target in pickles messages msgpacks links packets; do $(RUN) -m tests.fuzz $$target -max_total_time=$(SECONDS) || exit 1; done

soak: .venv/dev
	$(RUN) -m tests.soak --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

bench: .venv/bench broker
	$(RUN) -m benchmarks

bench-federation: .venv-flower
	.venv-flower/bin/python -m benchmarks.federation
	.venv-flower/bin/python -m benchmarks.federation.many --repeat 3
	.venv-flower/bin/python -m benchmarks.federation.trees --repeat 3

# Opacus has an environment of its own: it brings a package `examples`.
.venv-opacus: constraints.txt
	$(PYTHON) -m venv $@ && $@/bin/python -m pip install --quiet --disable-pip-version-check \
	--constraint constraints.txt torch 'opacus==1.6.0' && touch $@

bench-privacy: .venv/dev .venv-flower .venv-opacus
	.venv-flower/bin/python -m benchmarks.federation.masked
	$(RUN) -m benchmarks.federation.homomorphic
	NETQ_BENCH_OPACUS=$(CURDIR)/.venv-opacus/bin/python .venv-flower/bin/python -m benchmarks.federation.privacy
	.venv-flower/bin/python -m benchmarks.federation.inversion

# pfl-research has an environment of its own, too.
.venv-pfl: constraints.txt
	$(PYTHON) -m venv $@ && $@/bin/python -m pip install --quiet --disable-pip-version-check \
	--constraint constraints.txt torch scikit-learn 'pfl==0.6.0' && touch $@

bench-simulation: .venv-flower .venv-pfl
	NETQ_BENCH_PFL=$(CURDIR)/.venv-pfl/bin/python .venv-flower/bin/python -m benchmarks.simulation

# One wheel for Python 3.11 and later. Files of an older build would get into it.
BUILT = build/bdist.* build/lib* build/temp.*
ABI3 = $(RUN) -m pip wheel --quiet --no-deps --config-settings=--build-option=--py-limited-api=cp311

wheel: .venv/demo
	rm -rf $(BUILT) && $(ABI3) --wheel-dir dist .

# For boards with a 64-bit ARM processor, by Debian's cross compiler.
wheel-aarch64: .venv/demo
	@which aarch64-linux-gnu-gcc > /dev/null || { apt-get update -qq && $(INSTALL) gcc-aarch64-linux-gnu libc6-dev-arm64-cross; }
	rm -rf $(BUILT) dist/netq_fl-*aarch64.whl && _PYTHON_HOST_PLATFORM=linux-aarch64 CC=aarch64-linux-gnu-gcc LDSHARED="aarch64-linux-gnu-gcc -shared" \
	$(ABI3) --wheel-dir dist .

# For boards without a network: a folder of wheels, with a script that installs them. pip reads the conditions of
# dependencies for its own Python: pyOpenSSL needs typing-extensions before 3.13 only.
bundle: wheel-aarch64
	rm -rf $(BUNDLE) && mkdir -p $(BUNDLE) && cp dist/netq_fl-*aarch64.whl $(BUNDLE)
	for version in $(PYTHONS); do \
	  $(AARCH64_WHEELS) --python-version $$version --dest $(BUNDLE) "$$(ls $(BUNDLE)/netq_fl-*.whl)[$(EXTRAS)]" typing-extensions || exit 1; \
	done
	sed 's/@MACHINE@/aarch64/; s/@PYTHONS@/$(PYTHONS)/; s/@EXTRAS@/$(EXTRAS)/' edge/bundle.sh > $(BUNDLE)/install.sh
	cd $(BUNDLE) && sha256sum -- *.whl install.sh > SHA256SUMS && du -sh . && ls

# The bundle in an emulated Debian for 64-bit ARM: a federation with this machine, and the quick tests of protocol and
# agent. Root; 10 minutes, or 20 on a busy machine.
test-aarch64: bundle
	rm -rf build/aarch64-tools && $(AARCH64_WHEELS) --python-version 3.11 --dest build/aarch64-tools \
	  hypothesis paho-mqtt pytest pytest-timeout rich trustme
	sh tests/aarch64.sh $(BUNDLE) build/aarch64-tools build/aarch64 $(RUN)

check: .venv/dev
	.venv/bin/ruff format --check . && .venv/bin/ruff check . && .venv/bin/mypy && $(RUN) -m pytest -q tests/test_layers.py

# The pages as a site, in build/docs. Warnings are errors; nothing is fetched.
docs: .venv/docs
	$(RUN) -m sphinx -q -E -n -W --keep-going -d build/doctrees docs build/docs

# What README shows of the demo, and what the pages show of the live page.
pictures: .venv/dev tools
	$(RUN) -m examples.digits.record
	NETQ_PICTURES=docs/images $(RUN) -m pytest -q tests/fl/page/test_browser.py -k another_metric

clean:
	rm -rf netq/*.so .venv .venv-other .venv-flower .venv-opacus build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
