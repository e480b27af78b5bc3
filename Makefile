# Everything a newcomer types. The work is in scripts/.
BIN := .venv/bin
MODEL ?= smollm2-135m-instruct

.PHONY: help up model install test load sanitize bench-peers lint lock docs clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

up: install  ## install, fetch the default model and serve it; ARGS="--port 0" passes flags on
	@exec $(BIN)/tokenmill up $(ARGS)

model: install  ## fetch the small model
	@$(BIN)/tokenmill pull $(MODEL)

install:  ## make .venv from requirements.lock
	@bash scripts/install.sh

test:  ## lint, types, layers and the test suite
	@bash scripts/check.sh

load:  ## the load test at full size: 64 streams, prompts to 1500 tokens, outputs to 200
	@bash scripts/install.sh --test
	TOKENMILL_TEST_LOAD=full $(BIN)/python -m pytest tests/e2e/test_load.py

sanitize:  ## the tests of native code with checks of addresses and undefined behaviour
	@bash scripts/install.sh --test
	@bash scripts/sanitize.sh $(ARGS)

bench-peers:  ## beside llama.cpp, OpenVINO GenAI and vLLM on this machine; ARGS="--rounds 1 --rows streams-4"
	@bash scripts/install.sh --test
	@$(BIN)/python -m benchmarks.peers $(ARGS)

lint:  ## the same without the test suite
	@bash scripts/check.sh --lint

lock:  ## take the newest versions pyproject.toml allows and write them to the lock files
	@bash scripts/install.sh --test
	$(BIN)/python -m pip install --quiet --upgrade --upgrade-strategy eager -e '.[test]'
	$(BIN)/python scripts/lock.py

docs:  ## write the generated pages of docs/
	@$(BIN)/python scripts/flags_doc.py
	@$(BIN)/python scripts/metrics_doc.py

clean:  ## remove what was installed and built here; downloaded models stay
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf tests/conformance/node/node_modules
	find src tests -name __pycache__ -type d -exec rm -rf {} +
