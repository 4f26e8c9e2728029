/* A call of a bundle: the struct of the header becomes arguments of attune_run, the code for this CPU is found, and
 * its phases run one after the other.
 *
 * Making a bundle takes no C compiler, so the build compiles this folder, and the sources that check a call, to one
 * relocatable object for each architecture, which the library carries. A bundle gives its symbols names of its own. All
 * that differs between kernels is data, whose address functions of the header pass in four instructions. */
#include "bundle_run/run.h"

#include "base/fpenv.h"
#include "call/call.h"
#include "call/workspace.h"

#include <string.h>

struct at_bundle_call {
    const at_bundle_code *code; /* NULL: there is nothing to do */
    uint32_t workers;
    char *scratch;
    at_call call;
    void *buffers[MHA_NUM_TENSORS + AT_MAX_SHARED];
    int64_t plan[AT_PLAN_WORDS];
};
_Static_assert(sizeof(at_bundle_call) <= AT_BUNDLE_CALL_BYTES, "the struct of a header holds a call");

/* ---- Checking ---- */

static const at_signature *signature_of(const at_bundle_kernel *kernel) { return at_bundle_to(&kernel->signature); }

static void take_arguments(const void *given, const at_bundle_kernel *kernel, attune_arguments *arguments) {
    const at_bundle_field *const fields = at_bundle_fields(kernel);
    *arguments = signature_of(kernel)->initial.arguments;
    for (uint32_t i = 0; i < kernel->num_fields; i++) {
        const at_bundle_field *field = &fields[i];
        memcpy((char *)arguments + field->to, (const char *)given + field->from, field->bytes);
    }
}

static attune_status find_code(const at_bundle_kernel *kernel, const at_bundle_code **code, at_error *err) {
    *code = at_bundle_code_of(kernel);
    if (*code) return ATTUNE_OK;
    return at_fail(err, ATTUNE_UNSUPPORTED, "the bundle has no code of %s for this CPU", at_bundle_name(kernel));
}

static at_code_shape shape_of(const at_bundle_code *code) {
    return (at_code_shape){code->num_phases, code->num_shared, code->max_scratch};
}

static attune_status check_workers(uint32_t workers, at_error *err) {
    enum { MOST = 65536 };
    if (workers >= 1 && workers <= MOST) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "workers is %u; it must be from 1 to %d", workers, MOST);
}

/* Checks the call, and puts everything that its tasks need into *call. */
static attune_status prepare(const void *given, uint32_t workers, at_bundle_call *call, const at_bundle_kernel *kernel,
                             at_error *err) {
    attune_arguments arguments;
    const at_bundle_code *code;
    call->code = NULL;
    if (!given) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the pointer to the arguments is NULL");
    attune_status status = check_workers(workers, err);
    if (!status) status = find_code(kernel, &code, err);
    if (status) return status;
    take_arguments(given, kernel, &arguments);
    status = at_call_make(signature_of(kernel), NULL, &arguments, &call->call, err);
    if (status || call->call.settled->is_empty) return status;

    const at_code_shape shape = shape_of(code);
    size_t needed;
    void *const workspace = arguments.workspace;
    at_bundle_code_plan(code)(call->call.settled->scalars, call->plan);
    status = at_code_size(&shape, workers, call->plan, &needed, err);
    if (!status && needed && !workspace)
        status = at_fail(err, ATTUNE_WORKSPACE_TOO_SMALL, "workspace is NULL; this call needs %zu bytes", needed);
    if (!status) status = at_workspace_check(workspace, arguments.workspace_bytes, needed, err);
    if (status) return status;
    const size_t count = signature_of(kernel)->count;
    memcpy(call->buffers, call->call.buffers, count * sizeof *call->buffers);
    call->scratch = (char *)workspace + at_code_place_shared(&shape, call->plan, workspace, call->buffers + count);
    call->workers = workers;
    call->code = code;
    return ATTUNE_OK;
}

int at_bundle_check(const void *arguments, char *message, size_t bytes, const at_bundle_kernel *kernel) {
    AT_DEFAULT_FPENV;
    at_bundle_call call;
    at_error err = {0};
    const attune_status status = prepare(arguments, 1, &call, kernel, &err);
    if (!message || !bytes) return status;
    const size_t length = strlen(err.message), room = length < bytes ? length : bytes - 1;
    memcpy(message, err.message, room);
    message[room] = '\0';
    return status;
}

int at_bundle_workspace(const void *given, uint32_t workers, size_t *bytes, const at_bundle_kernel *kernel) {
    AT_DEFAULT_FPENV;
    attune_arguments arguments;
    const at_bundle_code *code;
    at_settled settled;
    int64_t plan[AT_PLAN_WORDS];
    if (!given || !bytes || check_workers(workers, NULL)) return ATTUNE_INVALID_ARGUMENT;
    *bytes = 0;
    attune_status status = find_code(kernel, &code, NULL);
    if (status) return status;
    take_arguments(given, kernel, &arguments);
    status = at_call_settle(signature_of(kernel), &arguments, &settled, NULL);
    if (status || settled.is_empty) return status;
    const at_code_shape shape = shape_of(code);
    at_bundle_code_plan(code)(settled.scalars, plan);
    return at_code_size(&shape, workers, plan, bytes, NULL);
}

/* ---- Running ---- */

static void run_tasks(const at_bundle_call *call, uint32_t phase, int64_t begin, int64_t end, uint32_t worker) {
    const at_bundle_code *code = call->code;
    at_phase_fn *const run = at_bundle_phase_run(at_bundle_code_phase(code, phase));
    run(call->buffers, call->call.settled->scalars, begin, end, call->scratch + worker * code->max_scratch);
}

int at_bundle_run(const void *arguments, const at_bundle_kernel *kernel) {
    AT_DEFAULT_FPENV;
    at_bundle_call call;
    const attune_status status = prepare(arguments, 1, &call, kernel, NULL);
    if (status || !call.code) return status;
    for (uint32_t p = 0; p < call.code->num_phases; p++)
        if (call.plan[p] > 0) run_tasks(&call, p, 0, call.plan[p], 0);
    return ATTUNE_OK;
}

int at_bundle_begin(const void *arguments, uint32_t workers, at_bundle_call *call, const at_bundle_kernel *kernel) {
    AT_DEFAULT_FPENV;
    return call ? prepare(arguments, workers, call, kernel, NULL) : ATTUNE_INVALID_ARGUMENT;
}

uint32_t at_bundle_phases(const at_bundle_call *call) { return call && call->code ? call->code->num_phases : 0; }

int64_t at_bundle_tasks(const at_bundle_call *call, uint32_t phase) {
    return phase < at_bundle_phases(call) && call->plan[phase] > 0 ? call->plan[phase] : 0;
}

int at_bundle_execute(const at_bundle_call *call, uint32_t phase, int64_t begin, int64_t end, uint32_t worker) {
    AT_DEFAULT_FPENV;
    const int64_t tasks = at_bundle_tasks(call, phase);
    if (begin < 0 || end < begin || end > tasks) return ATTUNE_INVALID_ARGUMENT;
    if (begin == end) return ATTUNE_OK;
    if (worker >= call->workers) return ATTUNE_INVALID_ARGUMENT;
    run_tasks(call, phase, begin, end, worker);
    return ATTUNE_OK;
}
