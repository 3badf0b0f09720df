# make demo          set up, detect tree crowns in a photograph, compare the ops with torchvision
# make test          set up, run the tests that check a change
# make test-quick    run the fast ones of these tests, on the native instruction set only
# make test-all      run every test, as before a release
# make durations     write seconds per test file and the slowest tests to build/durations.md;
#                    MARK="not slow" selects tests
# make planted       report which bugs of tests/support/planted/bugs.py `make test` finds;
#                    BUGS="parts of names" selects bugs
# make peers         install packages that tests run unchanged on detops.compat: mmdet, transformers,
#                    ultralytics
# make lint          check formatting, lint, types, spelling and wording
# make bench         time the ops against other libraries: benchmarks/results, docs/performance.md
# make docs          build the documentation in build/docs
# make stub          write detops/_C.pyi from the contracts; make header: the C++ functions
# make wheel         build dist/: one wheel for every Python in PYTHONS and every PyTorch, with CUDA
#                    kernels for ARCHS if there is a toolkit (CUDA=0: without), and detops-demo
# make symbols       check what the libraries in that wheel require of PyTorch and the system
# make wheel-check   test that wheel in a fresh environment per item of WHEEL_CHECKS; 5 GB of PyTorch each
# make source-check  install detops from source with pip, per item of SOURCE_CHECKS
# make sanitize      run the tests on a build that checks every memory access; slow
# make fuzz          run generated calls of every op for MINUTES, see docs/reliability.md; SANITIZE=1
#                    uses the build of make sanitize; FILES=1 runs loaders on damaged files
# make coverage      report the lines of the CPU code that the fuzzer reaches
# make large         test feature maps, boxes and results of more than 2^31 elements, as far as memory
#                    allows; half an hour
# make faults        kill, interrupt and starve detops train, detect and serve, TIMES times per fault
# make tsan          run the kernels on four threads under the thread sanitizer; needs no Python
# make clang         check the CPU code with a second compiler; make tidy: with clang-tidy
# make emulate       run the tests of the CUDA kernels on the CPU; needs neither GPU nor toolkit
# make cross-check   compile the CPU code for aarch64, run it in an emulator
# make gpu-check     run all checks that need a GPU: tests, sanitizer, benchmarks; benchmarks/results
# make cuda-build    compile, link and import the CUDA code for ARCHS; needs a toolkit, no GPU
PYTHON ?= python3
VENV ?= .venv
ARCHS ?= 9.0
MAX_JOBS ?= $(shell nproc 2>/dev/null || echo 2)
BIN := $(abspath $(VENV))/bin
CUDA ?= $(if $(or $(CUDA_HOME),$(wildcard /usr/local/cuda/bin/nvcc),$(shell command -v nvcc)),1,0)
# Tests start hundreds of processes. Without cached bytecode, each would recompile PyTorch.
export PYTHONDONTWRITEBYTECODE =
# Pythons on PATH that run and have headers. PYTHONS="/opt/a/bin/python3.12 ..." selects others.
PRINT_IF_HEADERS = import os, sys, sysconfig as s; \
	os.path.exists(s.get_path('include') + '/Python.h') and print(sys.executable)
PYTHONS ?= $(shell for v in 10 11 12 13 13t 14 14t; do python3.$$v -c "$(PRINT_IF_HEADERS)" 2>/dev/null; done; true)
# Versions of Python/torch/torchvision: the oldest, those of the GPU machines, the newest.
WHEEL_CHECKS ?= 3.10/2.10.0/0.25.0 3.11/2.11.0/0.26.0 3.13/2.15.0/0.29.2
SOURCE_CHECKS ?= 3.11/2.11.0/0.26.0 3.11/2.15.0/0.29.2
CSRC := $(shell find csrc -type f)
TORCH_INCLUDE = $(shell $(BIN)/python -c "import torch.utils.cpp_extension as c; \
	print(*('-isystem' + p for p in c.include_paths()))")
KERNEL_FLAGS = -std=c++17 -ffp-contract=off -Wall -Wextra -Werror -Wno-unused-parameter $(TORCH_INCLUDE)
GCC_FLAGS = $(KERNEL_FLAGS) -Wno-maybe-uninitialized -Wno-array-bounds -Wno-stringop-overread
CROSS_SOURCES = tests/cross/*.cpp csrc/cpu/*/*.cpp csrc/arena.cpp csrc/tensor.cpp \
	csrc/dtype.cpp csrc/parallel.cpp
CXX_FILES := $(filter %.h %.inl %.cpp %.cu %.cuh,$(CSRC) $(wildcard tests/cross/* tests/cuda/* tests/simd/* tests/emulation/* tests/cpp/* examples/cpp/* detops/include/detops/* release/*))

# uv takes a fifth of the time of pip. It does not read pip.conf, which may name the only index.
# Python compiles the modules that it imports.
PIP = $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
install = $(BIN)/uv pip install --quiet --no-cache --python $(BIN)/python $(1) || $(PIP) $(1)

WHEEL = $(BIN)/pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps
# worksteal gives each worker a contiguous part of the tests, so most files stay on one worker. The
# tests of some files share a setup that takes minutes.
PYTEST = $(BIN)/python -m pytest --numprocesses $(MAX_JOBS) --dist worksteal

.PHONY: demo test test-quick test-all durations planted peers lint format bench docs stub header wheel symbols wheel-check source-check cuda-build gpu-check sanitize fuzz coverage large faults tsan clang tidy emulate cross-check clean

demo: $(VENV)/.built
	$(BIN)/detops demo

test: $(VENV)/.built
	$(PYTEST) -m "not exhaustive"

test-quick: $(VENV)/.built
	$(PYTEST) -m "not slow and not exhaustive"

test-all: $(VENV)/.built
	$(PYTEST)

durations: $(VENV)/.built
	$(PYTEST) -m "$(MARK)" --junitxml=build/durations.xml
	$(BIN)/python tests/support/durations.py build/durations.xml | tee build/durations.md

planted: $(VENV)/.built
	cd tests/support && $(BIN)/python -m planted $(BUGS)

# --no-deps: tests/peers.txt gives the reason.
peers: $(VENV)/.dependencies
	$(call install,--no-deps --requirement tests/peers.txt)

lint: $(VENV)/.dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/mypy
	git ls-files | xargs $(BIN)/codespell
	$(BIN)/python tests/support/english.py

format: $(VENV)/.dependencies
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CXX_FILES)

bench: $(VENV)/.built
	$(BIN)/python benchmarks/peers.py --output benchmarks/results
	$(BIN)/detops bench --output benchmarks/results
	$(BIN)/python benchmarks/page.py

docs: $(VENV)/.built
	$(BIN)/python docs/figures.py
	$(BIN)/sphinx-build -q -W --keep-going -d build/doctrees docs build/docs

stub: $(VENV)/.built
	$(BIN)/python -m detops.stub > build/_C.pyi
	$(BIN)/ruff format --quiet build/_C.pyi
	mv build/_C.pyi detops/_C.pyi

header: $(VENV)/.built
	$(BIN)/python -m detops.header > build/ops.h
	$(BIN)/clang-format -i build/ops.h
	mv build/ops.h detops/include/detops/ops.h

# auditwheel checks the libraries and sets the platform tag. libtorch stays out of the wheel: PyTorch
# provides it.
wheel: $(VENV)/.dependencies
	test -n "$(strip $(PYTHONS))" || { echo "no Python with headers found: set PYTHONS" >&2; exit 1; }
	@echo "detops._C for: $(PYTHONS)"
	@echo "CUDA kernels: $(or $(DETOPS_CUDA_LIBRARY),$(if $(filter 1,$(CUDA)),$(ARCHS),none))"
	rm -rf build/lib.* build/bdist.* build/wheel dist
	DETOPS_PYTHONS="$(PYTHONS)" FORCE_CUDA=$(CUDA) TORCH_CUDA_ARCH_LIST="$(ARCHS)" \
		MAX_JOBS=$(MAX_JOBS) $(WHEEL) --wheel-dir build/wheel .
	PATH="$(BIN):$$PATH" $(BIN)/auditwheel repair --plat manylinux_2_28_x86_64 --only-plat \
		--exclude 'libtorch*.so' --wheel-dir dist build/wheel/detops-*.whl
	$(WHEEL) --wheel-dir dist ./demo
	$(BIN)/twine check --strict dist/*.whl

symbols: $(VENV)/.dependencies
	$(BIN)/python release/symbols.py dist/detops-*.whl

wheel-check:
	for check in $(WHEEL_CHECKS); do release/check_wheel.sh $$(echo $$check | tr / ' ') || exit 1; done

source-check:
	for check in $(SOURCE_CHECKS); do release/check_source.sh $$(echo $$check | tr / ' ') || exit 1; done

cuda-build: $(VENV)/.dependencies
	FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST="$(ARCHS)" MAX_JOBS=$(MAX_JOBS) $(BIN)/python setup.py --quiet \
		build --build-base build/cuda --build-lib build/cuda/lib
	cd build/cuda/lib && $(BIN)/python -c "import detops._C; \
		print('CUDA', detops._C.cuda_version, 'build:', detops.__file__); \
		assert detops._C.cuda_version"

# ARGS="--only tests,bench" selects steps. VENV names an environment with all requirements.
gpu-check:
	test -x $(BIN)/python || $(MAKE) $(VENV)/.dependencies
	MAX_JOBS=$(MAX_JOBS) $(BIN)/python benchmarks/gpu_check.py $(ARGS)

# Tests of `sanitize` and `emulate`. TESTS=ops skips graphs, the detector, its data and its commands:
# they call the same kernels, slowly.
TEST_FOLDER = $(CURDIR)/tests$(if $(TESTS),/$(TESTS))

# EMULATE_CUDA=1 tests the CUDA kernels. detect_leaks=0: Python and PyTorch never free some of their
# memory. allocator_may_return_null=1: the caller reports too large an allocation, as without
# sanitizers.
SANITIZER_BUILD = build/sanitize$(if $(EMULATE_CUDA),-emulation)
BUILD_SANITIZER = SANITIZE=1 MAX_JOBS=$(MAX_JOBS) $(BIN)/python setup.py --quiet build \
	--build-base $(SANITIZER_BUILD) --build-lib $(SANITIZER_BUILD)/lib
SANITIZER_ENV = ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
	UBSAN_OPTIONS=print_stacktrace=1 \
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)"
sanitize: $(VENV)/.dependencies
	$(BUILD_SANITIZER)
	ln -sfn $(CURDIR)/configs $(CURDIR)/docs $(SANITIZER_BUILD)/lib
	ln -sfn $(CURDIR)/detops/assets $(SANITIZER_BUILD)/lib/detops/assets
	cd $(SANITIZER_BUILD)/lib && PYTHONPATH=$(CURDIR)/demo $(SANITIZER_ENV) \
		$(PYTEST) -p no:cacheprovider $(TEST_FOLDER)

# SEED with CASES instead of MINUTES repeats a case. OPS selects ops, FILES=1 damaged files. FUZZ
# passes other options.
FUZZ_OPTIONS = $(if $(CASES),--cases $(CASES),--minutes $(or $(MINUTES),10)) --seed $(or $(SEED),0) \
	$(if $(OPS),--ops $(OPS)) $(if $(FILES),--files) --finds $(CURDIR)/build/finds $(FUZZ)
fuzz: $(VENV)/$(if $(SANITIZE),.dependencies,.built)
	$(if $(SANITIZE),$(BUILD_SANITIZER))
	cd $(if $(SANITIZE),$(SANITIZER_BUILD)/lib,.) && PYTHONPATH=$(CURDIR)/tests/support \
		$(if $(SANITIZE),$(SANITIZER_ENV)) $(BIN)/python -m fuzz.run $(FUZZ_OPTIONS)

# A line of a template counts once, whichever instances reach it.
coverage: $(VENV)/.dependencies
	COVERAGE=1 FORCE_CUDA=0 MAX_JOBS=$(MAX_JOBS) $(BIN)/python setup.py --quiet build \
		--build-base build/coverage --build-lib build/coverage/lib
	find build/coverage -name '*.gcda' -delete
	cd build/coverage/lib && PYTHONPATH=$(CURDIR)/tests/support $(BIN)/python -m fuzz.run $(FUZZ_OPTIONS)
	$(BIN)/gcovr --object-directory build/coverage --filter csrc/ --merge-lines \
		--merge-mode-functions=merge-use-line-min --gcov-ignore-parse-errors

large: $(VENV)/.built
	DETOPS_LARGE=1 $(BIN)/python -m pytest --numprocesses 0 tests/ops/every/test_large*.py

faults: $(VENV)/.built
	cd tests/support && $(BIN)/python -m faults --times $(or $(TIMES),24) $(FAULTS)

# PyTorch and OpenMP are not compiled for the thread sanitizer. Their substitute in tests/cross is.
tsan: $(VENV)/.dependencies
	mkdir -p build/tsan
	$(CXX) $(GCC_FLAGS) -O1 -g -fsanitize=thread -pthread -DDETOPS_CROSS_THREADS $(CROSS_SOURCES) \
		-o build/tsan/kernels
	TSAN_OPTIONS=halt_on_error=1 build/tsan/kernels

# Needs clang.
PYTHON_INCLUDE = $(shell $(BIN)/python -c "import sysconfig; print(sysconfig.get_path('include'))")
CLANG_FLAGS = $(KERNEL_FLAGS) -DNDEBUG -isystem$(PYTHON_INCLUDE) -DTORCH_TARGET_VERSION=0x020a000000000000
CLANG_SOURCES = $(wildcard csrc/*.cpp csrc/contract/*.cpp csrc/cpu/*/*.cpp)
clang: $(VENV)/.dependencies
	clang++ $(CLANG_FLAGS) -fsyntax-only $(CLANG_SOURCES)

tidy: $(VENV)/.dependencies
	printf '%s\n' $(CLANG_SOURCES) | xargs -P $(MAX_JOBS) -I FILE \
		$(BIN)/clang-tidy --quiet --warnings-as-errors='*' FILE -- $(CLANG_FLAGS)

# The orders in which blocks and their threads run. MARK="not exhaustive" selects the tests of
# `make test`.
ORDERS ?= forwards backwards
emulate: $(VENV)/.dependencies
	EMULATE_CUDA=1 MAX_JOBS=$(MAX_JOBS) $(BIN)/python setup.py --quiet build \
		--build-base build/emulation --build-lib build/emulation/lib
	for order in $(ORDERS); do (cd build/emulation/lib && PYTHONPATH=$(CURDIR)/demo DETOPS_EMULATION=$$order \
		$(PYTEST) -p no:cacheprovider -m "$(MARK)" $(TEST_FOLDER)) || exit 1; done

# Needs g++-aarch64-linux-gnu and qemu-user-static.
cross-check: $(VENV)/.dependencies
	mkdir -p build/cross
	aarch64-linux-gnu-g++ $(GCC_FLAGS) -O2 -static $(CROSS_SOURCES) -o build/cross/kernels
	qemu-aarch64-static build/cross/kernels

$(VENV)/.dependencies: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(shell grep '^uv==' requirements.txt)
	$(call install,--requirement requirements.txt)
	touch $@

# Rebuilds only what changed; ninja keeps the object files.
$(VENV)/.built: $(VENV)/.dependencies setup.py pyproject.toml $(CSRC)
	MAX_JOBS=$(MAX_JOBS) $(BIN)/pip install --quiet --disable-pip-version-check \
		--no-build-isolation --no-deps --config-settings editable_mode=compat --editable .
	touch $@

clean:
	rm -rf build dist *.egg-info detops/_C*.so detops/lib*.so $(VENV)/.built
