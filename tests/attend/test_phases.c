/* The other phases of a kernel: rotary embeddings, appending to caches, and the weights output. Each case runs
 * as lowered for every target, by the interpreter, which checks all accesses, and as machine code where this CPU runs
 * it: to the same bits, and close to the reference. Memory that must not be read holds NaN. */
#include "ir/interp.h"
#include "ir/passes.h"
#include "operator/build.h"
#include "problem/signature.h"
#include "ref_attention.h"
#include "schedule/schedule.h"
#include "support/problems.h"
#include "support/ir/jit_run.h"
#include "support/ir/random_ir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ENTRIES = 3 };

/* A problem and the sizes of a call. */
typedef struct sample {
    const char *problem;
    int64_t seq_q, seq_kv, seq_new, rows, positions, pages, max_pages, mask_kv, bias_kv;
    int q[ENTRIES], kv[ENTRIES]; /* lengths of the entries */
    int own_caches;              /* each entry has its own cos and sin */
} sample;

typedef struct call {
    const sample *from;
    attune_problem p;
    mha_tensor tensors[MHA_NUM_TENSORS];
    size_t count;
    mha_sizes sizes;
    int64_t strides[MHA_NUM_TENSORS][4];
    attune_tensor public[MHA_NUM_TENSORS];
    attune_arguments arguments;
    void *data[MHA_NUM_TENSORS]; /* by id */
    int64_t elements[MHA_NUM_TENSORS];
} call;

static random_ir random_source;

static int random_below(int n) { return random_ir_below(&random_source, n); }
static double random_number(void) { return (double)(random_ir_bits(&random_source) >> 40) / 8388608.0 - 1.0; }

/* ---- A call ---- */

static void settle_sizes(call *c) {
    const sample *s = c->from;
    int64_t *of = c->sizes.of;
    mha_compiled_sizes(&c->p, &c->sizes);
    of[MHA_BATCH] = c->p.batch;
    of[MHA_KV_HEADS] = c->p.num_kv_heads;
    const struct {
        mha_size size;
        int64_t value;
    } given[] = {{MHA_SEQ_Q, s->seq_q},         {MHA_SEQ_KV, s->seq_kv},   {MHA_SEQ_NEW, s->seq_new},
                 {MHA_NUM_ROWS, s->rows},       {MHA_NUM_PAGES, s->pages}, {MHA_ROTARY_POSITIONS, s->positions},
                 {MHA_MAX_PAGES, s->max_pages}, {MHA_MASK_KV, s->mask_kv}, {MHA_BIAS_KV, s->bias_kv}};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (mha_is_parameter(&c->p, given[i].size)) of[given[i].size] = given[i].value;
    of[MHA_TOTAL_Q] = of[MHA_TOTAL_KV] = 0;
    for (int b = 0; b < ENTRIES; b++) {
        of[MHA_TOTAL_Q] += s->q[b];
        of[MHA_TOTAL_KV] += s->kv[b];
    }
    mha_derive_sizes(&c->p, &c->sizes);
}

static void fill_arguments(call *c) {
    const int64_t *of = c->sizes.of;
    c->arguments = (attune_arguments){
        .struct_size = sizeof c->arguments,
        .batch = of[MHA_BATCH],
        .num_heads = of[MHA_HEADS],
        .num_kv_heads = of[MHA_KV_HEADS],
        .seq_q = of[MHA_SEQ_Q],
        .seq_kv = of[MHA_SEQ_KV],
        .seq_new = of[MHA_SEQ_NEW],
        .num_rows = of[MHA_NUM_ROWS],
        .total_q = of[MHA_TOTAL_Q],
        .total_kv = of[MHA_TOTAL_KV],
        .num_pages = of[MHA_NUM_PAGES],
        .max_pages = of[MHA_MAX_PAGES],
        .rotary_positions = of[MHA_ROTARY_POSITIONS],
        .rotary_batch_stride = c->from->own_caches ? of[MHA_ROTARY_POSITIONS] * of[MHA_ROTARY_HALF] : 0,
    };
}

/* The tensors as attune_tensors lists them. */
static void settle_tensors(call *c) {
    at_error err = {0};
    c->count = mha_tensors(&c->p, c->tensors);
    for (size_t i = 0; i < c->count; i++) {
        const mha_tensor *t = &c->tensors[i];
        attune_tensor *out = &c->public[i];
        *out =
            (attune_tensor){t->id == MHA_OUT ? "out" : t->name, t->dtype,  t->rank, {0}, {0}, (t->access & IR_IN) != 0,
                            (t->access & IR_OUT) != 0,          t->pointer};
        if (t->has_strides)
            memcpy(c->strides[i], (const char *)&c->p + t->problem_strides, (size_t)t->rank * sizeof c->strides[i][0]);
        for (int d = 0; d < t->rank; d++) out->dims[d] = c->sizes.of[t->dims[d]];
        if (mha_settle_strides(&c->p, t, out->dims, c->strides[i], &err))
            fail_msg("%s: %s", c->from->problem, err.message);
        if (t->id == MHA_COS || t->id == MHA_SIN) c->strides[i][0] = c->arguments.rotary_batch_stride;
        memcpy(out->strides, c->strides[i], sizeof out->strides);
        int64_t last = 0;
        for (int d = 0; d < t->rank; d++) last += (out->dims[d] - 1) * out->strides[d];
        c->elements[t->id] = last + 1;
    }
}

static void fill_table(call *c, const attune_tensor *t, mha_tensor_id id) {
    int32_t *to = c->data[id];
    const sample *s = c->from;
    for (int64_t i = 0; i < c->elements[id]; i++) {
        if (id == MHA_KV_LENS) to[i] = s->kv[i];
        if (id == MHA_CAUSAL_OFFSETS) to[i] = random_below(4);
        if (id == MHA_CU_SEQLENS_Q) to[i] = i ? to[i - 1] + s->q[i - 1] : 0;
        if (id == MHA_CU_SEQLENS_KV) to[i] = i ? to[i - 1] + s->kv[i - 1] : 0;
        if (id == MHA_POSITION_IDS) to[i] = random_below((int)c->sizes.of[MHA_ROTARY_POSITIONS]);
        if (id == MHA_ROW_IDS) to[i] = random_below((int)c->sizes.of[MHA_SEQ_Q]);
        if (id == MHA_BLOCK_TABLE) { /* from the last page down; -1 where an entry has no keys */
            const int64_t b = i / t->dims[1], column = i % t->dims[1];
            const int64_t page = c->sizes.of[MHA_NUM_PAGES] - 1 - i;
            to[i] = column * c->p.page_size < s->kv[b] ? (int32_t)page : -1;
        }
    }
}

static void fill_tensor(call *c, const attune_tensor *t, mha_tensor_id id) {
    c->data[id] = calloc((size_t)c->elements[id], ref_dtype_bytes(t->dtype));
    assert_non_null(c->data[id]);
    memcpy((char *)&c->arguments + t->pointer_offset, &c->data[id], sizeof c->data[id]);
    if (t->dtype == ATTUNE_I32) {
        fill_table(c, t, id);
        return;
    }
    for (int64_t i = 0; i < c->elements[id]; i++) {
        double x = random_number();
        if (id == MHA_ATTN_MASK) x = random_below(3) ? 1 + random_below(255) : 0;
        if (id == MHA_ATTN_BIAS && random_below(4) == 0) x = -INFINITY;
        if (id == MHA_ALIBI_SLOPES) x = fabs(x);
        ref_store(t->dtype, c->data[id], i, (long double)x);
    }
}

/* NaN wherever the problem promises not to look. */
static void poison(call *c) {
    ref_seen seen = {0};
    unsigned char **const marks[MHA_NUM_TENSORS] = {
        [MHA_K] = &seen.k, [MHA_V] = &seen.v, [MHA_K_NEW] = &seen.k_new, [MHA_V_NEW] = &seen.v_new};
    for (int id = 0; id < MHA_NUM_TENSORS; id++)
        if (marks[id] && c->data[id]) *marks[id] = calloc((size_t)c->elements[id], 1);
    ref_mark_seen(&(ref_call){.problem = &c->p, .arguments = &c->arguments, .tensors = c->public, .count = c->count},
                  &seen);
    for (size_t i = 0; i < c->count; i++) {
        const mha_tensor_id id = c->tensors[i].id;
        for (int64_t n = 0; marks[id] && n < c->elements[id]; n++)
            if (!(*marks[id])[n]) ref_store(c->tensors[i].dtype, c->data[id], n, (long double)NAN);
    }
    for (int id = 0; id < MHA_NUM_TENSORS; id++)
        if (marks[id]) free(*marks[id]);
}

static void open_call(call *c, const sample *s) {
    attune_problem p = ATTUNE_PROBLEM_INIT;
    at_error err = {0};
    *c = (call){.from = s};
    if (mha_problem_parse(s->problem, &p, &err) || mha_canonicalize(&p, &c->p, &err))
        fail_msg("%s: %s", s->problem, err.message);
    settle_sizes(c);
    fill_arguments(c);
    settle_tensors(c);
    for (size_t i = 0; i < c->count; i++) fill_tensor(c, &c->public[i], c->tensors[i].id);
    if (c->p.op != ATTUNE_ROTARY) poison(c);
}

static void close_call(call *c) {
    for (int id = 0; id < MHA_NUM_TENSORS; id++) free(c->data[id]);
}

/* ---- Running it ---- */

static mha_schedule schedule_of(const call *c, const at_target *target, mha_strategy strategy) {
    mha_schedule s = {0};
    at_error err = {0};
    mha_choose(mha_read(&c->p), target, usual_machine(target), &s);
    if (strategy == MHA_D_LANES) {
        const int32_t lanes = target->vector_bytes / (c->p.softmax_precision == ATTUNE_F64 ? 8 : 4);
        s = (mha_schedule){.strategy = MHA_D_LANES,
                           .lanes = lanes,
                           .score_rows = 2,
                           .score_keys = 4,
                           .score_column_vectors = 1,
                           .value_rows = 2,
                           .value_column_vectors = 2,
                           .value_keys = 1,
                           .kv_tile = 16,
                           .kv_chunk = 32};
    }
    if (mha_schedule_check(&c->p, &s, target, &err)) fail_msg("%s: %s", c->from->problem, err.message);
    return s;
}

static ir_kernel *build(const call *c, at_arena *arena, const at_target *target, mha_strategy strategy) {
    const mha_schedule schedule = schedule_of(c, target, strategy);
    at_error err = {0};
    ir_kernel *kernel = mha_build(arena, &c->p, &schedule, target, &err);
    if (kernel) kernel = ir_lower(kernel, target, NULL, NULL, &err);
    if (!kernel) fail_msg("%s on %s: %s", c->from->problem, target->name, err.message);
    return kernel;
}

/* Runs the kernel on copies of all tensors, which the caller frees. */
static void run(const call *c, const ir_kernel *kernel, const at_target *target, bool compiled, void **copies) {
    void *buffers[MHA_NUM_TENSORS];
    int64_t scalars[MHA_MAX_SCALARS];
    at_error err = {0};
    const mha_parameters taken = mha_parameters_of(&c->p);
    mha_scalars(&c->p, &taken, &c->sizes, c->tensors, c->count, c->strides, scalars);
    for (size_t i = 0; i < c->count; i++) {
        const size_t bytes = (size_t)c->elements[c->tensors[i].id] * ref_dtype_bytes(c->tensors[i].dtype);
        buffers[i] = copies[i] = malloc(bytes);
        memcpy(copies[i], c->data[c->tensors[i].id], bytes);
    }
    const ir_interp_options options = {.shuffle_seed = 7};
    if (compiled ? jit_run(kernel, target, buffers, scalars, 3, &err)
                 : ir_interpret(kernel, buffers, scalars, &options, &err))
        fail_msg("%s on %s: %s", c->from->problem, target->name, err.message);
}

static bool same_bits(const attune_tensor *t, const void *a, const void *b, int64_t elements) {
    const size_t size = ref_dtype_bytes(t->dtype);
    for (int64_t i = 0; i < elements; i++) {
        if (!memcmp((const char *)a + (size_t)i * size, (const char *)b + (size_t)i * size, size)) continue;
        if (!isnan(ref_load(t->dtype, a, i)) || !isnan(ref_load(t->dtype, b, i))) return false;
    }
    return true;
}

static double tolerance_of(const call *c, attune_dtype dtype, long double want) {
    const double steps = dtype == ATTUNE_F16                                           ? 0x1p-10
                         : dtype == ATTUNE_BF16                                        ? 0x1p-7
                         : dtype == ATTUNE_F64 && c->p.softmax_precision == ATTUNE_F64 ? 1e-14
                                                                                       : 2e-6;
    const double size = fabs((double)want);
    return steps * (size > 1 ? size : 1);
}

static void compare(const call *c, const at_target *target, const attune_tensor *t, const void *got,
                    const long double *want) {
    int64_t dims[4] = {1, 1, 1, 1}, at = 0;
    memcpy(dims, t->dims, (size_t)t->rank * sizeof *dims);
    for (int64_t n = 0; n < dims[0] * dims[1] * dims[2] * dims[3]; n++, at++) {
        const int64_t index[4] = {n / dims[3] / dims[2] / dims[1], n / dims[3] / dims[2] % dims[1],
                                  n / dims[3] % dims[2], n % dims[3]};
        int64_t place = 0;
        for (int d = 0; d < t->rank; d++) place += index[d] * t->strides[d];
        const long double x = ref_load(t->dtype, got, place);
        if (x == want[at] || (isnan(x) && isnan(want[at]))) continue;
        if (fabsl(x - want[at]) <= (long double)tolerance_of(c, t->dtype, want[at])) continue;
        fail_msg("%s on %s: %s[%lld, %lld, %lld, %lld] is %.12Lg, not %.12Lg", c->from->problem, target->name, t->name,
                 (long long)index[0], (long long)index[1], (long long)index[2], (long long)index[3], x, want[at]);
    }
}

static const long double *expected(const ref_result *r, mha_tensor_id id) {
    return id == MHA_OUT           ? r->out
           : id == MHA_LSE         ? r->lse
           : id == MHA_WEIGHTS_OUT ? r->weights
           : id == MHA_K           ? r->k
           : id == MHA_V           ? r->v
                                   : NULL;
}

static void check_target(const call *c, const ref_result *want, const at_target *target, mha_strategy strategy) {
    if (!target_is_tested(target)) return;
    void *interpreted[MHA_NUM_TENSORS], *compiled[MHA_NUM_TENSORS];
    at_arena arena;
    at_arena_init(&arena, NULL);
    const ir_kernel *kernel = build(c, &arena, target, strategy);
    const bool runs = target_can_run(target);
    run(c, kernel, target, false, interpreted);
    if (runs) run(c, kernel, target, true, compiled);
    for (size_t i = 0; i < c->count; i++) {
        const attune_tensor *t = &c->public[i];
        const int64_t elements = c->elements[c->tensors[i].id];
        if (runs && !same_bits(t, interpreted[i], compiled[i], elements))
            fail_msg("%s on %s: the bits of %s differ", c->from->problem, target->name, t->name);
        const long double *truth = expected(want, c->tensors[i].id);
        if (t->is_output && truth) compare(c, target, t, interpreted[i], truth);
        if (!t->is_output && !same_bits(t, interpreted[i], c->data[c->tensors[i].id], elements))
            fail_msg("%s on %s: %s has been written to", c->from->problem, target->name, t->name);
        free(interpreted[i]);
        if (runs) free(compiled[i]);
    }
    at_arena_free(&arena);
}

/* The logarithms that op = weights reads are those of the reference. */
static void give_lse(call *c) {
    const ref_call of = {.problem = &c->p, .arguments = &c->arguments, .tensors = c->public, .count = c->count};
    ref_result first;
    assert_true(ref_attention(&of, &first));
    for (int64_t i = 0; i < c->elements[MHA_LSE]; i++)
        ref_store(c->p.softmax_precision, c->data[MHA_LSE], i, first.row_lse[i]);
    ref_result_free(&first);
}

static void check_sample(const sample *s) {
    static int turn; /* of the strategies, where one is enough */
    call c;
    ref_result want;
    open_call(&c, s);
    const bool has_both = c.p.op == ATTUNE_ATTENTION;
    turn += has_both;
    if (c.p.op == ATTUNE_WEIGHTS && c.data[MHA_LSE]) give_lse(&c);
    assert_true(ref_attention(
        &(ref_call){.problem = &c.p, .arguments = &c.arguments, .tensors = c.public, .count = c.count}, &want));
    for (const at_target *t = at_targets(); t->name; t++) {
        const int only = has_both && tests_are_short() ? (turn + (int)(t - at_targets())) % 2 : -1;
        if (only != MHA_D_LANES) check_target(&c, &want, t, MHA_Q_LANES);
        if (has_both && only != MHA_Q_LANES) check_target(&c, &want, t, MHA_D_LANES);
    }
    ref_result_free(&want);
    close_call(&c);
}

#define CHECK_ALL(samples)                                                                                             \
    for (size_t n = 0; n < sizeof(samples) / sizeof *(samples); n++) check_sample(&(samples)[n])

/* ---- Rotary embeddings ---- */

static void test_rotary_op(void **state) {
    (void)state;
    static const sample samples[] = {
        {.problem = "op=rotary,batch=2,num_heads=3,seq_q=5,head_dim=64,rotary_dim=64", .positions = 9},
        {.problem = "op=rotary,seq_q=1,head_dim=2,rotary_dim=2,rotary_interleaved=1", .positions = 1},
        {.problem = "op=rotary,num_heads=2,seq_q=37,head_dim=80,rotary_dim=50,causal_offset=3", .positions = 41},
        {.problem = "op=rotary,batch=3,seq_q=4,head_dim=26,rotary_dim=22,rotary_interleaved=1", .positions = 4},
        {.problem = "op=rotary,batch=2,seq_q=4,head_dim=96,rotary_dim=96,rotary_interleaved=1,dtype=f16",
         .positions = 4,
         .own_caches = 1},
        {.problem = "op=rotary,batch=2,seq_q=7,head_dim=30,rotary_dim=6,dtype=f16", .positions = 7},
        {.problem = "op=rotary,batch=2,seq_q=7,head_dim=38,rotary_dim=22,dtype=bf16", .positions = 7},
        {.problem = "op=rotary,batch=2,seq_q=7,head_dim=34,rotary_dim=34,dtype=f64,has_position_ids=1",
         .positions = 20},
        {.problem = "op=rotary,batch=2,seq_q=dynamic,head_dim=8,rotary_dim=8,dtype=f64,rotary_interleaved=1",
         .seq_q = 19,
         .positions = 20},
        {.problem = "op=rotary,batch=2,num_heads=4,seq_q=3,head_dim=16,rotary_dim=8,layout=bshd,has_position_ids=1",
         .positions = 20,
         .own_caches = 1},
        {.problem = "op=rotary,num_heads=2,seq_q=3,head_dim=8,rotary_dim=6,q_strides=96:48:16:2", .positions = 3},
    };
    CHECK_ALL(samples);
}

/* ---- Weights ---- */

static void test_weights_op(void **state) {
    (void)state;
    static const sample samples[] = {
        {.problem = "op=weights,weights_mode=scaled,num_heads=2,seq_q=5,seq_kv=16,head_dim=8"},
        {.problem = "op=weights,weights_mode=softmax,has_lse=1,seq_q=1,seq_kv=1,head_dim=1"},
        {.problem = "op=weights,weights_mode=softmax,has_lse=1,batch=2,num_heads=4,num_kv_heads=2,seq_q=37,seq_kv=83,"
                    "head_dim=19,is_causal=1"},
        {.problem = "op=weights,weights_mode=capped,logits_soft_cap=0.25,num_heads=2,seq_q=9,seq_kv=70,head_dim=3"},
        {.problem = "op=weights,weights_mode=masked,num_heads=2,seq_q=9,seq_kv=33,head_dim=5,has_alibi_slopes=1,"
                    "window_left=3,window_right=2,attn_mask_dims=qk"},
        {.problem = "op=weights,weights_mode=softmax,has_lse=1,num_heads=2,seq_q=21,seq_kv=150,head_dim=12,"
                    "window_left=7,is_causal=1,global_tokens=3,has_sinks=1"},
        {.problem = "op=weights,weights_mode=softmax,has_lse=1,batch=3,num_heads=2,seq_q=4,seq_kv=65,head_dim=16,"
                    "has_kv_lens=1,is_causal=1,causal_align=bottom_right",
         .kv = {65, 0, 3}},
        {.problem = "op=weights,weights_mode=masked,batch=3,num_heads=2,seq_q=4,seq_kv=65,head_dim=16,has_kv_lens=1,"
                    "has_causal_offsets=1,is_causal=1,attn_bias_dims=bhqk",
         .kv = {64, 0, 3}},
        {.problem = "op=weights,weights_mode=scaled,batch=3,num_heads=2,seq_q=4,seq_kv=20,head_dim=16,has_kv_lens=1",
         .kv = {20, 0, 3}},
        {.problem =
             "op=weights,weights_mode=scaled,batch=3,num_heads=2,seq_q=4,seq_kv=dynamic,head_dim=16,has_kv_lens=1,"
             "page_size=3",
         .seq_kv = 20,
         .pages = 30,
         .max_pages = 7,
         .kv = {20, 0, 3}},
        {.problem = "op=weights,weights_mode=softmax,has_lse=1,batch=2,num_heads=2,seq_q=4,seq_kv=47,head_dim=20,"
                    "page_size=16,attn_mask_dims=bk",
         .pages = 8,
         .max_pages = 4,
         .kv = {47, 47}},
        {.problem = "op=weights,weights_mode=softmax,has_lse=1,batch=2,num_heads=2,seq_q=4,seq_kv=47,head_dim=20,"
                    "rotary_dim=10,is_causal=1,causal_align=bottom_right,has_kv_lens=1",
         .positions = 47,
         .kv = {47, 4}},
        {.problem = "op=weights,weights_mode=softmax,has_lse=1,num_heads=3,seq_q=dynamic,seq_kv=dynamic,head_dim=8,"
                    "attn_bias_dims=1:1:dynamic:dynamic,short_masks=1,attn_mask_dims=1:3:1:dynamic,bias_dtype=f16",
         .seq_q = 6,
         .seq_kv = 50,
         .mask_kv = 44,
         .bias_kv = 37},
        {.problem =
             "op=weights,weights_mode=softmax,has_lse=1,num_heads=6,num_kv_heads=2,seq_q=10,seq_kv=90,head_dim=8,"
             "weights_average=1,attn_bias_dims=hqk,has_row_ids=1,num_rows=dynamic",
         .rows = 7},
        /* Keys that the last rows of a block do not see, but others do. */
        {.problem =
             "op=weights,weights_mode=softmax,has_lse=1,num_heads=2,seq_q=40,seq_kv=200,head_dim=4,window_left=3,"
             "window_right=2,global_tokens=3"},
        /* global queries that see keys behind those of the last one */
        {.problem =
             "op=weights,weights_mode=softmax,has_lse=1,num_heads=2,seq_q=5,seq_kv=200,head_dim=4,window_right=2,"
             "causal_align=top_left,global_tokens=2"},
        {.problem =
             "op=weights,weights_mode=masked,num_heads=2,seq_q=200,head_dim=4,is_causal=1,has_row_ids=1,num_rows=5",
         .rows = 5},
        {.problem = "op=weights,weights_mode=masked,num_heads=4,seq_q=50,seq_kv=30,head_dim=8,weights_average=1,"
                    "attn_mask_dims=q,dtype=f64"},
        {.problem =
             "op=weights,weights_mode=softmax,has_lse=1,num_heads=120,num_kv_heads=2,seq_q=2,seq_kv=30,head_dim=6,"
             "dtype=f16,has_row_ids=1,num_rows=3,logits_soft_cap=2,layout=bshd",
         .rows = 3},
        {.problem = "op=weights,weights_mode=softmax,has_lse=1,num_heads=2,seq_q=20,seq_kv=70,head_dim=33,dtype=bf16,"
                    "attn_bias_dims=qk"},
        {.problem = "op=weights,weights_mode=softmax,has_lse=1,num_heads=2,seq_q=20,seq_kv=70,head_dim=33,dtype=f16,"
                    "attn_bias_dims=qk,softmax_precision=f64"},
        {.problem = "op=weights,weights_mode=softmax,has_lse=1,num_heads=2,seq_q=20,seq_kv=70,head_dim=33,dtype=f64,"
                    "is_causal=1,logits_soft_cap=3,has_alibi_slopes=1"},
        {.problem = "op=weights,weights_mode=softmax,has_lse=1,num_heads=2,seq_q=5,seq_kv=600,head_dim=4,is_causal=1,"
                    "causal_offset=555,weights_strides=100000:20000:2000:2"},
    };
    CHECK_ALL(samples);
}

/* A row whose lse is -infinity has seen no key, or none with a score above that: its probabilities are 0. */
static void test_weights_of_empty_rows(void **state) {
    (void)state;
    static const sample from = {
        .problem = "op=weights,weights_mode=softmax,has_lse=1,num_heads=2,seq_q=3,seq_kv=21,head_dim=4"};
    call c;
    open_call(&c, &from);
    for (int64_t i = 0; i < c.elements[MHA_LSE]; i++) ref_store(ATTUNE_F32, c.data[MHA_LSE], i, -(long double)INFINITY);
    for (const at_target *target = at_targets(); target->name; target++) {
        void *copies[MHA_NUM_TENSORS];
        at_arena arena;
        at_arena_init(&arena, NULL);
        run(&c, build(&c, &arena, target, MHA_Q_LANES), target, false, copies);
        for (size_t i = 0; i < c.count; i++) {
            for (int64_t n = 0; c.tensors[i].id == MHA_WEIGHTS_OUT && n < c.elements[MHA_WEIGHTS_OUT]; n++)
                assert_true(ref_load(ATTUNE_F32, copies[i], n) == 0);
            free(copies[i]);
        }
        at_arena_free(&arena);
    }
    close_call(&c);
}

/* ---- Phases round attention ---- */

static void test_rotary_in_attention(void **state) {
    (void)state;
    static const sample samples[] = {
        {.problem = "batch=2,num_heads=4,num_kv_heads=2,seq_q=9,head_dim=16,rotary_dim=16,is_causal=1", .positions = 9},
        {.problem = "batch=2,num_heads=2,seq_q=3,seq_kv=19,head_dim=10,rotary_dim=6,rotary_interleaved=1,"
                    "is_causal=1,causal_align=bottom_right,has_lse=1",
         .positions = 19,
         .own_caches = 1},
        {.problem = "batch=2,num_heads=2,seq_q=7,head_dim=8,rotary_dim=8,has_position_ids=1,dtype=f16",
         .positions = 30},
        {.problem = "batch=3,num_heads=2,seq_q=4,seq_kv=20,head_dim=8,rotary_dim=4,has_kv_lens=1,dtype=f64,"
                    "causal_align=top_left,"
                    "has_causal_offsets=1",
         .positions = 20,
         .kv = {20, 0, 7}},
        {.problem = "batch=3,num_heads=2,seq_q=dynamic,is_ragged=1,seq_kv=dynamic,head_dim=8,rotary_dim=8,is_causal=1",
         .seq_q = 5,
         .seq_kv = 9,
         .positions = 9,
         .q = {1, 5, 0},
         .kv = {2, 9, 4}},
        {.problem = "batch=3,num_heads=2,seq_q=dynamic,is_ragged=1,seq_kv=dynamic,head_dim=8,rotary_dim=8,page_size=4,"
                    "has_kv_lens=1,is_causal=1,causal_align=bottom_right",
         .seq_q = 5,
         .seq_kv = 9,
         .pages = 9,
         .max_pages = 3,
         .positions = 9,
         .own_caches = 1,
         .q = {1, 5, 0},
         .kv = {2, 9, 4}},
        {.problem =
             "batch=3,num_heads=2,seq_q=dynamic,is_ragged=1,seq_kv=dynamic,head_dim=8,rotary_dim=8,has_position_ids=1",
         .seq_q = 5,
         .seq_kv = 5,
         .positions = 30,
         .q = {3, 0, 5},
         .kv = {3, 0, 5}},
        {.problem = "batch=2,num_heads=4,num_kv_heads=1,seq_q=2,seq_kv=30,head_dim=24,head_dim_v=20,"
                    "rotary_dim=8,page_size=8",
         .pages = 8,
         .max_pages = 4,
         .positions = 30,
         .kv = {30, 30}},
    };
    CHECK_ALL(samples);
}

static void test_appending(void **state) {
    (void)state;
    static const sample samples[] = {
        {.problem = "batch=2,num_heads=4,num_kv_heads=2,seq_q=1,seq_kv=17,head_dim=16,seq_new=1"},
        {.problem =
             "batch=3,num_heads=2,seq_q=4,seq_kv=40,head_dim=13,head_dim_v=21,seq_new=4,has_kv_lens=1,is_causal=1,"
             "causal_align=bottom_right,rotary_dim=6,k_dtype=f16",
         .positions = 40,
         .kv = {40, 4, 21}},
        {.problem = "batch=2,num_heads=2,seq_q=3,seq_kv=40,head_dim=16,seq_new=3,has_kv_lens=1,rotary_dim=16,"
                    "rotary_interleaved=1,has_position_ids=1,dtype=f16,layout=bshd",
         .positions = 50,
         .kv = {33, 20}},
        {.problem =
             "batch=2,num_heads=2,seq_q=3,seq_kv=40,head_dim=14,head_dim_v=21,seq_new=3,has_kv_lens=1,dtype=bf16",
         .kv = {33, 20}},
        {.problem = "batch=2,num_heads=2,seq_q=3,seq_kv=20,head_dim=16,seq_new=dynamic,has_kv_lens=1,is_causal=1",
         .kv = {12, 0}},
        {.problem =
             "batch=3,num_heads=2,num_kv_heads=1,seq_q=dynamic,is_ragged=1,seq_kv=dynamic,head_dim=8,page_size=4,"
             "has_kv_lens=1,is_causal=1,causal_align=bottom_right,seq_new=dynamic,rotary_dim=8,dtype=f64",
         .seq_q = 5,
         .seq_kv = 9,
         .pages = 9,
         .max_pages = 3,
         .positions = 9,
         .q = {1, 5, 0},
         .kv = {2, 9, 4}},
        {.problem = "batch=2,num_heads=3,num_kv_heads=1,seq_q=18,seq_kv=40,head_dim=12,head_dim_v=8,v_in_k=1,"
                    "seq_new=18,has_kv_lens=1",
         .kv = {40, 18}},
    };
    CHECK_ALL(samples);
}

static void test_weights_of_attention(void **state) {
    (void)state;
    static const sample samples[] = {
        {.problem = "num_heads=4,num_kv_heads=2,seq_q=21,seq_kv=40,head_dim=16,is_causal=1,weights_mode=softmax"},
        {.problem = "batch=2,num_heads=4,num_kv_heads=2,seq_q=21,seq_kv=40,head_dim=16,weights_mode=softmax,has_lse=1,"
                    "has_kv_lens=1,attn_mask_dims=bqk,weights_average=1",
         .kv = {40, 11}},
        {.problem = "num_heads=2,seq_q=5,seq_kv=40,head_dim=16,weights_mode=scaled,logits_soft_cap=2,attn_bias_dims=qk,"
                    "has_lse=1"},
        {.problem = "num_heads=2,seq_q=5,seq_kv=40,head_dim=16,weights_mode=masked,window_left=5,dtype=f16"},
        {.problem = "num_heads=2,seq_q=5,seq_kv=43,head_dim=16,weights_mode=softmax,dtype=bf16,softmax_precision=f64"},
        {.problem = "batch=3,num_heads=2,seq_q=2,seq_kv=40,head_dim=16,weights_mode=scaled,has_kv_lens=1,rotary_dim=16,"
                    "causal_align=top_left",
         .positions = 40,
         .kv = {40, 0, 9}},
        {.problem =
             "batch=2,num_heads=2,seq_q=2,seq_kv=40,head_dim=16,weights_mode=softmax,has_kv_lens=1,rotary_dim=16,"
             "seq_new=2,has_sinks=1,has_alibi_slopes=1,dtype=f64",
         .positions = 40,
         .kv = {40, 9}},
    };
    CHECK_ALL(samples);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rotary_op),
        cmocka_unit_test(test_weights_op),
        cmocka_unit_test(test_weights_of_empty_rows),
        cmocka_unit_test(test_rotary_in_attention),
        cmocka_unit_test(test_appending),
        cmocka_unit_test(test_weights_of_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
