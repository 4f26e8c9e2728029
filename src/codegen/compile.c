#include "codegen/compile.h"

#include "codegen/asan.h"
#include "codegen/emit_build.h"
#include "codegen/object_link.h"
#include "target/kernel_abi.h"

#include <pthread.h>
#include <string.h>

/* All that the emitter leaves to LLVM's optimiser: arrays of registers become registers. It shares addresses itself,
 * and early-cse would take away what keeps loop strength reduction off (cg_advance). A default pipeline costs three
 * times the compile time for no faster code, and may invent library calls. */
static const char PASSES[] = "mem2reg";
/* Behind it, so that registers are not checked as memory. */
static const char ASAN_PASSES[] = "function(mem2reg),asan";

static pthread_once_t llvm_once = PTHREAD_ONCE_INIT;

static void initialize_llvm(void) {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    LLVMInitializeAArch64TargetInfo();
    LLVMInitializeAArch64Target();
    LLVMInitializeAArch64TargetMC();
    LLVMInitializeAArch64AsmPrinter();
}

/* ---- LLVM's failures as ours ---- */

static void note_diagnostic(LLVMDiagnosticInfoRef info, void *user) {
    if (LLVMGetDiagInfoSeverity(info) != LLVMDSError) return;
    char *text = LLVMGetDiagInfoDescription(info);
    at_fail(user, ATTUNE_CODEGEN_FAILED, "LLVM: %s", text);
    LLVMDisposeMessage(text);
}

static attune_status fail_with_message(at_error *err, const char *step, char *message) {
    at_fail(err, ATTUNE_CODEGEN_FAILED, "LLVM, %s: %s", step, message ? message : "no message");
    LLVMDisposeMessage(message);
    return err->status;
}

/* ---- Steps ---- */

static LLVMTargetMachineRef create_machine(const at_target *target, at_error *err) {
    LLVMTargetRef llvm_target = NULL;
    char *message = NULL;
    pthread_once(&llvm_once, initialize_llvm);
    if (LLVMGetTargetFromTriple(target->llvm_triple, &llvm_target, &message)) {
        fail_with_message(err, "looking for the target", message);
        return NULL;
    }
    LLVMTargetMachineRef machine =
        LLVMCreateTargetMachine(llvm_target, target->llvm_triple, target->llvm_cpu, target->llvm_features,
                                LLVMCodeGenLevelDefault, LLVMRelocPIC, LLVMCodeModelSmall);
    if (!machine) at_fail(err, ATTUNE_CODEGEN_FAILED, "LLVM has no target machine for %s", target->name);
    return machine;
}

/* The layout comes first: the alignments that the emitter leaves to LLVM depend on it. */
static LLVMModuleRef create_module(LLVMContextRef context, const char *name, LLVMTargetMachineRef machine,
                                   const at_target *target) {
    LLVMModuleRef module = LLVMModuleCreateWithNameInContext(name, context);
    LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(machine);
    LLVMSetModuleDataLayout(module, layout);
    LLVMSetTarget(module, target->llvm_triple);
    LLVMDisposeTargetData(layout);
    return module;
}

static attune_status verify_module(LLVMModuleRef module, at_error *err) {
    char *message = NULL;
    if (!LLVMVerifyModule(module, LLVMReturnStatusAction, &message)) {
        LLVMDisposeMessage(message);
        return ATTUNE_OK;
    }
    at_fail(err, ATTUNE_INTERNAL, "the emitter wrote LLVM IR that does not verify: %s", message);
    LLVMDisposeMessage(message);
    return err->status;
}

/* The sanitizer's pass adds a constructor, which would start the runtime, and globals for it; the emitter makes none.
 * The runtime is started already, and an image has neither. */
static void drop_constructor(LLVMModuleRef module) {
    static const char *const users[] = {"llvm.global_ctors", "llvm.used"};
    LLVMValueRef constructor = LLVMGetNamedFunction(module, "asan.module_ctor"), global;
    for (size_t i = 0; i < sizeof users / sizeof *users; i++)
        if ((global = LLVMGetNamedGlobal(module, users[i]))) LLVMDeleteGlobal(global);
    if (constructor) LLVMDeleteFunction(constructor);
    while ((global = LLVMGetFirstGlobal(module))) LLVMDeleteGlobal(global);
}

static attune_status run_passes(LLVMModuleRef module, LLVMTargetMachineRef machine, at_error *err) {
    LLVMPassBuilderOptionsRef options = LLVMCreatePassBuilderOptions();
    LLVMErrorRef failed = LLVMRunPasses(module, CG_ASAN ? ASAN_PASSES : PASSES, machine, options);
    LLVMDisposePassBuilderOptions(options);
    if (!failed) {
        if (CG_ASAN) drop_constructor(module);
        return ATTUNE_OK;
    }
    char *message = LLVMGetErrorMessage(failed);
    at_fail(err, ATTUNE_CODEGEN_FAILED, "LLVM's passes: %s", message);
    LLVMDisposeErrorMessage(message);
    return err->status;
}

static attune_status copy_out(const char *from, size_t length, void **data, size_t *bytes, at_error *err) {
    char *copy = at_alloc_aligned(NULL, length + 1, 16);
    if (!copy) return at_fail_memory(err, length + 1);
    memcpy(copy, from, length);
    copy[length] = '\0';
    *data = copy;
    *bytes = length;
    return ATTUNE_OK;
}

static attune_status print_module(LLVMModuleRef module, void **data, size_t *bytes, at_error *err) {
    char *text = LLVMPrintModuleToString(module);
    const attune_status status = copy_out(text, strlen(text), data, bytes, err);
    LLVMDisposeMessage(text);
    return status;
}

/* ---- Object to image ---- */

static at_image_header describe(const ir_kernel *kernel, const at_target *target) {
    at_image_header header = {
        .required = target->required, .num_phases = kernel->num_phases, .num_shared = kernel->num_shared};
    for (uint32_t p = 0; p < kernel->num_params; p++)
        if (kernel->params[p].buffer)
            header.num_buffers++;
        else
            header.num_scalars++;
    return header;
}

static attune_status link_image(LLVMMemoryBufferRef object, const ir_kernel *kernel, const at_target *target,
                                const uint64_t *scratch_bytes, void **data, size_t *bytes, at_error *err) {
    const at_image_header header = describe(kernel, target);
    return cg_link_object(LLVMGetBufferStart(object), LLVMGetBufferSize(object), &header, scratch_bytes, NULL, data,
                          bytes, err);
}

/* ---- The whole ---- */

typedef struct compilation {
    const ir_kernel *kernel;
    const at_target *target;
    attune_stage stage;
    LLVMContextRef context;
    LLVMTargetMachineRef machine;
    LLVMModuleRef module;
    LLVMMemoryBufferRef code;
    at_arena arena;
    uint64_t scratch_bytes[AT_MAX_PHASES];
} compilation;

static attune_status generate(compilation *c, at_error *err) {
    char *message = NULL;
    const LLVMCodeGenFileType file = c->stage == ATTUNE_STAGE_ASM ? LLVMAssemblyFile : LLVMObjectFile;
    if (LLVMTargetMachineEmitToMemoryBuffer(c->machine, c->module, file, &message, &c->code))
        return fail_with_message(err, "generating code", message);
    return err->status;
}

static attune_status run_steps(compilation *c, void **data, size_t *bytes, at_error *err) {
    if (!(c->machine = create_machine(c->target, err))) return err->status;
    c->module = create_module(c->context, c->kernel->name, c->machine, c->target);
    if (cg_emit_kernel(c->module, c->kernel, c->target, &c->arena, c->scratch_bytes, err)) return err->status;
    if (verify_module(c->module, err) || run_passes(c->module, c->machine, err)) return err->status;
    if (c->stage == ATTUNE_STAGE_LLVM) return print_module(c->module, data, bytes, err);
    if (generate(c, err)) return err->status;
    if (c->stage == ATTUNE_STAGE_IMAGE)
        return link_image(c->code, c->kernel, c->target, c->scratch_bytes, data, bytes, err);
    return copy_out(LLVMGetBufferStart(c->code), LLVMGetBufferSize(c->code), data, bytes, err);
}

attune_status cg_compile(const ir_kernel *kernel, const at_target *target, attune_stage stage, void **data,
                         size_t *bytes, at_error *err) {
    at_error first = {0};
    compilation c = {.kernel = kernel, .target = target, .stage = stage, .context = LLVMContextCreate()};
    *data = NULL;
    *bytes = 0;
    at_arena_init(&c.arena, NULL);
    LLVMContextSetDiagnosticHandler(c.context, note_diagnostic, &first);
    LLVMContextSetDiscardValueNames(c.context, stage != ATTUNE_STAGE_LLVM && stage != ATTUNE_STAGE_ASM);
    const attune_status status = run_steps(&c, data, bytes, &first);
    if (c.code) LLVMDisposeMemoryBuffer(c.code);
    if (c.module) LLVMDisposeModule(c.module);
    if (c.machine) LLVMDisposeTargetMachine(c.machine);
    LLVMContextDispose(c.context);
    at_arena_free(&c.arena);
    return status == ATTUNE_OK ? ATTUNE_OK : at_fail(err, status, "%s", first.message);
}
