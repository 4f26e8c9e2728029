# The same for AArch64, by a cross compiler; qemu-user runs it (tests/target/test_aarch64.sh).

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
		LDFLAGS='-L$(AARCH64_LIB) -Wl,-rpath,$(AARCH64_LIB)' TIER0_ATTUNE=$(BUILD)/attune lib tool lab tier0 \
		$(BUILD)/aarch64/integer_digest $(AARCH64_TESTS:%=$(BUILD)/aarch64/tests/test_%)
	@ln -sf ../attune-codegen-worker $(BUILD)/aarch64/attune-codegen-worker
