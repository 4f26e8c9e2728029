/* attune hands tasks to XLA one by one, through the frame of the call, as XLA has no parallel loop. */
#include "runner.h"

static void drop(const xla_api *api, xla_error *error) {
    xla_error_destroy args = {.struct_size = XLA_SIZE_TO(xla_error_destroy, error), .error = error};
    if (error) api->error_destroy(&args);
}

/* XLA only guarantees that a task runs eventually. attune needs no more: the calling thread works itself, and waits
 * only for tasks that are already running. */
static int submit(void *user, attune_task_fn *task, void *argument) {
    const xla_call_frame *const frame = user;
    xla_schedule args = {
        .struct_size = XLA_SIZE_TO(xla_schedule, data), .context = frame->context, .task = task, .data = argument};
    xla_error *const error = frame->api->schedule(&args);
    drop(frame->api, error);
    return error != NULL;
}

attune_runner xla_runner(const xla_call_frame *frame) {
    int64_t threads = 1;
    xla_num_threads args = {
        .struct_size = XLA_SIZE_TO(xla_num_threads, num_threads), .context = frame->context, .num_threads = &threads};
    xla_error *const error = frame->api->num_threads(&args);
    if (error || threads < 1) threads = 1;
    drop(frame->api, error);
    attune_runner runner = ATTUNE_RUNNER_INIT;
    runner.submit = submit;
    runner.user = (void *)(uintptr_t)frame;
    runner.max_workers = threads < 65536 ? (uint32_t)threads : 65536;
    return runner;
}
