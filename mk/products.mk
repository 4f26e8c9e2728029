# Products: the library, the code generator, tier 0, adapters and commands.

archive = @rm -f $(NEW) && ar rcs $(NEW) $^ && mv $(NEW) $@

# For those who link statically: one object, in which only attune.h is global, so that no other name can clash with
# theirs.
OBJCOPY ?= $(shell $(CC) -print-prog-name=objcopy)
define link_archive
$(call say,link $@)
$(Q)mkdir -p $(NEW) && $(CC) -nostdlib -r $(filter %.o,$^) -o $(NEW)/attune.o && \
	$(OBJCOPY) --localize-hidden $(NEW)/attune.o && ar rcs $(NEW)/whole.a $(NEW)/attune.o && \
	mv $(NEW)/whole.a $@ && rm -r $(NEW)
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
	-Wl,-Bsymbolic -Wl,--version-script=src/api/exports.map $(filter-out $(call obj,$(DSO_SRC)),$(filter %.o,$^)) \
	$(1) $(CORE_LIBS) $(INTO)
endef
$(BUILD)/libattune.so.0: $(call obj,$(LIB_SRC) $(DSO_SRC)) src/api/exports.map
	$(call link_library)

$(BUILD)/libattune.so: $(BUILD)/libattune.so.0
	@ln -sf libattune.so.0 $@

# -Bsymbolic and the version script: the plug-in carries its own copy of ir and must never mix with the host's.
$(BUILD)/libattune-codegen.so: $(call obj,$(CODEGEN_SRC) $(CORE_SRC) $(PLUGIN_ONLY_SRC)) src/codegen/exports.map \
		$(call flags,GENERATOR_LIBS)
	$(call say,link $@)
	$(Q)$(LINK) $(SHARED) -Wl,-Bsymbolic -Wl,--version-script=src/codegen/exports.map $(filter %.o,$^) \
		$(GENERATOR_LIBS) $(CORE_LIBS) $(INTO)

# Tier 0: kernels of the usual sizes, compiled ahead of time by what was just built. The library loads the file where it
# finds it, and works without. TIER0_ATTUNE: a command of the same sources that runs here, if the new one does not.
TIER0_ATTUNE ?= $(BUILD)/attune
# Before a command of this build, which may have sanitizers, or no run path.
BEFORE_BUILT = . tests/sanitizers.sh; LD_LIBRARY_PATH='$(BUILD)'"$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}"
TIER0_TARGETS_x86_64 = avx512,avx2,x86-64
TIER0_DOTS_x86_64 = avx512_bf16
TIER0_TARGETS_aarch64 = aarch64
# Other operators than attention, and MLA's latents: there is no room for the baseline of x86-64.
TIER0_OPERATORS_x86_64 = avx512,avx2
TIER0_OPERATORS_aarch64 = aarch64
# Kernels take minutes to compile, so they are made anew only after a change of what generates code or writes bundles,
# not after any change of the command that makes them, if that is of this build.
TIER0_MAKERS = mk/products.mk scripts/tier0_bundle.sh scripts/tier0_kernels.sh $(GENERATOR_ID) \
	$(wildcard src/bundle/*.[ch] src/bundle_run/*.[ch] src/engine/image_functions.[ch]) \
	tools/cmd_bundle.c tools/common/manifest.c tools/common/manifest.h \
	$(if $(filter $(BUILD)/%,$(TIER0_ATTUNE)),| $(BUILD)/attune $(BUILD)/libattune-codegen.so,\
	$(wildcard $(TIER0_ATTUNE) $(dir $(TIER0_ATTUNE))libattune-codegen.so))
tier0: $(BUILD)/libattune-tier0.so
$(BUILD)/libattune-tier0.so: scripts/tier0.sh src/engine/tier0.map $(TIER0_MAKERS)
	$(call say,link $@)
	$(Q)$(BEFORE_BUILT) ATTUNE='$(TIER0_ATTUNE)' LINK='$(CC) -shared -nostdlib $(HARDENED_LINK)' sh scripts/tier0.sh $@ \
		'$(TIER0_TARGETS_$(ARCH))' '$(TIER0_OPERATORS_$(ARCH))' '$(TIER0_DOTS_$(ARCH))'

# Those for ggml's caches are a part of the plug-in of ggml, which is not for the baseline of x86-64: ggml itself is
# fast enough there.
GGML_TARGETS_x86_64 = avx512,avx2
GGML_TARGETS_aarch64 = aarch64
$(BUILD)/ggml-kernels.a: $(TIER0_MAKERS)
	$(call say,bundle $@)
	$(Q)$(BEFORE_BUILT) ATTUNE='$(TIER0_ATTUNE)' sh scripts/tier0_bundle.sh $@ attune_ggml \
		'$(GGML_TARGETS_$(ARCH))' ggml

# The same library for the Python wheel. It loads with glibc 2.28, where libpthread and libdl are apart.
OLD_GLIBC = exp log dlopen dlsym dlclose dlerror dladdr1 pthread_create pthread_join pthread_once pthread_sigmask \
	pthread_setname_np pthread_attr_setstacksize pthread_attr_setaffinity_np pthread_getaffinity_np \
	pthread_setaffinity_np pthread_mutexattr_init pthread_mutexattr_destroy pthread_mutexattr_settype \
	pthread_condattr_setclock stat lstat fstat fstatat \
	posix_spawn_file_actions_addchdir_np posix_spawn_file_actions_addclosefrom_np
OLD_GLIBC_LINK = $(OLD_GLIBC:%=-Wl,--wrap=%) -Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -Wl,--as-needed
$(BUILD)/wheel/libattune.so.0: $(call obj,$(LIB_SRC) $(DSO_SRC) src/wheel/old_glibc.c) src/api/exports.map
	$(call link_library,$(OLD_GLIBC_LINK))

# The adapters of engines for the same systems.
$(call adapters_in,$(BUILD)/wheel): $(call obj,src/wheel/old_glibc.c) $(BUILD)/wheel/libattune.so.0
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) $(SHARED) -z nodelete -Wl,-rpath,'$$ORIGIN' -Wl,-Bsymbolic \
		-Wl,--version-script=$(filter %/exports.map,$^) $(filter %.o %.a,$^) $(OLD_GLIBC_LINK) \
		-L$(BUILD)/wheel -l:libattune.so.0 $(CORE_LIBS) $(INTO)

# A small program, which loads the plug-in.
define link_worker
$(call say,link $@)
$(Q)$(LINK) $^ $(CORE_LIBS) $(INTO)
endef
$(BUILD)/attune-codegen-worker: $(call obj,$(WORKER_SRC)) $(BUILD)/libattune-internal.a
	$(link_worker)

# A program of its own: what it fetches is the network's.
$(BUILD)/attune-fetch: $(call obj,tools/fetch/fetch.c)
	$(call say,link $@)
	$(Q)$(LINK) $^ $(shell pkg-config --libs libcurl) $(INTO)

COMMA := ,

# attune in engines: as kernels of PyTorch, whose functions are found at run time; as kernels of ONNX Runtime, which
# passes its functions; as a custom call of XLA, which does so, too; as functions of TVM-FFI, which finds them by name;
# and as a plug-in of ggml, whose name has the form of ggml's own. An adapter finds libattune.so.0 beside itself, unless
# the process has loaded one already. nodelete: engines keep pointers to its functions, and ONNX Runtime unloads it with
# its last session.
define link_adapter
$(call say,link $@)
$(Q)$(LINK) $(SHARED) -z nodelete $(if $(1),-Wl$(COMMA)-rpath$(COMMA)'$(1)') -Wl,-Bsymbolic \
	-Wl,--version-script=$(filter %/exports.map,$^) $(filter %.o %.a,$^) -L$(BUILD) -lattune $(CORE_LIBS) $(INTO)
endef
$(call adapters_in,$(BUILD)): $(BUILD)/libattune.so
	$(call link_adapter,$$ORIGIN)

built_adapter = $(addsuffix /$(1),$(BUILD) $(BUILD)/wheel)
$(call built_adapter,libattune-torch.so): $(call obj,$(COMMON_SRC) $(TORCH_SRC) src/base/plain_text.c) \
	adapters/torch/exports.map
$(call built_adapter,libattune-ort.so): $(call obj,$(COMMON_SRC) $(ORT_SRC) src/base/plain_text.c) \
	adapters/ort/exports.map
$(call built_adapter,libattune-jax.so): $(call obj,$(COMMON_SRC) $(JAX_SRC)) adapters/jax/exports.map
$(call built_adapter,libattune-tvm.so): $(call obj,$(COMMON_SRC) $(TVM_SRC)) adapters/tvm/exports.map
$(call built_adapter,libggml-attune.so) $(BUILD)/installed/libggml-attune.so: \
	$(call obj,$(COMMON_SRC) $(GGML_SRC) src/base/plain_text.c) adapters/ggml/exports.map $(BUILD)/ggml-kernels.a

define link_command
$(call say,link $@)
$(Q)$(LINK) $(if $(1),-Wl$(COMMA)-rpath$(COMMA)'$(1)') $(filter %.o %.a,$^) -L$(BUILD) -lattune -ljansson \
	$(CORE_LIBS) $(INTO)
endef
$(BUILD)/attune: $(call obj,$(TOOL_SRC) $(BOTH_SRC)) $(BUILD)/libattune-reference.a $(BUILD)/libattune.so
	$(call link_command,$$ORIGIN)
$(BUILD)/attune-lab: $(call obj,$(LAB_SRC)) $(addprefix $(BUILD)/libattune,-tool.a -reference.a .so)
	$(call link_command,$$ORIGIN)

# Examples of several files: they read their weights as the command does.
ENGINE_SRC := $(wildcard examples/engine/*.c)
$(call obj,examples/minilm/encoder.c $(ENGINE_SRC)): INCLUDES = -Itools
$(BUILD)/examples/minilm: $(call obj,examples/minilm/encoder.c)
$(BUILD)/examples/engine: $(call obj,$(ENGINE_SRC))
$(BUILD)/examples/minilm $(BUILD)/examples/engine: $(BUILD)/libattune-tool.a $(BUILD)/libattune.so
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) -Wl,-rpath,'$$ORIGIN/..' $(filter %.o,$^) $(filter %.a,$^) -L$(BUILD) -lattune -ljansson \
		$(CORE_LIBS) $(INTO)
