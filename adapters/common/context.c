/* The context is made on the first call and never destroyed: an engine may call until its process ends. Where the
 * engine has threads it starts none of its own. */
#include "context.h"

#include <pthread.h>
#include <stdio.h>

adapter_counter common_compiles = {.name = "compiles"}, common_disk_hits = {.name = "disk_hits"};

static attune_context *context;
static attune_status context_status;
static char context_message[ATTUNE_MESSAGE_BYTES];

static void on_event(void *user, const attune_event *event) {
    (void)user;
    if (event->kind == ATTUNE_EVENT_COMPILE_END && !event->status) adapter_count(&common_compiles);
    if (event->kind == ATTUNE_EVENT_DISK_HIT) adapter_count(&common_disk_hits);
}

static void serially(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    (void)user;
    fn(argument, 0, n, 0);
}

static attune_status create(const char *pack, attune_context **made) {
    /* A context with a runner starts no threads of its own, not even for a call without a runner. */
    const attune_runner alone = {.struct_size = sizeof alone, .parallel_for = serially, .max_workers = 1};
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    if (common_engine.has_threads) options.runner = &alone;
    options.event = on_event;
    options.cache_pack = pack;
    options.machine_code_only = common_engine.never_waits ? 2 : common_engine.has_stock;
    return attune_context_create(&options, made);
}

attune_context *common_context_of_pack(const char *pack, char message[ATTUNE_MESSAGE_BYTES]) {
    attune_context *made = NULL;
    attune_machine_info info = {.struct_size = sizeof info};
    if (!create(pack, &made) && !attune_get_machine_info(made, &info) && *info.cache_pack) return made;
    snprintf(message, ATTUNE_MESSAGE_BYTES, "%s", made ? info.cache_pack_refusal : attune_last_message());
    attune_context_destroy(made);
    return NULL;
}

static void create_context(void) {
    context_status = create(NULL, &context);
    if (context_status)
        snprintf(context_message, sizeof context_message, "attune's context could not be made: %.440s",
                 attune_last_message());
}

attune_context *common_context(attune_status *status, const char **message) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, create_context);
    if (status) *status = context_status;
    if (message) *message = context_message;
    return context;
}
