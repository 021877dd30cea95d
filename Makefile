# Every command of this project. Each sets up what it needs, in this folder and the user's cache; none needs root.
SHELL := /bin/sh
PYTHON = $(shell sh scripts/find_python.sh)
# The folder's path is part of the stamp: environments do not survive being moved.
READY := .venv/.ready-$(shell pwd | cksum | cut -d' ' -f1)
IN := .venv/bin/python
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo up test test-long lint format setup clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## Start the whole system, test this checkout's own commit, show the table (KEEP=1 leaves it running)
	@$(IN) scripts/demo.py $(if $(KEEP),--keep)

up: $(READY) ## Run the whole system on this machine until Ctrl-C (ARGS="--port 0" and the like)
	@$(IN) -m service.cli.main up $(ARGS)

test: $(READY) ## Run the tests that are quick (ARGS="-k word" and the like go to pytest)
	@$(IN) scripts/run_tests.py quick "not long" $(ARGS)

test-long: $(READY) ## Run the tests that are not: faults, browser, whole systems
	@$(IN) scripts/run_tests.py long "long" $(ARGS)

lint: $(READY) ## Check style, types and the directions of imports
	@bad=0; for check in "-m ruff format --check --quiet ." "-m ruff check --quiet ." \
		"-m mypy" "-m mypy $(wildcard scripts/*.py)" ".venv/bin/lint-imports"; do \
		echo "$$ $$check"; MYPYPATH=scripts $(IN) $$check || bad=1; done; exit $$bad

format: $(READY) ## Write the code in the project's style
	@$(IN) -m ruff check --fix-only --quiet .
	@$(IN) -m ruff format .

setup: $(READY) ## Make .venv, with uv in .tools (the other commands do it by themselves)
	@echo "set up: .venv, .tools/uv"

clean: ## Remove environments, caches and the demo's data (runtimes in the user's cache stay)
	rm -rf .venv .tools .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

$(READY): uv.lock pyproject.toml scripts/setup.py scripts/toolchain.py
	@test -n "$(PYTHON)"
	@"$(PYTHON)" scripts/setup.py $@
