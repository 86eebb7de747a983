# Thin: each target makes .venv, installs what it needs at the locked versions, and calls one command.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OPENBLAS_NUM_THREADS := 1
# Hundreds of processes start in the tests, and each would compile the project anew.
unexport PYTHONDONTWRITEBYTECODE
QUIETLY := --quiet --disable-pip-version-check

.PHONY: install life demo picture test test-all test-elsewhere accountant guard cuts mutants paths check docs stories manifests bench sizing bench-gateway bench-edge fuzz-gateway kafka-up kafka-up-three kafka-up-secured kafka-down test-kafka test-chaos chaos power-cuts drill drill-alerts lock clean

# All commands, in .venv/bin: `. .venv/bin/activate` puts them on the path.
install: $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/hushstream demo

# The picture of the README: what the demo's report draws.
picture: demo
	cp report/rewards.png deploy/docs/rewards.png

# Some ten minutes on two processors; CONTRIBUTING.md says what it leaves to test-all.
test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --part quick

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# Every figure of 500 random configurations of each system, beside formulas of our own; `test` takes 20 of each.
accountant: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 tests/accountant --configurations 500

# No node is expected to lose five predictions by joining: 10,000 streams that an adversary draws; `test` takes 300.
guard: $(VENV)/.installed-dev
	HUSHSTREAM_GUARD_STREAMS=10000 $(BIN)/python -m pytest tests/systems/pdol/test_local.py

# Where folds are cut changes no byte that leaves and no state: 10,000 cuts drawn at random; `test-all` takes 240.
cuts: $(VENV)/.installed-dev
	HUSHSTREAM_CUTS=167 $(BIN)/python -m pytest -n 2 tests/engine/test_cuts.py -k every_cut

# The product is broken line by line; what is named for each line must fail (tests/mutants/mutants.toml).
mutants: $(VENV)/.installed-dev
	$(BIN)/python tests/mutants/run.py

# Sizes, and through how many files and functions a record walks, each with its ceiling and goal.
paths: $(VENV)/.installed-dev
	$(BIN)/python tests/engine/sizes.py
	$(BIN)/python tests/engine/paths.py
	$(BIN)/python tests/engine/life_of_a_record.py --check

# The life of a record of p2b (deploy/docs/life), from a traced run: after a change of what a record passes. With
# SYSTEM=colin another system's is printed.
life: $(VENV)/.installed-dev
	@$(BIN)/python tests/engine/life_of_a_record.py $(if $(SYSTEM),--system $(SYSTEM))

# The suite under other clocks, locales, users, paths and Pythons (some hours); what is missing here is named at the end.
test-elsewhere: $(VENV)/.installed-dev
	$(BIN)/python tests/elsewhere/run.py --environments

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/mutants/run.py tests/elsewhere/run.py
	$(BIN)/mypy tests/chaos/harness tests/agents/harness/bench.py tests/agents/harness/zygote.py
	$(BIN)/lint-imports
	$(BIN)/python deploy/grafana/build.py --check
	$(BIN)/python deploy/kubernetes/build.py --check
	$(BIN)/python deploy/asyncapi/build.py --check
	$(BIN)/python deploy/openapi/build.py --check
	$(BIN)/python deploy/clients/typescript/generate.py --check
	$(BIN)/python deploy/clients/typescript/edge/golden.py --check
	$(BIN)/python deploy/clients/typescript/edge/ratings_golden.py --check

# What is made from the code: after a change of topics, records, access rules or metrics.
manifests: $(VENV)/.installed-dev
	$(BIN)/python deploy/grafana/build.py
	$(BIN)/python deploy/kubernetes/build.py
	$(BIN)/python deploy/asyncapi/build.py
	$(BIN)/python deploy/openapi/build.py
	$(BIN)/python deploy/clients/typescript/generate.py
	$(BIN)/python deploy/clients/typescript/edge/golden.py
	$(BIN)/python deploy/clients/typescript/edge/ratings_golden.py

# The documentation as a site: build/docs/index.html. Every warning is an error, every link within it is followed.
docs: $(VENV)/.installed-docs
	$(BIN)/python deploy/docs/site/build.py

# The tutorials' commands, run as they stand.
stories: $(VENV)/.installed
	$(BIN)/python deploy/docs/site/stories.py

bench: $(VENV)/.installed-dev
	$(BIN)/hushstream bench

# The tables of reference/sizes.md, measured on this machine. Two minutes.
sizing: $(VENV)/.installed-dev
	$(BIN)/hushstream bench --only sizes --page deploy/docs/reference/sizes.md

# Decisions over HTTP: the latency at 500 requests a second, the most that one gateway holds, and two of each over one.
bench-gateway: $(VENV)/.installed-dev
	$(BIN)/hushstream bench --only gateway

# 1,000 devices through a gateway beside the same users hosted: the chance of a click, and verify. Two minutes.
bench-edge: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -s tests/edge/test_thousand_devices.py

# 100,000 requests made at random: no 500, no traceback, nothing lost that was taken.
fuzz-gateway: $(VENV)/.installed-dev
	HUSHSTREAM_FUZZ_REQUESTS=$${HUSHSTREAM_FUZZ_REQUESTS:-100000} $(BIN)/python -m pytest -s tests/gateway/test_fuzz.py

kafka-up: $(VENV)/.installed
	$(BIN)/python deploy/kafka/local.py up

kafka-down: $(VENV)/.installed
	$(BIN)/python deploy/kafka/local.py down

kafka-up-three: $(VENV)/.installed
	$(BIN)/python deploy/kafka/local.py up --brokers 3

kafka-up-secured: $(VENV)/.installed
	$(BIN)/python deploy/kafka/local.py up --secured

# The brokers live for minutes: their code is compiled soon rather than well.
test-kafka test-chaos chaos: export JAVA_TOOL_OPTIONS := -XX:TieredStopAtLevel=1

# As Kafka comes; with short group sessions, so that take-overs do not take long; secured; three brokers.
test-kafka: $(VENV)/.installed-dev
	$(BIN)/python deploy/kafka/local.py up
	HUSHSTREAM_NO_SKIPS=1 HUSHSTREAM_TEST_BOOTSTRAP=$$(cat .kafka/bootstrap) \
	  $(BIN)/python -m pytest tests/broker/conformance tests/kafka/test_stream_on_kafka.py tests/ops/test_moving.py \
	  tests/unlinkability/test_raw_log.py; \
	  status=$$?; $(BIN)/python deploy/kafka/local.py down; exit $$status
	$(BIN)/python deploy/kafka/local.py up --min-session-ms 1000
	HUSHSTREAM_NO_SKIPS=1 HUSHSTREAM_TEST_BOOTSTRAP=$$(cat .kafka/bootstrap) \
	  $(BIN)/python -m pytest tests/agents/test_faults.py tests/agents/test_worker.py \
	  tests/engine/third_system/test_on_a_broker.py; \
	  status=$$?; $(BIN)/python deploy/kafka/local.py down; exit $$status
	$(BIN)/python deploy/kafka/local.py up --secured
	HUSHSTREAM_NO_SKIPS=1 HUSHSTREAM_TEST_SECURED=.kafka $(BIN)/python -m pytest tests/kafka/secured; \
	  status=$$?; $(BIN)/python deploy/kafka/local.py down; exit $$status
	$(BIN)/python deploy/kafka/local.py up --brokers 3
	HUSHSTREAM_NO_SKIPS=1 HUSHSTREAM_TEST_THREE=.kafka $(BIN)/python -m pytest tests/kafka/test_local.py \
	  tests/gateway/test_kill.py::test_while_brokers_are_killed_callers_are_answered_and_nothing_is_lost; \
	  status=$$?; $(BIN)/python deploy/kafka/local.py down; exit $$status

# Seeded faults of every kind on three brokers; `chaos` goes on with other seeds for HUSHSTREAM_CHAOS_MINUTES (30), or
# until HUSHSTREAM_CHAOS_FAULTS were met.
test-chaos: $(VENV)/.installed-dev
	$(BIN)/python deploy/kafka/local.py up --brokers 3 --min-session-ms 1000
	HUSHSTREAM_NO_SKIPS=1 HUSHSTREAM_TEST_KAFKA=.kafka $(BIN)/python -m pytest -s tests/chaos/test_kafka_sweep.py; \
	  status=$$?; $(BIN)/python deploy/kafka/local.py down; exit $$status

# kill -9 of every process at once, at drawn steps, on an embedded broker that keeps its data: 500 of them, two hours.
power-cuts: $(VENV)/.installed-dev
	HUSHSTREAM_POWER_CUTS=$${HUSHSTREAM_POWER_CUTS:-500} $(BIN)/python -m pytest -s tests/chaos/test_power_cuts.py

chaos: $(VENV)/.installed-dev
	$(BIN)/python deploy/kafka/local.py up --brokers 3 --min-session-ms 1000
	HUSHSTREAM_NO_SKIPS=1 HUSHSTREAM_TEST_KAFKA=.kafka \
	  HUSHSTREAM_CHAOS_MINUTES=$${HUSHSTREAM_CHAOS_MINUTES:-$$([ -n "$$HUSHSTREAM_CHAOS_FAULTS" ] && echo 0 || echo 30)} \
	  $(BIN)/python -m pytest -s tests/chaos/test_kafka_sweep.py; \
	  status=$$?; $(BIN)/python deploy/kafka/local.py down; exit $$status

# What a partition's users notice of each fault, on Apache Kafka: prints the table of deploy/docs/drills.md.
drill: $(VENV)/.installed-dev
	$(BIN)/python tests/drills/run.py

# Which alerts fire when it happens: a real Prometheus on the real rules, faults done to live workers.
drill-alerts: $(VENV)/.installed-dev
	$(BIN)/python tests/drills/alerts.py

# Versions and digests of all that is installed: for everything, for replays, for the site, for building the package.
LOCKED := --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header \
  --no-annotate pyproject.toml
lock: $(VENV)/.installed-dev
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile $(LOCKED) --all-extras --output-file requirements.lock
	sed 's/ *--hash=.*//; s/ *\\$$//; /^ *$$/d' requirements.lock > $(VENV)/constraints
	$(BIN)/uv pip compile $(LOCKED) --constraint $(VENV)/constraints --output-file requirements-run.lock
	$(BIN)/uv pip compile $(LOCKED:pyproject.toml=--group docs) --constraint $(VENV)/constraints -o requirements-docs.lock
	printf 'hatchling==1.27.0\neditables==0.5\n' > $(VENV)/build.in
	$(BIN)/uv pip compile $(LOCKED:pyproject.toml=$(VENV)/build.in) --constraint $(VENV)/constraints -o requirements-build.lock

clean:
	rm -rf $(VENV) report build

# Python reads the file that names our folders in the encoding of the locale, and ends before its first line where that
# lacks a character of the path (LC_ALL=C in a folder with an umlaut). So the folders are named relative to it, in ASCII,
# by a Python that does not read the file (-S).
RELATIVE = $(BIN)/python -S deploy/relative_folders.py $(VENV)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else \
	  "hushstream needs Python 3.11 to 3.13, this is %d.%d; say for instance: make PYTHON=python3.11" % v)'
	$(PYTHON) -m venv $(VENV)

# A folder has no digest: what is installed besides is checked against those in the lock, and the package put to it.
$(VENV)/.installed: $(VENV)/bin/python pyproject.toml requirements-run.lock requirements-build.lock
	@echo "installing hushstream and the locked versions of what it needs into $(VENV) (a minute or two)"
	$(BIN)/pip install $(QUIETLY) --require-hashes --requirement requirements-run.lock --requirement requirements-build.lock
	$(BIN)/pip install $(QUIETLY) --no-deps --no-build-isolation --editable .
	$(RELATIVE)
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed requirements-docs.lock
	@echo "installing what the documentation site is built with into $(VENV)"
	$(BIN)/pip install $(QUIETLY) --require-hashes --requirement requirements-docs.lock
	@touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml requirements.lock
	@echo "installing hushstream, what it needs and what its tests need into $(VENV) (some minutes)"
	$(BIN)/pip install $(QUIETLY) --require-hashes --requirement requirements.lock
	$(BIN)/pip install $(QUIETLY) --no-deps --no-build-isolation --editable .
	$(RELATIVE)
	@touch $@ $(VENV)/.installed
