/* A compile of a background job is an errand that the job and a thread of its own share, and the last one frees.
 * Other compiles call the plug-in directly. */
#define _GNU_SOURCE
#include "compiler/codegen_local.h"

#include "compiler/plugin.h"
#include "host/foreign.h"
#include "threads/background.h"
#include "threads/pool.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>
#include <unistd.h>

attune_status at_codegen_copy(const attune_allocator *allocator, const void *from, size_t bytes, void **data,
                              at_error *err) {
    char *copy = at_alloc_aligned(allocator, bytes + 1, 64);
    if (!copy) return at_fail_memory(err, bytes + 1);
    if (bytes) memcpy(copy, from, bytes);
    copy[bytes] = '\0';
    *data = copy;
    return ATTUNE_OK;
}

/* ---- The plug-in ---- */

static const at_codegen_exports *load(at_local_plugin *plugin, at_error *err) {
    const at_codegen_exports *exports = atomic_load(&plugin->exports);
    if (exports || at_plugin_load(&plugin->file, "this library", &exports, err)) return exports;
    at_foreign_watch_exit(AT_LLVM_IS_LOADED, exports->has_destructors);
    atomic_store(&plugin->exports, exports);
    return exports;
}

/* While it is loaded and in its first compile, an LLVM with destructors registers them, and exit() would run them
 * before it waits (at_foreign_watch_exit). So a job does not leave that alone: either it sees `is_first`, or the thread
 * sees that it is unwanted. */
static atomic_bool has_compiled;
#ifdef ATTUNE_OWN_LLVM
enum { LLVM_IS_SHARED = 0 };
#else
enum { LLVM_IS_SHARED = 1 };
#endif

static void hold(at_local_plugin *plugin, bool has_destructors) {
    if (has_destructors && !atomic_load(&has_compiled)) atomic_store(&plugin->is_first, true);
}

static bool may_be_left(at_local_plugin *plugin) {
    atomic_store(&plugin->is_unwanted, true);
    return !atomic_load(&plugin->is_first);
}

/* The dynamic linker and LLVM have locks of their own, so fork() must wait. */
attune_status at_plugin_compile(void *user, const at_codegen_request *request, const attune_allocator *allocator,
                                void **data, size_t *bytes, at_error *err) {
    at_codegen_reply reply = {0};
    attune_status status = at_foreign_enter(AT_FOREIGN_COMPILER, err);
    if (status) return status;
    at_local_plugin *const plugin = user;
    hold(plugin, LLVM_IS_SHARED);
    const at_codegen_exports *const exports = load(plugin, err);
    if (exports) hold(plugin, exports->has_destructors);
    const bool is_wanted = exports && !atomic_load(&plugin->is_unwanted);
    if (is_wanted) exports->compile(request, &reply);
    if (is_wanted && exports->has_destructors) {
        at_foreign_watch_exit(AT_LLVM_HAS_COMPILED, true);
        atomic_store(&has_compiled, true);
    }
    at_foreign_leave(AT_FOREIGN_COMPILER);
    if (!is_wanted) return exports ? at_background_fail(err) : err->status;
    if (reply.status) {
        status = at_fail(err, reply.status, "%s", reply.message);
    } else {
        status = at_codegen_copy(allocator, reply.data, reply.bytes, data, err);
        *bytes = reply.bytes;
    }
    exports->release(&reply);
    return status;
}

/* ---- In a thread of its own ---- */

/* One compile, which belongs to the job, or to left_alone, and to the thread; the last one frees it. */
typedef struct errand {
    _Atomic int owners;
    pid_t pid;             /* a child of fork() is without the thread */
    pthread_mutex_t mutex; /* guards is_done */
    pthread_cond_t changed;
    bool is_done;
    at_compile_fn *compile;
    void *user;
    at_local_plugin plugin;
    at_codegen_request request; /* of the texts below */
    attune_status status;
    void *data;
    size_t bytes;
    at_error err;
    char texts[];
} errand;

static errand *new_errand(const at_codegen_request *request) {
    const size_t target = strlen(request->target) + 1;
    errand *const e = at_alloc(NULL, sizeof *e + target + request->ir_bytes + 1);
    if (!e) return NULL;
    e->owners = 2;
    e->pid = getpid();
    pthread_mutex_init(&e->mutex, NULL);
    at_condition_init(&e->changed);
    memcpy(e->texts, request->target, target);
    memcpy(e->texts + target, request->ir, request->ir_bytes);
    e->request = *request;
    e->request.target = e->texts;
    e->request.ir = e->texts + target;
    return e;
}

static void leave(errand *e) {
    if (atomic_fetch_sub(&e->owners, 1) > 1) return;
    at_free(NULL, e->data);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->mutex);
    at_free(NULL, e);
}

static void *run(void *user) {
    errand *const e = user;
    pthread_setname_np(pthread_self(), "attune-compile");
    e->status = e->compile(e->user, &e->request, NULL, &e->data, &e->bytes, &e->err);
    pthread_mutex_lock(&e->mutex);
    e->is_done = true;
    pthread_cond_signal(&e->changed);
    pthread_mutex_unlock(&e->mutex);
    leave(e);
    return NULL;
}

/* The thread may outlive the context, after which a host may unload what holds this code: a plug-in of its own that
 * attune is linked into. libattune.so stays anyway. */
static void stay_loaded(void) {
    Dl_info info;
    const struct link_map *map = NULL;
    if (at_foreign_enter(AT_FOREIGN_COMPILER, NULL)) return;
    if (dladdr1((void *)(uintptr_t)run, &info, (void **)&map, RTLD_DL_LINKMAP) && map && map->l_name[0])
        dlopen(map->l_name, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
    at_foreign_leave(AT_FOREIGN_COMPILER);
}

/* LLVM recurses: the stack is that of a process. */
static bool start(errand *e) {
    enum { STACK_BYTES = 8 << 20 };
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t before;
    pthread_once(&once, stay_loaded);
    if (pthread_attr_init(&attributes)) return false;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    at_block_signals(&before);
    const bool is_started = !pthread_create(&thread, &attributes, run, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return is_started;
}

/* false: the job is abandoned. */
static bool wait_for(errand *e) {
    pthread_mutex_lock(&e->mutex);
    while (!e->is_done && !(at_background_is_abandoned() && may_be_left(&e->plugin)))
        at_background_pause(&e->changed, &e->mutex);
    const bool is_done = e->is_done;
    pthread_mutex_unlock(&e->mutex);
    return is_done;
}

static attune_status take_result(const errand *e, const attune_allocator *allocator, void **data, size_t *bytes,
                                 at_error *err) {
    if (e->status) return at_fail(err, e->status, "%s", e->err.message);
    *bytes = e->bytes;
    return at_codegen_copy(allocator, e->data, e->bytes, data, err);
}

/* The plug-in's compile that was abandoned last. */
static _Atomic(errand *) left_alone;

static void leave_alone(errand *e) {
    errand *const before = e->compile == at_plugin_compile ? atomic_exchange(&left_alone, e) : e;
    if (before) leave(before);
}

static bool is_same(const errand *e, const at_local_plugin *plugin, const at_codegen_request *request) {
    return e->request.stage == request->stage && e->request.ir_bytes == request->ir_bytes &&
           !memcmp(e->request.ir, request->ir, request->ir_bytes) && !strcmp(e->request.target, request->target) &&
           !strcmp(e->plugin.file.path, plugin->file.path);
}

/* The compile that was abandoned last, if it is this one and was begun; or else NULL after its end. */
static errand *join(const at_local_plugin *plugin, const at_codegen_request *request) {
    errand *const e = atomic_exchange(&left_alone, NULL);
    if (!e || e->pid != getpid()) return NULL;
    const bool same = is_same(e, plugin, request);
    if (same) atomic_store(&e->plugin.is_unwanted, false);
    if (!wait_for(e)) {
        leave_alone(e);
    } else if (same && e->status != ATTUNE_CANCELLED) {
        return e;
    } else {
        leave(e);
    }
    return NULL;
}

static errand *begin(at_compile_fn *compile, void *user, const at_local_plugin *plugin,
                     const at_codegen_request *request) {
    errand *const e = new_errand(request);
    if (!e) return NULL;
    e->compile = plugin ? at_plugin_compile : compile;
    e->user = plugin ? &e->plugin : user;
    if (plugin) {
        e->plugin.file = plugin->file;
        e->plugin.exports = atomic_load(&plugin->exports);
    }
    if (!start(e)) run(e);
    return e;
}

attune_status at_compile_apart(at_compile_fn *compile, void *user, at_local_plugin *plugin,
                               const at_codegen_request *request, const attune_allocator *allocator, void **data,
                               size_t *bytes, at_error *err) {
    errand *e = plugin ? join(plugin, request) : NULL;
    if (!e) {
        if (at_background_is_abandoned()) return at_background_fail(err);
        e = begin(compile, user, plugin, request);
        if (!e) return at_fail_memory(err, sizeof *e + request->ir_bytes);
        if (!wait_for(e)) {
            leave_alone(e);
            return at_background_fail(err);
        }
    }
    const attune_status status = take_result(e, allocator, data, bytes, err);
    if (plugin) atomic_store(&plugin->exports, atomic_load(&e->plugin.exports));
    leave(e);
    return status;
}
