# These commands do all of their own set-up. `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One file for each extra of pyproject.toml that is installed.
WORKFLOW := $(VENV)/workflow.installed
DEVELOPMENT := $(VENV)/dev.installed
AUDIT := $(VENV)/audit.installed

.PHONY: report audit test lint format dag bench clean help
.DELETE_ON_ERROR:

report: $(WORKFLOW)  ## run the pipeline; writes report.md and results/
	$(BIN)/snakemake -c1

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /make \1\t/p' $(MAKEFILE_LIST)
	@echo "More targets: $(BIN)/snakemake --list"

audit: $(AUDIT)  ## stop and resume other trainers; writes audit.md
	$(BIN)/snakemake -c2 audit.md

test: $(DEVELOPMENT)  ## run the tests
	$(BIN)/python -m pytest

lint: $(DEVELOPMENT)  ## run the linters
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

format: $(DEVELOPMENT)  ## put the code into the linters' form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow

# Mermaid text always, an SVG where Graphviz is installed.
dag: $(WORKFLOW)  ## draw the jobs; writes dag.mmd, with Graphviz dag.svg
	$(BIN)/snakemake --dag mermaid-js report.md > dag.mmd.tmp
	mv dag.mmd.tmp dag.mmd
	@if command -v dot > /dev/null; then \
		$(BIN)/snakemake --dag dot report.md > dag.dot.tmp && dot -Tsvg -o dag.svg.tmp dag.dot.tmp && \
		rm dag.dot.tmp && mv dag.svg.tmp dag.svg && echo "dag.svg and dag.mmd written"; \
	else \
		echo "dag.mmd written; dag.svg needs Graphviz's dot"; \
	fi

bench: $(DEVELOPMENT)  ## run the benchmarks
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/trace.py
	$(BIN)/python benchmarks/checkpoint.py
	$(BIN)/python benchmarks/pipeline.py

clean:  ## remove the environment .venv
	rm -rf $(VENV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: $(PYTHON): found Python %d.%d, wanted 3.11 or newer" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/%.installed: pyproject.toml envs/constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c envs/constraints.txt -e ".[$*]"
	touch $@
