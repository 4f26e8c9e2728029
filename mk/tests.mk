# Test programs: linked to everything as archives, from which each takes what it names.

.PHONY: tests test-tools test
# By their names alone: a program's source lies in any room of tests/.
TESTS = $(patsubst %.c,$(BUILD)/tests/%,$(notdir $(TEST_SRC)))
# With TESTS_ONLY the programs that it names, and for scripts all that those may run.
TESTS_WANTED = $(if $(TESTS_ONLY),$(addprefix $(BUILD)/tests/,$(filter-out %.sh,$(TESTS_ONLY))) \
	$(if $(filter $(if $(SANITIZE),test_bench%,%.sh),$(TESTS_ONLY)),test-tools),$(TESTS) tier0 test-tools)
# Besides, all products that scripts may run; programs need the library and what they name. Under a sanitizer no script
# needs adapters, and few need tier 0, which takes long to compile there.
WITH_TIER0 = test_adapter_ggml_alone test_attention_info test_cache_cli.sh test_levels test_plan_deadline \
	test_tier0 test_tier0_operators test_tier0_steps
SOME_PRODUCTS = lib codegen $(if $(filter %.sh test_vectors,$(TESTS_ONLY)),tool lab fetch) \
	$(if $(filter $(WITH_TIER0),$(TESTS_ONLY)),tier0)
TEST_PRODUCTS = $(if $(TESTS_ONLY),$(if $(SANITIZE),$(SOME_PRODUCTS),$(if $(filter %.sh test_vectors,$(TESTS_ONLY)),\
	all,$(SOME_PRODUCTS))),all)
tests: $(TESTS_WANTED) codegen ## build the test programs, with TESTS_ONLY some
test-tools: $(BUILD)/integer_digest
test-tools: $(addprefix $(BUILD)/bench/,attune_driver ranking latency survey cost_sample cost_fit)
test-tools: $(if $(SANITIZE),,$(BUILD)/wheel/libattune.so.0)

$(BUILD)/libattune-codegen.a: $(call obj,$(CODEGEN_SRC))
	$(archive)
$(BUILD)/libattune-tool.a: $(call obj,$(TOOL_SRC) $(BOTH_SRC))
	$(archive)
$(BUILD)/libattune-lab.a: $(call obj,$(LAB_SRC))
	$(archive)
$(BUILD)/libattune-support.a: $(call obj,$(SUPPORT_SRC))
	$(archive)
$(BUILD)/libattune-reference.a: $(call obj,$(REFERENCE_SRC))
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
$(call obj,$(call tests_in,$(WITH_CASES:%=%.c))): $(CASES)
$(call obj,$(call tests_in,$(WITH_CASES:%=%.c))): INCLUDES += -I$(BUILD)/tests/bundle
$(WITH_CASES:%=$(BUILD)/tests/%): $(CASES)

# TEST_LDFLAGS=-Wl,-S: without information for debuggers, in half of the time.
TEST_LDFLAGS ?=
TEST_ARCHIVES = $(addprefix $(BUILD)/libattune,-support.a -lab.a -tool.a -reference.a -codegen.a -internal.a)
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

$(foreach source,$(TEST_SRC),$(eval $(BUILD)/tests/$(basename $(notdir $(source))): $(call obj,$(source))))
# Adapters are no part of an archive.
$(BUILD)/tests/test_adapter_plans: $(call obj,$(COMMON_SRC))
$(addprefix $(BUILD)/tests/test_adapter_,ggml ggml_alone ggml_pages): $(BUILD)/ggml-kernels.a $(call obj,\
	$(COMMON_SRC) $(GGML_SRC) $(addprefix tests/adapters/ggml_,check.c host.c))
$(BUILD)/tests/test_adapter_ggml_mask: $(call obj,adapters/ggml/mask.c)
# The plug-in finds the functions of its host by their names.
test_adapter_ggml_LDFLAGS = -rdynamic
test_adapter_ggml_alone_LDFLAGS = -rdynamic
test_adapter_ggml_pages_LDFLAGS = -rdynamic
$(TESTS): $(BUILD)/tests/%: $(TEST_ARCHIVES)
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(if $(filter $(WITH_LLVM),$*),$(LINK_TO_LLVM),$(LINK)) $(TEST_LDFLAGS) $(TEST_LINK) \
		$(if $(filter $(WITH_LLVM),$*),$(LLVM_LIBS)) -lcmocka $($*_LDFLAGS) $(INTO)

# Where they find the code generator: in attune/ beside them, as an installed library does.
$(TESTS): | $(BUILD)/tests/attune
$(BUILD)/tests/attune:
	@mkdir -p $@
	@ln -sf ../../libattune-codegen.so ../../attune-codegen-worker $@

FUZZERS = $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(FUZZ_SRC))
$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(TEST_ARCHIVES)
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) -fsanitize=fuzzer $(TEST_LINK) $(INTO)
$(BUILD)/fuzz/fuzz_ggml: $(call obj,$(addprefix adapters/ggml/,attend.c call.c mask.c node.c pages.c rows.c))

.SECONDARY: $(call obj,$(TEST_SRC) $(FUZZ_SRC))

# ---- The hashes of lowered IR (docs/testing.md, "Golden IR") ----

$(call obj,tests/golden/golden_ir.c): INCLUDES = $(TEST_INCLUDES)
$(BUILD)/golden_ir: $(call obj,tests/golden/golden_ir.c)
$(BUILD)/golden_ir: $(addprefix $(BUILD)/libattune,-support.a -lab.a -tool.a -reference.a -internal.a)
	$(call say,link $@)
	$(Q)$(LINK) $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(CORE_LIBS) -ljansson $(INTO)

# ---- The digest of integer problems (docs/numerics.md, "The same bits on every instruction set") ----

$(call obj,tests/golden/integer_digest.c): INCLUDES = $(TEST_INCLUDES)
$(BUILD)/integer_digest: $(call obj,tests/golden/integer_digest.c)
$(BUILD)/integer_digest: $(addprefix $(BUILD)/libattune,-support.a -lab.a -tool.a -reference.a -internal.a)
	$(call say,link $@)
	$(Q)$(LINK) $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(CORE_LIBS) -ljansson $(INTO)

# BUILD_ONLY=yes: with sanitizers as well, and for fuzzers.
test: ## build and run all tests; TESTS_ONLY="test_a test_b.sh" picks some, BUILD_ONLY=yes runs none
	@$(MAKE) --no-print-directory deps
	@[ -n '$(SANITIZE)$(filter-out test_aarch64.sh,$(TESTS_ONLY))' ] || DEPS='$(DEPS)' bash scripts/deps.sh aarch64 || true
	@$(MAKE) --no-print-directory $(TEST_PRODUCTS) tests
	@[ -n '$(BUILD_ONLY)' ] || \
		BUILD='$(BUILD)' LLVM_CONFIG="$(LLVM_CONFIG)" SANITIZE="$(SANITIZE)" CC="$(CC)" CFLAGS="$(CFLAGS)" \
		bash tests/run.sh $(TESTS_ONLY)
