# Two commands matter on a fresh machine: `make demo` and `make test`. Both create .venv and
# install pinned versions in it; a C++17 compiler makes the package fast but is not needed.

PYTHON ?= python3
PYTEST_ARGS ?= -n auto --maxprocesses=8
BENCH ?= mappings
OLDEST_PYTHON ?= python3.10
NEWEST_PYTHON ?= python3.13
GPU_BENCH ?= gpu_calls gpu_mappings gpu_losses gpu_linear_loss gpu_attention gpu_decoding gpu_seq2seq

VENV := .venv
BIN := $(VENV)/bin
# Compiling all of the packages takes as long as unpacking them; most modules are never imported.
INSTALL := -m pip install --disable-pip-version-check --quiet --no-compile
PIP := $(BIN)/python $(INSTALL)
SOURCES := pyproject.toml CMakeLists.txt $(wildcard $(addprefix src/fenchel/ops/*/*.,cpp hpp cmake))
SANITIZED := build/sanitize
RELEASE := build/release
MATRIX := build/matrix
DOCS := build/docs
# What a wheel must pass in an environment of its own: the README, and a quick part of the tests.
WHEEL_TESTS := tests/test_docs.py::test_page_examples[README.md] tests/test_public_api.py \
	tests/ops/test_native.py tests/structures/test_posterior.py tests/cli
# A machine with a GPU brings its own PyTorch, and nothing is installed there.
GPU_PYTHON ?= 3.12
GPU_PACKAGES := build/gpu
FROM_SOURCE := PYTHONPATH=src:$(GPU_PACKAGES)$${PYTHONPATH:+:$$PYTHONPATH}
NATIVE_TESTS := tests/ops/test_native.py tests/ops/test_inference.py tests/ops/test_sparsemap_solver.py \
	tests/ops/test_sparsemap_rounds.py
GPU_TESTS := tests/test_gpu.py tests/ops/test_binding_gpu.py tests/losses/test_linear.py tests/ops/test_triton.py tests/ops/test_triton_prox.py \
	tests/ops/test_triton_attention.py tests/ops/test_triton_attention_rows.py tests/ops/test_triton_attention_features.py tests/ops/test_triton_attention_dense.py \
	tests/ops/test_triton_cached_attention.py tests/attention/test_attention_gpu.py tests/attention/test_attend_gpu.py \
	tests/structures/test_structures_gpu.py tests/structures/test_gibbs_gpu.py tests/structures/test_perturbed_gpu.py tests/latent/test_latent_gpu.py tests/seq2seq/models/test_model_gpu.py \
	tests/seq2seq/decoding/test_search_gpu.py tests/seq2seq/training/test_training_gpu.py \
	tests/integrations/test_transformers_gpu.py

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-gpu gpu-packages test-wheel test-matrix matrix-oldest matrix-newest wheel lint types doctest docs test-docs \
	sanitize binding bench bench-gpu clean

help:  ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

demo: $(VENV)/demo.stamp  ## set all up, train a model of English verbs, and explain it in demo/
	$(BIN)/fenchel demo --output demo

test: $(VENV)/dev.stamp  ## set all up and run the tests, but for the slow ones
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

test-all: $(VENV)/dev.stamp  ## run the slow tests too
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-gpu:  ## run the GPU kernels' tests on an NVIDIA GPU, with PYTHON as it is
	$(FROM_SOURCE) $(PYTHON) -m pytest -m "not slow" -v --tb=short $(GPU_PYTEST_ARGS) $(wildcard $(GPU_TESTS))

gpu-packages: $(VENV)/dev.stamp  ## pack in build/gpu.tar.gz what a GPU machine without a network lacks, for GPU_PYTHON
	rm -rf $(GPU_PACKAGES)
	$(PIP) --no-deps --target $(GPU_PACKAGES) --python-version $(GPU_PYTHON) -r requirements/gpu.txt
	tar -czf $(GPU_PACKAGES).tar.gz $(GPU_PACKAGES)

wheel: $(RELEASE)/stamp  ## build the sdist and the wheel in dist/, and check both
	rm -rf dist $(RELEASE)/dist
	$(RELEASE)/bin/python -m build --no-isolation --outdir $(RELEASE)/dist .
	PATH="$(abspath $(RELEASE))/bin:$$PATH" auditwheel repair --exclude libgomp.so.1 --wheel-dir dist $(RELEASE)/dist/*.whl
	mv $(RELEASE)/dist/*.tar.gz dist
	$(RELEASE)/bin/twine check --strict dist/*
	$(RELEASE)/bin/check-wheel-contents dist/*.whl

test-wheel:  ## install the wheel of dist/ in a new environment without a compiler, and test it there
	rm -rf $(RELEASE)/new
	$(PYTHON) -m venv $(RELEASE)/new
	CXX=none $(RELEASE)/new/bin/python $(INSTALL) -r requirements/dev.txt
	CXX=none $(RELEASE)/new/bin/python $(INSTALL) --no-deps dist/*.whl
	$(RELEASE)/new/bin/python -c 'import fenchel, sys; sys.exit(not fenchel.kernels()["native"].startswith("loaded"))'
	$(RELEASE)/new/bin/python -m pytest -m "not slow" -q $(PYTEST_ARGS) $(WHEEL_TESTS)

test-matrix:  ## test the wheel of dist/ with the oldest and the newest versions, one line for each
	@$(MAKE) --no-print-directory --keep-going matrix-oldest matrix-newest

matrix-oldest: INTERPRETER := $(OLDEST_PYTHON)
matrix-oldest: REQUIREMENTS := requirements/oldest.txt
matrix-newest: INTERPRETER := $(NEWEST_PYTHON)
matrix-newest: REQUIREMENTS := requirements/dev.txt
matrix-oldest matrix-newest: matrix-%:
	@rm -rf $(MATRIX)/$*
	@$(INTERPRETER) -m venv $(MATRIX)/$*
	@$(MATRIX)/$*/bin/python $(INSTALL) -r $(REQUIREMENTS)
	@$(MATRIX)/$*/bin/python $(INSTALL) --no-deps dist/*.whl
	@$(MATRIX)/$*/bin/python -m pytest -m "not slow" -q $(PYTEST_ARGS) >$(MATRIX)/$*.log 2>&1 || echo "see $(MATRIX)/$*.log" >&2
	@$(MATRIX)/$*/bin/python -c 'import platform, numpy, torch; print("$*: Python", platform.python_version(), \
		"torch", torch.__version__, "numpy", numpy.__version__, end=": ")'
	@tail -n 1 $(MATRIX)/$*.log
	@! grep -qE "^(FAILED|ERROR) " $(MATRIX)/$*.log && grep -q " passed" $(MATRIX)/$*.log

lint: $(VENV)/dev.stamp  ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev.stamp  ## check the types
	$(BIN)/pyright --pythonpath $(BIN)/python

doctest: $(VENV)/dev.stamp  ## run the examples of README, docs and docstrings
	$(BIN)/python -m pytest tests/test_docs.py

docs: $(VENV)/dev.stamp $(DOCS)/venv/stamp  ## build the site in build/docs/html
	rm -rf $(DOCS)/html
	$(BIN)/python docs/site/stage.py $(DOCS)/source
	$(DOCS)/venv/bin/python -m sphinx --quiet --fail-on-warning --keep-going --jobs auto \
		--conf-dir docs/site --builder html $(DOCS)/source $(DOCS)/html
	@echo "open $(DOCS)/html/index.html"

test-docs: docs  ## build the site, and test it in a browser
	$(BIN)/python -m pytest -q tests/test_site.py

binding:  ## build the kernels and the binding in place, for PYTHON and its PyTorch
	cmake -S . -B build/binding -DPython_EXECUTABLE="$$(command -v $(PYTHON))"
	cmake --build build/binding --parallel

sanitize: $(VENV)/dev.stamp  ## run the kernels' tests under AddressSanitizer and UBSan
	$(BIN)/cmake -S . -B $(SANITIZED) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
		-DFENCHEL_SANITIZE=ON -DFENCHEL_OUTPUT=$(abspath $(SANITIZED)/lib)
	$(BIN)/cmake --build $(SANITIZED)
	LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
		FENCHEL_LIBRARY_DIR=$(abspath $(SANITIZED)/lib) \
		$(BIN)/python -m pytest -p no:cacheprovider $(NATIVE_TESTS)

bench: $(VENV)/dev.stamp  ## run the benchmark BENCH (default: mappings)
	$(BIN)/python -m benchmarks $(BENCH)

bench-gpu:  ## run the benchmarks GPU_BENCH (default: all) on an NVIDIA GPU, with PYTHON as it is
	$(FROM_SOURCE) $(PYTHON) -m benchmarks $(GPU_BENCH)

clean:  ## remove the environment, builds and caches
	rm -rf $(VENV) build dist demo .pytest_cache .ruff_cache .hypothesis
	rm -f src/fenchel/ops/fenchel_native_*.so src/fenchel/ops/fenchel_native_*.dylib src/fenchel/ops/_binding/*.so

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "fenchel needs Python 3.10 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

$(RELEASE)/stamp: requirements/release.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python $(INSTALL) -r $<
	@touch $@

$(DOCS)/venv/stamp: requirements/docs.txt
	$(PYTHON) -m venv $(DOCS)/venv
	$(DOCS)/venv/bin/python $(INSTALL) -r $<
	@touch $@

# The development environment contains the demo's, so it stamps both.
$(VENV)/demo.stamp: requirements/demo.txt $(SOURCES) | $(BIN)/python
	$(PIP) -r requirements/demo.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/dev.stamp: requirements/dev.txt requirements/demo.txt $(SOURCES) | $(BIN)/python
	$(PIP) -r requirements/dev.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $(VENV)/demo.stamp $@
