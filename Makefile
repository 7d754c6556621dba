# whispertune: every target can be run again; `setup` is done once and then checked in under a second.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test lint docs bench proof clean

setup:
	@command -v "$(PYTHON)" >/dev/null || { echo "set-up: $(PYTHON) is not found; whispertune needs Python 3.11 or newer: install it, or say which: make setup PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" scripts/setup.py

demo: setup
	@$(BIN)/whispertune demo

lint: setup
	$(BIN)/ruff check .

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not real" -n 2 --dist loadfile
	$(BIN)/python -m pytest -m real

docs: setup
	$(BIN)/python scripts/reference.py

bench: setup
	$(BIN)/python benchmarks/engine.py

proof: setup
	$(BIN)/python benchmarks/proof.py

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .mypy_cache
