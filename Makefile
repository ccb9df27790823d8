# Two commands matter: `make drill` shows what Emberpool does, `make test` shows that it works.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# What is installed is compiled when it is imported for the first time: most of it never is.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install drill drill-kube local test test-fast test-drills test-long test-kube test-vllm lint format types contracts collected generate bench-core bench-exposition bench-gateway bench-guard bench-health bench-keda bench-law bench-policy bench-signals clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.installed: pyproject.toml constraints.txt hatch_build.py loader/native/windows.c loader/native/build.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: Python 3.11 or newer is needed, $$($(PYTHON) --version) was found" >&2; \
	    echo >&2; echo "hint: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@test -x $(BIN)/pip || { rm -rf $(VENV); $(PYTHON) -m venv $(VENV); } # an interrupted venv has no pip
	$(BIN)/pip install --quiet --upgrade --disable-pip-version-check pip
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[dev]'
	@touch $@

install: $(VENV)/.installed ## make .venv with everything

DRILL ?= policies/drills/default.yaml
ARGS  ?=
drill: $(VENV)/.installed ## rehearse a burst on this machine, both arms, and judge it
	$(BIN)/emberpool drill run $(DRILL) $(ARGS)

# Without KUBECONFIG in a cluster of stand-ins; with it on the command line, not from the environment, under that control plane.
KUBE_OPTION = $(if $(filter command line,$(origin KUBECONFIG)),--kubeconfig $(KUBECONFIG))
drill-kube: $(VENV)/.installed ## rehearse a burst, a rollout, evictions and a node drain through the Kubernetes adapter: make drill-kube [KUBECONFIG=/path]
	env -u KUBECONFIG $(BIN)/python -m tests.drill.kube $(KUBE_OPTION) $(ARGS)

# The checks compute on one core each, two at a time; what collecting compiles is there for each of the tests' workers.
test: $(VENV)/.installed ## everything that must hold before a change lands
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target types lint contracts collected
	@$(MAKE) --no-print-directory test-fast
	@$(MAKE) --no-print-directory test-drills

DRILL_TESTS := -m 'drill and not long' tests/deploy tests/drill
test-drills: $(VENV)/.installed ## whole drills on this machine, and once more where they failed
	@env -u KUBECONFIG $(BIN)/pytest $(DRILL_TESTS) $(ARGS) || { \
	  failed=$$?; test $$failed -eq 1 || exit $$failed; \
	  echo "== once more: what failed =="; \
	  env -u KUBECONFIG $(BIN)/pytest $(DRILL_TESTS) --last-failed --last-failed-no-failures none $(ARGS); }

# Without KUBECONFIG, so that nobody's cluster is tested on by the way.
# What fails beside others is tried once more alone, and told: with many servers at a time on two cores a machine can stall for
# longer than any deadline. What fails alone too has failed.
test-fast: $(VENV)/.installed ## the tests without whole drills, four at a time: many of them wait more than they compute
	@env -u KUBECONFIG $(BIN)/pytest -m 'not drill and not long' --numprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS) || { \
	  failed=$$?; test $$failed -eq 1 || exit $$failed; \
	  echo "== once more, alone: what failed beside others =="; \
	  env -u KUBECONFIG $(BIN)/pytest -m 'not drill and not long' --last-failed --last-failed-no-failures none $(ARGS); }

test-long: $(VENV)/.installed ## what takes long and is seen in part by make test: before a release
	env -u KUBECONFIG $(BIN)/pytest -m long $(ARGS)

test-kube: $(VENV)/.installed ## the Kubernetes adapter's tests on a real API server, in a namespace of their own: make test-kube KUBECONFIG=/path
	@test -n "$(KUBECONFIG)" || { echo "error: KUBECONFIG names no file" >&2; \
	  echo >&2; echo "hint: make test-kube KUBECONFIG=/path/to/kubeconfig" >&2; exit 2; }
	KUBECONFIG=$(KUBECONFIG) $(BIN)/pytest tests/integration/kube $(ARGS)

VLLM_BIN ?=
test-vllm: $(VENV)/.installed ## the engine port, the guard, the launcher and the loader on a real vLLM: make test-vllm VLLM_BIN=/path/to/vllm
	@test -n "$(VLLM_BIN)" || { echo "error: VLLM_BIN names no vLLM" >&2; \
	  echo >&2; echo "hint: make test-vllm VLLM_BIN=/path/to/vllm" >&2; exit 2; }
	VLLM_BIN=$(VLLM_BIN) $(BIN)/pytest tests/contract/test_engine_port.py tests/integration/engines/test_real_vllm.py tests/integration/guard/test_real_vllm.py tests/integration/launcher/test_real_vllm.py tests/integration/loader/test_real_vllm.py --timeout 600 $(ARGS)

lint: $(VENV)/.installed ## style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed ## format the tree
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.installed ## strict types
	$(BIN)/mypy

contracts: $(VENV)/.installed ## which package may import which
	$(BIN)/lint-imports

collected: $(VENV)/.installed
	@said=$$($(BIN)/pytest --collect-only -qq 2>&1) || { echo "$$said" | grep -v '\.py: [0-9]*$$' >&2; exit 1; }

generate: $(VENV)/.installed ## rewrite what is generated: metrics page, dashboard, schema, policy reference, KEDA's messages
	$(BIN)/python -m scaler.runtime.metrics.reference > deploy/monitoring/METRICS.md.new
	@mv deploy/monitoring/METRICS.md.new deploy/monitoring/METRICS.md
	$(BIN)/python -m deploy.monitoring.burst_drill
	$(BIN)/python -m scaler.cli.formats
	$(BIN)/python -m scaler.keda.generate

bench-core: $(VENV)/.installed ## time the decision loop of a large controller, and read its memory
	$(BIN)/python -m scaler.runtime.bench.core $(ARGS)

bench-exposition: $(VENV)/.installed ## time the metrics page of a large controller
	$(BIN)/python -m scaler.runtime.bench.exposition $(ARGS)

bench-gateway: $(VENV)/.installed ## time what the gateway adds to a stream, beside nginx and a bare pass-through, and what held requests take
	$(BIN)/python -m scaler.gateway.bench $(ARGS)

bench-guard: $(VENV)/.installed ## time what the guard adds to a request, in both forms
	$(BIN)/python -m warmpool.bench.guard $(ARGS)

bench-health: $(VENV)/.installed ## compare the rules of GPU health with a device plugin's, in simulated time
	$(BIN)/python -m warmpool.nodehealth.bench.fleet $(ARGS)

bench-keda: $(VENV)/.installed ## time what KEDA is answered with 1,000 ScaledObjects, bursts included
	$(BIN)/python -m scaler.keda.bench $(ARGS)

bench-law: $(VENV)/.installed ## compare the law with HPA's and KPA's rules on real arrivals, in simulated time (ten minutes)
	$(BIN)/python -m scaler.runtime.bench.law $(ARGS)

bench-policy: $(VENV)/.installed ## time reading 500 policies, and what a reload of them delays
	$(BIN)/python -m scaler.policy.bench.reading
	$(BIN)/python -m scaler.runtime.bench.reload

bench-signals: $(VENV)/.installed ## what reading 200 engines' pages each 250 ms costs, and 1,000 each second
	$(BIN)/python -m scaler.signals.bench.scrape --engines 200 --interval 250
	$(BIN)/python -m scaler.signals.bench.scrape --engines 1000 --interval 1000

clean: ## remove what `make` made
	rm -rf $(VENV) .emberpool .mypy_cache .ruff_cache .pytest_cache .hypothesis drill-report bench-report
