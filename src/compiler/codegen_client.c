/* How a context compiles is decided once, when it is created: in this process, by a worker, or never. Each way is a
 * function of one type. */
#define _GNU_SOURCE
#include "compiler/codegen_client.h"

#include "threads/background.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void log_refused(const at_codegen *codegen, const at_codegen_file *file) {
    if (file->refused[0]) at_log_printf(codegen->workers.log, ATTUNE_LOG_WARNING, "%s", file->refused);
}

void at_codegen_search(at_codegen *codegen) {
    pthread_mutex_lock(&codegen->mutex);
    const bool is_first = !codegen->searched;
    if (is_first) {
        at_codegen_find("ATTUNE_CODEGEN", "libattune-codegen.so", &codegen->plugin.file);
        at_codegen_find("ATTUNE_CODEGEN_WORKER", "attune-codegen-worker", &codegen->worker);
        codegen->searched = true;
    }
    pthread_mutex_unlock(&codegen->mutex);
    if (!is_first) return;
    log_refused(codegen, &codegen->plugin.file);
    if (codegen->uses_worker) log_refused(codegen, &codegen->worker);
}

/* ---- Plug-in, worker, or neither ---- */

static attune_status compile_in_process(void *user, const at_codegen_request *request,
                                        const attune_allocator *allocator, void **data, size_t *bytes, at_error *err) {
    at_codegen *codegen = user;
    at_codegen_search(codegen);
    if (at_background_is_here())
        return at_compile_apart(NULL, NULL, &codegen->plugin, request, allocator, data, bytes, err);
    return at_plugin_compile(&codegen->plugin, request, allocator, data, bytes, err);
}

static attune_status compile_in_worker(void *user, const at_codegen_request *request, const attune_allocator *allocator,
                                       void **data, size_t *bytes, at_error *err) {
    at_codegen *codegen = user;
    at_codegen_search(codegen);
    if (!codegen->worker.path[0] && codegen->worker.refused[0])
        return at_fail(err, ATTUNE_CODEGEN_MISSING, "%s", codegen->worker.refused);
    return at_workers_compile(&codegen->workers, &codegen->worker, &codegen->plugin.file, request, allocator, data,
                              bytes, err);
}

static attune_status compile_never(void *user, const at_codegen_request *request, const attune_allocator *allocator,
                                   void **data, size_t *bytes, at_error *err) {
    (void)user, (void)request, (void)allocator, (void)data, (void)bytes;
    return at_fail(err, ATTUNE_CODEGEN_MISSING,
                   "no cache has this kernel, and this context compiles none (ATTUNE_COMPILE_NEVER, which "
                   "ATTUNE_COMPILE=never sets)");
}

/* ---- All ---- */

static attune_status settle_mode(attune_compile_mode *mode, at_error *err) {
    if (*mode >= ATTUNE_COMPILE_IN_PROCESS && *mode <= ATTUNE_COMPILE_NEVER) return ATTUNE_OK;
    if (*mode != ATTUNE_COMPILE_DEFAULT)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "compile_mode is %d, which is no attune_compile_mode", (int)*mode);
    const char *named = getenv("ATTUNE_COMPILE");
    *mode = ATTUNE_COMPILE_IN_PROCESS;
    if (!named || !*named || !strcmp(named, "in-process")) return ATTUNE_OK;
    if (strcmp(named, "worker") && strcmp(named, "never"))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "ATTUNE_COMPILE is \"%.64s\"; it must be worker, in-process or never", named);
    *mode = named[0] == 'w' ? ATTUNE_COMPILE_WORKER : ATTUNE_COMPILE_NEVER;
    return ATTUNE_OK;
}

/* 0 stays 0: the default. Only for a context that uses workers: the variable is nothing to others. */
static attune_status settle_timeout(uint32_t *milliseconds, at_error *err) {
    const char *named = secure_getenv("ATTUNE_COMPILE_TIMEOUT_MS");
    if (*milliseconds || !named || !*named) return ATTUNE_OK;
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(named, &end, 10);
    if (*end || !isdigit((unsigned char)*named) || errno || !value || value > UINT32_MAX)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "ATTUNE_COMPILE_TIMEOUT_MS is \"%.64s\"; it must be milliseconds, from 1 to %u", named,
                       UINT32_MAX);
    *milliseconds = (uint32_t)value;
    return ATTUNE_OK;
}

attune_status at_codegen_init(at_codegen *codegen, const attune_context_options *options, at_compile_fn *compile,
                              void *user, const attune_allocator *allocator, const at_io *io, const at_log *log,
                              at_error *err) {
    attune_compile_mode mode = options->compile_mode;
    uint32_t timeout_ms = options->compile_timeout_ms;
    attune_status status = settle_mode(&mode, err);
    if (!status && mode == ATTUNE_COMPILE_WORKER) status = settle_timeout(&timeout_ms, err);
    if (!status && options->compile_processes > AT_MOST_PROCESSES)
        status = at_fail(err, ATTUNE_INVALID_ARGUMENT, "compile_processes is %u; it may be at most %d",
                         options->compile_processes, AT_MOST_PROCESSES);
    if (status) return status;
    codegen->allocator = allocator;
    atomic_init(&codegen->plugin.exports, NULL);
    codegen->searched = false;
    codegen->uses_worker = mode == ATTUNE_COMPILE_WORKER;
    codegen->is_off = mode == ATTUNE_COMPILE_NEVER;
    codegen->compile = codegen->uses_worker ? compile_in_worker : codegen->is_off ? compile_never : compile_in_process;
    codegen->user = codegen;
    codegen->is_replaced = compile != NULL;
    if (compile) {
        codegen->compile = compile;
        codegen->user = user;
    }
    pthread_mutex_init(&codegen->mutex, NULL);
    at_workers_init(&codegen->workers, options->compile_processes, timeout_ms, io, log);
    return ATTUNE_OK;
}

void at_codegen_free(at_codegen *codegen) {
    at_workers_free(&codegen->workers);
    pthread_mutex_destroy(&codegen->mutex);
}

attune_status at_codegen_compile(at_codegen *codegen, const at_codegen_request *request, void **data, size_t *bytes,
                                 at_error *err) {
    *data = NULL;
    *bytes = 0;
    /* If a thread were cancelled (pthread_cancel) in the middle, it would keep its place among the workers, or fork()
     * would wait for it. attune_compile is protected as a whole (compile_slowly), but other calls come here, too. */
    int cancellation;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
    attune_status status;
    if (at_background_is_abandoned())
        status = at_background_fail(err);
    else if (codegen->is_replaced && at_background_is_here())
        status = at_compile_apart(codegen->compile, codegen->user, NULL, request, codegen->allocator, data, bytes, err);
    else
        status = codegen->compile(codegen->user, request, codegen->allocator, data, bytes, err);
    pthread_setcancelstate(cancellation, NULL);
    return status;
}
