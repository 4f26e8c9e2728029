/* cg_compile where there is no LLVM: for test programs that run under qemu-user. The worker at ATTUNE_CODEGEN_WORKER is
 * a program of the machine that qemu runs on, so code generation is not emulated. What would not run here is not
 * compiled either: the same tests have done that where the compiler is. */
#include "codegen/compile.h"
#include "compiler/worker_client.h"
#include "ir/text.h"

#include <stdlib.h>

static at_workers workers;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void start(void) {
    static const at_log silent = {0};
    at_workers_init(&workers, 0, 0, at_default_io(), &silent);
}

attune_status cg_compile(const ir_kernel *kernel, const at_target *target, attune_stage stage, void **data,
                         size_t *bytes, at_error *err) {
    const char *worker = getenv("ATTUNE_CODEGEN_WORKER");
    at_codegen_file program, plugin = {0};
    at_string text;
    at_codegen_name(worker ? worker : "", &program);
    *data = NULL;
    *bytes = 0;
    if (!at_target_runs_here(target)) return (*data = at_alloc(NULL, 1)) ? ATTUNE_OK : at_fail_memory(err, 1);
    pthread_once(&once, start);
    at_string_init(&text, NULL);
    ir_print(kernel, &text);
    const at_codegen_request request = {text.data, text.length, target->name, (int)stage};
    const attune_status status =
        text.failed ? at_fail_memory(err, text.capacity)
                    : at_workers_compile(&workers, &program, &plugin, &request, NULL, data, bytes, err);
    at_string_free(&text);
    return status;
}
