# Everything a newcomer types. `make demo` and `make test` do all the set-up by themselves on a
# Debian 12 machine with Python 3.11 and nothing else.
#
# Another package index:   make test PIP_INDEX_URL=https://your.mirror/simple

PYTHON ?= python3.11
VENV ?= .venv
PIP_INDEX_URL ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
INDEX := $(if $(PIP_INDEX_URL),--index-url $(PIP_INDEX_URL))
STAMP := $(VENV)/.installed
PYTEST_ARGS ?=
# Most tests wait for something; of those that load hosts of the lab, or sweep, three files at a time.
WORKERS ?= 4
LABS ?= 3
BUT = and not thorough
LIGHT = -m "not (lab or busy) $(BUT)"
HEAVY = -m "(lab or busy) $(BUT)"
HEAVY_IN = tests/lab tests/stories tests/unit/burn tests/unit/fabric
QUICK = -m "not (lab or busy or slow or thorough)"
# What fails is run once more, alone: most drive real processes on real clocks, and other work on the
# machine can upset that. Both results stay on the screen; what fails twice, fails.
ONCE_MORE = $(BIN)/python -m pytest --lf --last-failed-no-failures=none $(PYTEST_ARGS)

# Tests start Python some thousand times: each finds compiled what the first one has imported.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo quick test test-all parity lint preflight lab bench bench-full bench-scale contest docs pictures wheel release-check setup clean system

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: $(STAMP) ## bring up a fleet with planted faults, judge it, name the culprits
	$(BIN)/python -m tests.lab.demo

test-all: ## run every test
	$(MAKE) test BUT=

quick: $(STAMP) ## run the unit tests that need no lab, in under a minute
	$(BIN)/python -m pytest tests/unit -n auto --maxprocesses $(WORKERS) --dist worksteal $(QUICK) \
		--hypothesis-profile=quick $(PYTEST_ARGS)

test: $(STAMP) ## run all tests except those that tests/thorough.txt lists
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(LIGHT) --cache-clear $(PYTEST_ARGS) \
		|| { [ $$? -eq 1 ] && $(ONCE_MORE) $(LIGHT); }
	$(BIN)/python -m pytest -n $(LABS) --dist loadfile $(HEAVY_IN) $(HEAVY) --cache-clear $(PYTEST_ARGS) \
		|| { [ $$? -eq 1 ] && $(ONCE_MORE) $(HEAVY_IN) $(HEAVY); }

parity: $(STAMP) ## run the stories, and hold each of them to four workers of xdist
	PREFLIGHT_TEST_PARITY=all $(BIN)/python -m pytest tests/stories $(PYTEST_ARGS)

docs: $(STAMP) ## build the documentation site in build/site; a broken link fails
	$(BIN)/sphinx-build -c docs -b html -W --keep-going -q . build/site
	PREFLIGHT_SITE=build/site $(BIN)/python -m pytest -q tests/stories/test_docs_site.py $(PYTEST_ARGS)

pictures: $(STAMP) ## renew the pictures of README.md and the screen of the tutorial from a real run of the demo
	$(BIN)/python -m tests.stories.readme

PROSE = README.md SECURITY.md CONTRIBUTING.md docs

lint: $(STAMP) ## ruff, mypy --strict, the arrows between the rooms, spelling, prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell $(PROSE) CHANGELOG.md preflight checks contrib inventory tests/*.md
	$(BIN)/proselint --config .proselintrc.json check $(PROSE)

preflight: $(STAMP) ## judge this machine
	$(BIN)/python -m pytest --preflight

lab: $(STAMP) ## bring up four hosts to play with, until Ctrl-C
	$(BIN)/python -m tests.lab up

bench: $(STAMP) ## measure speed as ratios; a table, and bench-results/bench.json
	$(BIN)/python -m tests.bench

bench-full: $(STAMP) ## each fault 20 times in the lab and the rehearsal, each hang 10 times, simulated fabrics, races (hours); resumes
	$(BIN)/python -m tests.bench.full_lab
	$(BIN)/python -m tests.bench.full_rehearsal
	$(BIN)/python -m tests.bench.full_rehearsal --unseen --fleet 4x2
	$(BIN)/python -m tests.bench.full_prolog
	$(BIN)/python -m tests.bench.full_diagnose
	$(BIN)/python -m tests.bench.full_dumps --show
	PREFLIGHT_CASES=6000 $(BIN)/python -m pytest tests/patterns $(PYTEST_ARGS)
	$(BIN)/python -m tests.bench.full
	PREFLIGHT_CASES=100000 $(BIN)/python -m pytest tests/unit/report/test_races.py tests/unit/payload/test_redact.py \
		tests/unit/payload/test_secret_spellings.py tests/unit/payload/test_users_words.py tests/unit/fleet/test_nodeset.py tests/unit/checks/test_monotony.py \
		tests/unit/captured/test_monotony_of_texts.py tests/unit/payload/test_profiles.py \
		tests/unit/history/test_troubles.py
	PREFLIGHT_CASES=3000 $(BIN)/python -m pytest tests/unit/captured/test_several_parts.py

bench-scale: $(STAMP) ## what 1 to 512 nodes cost the controller; bench-results/scale.json
	$(BIN)/python -m tests.bench.scale

contest: $(STAMP) ## preflight, torchfrtrace and plain baselines name the culprits of the same hangs and dead jobs
	$(BIN)/python -m tests.bench.contest --show

wheel: $(STAMP) ## build the sdist, and the wheel from it
	rm -rf dist
	$(BIN)/python -m build --no-isolation -o dist .

release-check: docs demo test-all ## what a release must pass: docs, demo, every test, wheel in an empty environment, other Pythons, oldest dependencies
	.ci/wheel
	$(BIN)/twine check --strict dist/*
	.ci/versions

setup: $(STAMP) ## only set up

system: ## Debian packages of the lab, when root and when they are missing
	@sh tests/lab/packages.sh

$(STAMP): pyproject.toml constraints.txt requirements-dev.txt | system
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install $(INDEX) -c constraints.txt -r requirements-dev.txt
	$(PIP) install $(INDEX) -c constraints.txt --no-build-isolation --no-deps -e .
	touch $@

clean: ## remove what was made here
	rm -rf $(VENV) dist build bench-results .pytest_cache .mypy_cache .ruff_cache
