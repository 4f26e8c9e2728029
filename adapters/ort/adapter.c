#include "adapter.h"

#include "attune_ort.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Counters ---- */

/* Counters are listed for good. The list has no lock, so that fork() finds it whole at any time. */
static adapter_counter *counters;

void adapter_count(adapter_counter *counter) {
    __atomic_fetch_add(&counter->count, 1, __ATOMIC_RELAXED);
    if (__atomic_load_n(&counter->is_listed, __ATOMIC_RELAXED)) return;
    if (__atomic_exchange_n(&counter->is_listed, 1, __ATOMIC_RELAXED)) return;
    counter->next = __atomic_load_n(&counters, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&counters, &counter->next, counter, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
}

size_t attune_ort_stats(char *text, size_t capacity) {
    size_t length = 0;
    if (capacity) *text = 0;
    for (const adapter_counter *c = __atomic_load_n(&counters, __ATOMIC_ACQUIRE); c; c = c->next) {
        const size_t left = length < capacity ? capacity - length : 0;
        const uint64_t count = __atomic_load_n(&c->count, __ATOMIC_RELAXED);
        length += (size_t)snprintf(left ? text + length : NULL, left, "%s %llu\n", c->name, (unsigned long long)count);
    }
    return length;
}

/* ---- The context ---- */

static attune_context *context;
static char context_message[ATTUNE_MESSAGE_BYTES];

static void on_event(void *user, const attune_event *event) {
    static adapter_counter compiles = {.name = "compiles"}, disk_hits = {.name = "disk_hits"};
    (void)user;
    if (event->kind == ATTUNE_EVENT_COMPILE_END && !event->status) adapter_count(&compiles);
    if (event->kind == ATTUNE_EVENT_DISK_HIT) adapter_count(&disk_hits);
}

static void serially(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    (void)user;
    fn(argument, 0, n, 0);
}

static void create_context(void) {
    /* Calls pass ONNX Runtime's threads. With a runner of its own the context starts no threads for any other call
     * either, so that nothing of attune runs when ONNX Runtime unloads this library. */
    const attune_runner alone = {.struct_size = sizeof alone, .parallel_for = serially, .max_workers = 1};
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.runner = &alone;
    options.event = on_event;
    if (attune_context_create(&options, &context))
        snprintf(context_message, sizeof context_message, "%s", attune_last_message());
}

attune_context *adapter_context(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, create_context);
    return context;
}

const char *adapter_context_failure(void) { return context_message; }

/* ---- ONNX Runtime ---- */

const ort_api *adapter_open(const ort_base *base, uint32_t version, ort_status **status) {
    /* Asking for a version that there is not makes ONNX Runtime print to stderr, so its number is read first. */
    unsigned major = 0, minor = 0;
    const char *const have = base->GetVersionString();
    *status = NULL;
    if (have && sscanf(have, "%u.%u", &major, &minor) == 2 && (major > 1 || (major == 1 && minor >= version))) {
        const ort_api *const api = base->GetApi(version);
        if (api) return api;
    }
    char message[160];
    snprintf(message, sizeof message, "attune needs ONNX Runtime 1.%u or newer for this; this one is %s", version,
             have ? have : "of an unknown version");
    const ort_api *const oldest = base->GetApi(1);
    if (oldest) *status = oldest->CreateStatus(ORT_NOT_IMPLEMENTED, message);
    return NULL;
}

attune_dtype adapter_dtype(int type) {
    switch (type) {
    case ORT_FLOAT: return ATTUNE_F32;
    case ORT_FLOAT16: return ATTUNE_F16;
    case ORT_BFLOAT16: return ATTUNE_BF16;
    case ORT_DOUBLE: return ATTUNE_F64;
    case ORT_BOOL: return ATTUNE_BOOL;
    case ORT_INT32: return ATTUNE_I32;
    default: return ATTUNE_DTYPE_DEFAULT;
    }
}

size_t adapter_type_bytes(attune_dtype dtype) {
    switch (dtype) {
    case ATTUNE_F64: return 8;
    case ATTUNE_F32:
    case ATTUNE_I32: return 4;
    case ATTUNE_F16:
    case ATTUNE_BF16: return 2;
    default: return 1;
    }
}
