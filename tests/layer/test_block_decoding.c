/* A sequence given to a block a few tokens at a time, with caches, has the bits of all of it at once. The pieces are of
 * unequal lengths, in batches that are dense or ragged, with caches in pages or in one piece. */
#include "engine/context.h"
#include "schedule/choose.h"
#include "support/ir/jit_run.h"
#include "support/problems.h"
#include "support/tensor_calls.h"
#include "target/target.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 2, MOST_TOKENS = 64, MOST_PIECE = 17, NUM_PIECES = 3 };
enum { PAGE = 4, MOST_PAGES = BATCH * MOST_TOKENS / PAGE, NUM_PAGES = 35 /* has no divisor with 11 */ };

/* How the sequence is cut, and where its keys are kept. */
typedef struct decoding_way {
    bool is_ragged, is_paged;
    int pieces[NUM_PIECES]; /* tokens of the calls in turn; of a ragged batch each entry begins with another one */
} decoding_way;

typedef struct decoding {
    const decoding_way *way;
    tensors whole, step;
    int tokens;
    int done[BATCH], now[BATCH]; /* tokens of each entry before this call, and in it */
    int32_t kv_lens[BATCH], cu_seqlens_q[BATCH + 1];
    attune_arguments call;
} decoding;

/* ---- Problems ---- */

static void open_whole(decoding *d, const char *common) {
    char text[512], sizes[64];
    snprintf(text, sizeof text, "batch=%d,%s,is_causal=1,reproducible=1,seq_q=%d", BATCH, common, d->tokens);
    snprintf(sizes, sizeof sizes, strstr(common, "rotary_dim") ? "rotary_positions=%d" : "", MOST_TOKENS);
    tensors_open_call(&d->whole, text, sizes, INPUT_ORDINARY, 4);
}

static void open_step(decoding *d, const char *common) {
    char text[512], sizes[256], keys[64] = "";
    const bool is_ragged = d->way->is_ragged, is_paged = d->way->is_paged;
    snprintf(text, sizeof text,
             "batch=%d,%s,is_causal=1,causal_align=bottom_right,reproducible=1,has_kv_lens=1,seq_q=dynamic,"
             "seq_new=dynamic,seq_kv=%d%s%s",
             BATCH, common, MOST_TOKENS, is_ragged ? ",is_ragged=1" : "", is_paged ? ",page_size=4" : "");
    if (is_paged)
        snprintf(keys, sizeof keys, ",num_pages=%d,max_pages=%d", NUM_PAGES, MOST_TOKENS / PAGE);
    else if (is_ragged)
        snprintf(keys, sizeof keys, ",total_kv=%d", BATCH * MOST_TOKENS);
    if (is_ragged)
        snprintf(sizes, sizeof sizes, "seq_q=%d,total_q=%d,seq_kv=%d%s", MOST_PIECE, BATCH * MOST_PIECE, MOST_TOKENS,
                 keys);
    else
        snprintf(sizes, sizeof sizes, "seq_q=%d,seq_new=%d%s", MOST_PIECE, MOST_PIECE, keys);
    const size_t length = strlen(sizes);
    if (strstr(common, "rotary_dim"))
        snprintf(sizes + length, sizeof sizes - length, ",rotary_positions=%d", MOST_TOKENS);
    tensors_open_call(&d->step, text, sizes, INPUT_ORDINARY, 5);
}

/* Room for all tokens of each entry: pages in no order, or pieces of one cache. */
static void lay_out_caches(decoding *d) {
    if (d->way->is_paged) {
        int32_t *const pages = tensors_find(&d->step, "block_table")->data;
        for (int i = 0; i < MOST_PAGES; i++) pages[i] = i * 11 % NUM_PAGES;
    } else if (d->way->is_ragged) {
        int32_t *const begin = tensors_find(&d->step, "cu_seqlens_kv")->data;
        for (int b = 0; b <= BATCH; b++) begin[b] = b * MOST_TOKENS;
    }
}

/* Everything except the step's own part is the whole's. */
static void open_call(decoding *d) {
    const attune_arguments *const whole = &d->whole.arguments;
    lay_out_caches(d);
    tensors_arguments(&d->step, &d->call);
    d->call.packed_weights = whole->packed_weights;
    d->call.cos = whole->cos;
    d->call.sin = whole->sin;
    d->call.q_norm = whole->q_norm;
    d->call.k_norm = whole->k_norm;
    d->call.sinks = whole->sinks;
    d->call.alibi_slopes = whole->alibi_slopes;
    d->call.rotary_batch_stride = whole->rotary_batch_stride;
    d->call.kv_lens = d->kv_lens;
    d->call.cu_seqlens_q = d->cu_seqlens_q;
}

/* The schedule chosen for few or for many queries, which is of this strategy. */
static mha_schedule schedule_of(attune_context *context, const attune_problem *p, mha_strategy strategy) {
    enum { MANY = 600 };
    mha_schedule s = {0};
    attune_problem like = *p;
    like.seq_q = strategy == MHA_D_LANES ? 1 : MANY;
    if (like.seq_new) like.seq_new = like.seq_q;
    like.seq_kv = like.seq_new ? MANY : like.seq_q;
    like.max_seq_q = like.max_seq_kv = 0;
    attune_problem c;
    if (mha_canonicalize(&like, &c, NULL)) fail_msg("%s", attune_last_message());
    mha_choose_by(strategy, mha_read(&c), context->target, usual_machine(context->target), &s);
    return s;
}

/* ---- Calls ---- */

static size_t row_bytes(const tensor *t) {
    const attune_dtype type = t->info.dtype;
    const size_t element = type == ATTUNE_F64 ? 8 : type == ATTUNE_F32 || type == ATTUNE_I32 ? 4 : 2;
    return element * (size_t)(t->info.rank == 3 ? t->info.dims[2] : 1);
}

/* The rows of this call between a tensor of the whole and one of the step. */
static void move_rows(const decoding *d, const char *name, bool to_step, char *all) {
    const tensor *const step = tensors_find(&d->step, name);
    if (!step) return;
    const size_t bytes = row_bytes(step);
    char *part = step->data;
    for (int b = 0; b < BATCH; b++) {
        char *const at = all + (size_t)(b * d->tokens + d->done[b]) * bytes;
        const size_t length = (size_t)d->now[b] * bytes;
        memcpy(to_step ? part : at, to_step ? at : part, length);
        part += length;
    }
}

static bool begin_call(decoding *d, int number) {
    int left = 0;
    for (int b = 0; b < BATCH; b++) {
        const int piece = d->way->pieces[(number + (d->way->is_ragged ? b : 0)) % NUM_PIECES];
        const int rest = d->tokens - d->done[b];
        d->now[b] = piece < rest ? piece : rest;
        d->kv_lens[b] = d->done[b] + d->now[b];
        d->cu_seqlens_q[b + 1] = d->cu_seqlens_q[b] + d->now[b];
        left += rest;
    }
    d->call.seq_q = d->way->is_ragged ? MOST_PIECE : d->now[0];
    d->call.seq_new = d->call.seq_q;
    d->call.total_q = d->cu_seqlens_q[BATCH];
    memset(d->call.x.strides, 0, sizeof d->call.x.strides);
    memset(d->call.out.strides, 0, sizeof d->call.out.strides);
    return left > 0;
}

static void decode(decoding *d, attune_context *context, const mha_schedule *schedule, char *out) {
    attune_kernel *kernel = NULL;
    const tensor *const ids = tensors_find(&d->whole, "position_ids");
    if (attune_compile(context, &d->step.problem, TEXT_OF(schedule), &kernel)) fail_msg("%s", attune_last_message());
    for (int number = 0; begin_call(d, number); number++) {
        move_rows(d, "x", true, tensors_find(&d->whole, "x")->data);
        if (ids) move_rows(d, "position_ids", true, ids->data);
        if (attune_run(context, kernel, &d->call)) fail_msg("%s", attune_last_message());
        move_rows(d, "out", false, out);
        for (int b = 0; b < BATCH; b++) d->done[b] += d->now[b];
    }
    attune_kernel_release(kernel);
}

/* strategies: of the whole and of the steps; NULL: as chosen. */
static void check(attune_context *context, const char *common, int tokens, const decoding_way *way,
                  const mha_strategy strategies[2]) {
    decoding d = {.way = way, .tokens = tokens};
    mha_schedule schedules[2];
    open_whole(&d, common);
    open_step(&d, common);
    open_call(&d);
    for (int i = 0; strategies && i < 2; i++)
        schedules[i] = schedule_of(context, i ? &d.step.problem : &d.whole.problem, strategies[i]);
    tensors_run_chosen(context, &d.whole, strategies ? &schedules[0] : NULL);
    const tensor *const whole = tensors_find(&d.whole, "out");
    const size_t bytes = row_bytes(whole) * (size_t)(BATCH * tokens);
    char *const out = calloc(1, bytes);
    assert_non_null(out);
    decode(&d, context, strategies ? &schedules[1] : NULL, out);
    if (memcmp(out, whole->data, bytes))
        fail_msg("%s, %s%s %d, %d, %d …, strategies %d and %d: other bits than the whole", common,
                 way->is_ragged ? "ragged" : "dense", way->is_paged ? " and paged" : "", way->pieces[0], way->pieces[1],
                 way->pieces[2], strategies ? (int)strategies[0] : -1, strategies ? (int)strategies[1] : -1);
    free(out);
    tensors_free(&d.step);
    tensors_free(&d.whole);
}

static const decoding_way ways[] = {
    {false, false, {1, 1, 1}},    {false, false, {3, 1, 5}}, {false, true, {3, 1, 5}},
    {false, false, {17, 17, 17}}, {true, true, {3, 1, 17}},  {true, false, {3, 1, 5}},
};
enum { NUM_WAYS = sizeof ways / sizeof *ways };

/* ---- The tests ---- */

/* Each sort of problem in two ways for each target, which are others for the next one. */
static void test_chosen_schedules(void **state) {
    (void)state;
    static const char *const problems[] = {
        "embed_dim=40,num_heads=4",
        "embed_dim=40,num_heads=4,num_kv_heads=2,out_dim=17,rotary_dim=8",
        "embed_dim=40,num_heads=4,num_kv_heads=1,rotary_dim=6,rotary_interleaved=1",
        "embed_dim=33,num_heads=3,window_left=6,logits_soft_cap=4",
        "embed_dim=40,num_heads=4,num_kv_heads=2,head_dim=12,rotary_dim=12,qk_norm_eps=1e-6",
        "embed_dim=40,num_heads=4,k_dtype=f16,v_dtype=bf16,rotary_dim=4",
        "embed_dim=24,num_heads=1,v_in_k=1,head_dim_v=9",
        "embed_dim=40,num_heads=4,rotary_dim=10,has_position_ids=1,has_sinks=1",
        "embed_dim=128,num_heads=8,num_kv_heads=4,head_dim=64,head_dim_v=32,has_alibi_slopes=1,window_left=9,"
        "global_tokens=3",
        "embed_dim=40,num_heads=2,dtype=f16,w_dtype=bf16,rotary_dim=20",
        "embed_dim=40,num_heads=2,dtype=f64,k_dtype=f32,v_dtype=f16",
        "embed_dim=30,v_embed_dim=0,num_heads=5,num_kv_heads=5,head_dim=30,softmax_precision=f64,k_dtype=bf16",
    };
    size_t n = 0;
    for (const at_target *target = at_targets(); target->name; target++, n++) {
        if (!target_is_tested(target) || !target_can_run(target)) continue;
        attune_context *context = tensors_context(target->name, 2);
        for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
            for (size_t way = i + n; way <= i + n + NUM_WAYS / 2; way += NUM_WAYS / 2)
                check(context, problems[i], 31 + (int)(3 * i), &ways[way % NUM_WAYS], NULL);
        attune_context_destroy(context);
    }
}

/* Both strategies for the whole and for the steps. */
static void test_either_strategy(void **state) {
    (void)state;
    static const char *const problems[] = {
        "embed_dim=40,num_heads=4,num_kv_heads=2,rotary_dim=10,k_dtype=f16,v_dtype=f16",
        "embed_dim=70,num_heads=3,num_kv_heads=1,head_dim=21,head_dim_v=13,window_left=20,logits_soft_cap=4",
        "embed_dim=40,num_heads=1,dtype=f64",
        "embed_dim=40,num_heads=2,head_dim=24,qk_norm_eps=0.5",
    };
    attune_context *context = tensors_context(NULL, 2);
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (int both = 0; both < 4; both++) {
            const mha_strategy strategies[2] = {(mha_strategy)(both & 1), (mha_strategy)(both >> 1)};
            check(context, problems[i], 60, &ways[(i + (size_t)both) % NUM_WAYS], strategies);
        }
    attune_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chosen_schedules),
        cmocka_unit_test(test_either_strategy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
