# How everything is compiled and linked: LLVM, hardening, warnings, and the stamps that say with which values.

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
# Recipes write to a name of their own, so that of two makes in one folder none sees half a product of the other.
NEW = $@.$$$$
INTO = -o $(NEW) && mv $(NEW) $@
IF_CHANGED = if cmp -s $(NEW) $@; then rm $(NEW); else mv $(NEW) $@; fi
LINK = $(CC) $(CFLAGS) $(SANITIZE) $(HARDENED_LINK) $(LDFLAGS) -Wl,--as-needed

version_of = $(if $(shell command -v $(firstword $(1))),$(shell $(1) -dumpmachine) $(shell $(1) -dumpversion),none)
COMPILER = $(eval COMPILER := $(call version_of,$(CC)))$(COMPILER)
# The values of variables on which products depend that no file tells: tools that may come later, and what .ci/run sets
# in build directories that others use after it without. What was made with another value is made anew.
FLAGS = SANITIZE VM_UNWATCHED TEST_CFLAGS GENERATOR_LIBS COMPILER BUNDLE_COMPILERS INSTALLED
$(call flags,$(FLAGS)): $(BUILD)/gen/flags/%: FORCE
	@mkdir -p $(@D)
	@echo '$($*)' > $(NEW) && $(IF_CHANGED)
