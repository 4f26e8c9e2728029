/* Compiles one kernel to bytes, its modules in parallel:
 *
 *     ir_kernel -> cut.c: modules -> each on a thread: emit_kernel.c -> LLVM's mem2reg -> object
 *               -> object_link.c: all objects -> one image
 *
 * LLVM only chooses instructions and registers. Loop IR and the emitter have decided what is hoisted, unrolled or
 * shared, so the image depends on the kernel and the target alone. */
#define _GNU_SOURCE
#include "codegen/compile.h"

#include "codegen/asan.h"
#include "codegen/cut.h"
#include "codegen/emit_build.h"
#include "codegen/object_link.h"
#include "codegen/options.h"
#include "target/kernel_abi.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

/* The one optimisation that the emitter leaves to LLVM: arrays of registers become registers. The emitter shares
 * addresses itself, and early-cse would remove the freeze that disables loop strength reduction (cg_advance). LLVM's
 * default pipeline takes three times as long, gives no faster code, and may insert library calls. */
static const char PASSES[] = "mem2reg";
/* It runs after mem2reg, so that registers are not checked as memory. */
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

/* ---- LLVM's failures as errors ---- */

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

/* The data layout must be set before emitting: the alignments that LLVM chooses depend on it. */
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

/* Removes the constructor that the sanitizer's pass adds to start its runtime, and its globals. The runtime is running
 * already, and an image can have neither. */
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
    LLVMErrorRef failed = LLVMRunPasses(module, cg_asan() ? ASAN_PASSES : PASSES, machine, options);
    LLVMDisposePassBuilderOptions(options);
    if (!failed) {
        if (cg_asan()) drop_constructor(module);
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

/* ---- One module ---- */

typedef struct module_job {
    const ir_kernel *kernel;
    const at_target *target;
    const cg_cut *cut;
    uint32_t number; /* of the module */
    attune_stage stage;
    LLVMContextRef context;
    LLVMTargetMachineRef machine;
    LLVMModuleRef module;
    LLVMMemoryBufferRef code; /* the result, unless the stage is LLVM text */
    at_arena arena;
    at_error err;
} module_job;

static attune_status generate(module_job *job) {
    char *message = NULL;
    const LLVMCodeGenFileType file = job->stage == ATTUNE_STAGE_ASM ? LLVMAssemblyFile : LLVMObjectFile;
    if (LLVMTargetMachineEmitToMemoryBuffer(job->machine, job->module, file, &message, &job->code))
        return fail_with_message(&job->err, "generating code", message);
    return job->err.status;
}

static void run_job(module_job *job) {
    at_error *err = &job->err;
    const attune_stage stage = job->stage;
    at_arena_init(&job->arena, NULL);
    job->context = LLVMContextCreate();
    LLVMContextSetDiagnosticHandler(job->context, note_diagnostic, err);
    LLVMContextSetDiscardValueNames(job->context, stage != ATTUNE_STAGE_LLVM && stage != ATTUNE_STAGE_ASM);
    if (!(job->machine = create_machine(job->target, err))) return;
    LLVMSetTargetMachineAsmVerbosity(job->machine, stage == ATTUNE_STAGE_ASM); /* comments name the IR's loops */
    job->module = create_module(job->context, job->kernel->name, job->machine, job->target);
    if (cg_emit_kernel(job->module, job->kernel, job->target, job->cut, job->number, &job->arena, err)) return;
    if (verify_module(job->module, err) || run_passes(job->module, job->machine, err)) return;
    if (stage != ATTUNE_STAGE_LLVM) generate(job);
}

static void free_job(module_job *job) {
    if (job->code) LLVMDisposeMemoryBuffer(job->code);
    if (job->module) LLVMDisposeModule(job->module);
    if (job->machine) LLVMDisposeTargetMachine(job->machine);
    if (job->context) LLVMContextDispose(job->context);
    at_arena_free(&job->arena);
}

/* ---- Several modules in parallel ---- */

static void *run_job_in_thread(void *job) {
    run_job(job);
    return NULL;
}

/* The thread blocks all signals, as they are for the host's threads. Its stack is as large as a process's, because LLVM
 * recurses deeply. */
static bool start_thread(pthread_t *thread, module_job *job) {
    enum { STACK_BYTES = 8 << 20 };
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes)) return false;
    sigfillset(&all);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(thread, &attributes, run_job_in_thread, job) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return started;
}

static bool has_processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) > 1;
}

/* The first job runs in this thread, each other job in its own, or in this one if no thread can be created. */
static void run_jobs(module_job *jobs, uint32_t count) {
    pthread_t threads[CG_MAX_MODULES];
    bool started[CG_MAX_MODULES] = {false};
    for (uint32_t i = 1; i < count && has_processors(); i++) started[i] = start_thread(&threads[i], &jobs[i]);
    for (uint32_t i = 0; i < count; i++)
        if (!started[i]) run_job(&jobs[i]);
    for (uint32_t i = 1; i < count; i++)
        if (started[i]) pthread_join(threads[i], NULL);
}

/* ---- The whole ---- */

static attune_status link_image(const module_job *jobs, void **data, size_t *bytes, at_error *err) {
    const cg_cut *cut = jobs->cut;
    const at_image_header header = describe(jobs->kernel, jobs->target);
    cg_object objects[CG_MAX_MODULES];
    for (uint32_t i = 0; i < cut->num_modules; i++)
        objects[i] = (cg_object){LLVMGetBufferStart(jobs[i].code), LLVMGetBufferSize(jobs[i].code)};
    return cg_link_objects(objects, cut->num_modules, &header, cut->scratch_bytes, NULL, data, bytes, err);
}

/* Joins the jobs' results into the form of the stage. Stages before linking have one module. */
static attune_status finish(const module_job *jobs, void **data, size_t *bytes, at_error *err) {
    switch (jobs->stage) {
    case ATTUNE_STAGE_LLVM: return print_module(jobs->module, data, bytes, err);
    case ATTUNE_STAGE_IMAGE: return link_image(jobs, data, bytes, err);
    default: return copy_out(LLVMGetBufferStart(jobs->code), LLVMGetBufferSize(jobs->code), data, bytes, err);
    }
}

static attune_status compile_cut(const ir_kernel *kernel, const at_target *target, attune_stage stage,
                                 const cg_cut *cut, void **data, size_t *bytes, at_error *err) {
    module_job jobs[CG_MAX_MODULES] = {{0}};
    for (uint32_t i = 0; i < cut->num_modules; i++)
        jobs[i] = (module_job){.kernel = kernel, .target = target, .cut = cut, .number = i, .stage = stage};
    cg_options_enter(target);
    run_jobs(jobs, cut->num_modules);
    cg_options_leave();
    for (uint32_t i = 0; i < cut->num_modules; i++)
        if (jobs[i].err.status) at_fail(err, jobs[i].err.status, "%s", jobs[i].err.message);
    if (!err->status) finish(jobs, data, bytes, err);
    for (uint32_t i = 0; i < cut->num_modules; i++) free_job(&jobs[i]);
    return err->status;
}

attune_status cg_compile(const ir_kernel *kernel, const at_target *target, attune_stage stage, void **data,
                         size_t *bytes, at_error *err) {
    at_error first = {0};
    at_arena arena;
    cg_cut *cut = NULL;
    *data = NULL;
    *bytes = 0;
    at_arena_init(&arena, NULL);
    if (!cg_cut_kernel(kernel, &arena, &cut, &first)) {
        if (stage != ATTUNE_STAGE_IMAGE) cg_cut_join(cut);
        compile_cut(kernel, target, stage, cut, data, bytes, &first);
    }
    at_arena_free(&arena);
    return first.status ? at_fail(err, first.status, "%s", first.message) : ATTUNE_OK;
}
