/* The functions of attune.h that the engine calls, by those of a bundle: engine_prefill and engine_decode are the block
 * of a layer for prompts, and for one token of each request. Nothing of libattune is linked. */
#include "static.h"

#include "kernels.h" /* of the bundle */

#include <stdlib.h>
#include <string.h>

struct attune_call {
    enum { PREFILL, DECODE, PRODUCT } kind;
    engine_prefill_call prefill;
    engine_decode_call decode;
    product product;
    void *workspace; /* stays for later calls */
    size_t workspace_bytes;
    bool is_taken;
};

static attune_call calls[2]; /* the engine has no more at a time */
static char message[512];

const char *attune_last_message(void) { return message; }

/* ---- Context and kernels: there are none ---- */

attune_status attune_context_create(const attune_context_options *options, attune_context **context) {
    (void)options;
    *context = NULL;
    if (engine_prefill_target()) return ATTUNE_OK;
    strcpy(message, "the kernels of this program are for other CPUs");
    return ATTUNE_UNSUPPORTED;
}

void attune_context_destroy(attune_context *context) {
    (void)context;
    for (int i = 0; i < 2; i++) free(calls[i].workspace);
}

/* A kernel is only told from others by its address. */
attune_status attune_compile(attune_context *context, const attune_problem *problem, const char *schedule,
                             attune_kernel **kernel) {
    static char names[2];
    (void)context, (void)schedule;
    *kernel = (attune_kernel *)(void *)&names[problem->is_ragged ? PREFILL : DECODE];
    names[PREFILL] = PREFILL, names[DECODE] = DECODE;
    return ATTUNE_OK;
}

void attune_kernel_release(attune_kernel *kernel) { (void)kernel; }

/* That of attune_arguments_init, an inline function. */
attune_status attune_arguments_init_sized(attune_arguments *arguments, size_t struct_size,
                                          const attune_problem *problem) {
    memset(arguments, 0, struct_size);
    arguments->batch = problem->batch;
    return ATTUNE_OK;
}

/* ---- Calls ---- */

static attune_call *take_call(int kind) {
    attune_call *const c = calls[0].is_taken ? &calls[1] : &calls[0];
    c->kind = kind;
    c->is_taken = true;
    return c;
}

static void give_workspace(attune_call *c, size_t bytes) {
    if (bytes <= c->workspace_bytes) return;
    free(c->workspace);
    c->workspace = allocate(bytes);
    c->workspace_bytes = bytes;
}

/* The members that both kernels have, by the names of attune_arguments. */
#ifdef ENGINE_HAS_NORMS
#define NORMS(args, a) (args).q_norm = (a)->q_norm, (args).k_norm = (a)->k_norm
#else
#define NORMS(args, a) (void)0
#endif
#define COPY(args, a)                                                                                                  \
    do {                                                                                                               \
        (args).x = (a)->x.data, (args).k = (a)->k.data, (args).v = (a)->v.data, (args).out = (a)->out.data;            \
        (args).packed_weights = (a)->packed_weights, (args).cos = (a)->cos, (args).sin = (a)->sin;                     \
        (args).kv_lens = (a)->kv_lens, (args).block_table = (a)->block_table;                                          \
        (args).batch = (a)->batch, (args).num_pages = (a)->num_pages, (args).max_pages = (a)->max_pages;               \
        (args).rotary_positions = (a)->rotary_positions;                                                               \
        NORMS(args, a);                                                                                                \
    } while (0)

/* The call by threads of the engine: workspace for all of them, then the check of its arguments. */
#define BEGIN(name, args, workers, c)                                                                                  \
    do {                                                                                                               \
        size_t bytes = 0;                                                                                              \
        int status = engine_##name##_workspace(&(args), (workers), &bytes);                                            \
        if (!status) give_workspace(c, bytes);                                                                         \
        (args).workspace = (c)->workspace, (args).workspace_bytes = (c)->workspace_bytes;                              \
        if (!status) status = engine_##name##_begin(&(args), (workers), &(c)->name);                                   \
        if (status) engine_##name##_check(&(args), message, sizeof message);                                           \
        return (attune_status)status;                                                                                  \
    } while (0)

static attune_status begin_prefill(const attune_arguments *a, uint32_t workers, attune_call *c) {
    engine_prefill_args args = ENGINE_PREFILL_ARGS;
    COPY(args, a);
    args.cu_seqlens_q = a->cu_seqlens_q, args.total_q = a->total_q;
    BEGIN(prefill, args, workers, c);
}

static attune_status begin_decode(const attune_arguments *a, uint32_t workers, attune_call *c) {
    engine_decode_args args = ENGINE_DECODE_ARGS;
    COPY(args, a);
    BEGIN(decode, args, workers, c);
}

attune_status attune_call_begin(attune_context *context, const attune_kernel *kernel, const attune_arguments *arguments,
                                uint32_t workers, attune_call **call) {
    (void)context;
    *call = take_call(*(const char *)(const void *)kernel);
    return ((*call)->kind == PREFILL ? begin_prefill : begin_decode)(arguments, workers, *call);
}

attune_call *product_begin(const product *p) {
    attune_call *const c = take_call(PRODUCT);
    c->product = *p;
    return c;
}

uint32_t attune_call_num_phases(const attune_call *c) {
    if (c->kind == PRODUCT) return 1;
    return c->kind == PREFILL ? engine_prefill_phases(&c->prefill) : engine_decode_phases(&c->decode);
}

int64_t attune_call_num_tasks(const attune_call *c, uint32_t phase) {
    const linear *const l = c->product.linear;
    if (c->kind == PRODUCT) return l->outputs / (l->kind == LINEAR_SWIGLU ? PANEL / 2 : PANEL);
    return c->kind == PREFILL ? engine_prefill_tasks(&c->prefill, phase) : engine_decode_tasks(&c->decode, phase);
}

attune_status attune_call_execute(attune_call *c, uint32_t phase, int64_t begin, int64_t end, uint32_t worker) {
    if (c->kind == PRODUCT) return product_run(&c->product, engine_prefill_target(), begin, end), ATTUNE_OK;
    return (attune_status)(c->kind == PREFILL ? engine_prefill_execute(&c->prefill, phase, begin, end, worker)
                                              : engine_decode_execute(&c->decode, phase, begin, end, worker));
}

attune_status attune_call_end(attune_call *c) {
    c->is_taken = false;
    return ATTUNE_OK;
}
