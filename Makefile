# Every target sets up what it needs: a machine with make and Python 3.11 or newer can run any of them first.
#
#   make demo                                    the first look
#   make test                                    all that must hold before a change goes in
#   make test PYTHON=python3.13 VENV=.venv-3.13  the same on another Python, beside the first environment
#   make -k test                                 go on after a failing suite

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# --- set-up -------------------------------------------------------------------------------------

# Recursive on purpose: the search for a Python runs only where a recipe names it.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_TYPES := $(VENV)/.ready-types
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

# The stamp comes last, so a set-up that was cut short is done again.
$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer on the PATH: install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is too old: parkade needs 3.11 or newer" >&2; exit 1; }
	@echo "setting up $(VENV) with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv "$(VENV)"
	@echo '*' > "$(VENV)/.gitignore"
	@# --group needs pip 25.1, and Python 3.11 may ship an older one
	@$(PIP) install --upgrade pip
	@$(PIP) install --editable . --group dev
	@touch $@

$(READY_TYPES): $(READY)
	@$(PIP) install --group types
	@touch $@

# --- time budgets -------------------------------------------------------------------------------

# Seconds a suite may take while another runs beside it. Two at a time, the longest first, they end within
# twelve minutes (the house suite reckons it); a suite that takes longer is stopped and has failed.
LINT_S := 20
HOUSE_S := 80
MYPY_S := 80
UNIT_S := 240
PROPERTY_S := 60
STATEFUL_S := 90
FAULT_S := 340
RECOVERY_S := 60
RACES_S := 65
STORIES_S := 50
SIMULATION_S := 200
REST_S := 110

# macOS has no timeout of its own (coreutils brings gtimeout); there the budgets are not enforced.
TIMEOUT := $(shell command -v timeout || command -v gtimeout)
within = $(if $(TIMEOUT),$(TIMEOUT) --kill-after=10 $(1))
PYTEST := $(BIN)/pytest --quiet
suite = @echo "== $@: at most $(1) s" && $(call within,$(1)) $(PYTEST) $(2)

NAMED := house unit property stateful fault recovery races simulation stories
UNNAMED := $(filter-out $(NAMED) kit load,$(notdir $(patsubst %/,%,$(wildcard tests/*/))))
REST := $(addprefix tests/,$(UNNAMED)) $(wildcard tests/test_*.py)

# --- targets ------------------------------------------------------------------------------------

.PHONY: help setup demo test suites check lint house mypy types unit property stateful fault \
	recovery races simulation simulate sabotage stories rest load kills sites harms table bench bench-full \
	peers soak search fuzz coverage dist format \
	clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(READY) ## the environment alone; every other target does this by itself
	@echo "$(VENV) is ready: $$($(BIN)/python --version)"

demo: $(READY) ## a short tour of the engine on a directory of its own
	@$(BIN)/parkade demo

SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
test: $(READY) ## every suite, two at a time, each within its time
	@$(MAKE) -j2 $(SYNC) suites

suites: lint fault unit simulation rest stateful mypy house races recovery property stories
	@echo "all suites passed"

check: test types ## what a change must pass: the tests, then pyright as well

lint: $(READY) ## ruff: rules and layout
	@echo "== $@: at most $(LINT_S) s"
	@$(call within,$(LINT_S)) sh -c '$(BIN)/ruff check . && $(BIN)/ruff format --check .'

house: $(READY) ## imports, purity, sizes, names, packaging, benches at their smallest
	$(call suite,$(HOUSE_S),tests/house)

mypy: $(READY)
	@echo "== $@: at most $(MYPY_S) s"
	@$(BIN)/python tests/house/import_tree.py
	@$(call within,$(MYPY_S)) $(BIN)/mypy

types: mypy $(READY_TYPES) ## mypy and pyright, both strict
	@$(BIN)/pyright --pythonpath $(BIN)/python

unit: $(READY)
	$(call suite,$(UNIT_S),tests/unit)

property: $(READY)
	$(call suite,$(PROPERTY_S),tests/property)

stateful: $(READY)
	$(call suite,$(STATEFUL_S),tests/stateful)

fault: $(READY) ## every system call fails once, every sync is the last one once
	$(call suite,$(FAULT_S),tests/fault)

recovery: $(READY)
	$(call suite,$(RECOVERY_S),tests/recovery)

races: $(READY) ## two events over one ticket, in every order; tells who won
	$(call suite,$(RACES_S),tests/races)

stories: $(READY)
	$(call suite,$(STORIES_S),tests/stories)

simulation: $(READY) ## a whole engine on a simulated machine, 300 histories
	$(call suite,$(SIMULATION_S),tests/simulation --seeds=300)

SEEDS ?= 2000
SEED ?=
WORKERS ?= 2
simulate: $(READY) ## the same, longer (SEEDS=2000), or one history again (SEED=17); no time limit
	@PYTHONPATH=tests $(BIN)/python -m simulation.survey --workers=$(WORKERS) \
		$(if $(SEED),--seed=$(SEED),--seeds=$(SEEDS))

FAULT ?=
RECORD ?=
sabotage: $(READY) ## deliberate faults, one at a time: who catches each, and how soon
	@PYTHONPATH=tests $(BIN)/python -m simulation.sabotage --workers=$(WORKERS) \
		$(if $(RECORD),--record) $(FAULT)

rest: $(READY)
	$(if $(strip $(REST)),$(call suite,$(REST_S),$(REST)),@echo "== $@: no suite without a target of its own")

MINUTES ?= 10
soak: $(READY) ## a long mixed load (MINUTES=10): memory, descriptors, threads, files asserted flat
	@PYTHONPATH=tests $(BIN)/python -m soak $(MINUTES)

search: $(READY) ## property and stateful suites with many more, random examples; no time limit
	@HYPOTHESIS_PROFILE=search $(PYTEST) -o faulthandler_timeout=0 tests/property tests/stateful

SECONDS ?= 300
TARGET ?= all
BYTES ?=
GUIDED ?=
fuzz: $(READY) ## SECONDS=300 of random input for TARGET=all, or one input again (BYTES=hex)
	@PYTHONPATH=tests $(BIN)/python -m fuzz.search $(TARGET) $(SECONDS) $(SEED) \
		$(if $(BYTES),--bytes $(BYTES)) $(if $(GUIDED),--guided)

COUNT ?= 1000
kills: $(READY) ## COUNT=1000 lives over one directory, each ended by SIGKILL; tells totals; no time limit
	@KILLS=$(COUNT) $(PYTEST) -s -o faulthandler_timeout=0 tests/fault/test_sigkill.py

sites: $(READY) ## each line that asks the file layer fails, and is killed: first, middle, last call; no time limit
	@SITES=all $(PYTEST) -o faulthandler_timeout=0 tests/fault/test_call_sites.py tests/fault/test_killed_sites.py

harms: $(READY) ## every file harmed in every way, every tool asked; tools killed before each step; no time limit
	@HARMS=all $(PYTEST) -o faulthandler_timeout=0 tests/fault/test_harmed_files.py tests/fault/test_tools_killed.py

SLEEPERS ?=
load: $(READY) ## real disk, real threads, many tickets; SLEEPERS=10000000 for so many of them alone
	@$(if $(SLEEPERS),SLEEPERS=$(SLEEPERS) )$(PYTEST) -m load -o faulthandler_timeout=0 \
		$(if $(SLEEPERS),tests/load/test_sleepers.py,tests/load)

table: $(READY) ## docs/states.md anew, from what a run observes
	@PYTHONPATH=tests $(BIN)/python -m kit.state_table > docs/states.md.new
	@mv docs/states.md.new docs/states.md

ARGS ?=
bench: $(READY) ## every bench, each one question, beside its marks (ARGS=--small for a glance)
	@$(BIN)/python -m bench $(ARGS)

bench-full: $(READY) ## the same at the greatest sizes: ten million sleepers; 20 minutes, 6 GB of disk
	@$(BIN)/python -m bench --full $(ARGS)

peers: $(READY) ## the same work on other queues, each in an environment of its own; 25 minutes
	@$(BIN)/python -m bench.peers $(ARGS)

# Run by its file, not by -m: that keeps the root, and so our ./wheel, off the import path.
coverage: $(READY) ## which lines and branches the suites reach
	@$(BIN)/coverage erase
	@$(BIN)/coverage run $(BIN)/pytest --quiet -m "not load and not slow"
	@$(BIN)/coverage report

dist: $(READY) ## sdist, and the wheel made from it, in dist/
	@$(BIN)/python -m build

format: $(READY) ## let ruff lay the code out
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## remove all that the other targets make, the environments too
	@rm -rf build dist *.egg-info .venv .venv-* .hypothesis .pytest_cache .mypy_cache .ruff_cache .coverage .coverage.*
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
