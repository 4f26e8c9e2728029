/* The table of kernels. A kind of node that is new gets an entry and a detached thread, which makes a plan for it and
 * has what is missing compiled. A lookup takes no lock, and the thread that computes waits for a compiler only as long
 * as ATTUNE_DEADLINE_US says. Entries are never removed, and there are at most max_plans. */
#include "kernels.h"

#include "common/context.h"
#include "host.h"
#include "node.h"
#include "plain_text.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A length that is called 100 times gets its own kernel. Models have fewer layers than half of that, so it takes more
 * than two steps of a model. */
const common_engine_info common_engine = {
    .has_stock = true, .max_plans = 1024, .repeats = 100, .compiles_in_background = true, .never_waits = true};

extern const struct at_bundle attune_ggml_bundle; /* built by scripts/tier0_bundle.sh */

/* ---- The problem of a kind ---- */

static const char *const class_text[KERNEL_NUM_CLASSES] = {
    [KERNEL_ONE] = "seq_q=1,batch=2",
    [KERNEL_PLAIN] = "seq_q=dynamic,batch=2",
    [KERNEL_CAUSAL] = "seq_q=dynamic,batch=2,is_causal=1",
    [KERNEL_WINDOW] = "seq_q=dynamic,batch=2,is_causal=1",
    [KERNEL_RANGES] = "seq_q=dynamic,tensors=\"lo:i32[q], hi:i32[q]\",mask_mod=\"kv >= lo[q] & kv < hi[q]\"",
    [KERNEL_HOLES] = "seq_q=dynamic,tensors=\"lo:i32[q], mid:i32[q], next:i32[q], hi:i32[q]\","
                     "mask_mod=\"kv >= lo[q] & kv < mid[q] | kv >= next[q] & kv < hi[q]\"",
    [KERNEL_LISTS] = "seq_q=dynamic,kv_ids=query,has_kv_id_lens=1",
    [KERNEL_LISTS_BIAS] = "seq_q=dynamic,kv_ids=query,has_kv_id_lens=1,attn_bias_dims=qk,bias_dtype=f16",
    [KERNEL_LISTS_HEADS_BIAS] = "seq_q=dynamic,kv_ids=query,has_kv_id_lens=1,attn_bias_dims=hqk",
    [KERNEL_PAGES] = "seq_q=1,batch=2,page_size=1,has_kv_lens=1",
    [KERNEL_GROUPS] = "is_ragged=1,seq_q=dynamic,batch=2,page_size=1,has_kv_lens=1,is_causal=1",
    [KERNEL_BIAS] = "seq_q=dynamic,attn_bias_dims=qk,bias_dtype=f16",
    [KERNEL_HEADS_BIAS] = "seq_q=dynamic,attn_bias_dims=hqk,bias_dtype=f16",
    [KERNEL_ALIBI] = "seq_q=dynamic,batch=2,is_causal=1,has_alibi_slopes=1",
    [KERNEL_WHOLE_ALIBI] = "seq_q=dynamic,batch=2,has_alibi_slopes=1",
    [KERNEL_SLOPES] = "seq_q=dynamic,tensors=\"slope:f32[h], mask:f16[q, kv]\","
                      "score_mod=\"score + slope[h] * mask[q, kv]\",mask_mod=\"mask[q, kv] > -inf\"",
};

enum { TEXT_BYTES = 640 };

/* Appends ",k_dtype=…" or ",v_dtype=…". The format's '#' becomes the tensor's letter: "k_scales", "v_scales". */
static void add_cache(char *text, char which, ggml_cache cache) {
    size_t length = strlen(text);
    length += (size_t)snprintf(text + length, TEXT_BYTES - length, ",%c_dtype=%s", which, cache_formats[cache].name);
    char *const mark = strchr(text, '#');
    if (mark) *mark = which;
}

/* Whether products may round to bf16. For quantised K ggml itself rounds queries to 8 bits, which loses as much. */
static bool may_round(const ggml_kind *k) {
    return k->k_cache == GGML_Q8_0 || k->k_cache == GGML_Q4_0 || k->k_cache == GGML_Q4_1;
}

/* The problem has two KV heads, because one would look like a broadcast dim. The kernel computes any number of heads,
 * unless a function indexes a tensor by head. */
static void describe(const ggml_kind *k, char text[TEXT_BYTES]) {
    const int heads = k->heads ? k->heads : 2 * k->group;
    snprintf(text, TEXT_BYTES,
             "num_heads=%d,num_kv_heads=%d,head_dim=%d,head_dim_v=%d,seq_kv=dynamic,"
             "softmax_scale=dynamic,%s%s%s%s%s",
             heads, heads / k->group, (int)k->dim, (int)k->dim_v, class_text[k->class],
             k->has_sinks ? ",has_sinks=1" : "", k->v_in_k ? ",v_in_k=1" : "", k->has_lens ? ",has_kv_lens=1" : "",
             may_round(k) ? ",matmul_precision=bf16" : "");
    if (k->window) {
        const size_t length = strlen(text);
        snprintf(text + length, TEXT_BYTES - length, ",window_left=%d", (int)k->window - 1);
    }
    if (k->soft_cap > 0) {
        const size_t length = strlen(text);
        at_print(text + length, TEXT_BYTES - length, ",logits_soft_cap=%.9g", (double)k->soft_cap);
    }
    add_cache(text, 'k', (ggml_cache)k->k_cache);
    add_cache(text, 'v', (ggml_cache)k->v_cache);
}

/* ---- The table ---- */

typedef struct kernel {
    struct kernel *next;
    ggml_kind kind;
    common_plan *plan;
    atomic_int state; /* kernel_state, or ABANDONED. `plan` is constant once it is KERNEL_READY */
} kernel;

/* The process was forked while the entry's thread was at work, so nobody compiles it in the child. */
enum { ABANDONED = KERNEL_REFUSED + 1 };

static _Atomic(kernel *) kernels; /* a list that grows at the front */
static atomic_int num_kernels;
static common_plans plans;

static kernel *look(kernel *k, const ggml_kind *kind) {
    while (k && memcmp(&k->kind, kind, sizeof *kind) != 0) k = k->next;
    return k;
}

/* ---- Compiling ---- */

static bool is_ready(const common_plan *p) {
    attune_plan_info info = ATTUNE_PLAN_INFO_INIT;
    return !attune_plan_get_info(p->plan, &info) && info.is_ready;
}

/* Makes the plan. If it is ready, it runs now, and compiles its own kernels on the library's threads. */
static kernel_state compile(kernel *k) {
    char text[TEXT_BYTES];
    attune_status status;
    const char *message;
    describe(&k->kind, text);
    k->plan = common_plan_of_text(&plans, text, strlen(text), &status, &message);
    if (k->plan && (is_ready(k->plan) || !attune_plan_prepare(k->plan->plan))) {
        host_log(GGML_ABI_LOG_DEBUG, "kernels are ready: %s", text);
        return KERNEL_READY;
    }
    host_log(GGML_ABI_LOG_INFO, "there is no kernel for %s: %s", text, k->plan ? attune_last_message() : message);
    return KERNEL_REFUSED;
}

/* Gives the plug-in's own kernels to the context. The library refuses those of another build of attune. */
static void add_bundle(void) {
    attune_context *const context = common_context(NULL, NULL);
    if (context && attune_context_add_bundle(context, &attune_ggml_bundle))
        host_log(GGML_ABI_LOG_WARN, "its kernels are not used: %s", attune_last_message());
}

/* Held by a thread that compiles, so that kernels are compiled one after the other. No other thread takes it. */
static pthread_mutex_t compiling = PTHREAD_MUTEX_INITIALIZER;

/* The child of a fork has none of those threads, one of which may have held the lock. */
static void after_fork_in_child(void) {
    const pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    compiling = unlocked;
    for (kernel *k = atomic_load(&kernels); k; k = k->next) {
        int state = KERNEL_COMPILES;
        atomic_compare_exchange_strong(&k->state, &state, ABANDONED);
    }
}

static void watch_fork(void) { pthread_atfork(NULL, NULL, after_fork_in_child); }

static void *compile_later(void *argument) {
    static bool has_bundle;
    kernel *const k = argument;
    pthread_mutex_lock(&compiling);
    if (!has_bundle) add_bundle();
    has_bundle = true;
    atomic_store(&k->state, compile(k));
    pthread_mutex_unlock(&compiling);
    return NULL;
}

/* Starts a thread that compiles. All signals are blocked in it, because their handlers are the host's. */
static bool start_thread(kernel *k) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    sigset_t all, before;
    pthread_attr_t attr;
    pthread_t thread;
    pthread_once(&once, watch_fork);
    sigfillset(&all);
    if (pthread_attr_init(&attr)) return false;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool is_started = !pthread_create(&thread, &attr, compile_later, k);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return is_started;
}

/* Waits until the kernel is ready, but at most ATTUNE_DEADLINE_US, or the 3 ms in which a cache finds a kernel. */
static void wait_for(const kernel *k) {
    enum { SLEEP_US = 100 };
    const char *const named = getenv("ATTUNE_DEADLINE_US");
    const long most = named && *named ? strtol(named, NULL, 10) : 3000;
    for (long us = 0; us < most && atomic_load(&k->state) == KERNEL_COMPILES; us += SLEEP_US)
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_US * 1000}, NULL);
}

static void start(kernel *k) {
    if (start_thread(k))
        wait_for(k);
    else
        atomic_store(&k->state, KERNEL_REFUSED);
}

/* Adds `k` to the list, unless another thread has just added one of its kind. Returns the one that is in the list. */
static kernel *insert(kernel *k) {
    kernel *first = atomic_load(&kernels);
    do {
        kernel *const other = look(first, &k->kind);
        if (other) return other;
        k->next = first;
    } while (!atomic_compare_exchange_weak(&kernels, &first, k));
    return k;
}

/* Adds a new kind and begins to compile. NULL: there is no memory, or there are too many kinds. */
static kernel *add(const ggml_kind *kind) {
    kernel *const k = atomic_load(&num_kernels) < (int)common_engine.max_plans ? calloc(1, sizeof *k) : NULL;
    if (!k) return NULL;
    k->kind = *kind;
    kernel *const listed = insert(k);
    if (listed != k) {
        free(k);
        return listed;
    }
    atomic_fetch_add(&num_kernels, 1);
    start(k);
    return k;
}

kernel_state kernel_of(const ggml_kind *kind, const common_plan **plan) {
    kernel *k = look(atomic_load_explicit(&kernels, memory_order_acquire), kind);
    if (!k) k = add(kind);
    if (!k) return KERNEL_REFUSED;
    int state = atomic_load_explicit(&k->state, memory_order_acquire);
    if (state == ABANDONED && atomic_compare_exchange_strong(&k->state, &state, KERNEL_COMPILES)) {
        start(k);
        state = atomic_load(&k->state);
    }
    if (state == KERNEL_READY) *plan = k->plan;
    return (kernel_state)state;
}
