# Commands of dtr_alloc. From a clean checkout, `make test` and `make demo` need
# python3 (3.11 or later, with venv), g++ and make, and make everything else.

SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
PYTEST_ARGS ?=

BIN := $(VENV)/bin
PY := $(BIN)/python
CXX ?= g++
CORE := $(shell find allocator native -path native/bridge -prune -o \( -name '*.cpp' -o -name '*.h' \) -print) native/build_core.py
PACKAGE := $(filter-out dtr_alloc/native dtr_alloc/__pycache__ dtr_alloc/_core.% dtr_alloc/_lab.%,$(wildcard dtr_alloc/*))
DEV := $(VENV)/core $(VENV)/dev-packages
CXX_FILES = $(shell find allocator native tests -name '*.cpp' -o -name '*.h')

.PHONY: demo test test-all fuzz check format docs pictures sanitize tsan cuda-bridge-check cuda-emulated cuda-host gpu bench soak interrupts conformance frameworks versions wheel clean

demo: $(VENV)/core
	$(PY) -m bench.demo

# Two files at a time, each in the order of its tests: they share what takes long to set up.
test: $(DEV)
	$(PY) -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

# The same, and what takes minutes: sweeps, fuzzers and whole jobs.
test-all: $(DEV)
	$(PY) -m pytest -n 2 --dist loadfile -m "long or not long" $(PYTEST_ARGS)

# Mutated files for every reader of files, for so long; what is found is in build/fuzz/.
SECONDS ?= 3600
fuzz: $(DEV)
	PYTHONPATH=.:tests/allocator $(PY) tests/readers/fuzz_readers.py --seconds $(SECONDS)

# What a reader would mention in review, without running anything.
check: $(VENV)/dev-packages docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

format: $(VENV)/dev-packages
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

# The site, in build/site; a broken link is an error. The reference of the command line is generated
# from the code, core and all. With the studies' pictures, if they are drawn.
docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

# The pictures of the studies in build/pictures, from the JSON in bench/results, and the README's.
STUDIES := $(wildcard bench/results/reproduce/*.json)
pictures: $(DEV)
	mkdir -p build/pictures && cp $(STUDIES) build/pictures
	$(PY) -m bench.studies $(basename $(notdir $(STUDIES))) --redraw --out build/pictures
	$(PY) -m bench.chart

# The compiled core, the bridge and their tests under address and undefined-behavior sanitizers,
# with the core's assertions on; also under real PyTorch, whose own code is not instrumented, and
# under the jobs and troubles of bench.soak, for SANITIZED_MINUTES. All of it is built in a tree of
# its own under build/, so that the release build stays. Leaks are not looked for: python itself
# never frees all it has. The types of PyTorch's objects are not looked at (vptr): it does not export
# what that would need.
SANITIZED := build/sanitize
SANITIZED_TESTS ?= $(wildcard tests/allocator tests/native) tests/python/test_header.py \
  tests/torch/test_escapes.py tests/torch/test_random.py tests/torch/test_learning.py \
  "tests/torch/test_doors.py::test_both_doors_give_the_same_bits_and_record_the_same_operators[mlp]" \
  "tests/torch/test_optimizer_steps.py::test_a_step_that_is_out_of_memory_changes_nothing_and_names_who_holds_it[SGD]" \
  "tests/torch/test_jobs.py::test_the_job_prints_under_a_budget_what_it_prints_without[by the environment]" \
  tests/torch/test_threads.py::test_a_child_reads_what_was_evicted_with_an_error
SANITIZED_MINUTES ?= 5
SANITIZED_PY = cd $(SANITIZED)/tree && \
  LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
  ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 \
  UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
  DTR_ALLOC_BUILD=sanitize \
  CXX=$(abspath $(SANITIZED))/c++ DTR_ALLOC_CACHE=$(abspath $(SANITIZED))/cache $(abspath $(PY))
sanitize: $(SANITIZED)/core
	$(SANITIZED_PY) -m pytest -p no:cacheprovider $(PYTEST_ARGS) $(SANITIZED_TESTS)
	$(SANITIZED_PY) -m bench.soak --minutes $(SANITIZED_MINUTES)

$(SANITIZED)/core: $(CORE) setup.py $(VENV)/dev-packages
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)/tree
	for part in allocator native dtr_alloc tests bench setup.py pyproject.toml README.md LICENSE; do \
	  ln -s "$(CURDIR)/$$part" $(SANITIZED)/tree/; done
	rm $(SANITIZED)/tree/dtr_alloc && mkdir $(SANITIZED)/tree/dtr_alloc
	ln -s $(addprefix "$(CURDIR)"/,$(PACKAGE)) $(SANITIZED)/tree/dtr_alloc/
	printf '%s\n' '#!/bin/sh' 'LD_PRELOAD= exec $(CXX) "$$@" -O1 -g -fno-omit-frame-pointer \' \
	  '  -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined' \
	  > $(SANITIZED)/c++ && chmod +x $(SANITIZED)/c++
	cd $(SANITIZED)/tree && DTR_ALLOC_BUILD=sanitize $(abspath $(PY)) setup.py -q build_ext --inplace
	touch $@

# The engine and the pool under ThreadSanitizer: threads that call operators under one budget, with
# hundreds of thousands of evictions (tests/native/threads.cpp). Addresses are not randomized, as
# ThreadSanitizer needs some for itself.
TSAN := build/tsan
TSAN_OBJECTS := $(patsubst %.cpp,$(TSAN)/%.o,$(filter %.cpp,$(filter-out \
  native/lab/% native/fragment/%,$(CORE))) tests/native/threads.cpp)
EVICTIONS ?= 100000
tsan: $(TSAN)/threads
	TSAN_OPTIONS=halt_on_error=1 setarch -R $< $(EVICTIONS)

$(TSAN)/threads: $(TSAN_OBJECTS)
	$(CXX) -fsanitize=thread $^ -o $@ -ldl -lpthread

$(TSAN)/%.o: %.cpp
	@mkdir -p $(@D)
	$(CXX) -std=c++20 -O1 -g -fsanitize=thread -fno-omit-frame-pointer -Iallocator -Inative \
	  -Inative/include -MMD -MP -c $< -o $@

-include $(TSAN_OBJECTS:.o=.d)

# A tree of links to the package, for pythons that lack dtr_alloc.
define package_in
@rm -rf $(1) && mkdir -p $(1)/dtr_alloc
@ln -s $(addprefix "$(CURDIR)"/,$(PACKAGE)) $(1)/dtr_alloc/
@ln -s "$(CURDIR)/native" $(1)/dtr_alloc/native
endef

# What stands for the tests of PyTorch's side, under other pythons and builds of torch:
#   make versions TORCH_PYTHONS="/a/bin/python /b/bin/python"
# Those need pytest, pytest-timeout, hypothesis, expecttest, numpy, matplotlib and what dtr_alloc
# depends on; the core is that of the virtual environment.
VERSIONS := build/versions
VERSIONS_TESTS ?= $(patsubst %,tests/torch/test_%.py,versions doors same_bits escapes unseen_writes \
  custom_operators random sparse nested settings compile op_db jobs places)
versions: $(VENV)/core
	@test -n "$(TORCH_PYTHONS)" || { echo "set TORCH_PYTHONS to pythons that have torch"; exit 2; }
	$(call package_in,$(VERSIONS)/tree)
	@ln -s "$(CURDIR)"/dtr_alloc/_core.*.so "$(CURDIR)"/dtr_alloc/_lab.*.so $(VERSIONS)/tree/dtr_alloc/
	@ln -s $(addprefix "$(CURDIR)"/,tests bench pyproject.toml) $(VERSIONS)/tree/
	@$(PY) setup.py -q egg_info --egg-base $(VERSIONS)/tree  # the entry point
	@cd $(VERSIONS)/tree; status=0; for python in $(TORCH_PYTHONS); do \
	  "$$python" -W ignore -c 'import sys, torch; print("torch", torch.__version__, "python", sys.version)'; \
	  DTR_ALLOC_CACHE=$(abspath $(VERSIONS))/cache "$$python" -m pytest -p no:cacheprovider \
	    $(PYTEST_ARGS) $(VERSIONS_TESTS) || status=1; \
	done; exit $$status

# A wheel in dist/ with bridges to the builds of torch of some pythons:
#   make wheel [TORCH_PYTHONS="/a/bin/python /b/bin/python"]
# Those need numpy and what dtr_alloc depends on. It is tried where there is no compiler: in an
# environment that it and torch are installed in, and by those pythons.
WHEEL := build/wheel
wheel: TORCH_PYTHONS ?= $(abspath $(PY))
wheel: $(VENV)/wheel-packages
	$(call package_in,$(WHEEL)/tree)
	@rm -rf $(addprefix $(WHEEL)/,env site plain repaired cache jobs)
	@ln -s $(addprefix "$(CURDIR)"/,allocator native setup.py pyproject.toml README.md LICENSE) $(WHEEL)/tree/
	@for python in $(TORCH_PYTHONS); do PYTHONPATH=$(WHEEL)/tree \
	  DTR_ALLOC_CACHE=$(WHEEL)/tree/dtr_alloc/bridges "$$python" -P -m dtr_alloc.cli build || exit; done
	@cd $(WHEEL)/tree && DTR_ALLOC_BUILD=release $(abspath $(PY)) -m pip wheel -q --no-deps --no-build-isolation -w ../plain .
	@PATH="$(abspath $(BIN)):$$PATH" auditwheel repair --exclude 'libc10*' --exclude 'libtorch*' \
	  --exclude 'libcudart*' -w $(WHEEL)/repaired $(WHEEL)/plain/*.whl
	@$(PY) -m venv $(WHEEL)/env
	@$(WHEEL)/env/bin/python -m pip install -q '$(TORCH)' \
	  "$$(echo $(WHEEL)/repaired/*.whl)[demo]"
	@$(PY) -m pip install -q --no-deps --target $(WHEEL)/site $(WHEEL)/repaired/*.whl
	@mkdir $(WHEEL)/jobs && ln -s "$(CURDIR)/bench" $(WHEEL)/jobs/
	@cd $(WHEEL)/jobs; alone="env -i HOME=$$HOME PATH=$(abspath $(WHEEL))/env/bin DTR_ALLOC_CACHE=../cache"; \
	check="-W ignore $(CURDIR)/tests/wheel/check.py"; $$alone python $$check || exit; \
	for python in $(TORCH_PYTHONS); do $$alone PYTHONPATH=../site "$$python" $$check || exit; done
	@mkdir -p dist && cp $(WHEEL)/repaired/*.whl dist/ && ls -l dist/

# The bridge for CUDA against CUDA builds of torch, given by their pythons; no GPU, no nvcc:
#   make cuda-bridge-check CUDA_TORCH_PYTHONS="/a/bin/python /b/bin/python"
# It is compiled, linked, loaded and installed in a process of each, on the core with a
# stand-in for libcuda. Those pythons need nothing but torch, so the core is a plain library.
CUDA_CHECK := build/cuda-check
cuda-bridge-check: $(CUDA_CHECK)/core.so $(CUDA_CHECK)/fake_cuda.so
	@test -n "$(CUDA_TORCH_PYTHONS)" || \
	  { echo "set CUDA_TORCH_PYTHONS to pythons that have CUDA builds of torch"; exit 2; }
	$(call package_in,$(CUDA_CHECK)/tree)
	@printf '  %-16s%-8s%-10s%s\n' torch cuda python result; status=0; \
	for python in $(CUDA_TORCH_PYTHONS); do \
	  PYTHONPATH=$(CUDA_CHECK)/tree DTR_ALLOC_CACHE=$(CUDA_CHECK)/cache "$$python" -W ignore \
	    tests/cuda_bridge/check.py $(abspath $^) tests/cuda_bridge/cuda_selftest.cpp || status=1; \
	done; exit $$status

# Whole jobs on "cuda" under CUDA builds of torch, on a machine without a GPU, over stand-ins for
# CUDA's driver, runtime and kernels (tests/cuda_emulator/README.md). Those pythons need pytest,
# and what dtr_alloc depends on; the core is that of the virtual environment.
EMULATED := build/cuda-emulated
cuda-emulated: EMULATED_TESTS ?= tests/cuda_emulator tests/gpu
cuda-emulated: $(VENV)/core
	@test -n "$(CUDA_TORCH_PYTHONS)" || \
	  { echo "set CUDA_TORCH_PYTHONS to pythons that have CUDA builds of torch"; exit 2; }
	$(run_emulated)

# Full-size jobs over a CUDA whose kernels compute nothing (bench/null_cuda): how often steps evict,
# repeat, search, map and wait. Skipped, with the reason, under a python without a CUDA build of torch.
cuda-host: EMULATED_TESTS := -rs tests/cuda_emulator/test_null_cuda.py
cuda-host: CUDA_TORCH_PYTHONS ?= $(abspath $(PY))
cuda-host: $(VENV)/core
	$(run_emulated)

define run_emulated
$(call package_in,$(EMULATED)/tree)
@ln -s "$(CURDIR)"/dtr_alloc/_core.*.so $(EMULATED)/tree/dtr_alloc/
@ln -s "$(CURDIR)"/bench $(EMULATED)/tree/
@status=0; for python in $(CUDA_TORCH_PYTHONS); do \
  PYTHONPATH=$(abspath $(EMULATED))/tree DTR_ALLOC_CACHE=$(abspath $(EMULATED))/cache GPU_TESTS_DEVICE=emulated \
    "$$python" -m pytest -W ignore -p no:cacheprovider -o pythonpath="$(EMULATED)/tree tests/allocator" $(PYTEST_ARGS) $(EMULATED_TESTS) \
    || status=1; \
done; exit $$status
endef

$(CUDA_CHECK)/core.so: $(CORE)
	mkdir -p $(@D)
	$(CXX) -std=c++20 -O1 -fPIC -shared -Iallocator -Inative -Inative/include $(filter-out native/lab/%,$(filter %.cpp,$^)) -o $@ -ldl -lpthread

$(CUDA_CHECK)/fake_cuda.so: tests/fake_cuda/fake_cuda.cpp
	mkdir -p $(@D)
	$(CXX) -std=c++20 -O1 -fPIC -shared $< -o $@ -lpthread

# What only a GPU can show (docs/guides/cuda.md), on a machine with one and without internet:
#   make gpu [GPU_PYTHON=python3] [WHEELS=folder] [OUT=folder] [LIMIT=540] [PARTS="same_bits ..."]
# GPU_PYTHON has PyTorch; it is used as it is, with what WHEELS holds beside it (cffi and
# pycparser, where it lacks them). `make gpu DRY_RUN=1` does the same on the CPU, in tiny sizes.
GPU := build/gpu
GPU_PYTHON ?= $(if $(DRY_RUN),$(abspath $(PY)),python3)
OUT ?= $(GPU)/results
LIMIT ?= 540
PARTS ?=
gpu: export DTR_ALLOC_CACHE := $(abspath $(GPU)/cache)
gpu: export PYTHONPATH := $(abspath $(GPU)/tree):$(abspath $(GPU)/site):$(PYTHONPATH)
gpu: export BENCH_COMMIT ?= $(shell git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null)
gpu: $(if $(DRY_RUN),$(if $(filter $(abspath $(PY)),$(GPU_PYTHON)),$(VENV)/dev-packages))
	@test -n "$(DRY_RUN)" || $(GPU_PYTHON) -c 'import torch; raise SystemExit(not torch.cuda.is_available())' 2>/dev/null || \
	  { echo "make gpu: $(GPU_PYTHON) has no PyTorch that finds a CUDA device here; make gpu DRY_RUN=1 goes through everything else"; exit 2; }
	@mkdir -p $(GPU)/site $(OUT)
	@test -z "$(WHEELS)" || $(GPU_PYTHON) -m pip install -q --no-index --no-deps --no-cache-dir --upgrade \
	  --target $(GPU)/site $(WHEELS)/*.whl
	@$(GPU_PYTHON) bench/gpu/build.py $(GPU)/tree $(if $(DRY_RUN),cpu,cuda)
	@out="$$(realpath $(OUT))" && cd $(GPU)/tree && \
	  $(GPU_PYTHON) -W ignore -m bench.gpu --out "$$out" --seconds $(LIMIT) \
	  $(addprefix --part ,$(PARTS)) $(if $(DRY_RUN),--dry-run)

bench: $(DEV)
	$(PY) -m bench.overhead --json -
	$(PY) -m bench.smallest_budget

# Random jobs, budgets and troubles for so long.
MINUTES ?= 60
soak: $(DEV)
	$(PY) -m bench.soak --minutes $(MINUTES) --json bench/results/soak_cpu.json

# Jobs that are interrupted at every place of the package's code where Python may raise. It takes long.
interrupts: $(DEV)
	$(PY) tests/torch/interrupted_jobs.py all 1 build/interrupts

# Which results of PyTorch's operators, modules and optimizers can be evicted, if not why: a few minutes.
conformance: $(DEV)
	$(PY) -m bench.conformance --json bench/results/conformance_cpu.json

# Jobs of frameworks under budgets, in an environment that has them, and what dtr_alloc depends on;
# dtr_alloc is the virtual environment's. First the tests that need frameworks.
FRAMEWORKS := build/frameworks
frameworks: $(VENV)/core $(FRAMEWORKS)/packages
	cp $(VENV)/lib/python*/site-packages/__editable__*dtr_alloc* \
	  $(FRAMEWORKS)/lib/python*/site-packages
	$(FRAMEWORKS)/bin/python -m pytest $(PYTEST_ARGS) tests/frameworks
	$(FRAMEWORKS)/bin/python -W ignore -m bench.frameworks --json bench/results/frameworks_cpu.json

$(FRAMEWORKS)/packages: bench/frameworks/requirements.txt pyproject.toml
	$(PY) -m venv $(FRAMEWORKS)
	$(PY) -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
	  print(*p["project"]["dependencies"], sep="\n")' > $(FRAMEWORKS)/requirements.txt
	$(FRAMEWORKS)/bin/python -m pip install -q -r $< -r $(FRAMEWORKS)/requirements.txt \
	  pytest pytest-timeout
	touch $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f dtr_alloc/_core.*.so dtr_alloc/_lab.*.so dtr_alloc/_*.cpp $(VENV)/core

# What pyproject.toml asks for with an extra, and torch; dtr_alloc itself is the next rule.
$(VENV)/%-packages: pyproject.toml
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "Installing PyTorch and what '$*' needs into $(VENV): the first time some minutes."
	$(PY) -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
	  print(*p["build-system"]["requires"], *p["project"]["dependencies"], \
	        *p["project"]["optional-dependencies"]["$*"], sep="\n")' > $(VENV)/$*-requirements.txt
	$(PY) -m pip install -q '$(TORCH)' -r $(VENV)/$*-requirements.txt
	touch $@

$(VENV)/dev-packages $(VENV)/wheel-packages: $(VENV)/demo-packages

# The release build: assertions cost time, and `make sanitize` runs with them.
$(VENV)/core: $(VENV)/demo-packages setup.py $(CORE)
	@echo "Compiling the core: two or three minutes on two cores."
	DTR_ALLOC_BUILD=release $(PY) -m pip install -q --no-deps --no-build-isolation -e .
	touch $@
