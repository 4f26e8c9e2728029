# Objects: what each folder's may include, and flags of its own.

$(call obj,$(call c_in,src/*)): INCLUDES = -Isrc -I$(BUILD)/gen
$(call obj,$(call c_in,src/codegen)): INCLUDES += $(LLVM_CFLAGS) $(if $(OWN_LLVM),-DATTUNE_OWN_LLVM)
$(call obj,src/compiler/codegen_local.c): INCLUDES += $(if $(OWN_LLVM),-DATTUNE_OWN_LLVM)
$(call obj,$(call c_in,src/sign)): INCLUDES += -isystem $(MONOCYPHER)
# attune checks signatures by it, and the linker leaves out all else.
$(call obj,$(MONOCYPHER)/monocypher.c): BASE_CFLAGS += -ffunction-sections
# Builders run once for each compile and take a few percent of it, and searches and bundles wait for kernels, so less
# code is worth more there than faster code. Builds with a sanitizer have a level of their own.
$(call obj,$(call c_in,$(addprefix src/,attend bundle layer mla nest operator tune)) \
		$(wildcard $(addprefix src/,$(addsuffix kernel*.c,index/ linear/ linear/conv_ blocks/)))): \
	BASE_CFLAGS += $(if $(SANITIZE),,$(patsubst -O2,-Os,$(filter -O2,$(CFLAGS))))
# A call of attune_run, which may take 0.1 µs in all, enters these a dozen times. Their arrays are indexed by the
# numbers of tensors; they touch no text and no file.
$(call obj,src/engine/run.c $(addprefix src/call/,workspace.c call.c call_sizes.c call_strides.c)): \
	HARDENED += -fno-stack-protector
# Of the library the command sees the public header only, as any other program does, and leaves that need nothing else:
# of src/base, the lists of the fields of problems, schedules and machines, and how text is cut into fields.
$(call obj,$(TOOL_SRC) $(LAB_SRC)): INCLUDES = -Itools -Ilab -Ireference \
	$(addprefix -Isrc/,base problem schedule target) -Isrc -I$(BUILD)/gen
# Each operation jumps to the next one. Between them the upper halves of registers stay as they are.
$(call obj,$(call c_in,src/vm)): BASE_CFLAGS += -foptimize-sibling-calls
$(call obj,$(call c_in,src/vm)): HARDENED += -fno-stack-protector
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
$(call obj,$(ORT_SRC)): INCLUDES = -Iadapters -Isrc/base
$(call obj,$(ORT_SRC)): BASE_CFLAGS += -fexceptions
$(call obj,$(JAX_SRC)): INCLUDES = -Iadapters/jax -Iadapters
$(call obj,$(TVM_SRC)): INCLUDES = -Iadapters/tvm -Iadapters
$(call obj,$(GGML_SRC)): INCLUDES = -Iadapters/ggml -Iadapters -Isrc/base
TEST_INCLUDES = -Isrc -Isrc/schedule -Itests -Itools -Ilab -Ireference -I$(BUILD)/gen
$(call obj,$(TEST_SRC) $(SUPPORT_SRC)): INCLUDES = $(TEST_INCLUDES) -isystem $(MONOCYPHER)
$(call obj,$(call tests_in,test_adapter_*.c) $(addprefix tests/adapters/ggml_,check.c host.c)): INCLUDES = -Iadapters
# Sanitizers watch the library; of the programs that call it, half the time to compile is worth more. TEST_CFLAGS is for
# the same without a sanitizer.
TEST_CFLAGS ?=
# In tables of cases what is 0, as most of it is, is left out.
$(call obj,$(TEST_SRC) $(SUPPORT_SRC) $(REFERENCE_SRC)): WARN += -Wno-missing-field-initializers
$(call obj,$(TEST_SRC)): BASE_CFLAGS += $(if $(SANITIZE),$(patsubst -O%,-O0,$(filter -O%,$(SANITIZE))),$(TEST_CFLAGS))
$(call obj,$(TEST_SRC)): $(if $(SANITIZE),,$(call flags,TEST_CFLAGS))
$(call obj,$(call tests_in,test_codegen*.c test_object_link*.c)): INCLUDES += $(LLVM_CFLAGS)
$(call obj,$(FUZZ_SRC) $(wildcard tests/aarch64/*.c)): INCLUDES = $(TEST_INCLUDES)
$(call obj,tests/fuzz/fuzz_ggml.c): INCLUDES = -Iadapters/ggml -Iadapters

$(BUILD)/obj/%.o: %.c $(call flags,COMPILER) $(if $(SANITIZE),$(call flags,SANITIZE)) | $(GENERATOR_ID)
	@mkdir -p $(@D)
	$(call say,cc $<)
	$(Q)$(CC) $(BASE_CFLAGS) $(INCLUDES) $(CPPFLAGS) -MMD -MP -c $< -o $@

# Part of every cache key: any change to what generates code makes old entries unreachable, without a version number.
$(GENERATOR_ID): FORCE
	@mkdir -p $(@D)
	@LLVM_CONFIG='$(LLVM_CONFIG)' LLVM_VERSION='$(LLVM_VERSION)' JIT_ASAN='$(JIT_ASAN)' LLVM_LINK='$(LLVM_LINK)' \
		sh scripts/generator_id.sh > $(NEW) && $(IF_CHANGED)

# What the compiler wrote of each object's headers.
-include $(shell find $(BUILD)/obj $(BUILD)/installed/obj -name '*.d' 2>/dev/null)
