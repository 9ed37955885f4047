# Two commands: `make demo` shows what this is, `make test` proves that it works here.
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint slow learns gpu docs clean

demo: $(VENV)/.core
	$(VENV)/bin/dreamlab demo

test: $(VENV)/.dev
	DREAMLAB_REQUIRE_EXTRAS=1 $(VENV)/bin/pytest -n 2 --dist loadfile

slow: $(VENV)/.dev
	$(PIP) -e ".[ray,docs]"
	DREAMLAB_REQUIRE_EXTRAS=1 $(VENV)/bin/pytest -m slow

learns: $(VENV)/.dev
	$(VENV)/bin/pytest -m learns -n 2

gpu: $(VENV)/.dev
	$(VENV)/bin/pytest -m gpu

docs: $(VENV)/.core
	$(PIP) -e ".[docs]"
	$(VENV)/bin/mkdocs build --strict

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/pyright && $(VENV)/bin/lint-imports

# torch first, by itself: the constraint picks the version before anything else can ask for another
$(VENV)/.torch: constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	touch $@

$(VENV)/.core: $(VENV)/.torch pyproject.toml
	$(PIP) -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	bash scripts/install_apt.sh
	$(PIP) -e ".[dev,all]"
	bash scripts/install_nodeps.sh $(VENV)/bin/python
# apart from the rest: its library and other packages' crash in one process; only scripts of the tests see it
	$(PIP) --no-deps --target $(VENV)/triton --upgrade triton==3.6.0
	touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache
