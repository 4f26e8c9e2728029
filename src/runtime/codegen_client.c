#include "runtime/codegen_client.h"

#include "runtime/codegen_path.h"
#include "runtime/plugin.h"
#include "runtime/process.h"

#include <stdlib.h>
#include <string.h>

attune_status at_codegen_copy(const attune_allocator *allocator, const void *from, size_t bytes, void **data,
                              at_error *err) {
    char *copy = at_alloc_aligned(allocator, bytes + 1, 64);
    if (!copy) return at_fail_memory(err, bytes + 1);
    if (bytes) memcpy(copy, from, bytes);
    copy[bytes] = '\0';
    *data = copy;
    return ATTUNE_OK;
}

/* Called with the mutex. */
static void search(at_codegen *codegen) {
    if (codegen->searched) return;
    at_codegen_find("ATTUNE_CODEGEN", "libattune-codegen.so", codegen->plugin_path, sizeof codegen->plugin_path);
    at_codegen_find("ATTUNE_CODEGEN_WORKER", "attune-codegen-worker", codegen->worker_path,
                    sizeof codegen->worker_path);
    codegen->searched = true;
}

void at_codegen_search(at_codegen *codegen) {
    pthread_mutex_lock(&codegen->mutex);
    search(codegen);
    pthread_mutex_unlock(&codegen->mutex);
}

/* ---- Plug-in ---- */

static attune_status load_plugin(at_codegen *codegen, at_error *err) {
    const attune_status status = at_plugin_load(codegen->plugin_path, "this library", &codegen->exports, err);
    if (!status) at_process_watch_exit(AT_LLVM_IS_LOADED);
    return status;
}

static attune_status need_plugin(at_codegen *codegen, at_error *err) {
    pthread_mutex_lock(&codegen->mutex);
    search(codegen);
    const attune_status status = codegen->exports ? ATTUNE_OK : load_plugin(codegen, err);
    pthread_mutex_unlock(&codegen->mutex);
    return status;
}

/* The dynamic linker and LLVM have locks of their own: neither fork() nor exit() may come in between. */
static attune_status call_plugin(at_codegen *codegen, const at_codegen_request *request, at_codegen_reply *reply,
                                 at_error *err) {
    attune_status status = at_process_enter(AT_FOREIGN_COMPILER, err);
    if (status) return status;
    status = need_plugin(codegen, err);
    if (!status) {
        codegen->exports->compile(request, reply);
        at_process_watch_exit(AT_LLVM_HAS_COMPILED);
    }
    at_process_leave(AT_FOREIGN_COMPILER);
    return status;
}

static attune_status compile_in_process(void *user, const at_codegen_request *request,
                                        const attune_allocator *allocator, void **data, size_t *bytes, at_error *err) {
    at_codegen *codegen = user;
    at_codegen_reply reply = {0};
    attune_status status = call_plugin(codegen, request, &reply, err);
    if (status) return status;
    if (reply.status) {
        status = at_fail(err, reply.status, "%s", reply.message);
    } else {
        status = at_codegen_copy(allocator, reply.data, reply.bytes, data, err);
        *bytes = reply.bytes;
    }
    codegen->exports->release(&reply);
    return status;
}

static attune_status compile_in_worker(void *user, const at_codegen_request *request, const attune_allocator *allocator,
                                       void **data, size_t *bytes, at_error *err) {
    at_codegen *codegen = user;
    at_codegen_search(codegen);
    return at_workers_compile(&codegen->workers, codegen->worker_path, codegen->plugin_path, request, allocator, data,
                              bytes, err);
}

/* ---- Both ---- */

static attune_status settle_mode(attune_compile_mode *mode, at_error *err) {
    if (*mode == ATTUNE_COMPILE_IN_PROCESS || *mode == ATTUNE_COMPILE_WORKER) return ATTUNE_OK;
    if (*mode != ATTUNE_COMPILE_DEFAULT)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "compile_mode is %d, which is no attune_compile_mode", (int)*mode);
    const char *named = getenv("ATTUNE_COMPILE");
    *mode = ATTUNE_COMPILE_IN_PROCESS;
    if (!named || !*named || !strcmp(named, "in-process")) return ATTUNE_OK;
    if (strcmp(named, "worker"))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "ATTUNE_COMPILE is \"%.64s\"; it must be worker or in-process",
                       named);
    *mode = ATTUNE_COMPILE_WORKER;
    return ATTUNE_OK;
}

attune_status at_codegen_init(at_codegen *codegen, attune_compile_mode mode, at_compile_fn *compile, void *user,
                              const attune_allocator *allocator, const at_io *io, const at_log *log, at_error *err) {
    const attune_status status = settle_mode(&mode, err);
    if (status) return status;
    codegen->allocator = allocator;
    codegen->exports = NULL;
    codegen->searched = false;
    codegen->uses_worker = mode == ATTUNE_COMPILE_WORKER;
    codegen->compile = codegen->uses_worker ? compile_in_worker : compile_in_process;
    codegen->user = codegen;
    if (compile) {
        codegen->compile = compile;
        codegen->user = user;
    }
    pthread_mutex_init(&codegen->mutex, NULL);
    at_workers_init(&codegen->workers, io, log);
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
    return codegen->compile(codegen->user, request, codegen->allocator, data, bytes, err);
}
