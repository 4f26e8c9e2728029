# The run time of bundles, which the library carries for each architecture.

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
$(BUNDLE_RUN_DIR)/%.o: $(BUNDLE_RUN_SRC) $(HEADERS) $(wildcard $(addprefix src/*/,*.h *.def */*.h */*.def)) \
		Makefile mk/bundle_run.mk scripts/bundle_run.sh src/bundle_run/sections.ld $(BUNDLE_NEEDS)
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)CC='$(BUNDLE_CC_$*)' sh scripts/bundle_run.sh $@ \
		'$(BUNDLE_RUN_CFLAGS) $(BRANCHES_$*)' '$(BUNDLE_RUN_EXPORTS)' '$(BUNDLE_RUN_SRC)'
$(call obj,src/bundle/run_objects.c): $(BUNDLE_RUNS) $(BUNDLE_NEEDS)
$(call obj,src/bundle/run_objects.c): INCLUDES += $(BUNDLE_ARCHS:%=-DATTUNE_RUN_%) \
	-DATTUNE_BUNDLE_RUN='"$(BUNDLE_RUN_DIR)"'
.PHONY: bundle-runs
bundle-runs: deps
	@$(MAKE) --no-print-directory $(BUNDLE_RUNS)
