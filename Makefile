# hgemm on Linux or WSL2, with Python 3.11 or newer and a C++ compiler:
#
#   make study          creates .venv, installs, runs the main job
#   make test           the same, then style, types and tests
#
#   make study VENV=    the active Python environment as it is: nothing is created, installed or downloaded
#   make gpu            everything that a GPU has to show, into build/gpu; STAGES="build tests" for some of it
#   make lint           style and types alone                    make pytest   the tests alone
#   make newest-triton  the Triton tests with the newest Triton; make oldest-triton: with the oldest that hgemm works with
#   make clean          removes .venv and build

VENV := .venv
PYTHON3 := python3
PYTHON := $(if $(VENV),$(VENV)/bin/python,$(PYTHON3))
# Two processes halve the waiting on the compilers; a bare environment need not have pytest-xdist. Each computes with one
# thread: those of OpenMP spin while they wait, and would take the processors from the other process.
PYTEST := $(if $(VENV),OMP_NUM_THREADS=1 )$(PYTHON) -m pytest $(if $(VENV),-n 2 --dist worksteal)
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

ifneq ($(shell uname -s),Linux)
$(error hgemm runs on Linux, and on Windows inside WSL2; this is $(shell uname -s))
endif

CLANG_FORMAT := $(if $(VENV),$(VENV)/bin/)clang-format
CUDA_SOURCES := $(shell find cuda_kernels tests -name '*.cuh' -o -name '*.h' -o -name '*.hpp' -o -name '*.cpp' -o -name '*.cu')
PIP_INSTALL = $(PYTHON) -m pip install --constraint constraints.txt --editable
STUDY_INSTALLED := $(if $(VENV),$(VENV)/study.installed)
TEST_INSTALLED := $(if $(VENV),$(VENV)/test.installed)

.PHONY: help study test lint pytest toolkit gpu newest-triton oldest-triton clean
.NOTPARALLEL:

help:
	@sed -n '1,/^$$/{/^#/s/^# \{0,1\}//p}' Makefile

study: toolkit
	$(PYTHON) -m hgemm.study

test: study lint pytest $(if $(VENV),$(if $(CI),newest-triton oldest-triton))

lint: $(TEST_INSTALLED)
	@if [ -z "$(VENV)" ] && ! { $(PYTHON) -c 'import mypy, ruff' && command -v $(CLANG_FORMAT); } >/dev/null 2>&1; then \
	  echo "style and types are not checked: this environment lacks ruff, mypy or clang-format"; exit; fi; \
	set -x; \
	$(PYTHON) -m ruff check; \
	$(PYTHON) -m ruff format --check; \
	$(CLANG_FORMAT) --dry-run --Werror $(CUDA_SOURCES); \
	$(PYTHON) -m mypy -p hgemm

pytest: $(TEST_INSTALLED)
	$(PYTEST)

# nvcc from PyPI, only where it has work to do (on a GPU, or in CI, which compiles every kernel) and there is none yet.
NVCC_MISSING := import os, torch; from hgemm.cuda_kernels.toolchain import describe; \
  print((torch.cuda.is_available() or "CI" in os.environ) and isinstance(describe()["nvcc"], str))
toolkit: $(STUDY_INSTALLED)
ifneq ($(VENV),)
	@if [ "$$($(PYTHON) -c '$(NVCC_MISSING)')" = True ]; then $(PIP_INSTALL) '.[toolkit]'; fi
endif

STAGES :=
gpu: $(TEST_INSTALLED)
	$(PYTHON) tests/on_gpu.py build/gpu $(STAGES)

# What depends on the Triton: what it compiles, launches and interprets, not what is asked of every shape and both types;
# and each kind of kernel, layout and target, but not each with every other.
# PyTorch insists on one Triton, so another goes into a folder of its own, ahead on the path.
newest-triton: TRITON := triton
oldest-triton: TRITON := triton==3.6.*
newest-triton oldest-triton: $(TEST_INSTALLED)
	rm -rf build/$@
	$(PYTHON) -m pip install --quiet --target build/$@ --no-deps --upgrade '$(TRITON)'
	PYTHONPATH=build/$@ $(PYTHON) -c 'import triton; print("Triton", triton.__version__)'
	PYTHONPATH=build/$@ $(PYTEST) -m "not one_triton" tests/test_triton_*.py

clean:
	rm -rf $(VENV) build dist *.egg-info

ifneq ($(VENV),)
$(VENV)/bin/python:
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "hgemm needs Python 3.11 or newer, and $(PYTHON3) is $$($(PYTHON3) --version 2>&1): name another with PYTHON3=" >&2; \
	  exit 1; }
	@$(PYTHON3) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON3) cannot create $(VENV) (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }

$(STUDY_INSTALLED): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) .
	@touch $@

$(TEST_INSTALLED): $(STUDY_INSTALLED)
	$(PIP_INSTALL) '.[dev]'
	@touch $@
endif
