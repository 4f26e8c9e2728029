/* The kernel of linear attention, as loop IR.
 *
 * A column of the state depends on no other column. So a task is some vectors of columns of one state, and goes through
 * all tokens of its sequence:
 *
 *                columns of V ►      for each row i of the state, in registers:
 *        i  ┌───────┬───────┐           S = a S + (beta k)_i r         r = v - u: what delta corrects
 *        ▼  │ task  │ task  │           o = o + S q_i                  out of this token
 *    rows   │       │       │           u = u + S (a' k')_i            of the next token: a' S^T k'
 *    of K   └───────┴───────┘
 *
 * One pass over the state serves the update, the output and the next token's u: one load and one store of the state for
 * three multiply-adds. Prompts that need not be reproducible have a kernel of their own, in which chunks of tokens are
 * matrix products (kernel_chunk.c).
 *
 * o and u are sums over even and odd rows, added up at the end: the order is the same for each number of vectors. A
 * task of a prompt keeps its columns in scratch, where they lie side by side. */
#include "linear/kernel.h"
#include "described/described.h"
#include "linear/writer.h"
#include "problem/problem_fields.h"

#include <stdio.h>

const attune_choice lin_choices[LIN_NUM_CHOICES] = {
    {.name = "vectors", .values = (const int32_t[]){1, 2, 4, 8}, .num_values = 4, .usual = 4}};

/* ---- What the kernel is written with ---- */

static bool read_problem(writer *x, const char *problem) {
    attune_linear_desc d;
    uint32_t which;
    if (!at_described_read(&lin_described, problem, &d, &which)) return false;
    x->least_heads = d.num_kv_heads;
    x->group = d.num_heads > d.num_kv_heads ? d.num_heads / d.num_kv_heads : 1;
    x->dim = d.head_dim, x->dim_v = d.head_dim_v;
    x->dtype = mha_dtype_name(d.dtype), x->decay_dtype = mha_dtype_name(d.decay_dtype);
    x->beta_dtype = mha_dtype_name(d.beta_dtype), x->state = mha_dtype_name(d.state_dtype);
    x->rule = (int)d.rule, x->decay = (int)d.decay, x->beta = d.has_beta, x->gate = (int)d.gate;
    x->is_any = which >= LIN_ANY, x->which = (int)which - (x->is_any ? LIN_ANY : 0);
    x->out_norm = d.out_norm_eps;
    return true;
}

/* Whether the pass that updates the state also makes the u of the next token. Of a few tokens it would be wasted on the
 * last one. */
static bool has_next(const writer *x) { return x->has_delta && x->which != LIN_FEW; }

/* Sums of a pass: two of each vector of o and u, and r; beside them a vector of the state and what it is multiplied by.
 * So many vectors that they fit. */
static void choose_sizes(writer *x, const attune_build_request *request) {
    enum { BESIDE = 3, MOST_HEADS = 4, MOST_BLOCKS = 8, ENOUGH_TASKS = 16 };
    const int registers = at_registers_of(request->isa);
    x->has_fma = request->has_fma, x->has_many_registers = registers > 16;
    x->lanes = request->vector_bytes / 4;
    x->vectors = request->schedule[0];
    x->at_once = x->group < MOST_HEADS ? (int)x->group : MOST_HEADS;
    x->has_delta = x->rule >= ATTUNE_DELTA;
    if (x->which == LIN_FEW && !x->is_any && x->least_heads * x->dim_v / (2 * x->vectors * x->lanes) >= ENOUGH_TASKS)
        x->vectors *= 2;
    while (x->vectors > 1 && (x->vectors - 1) * x->lanes >= x->dim_v) x->vectors /= 2;
    const int sums = has_next(x);
    while (x->at_once > 1 && 2 * (x->at_once + sums) + 1 + BESIDE > registers) x->at_once--;
    while (x->vectors > 1 && x->vectors * (2 * (x->at_once + sums) + 1) + BESIDE > registers) x->vectors /= 2;
    x->blocks = 1;
    if (x->which != LIN_CHUNKS) return;
    if (x->vectors > 2) x->vectors = 2;
    const long long columns = x->vectors * x->lanes, most = (x->dim_v + columns - 1) / columns;
    while (x->blocks * 2 <= most && x->blocks < MOST_BLOCKS && x->least_heads * most / (2 * x->blocks) >= ENOUGH_TASKS)
        x->blocks *= 2;
}

/* ---- The parameters ---- */

static void put_tensor(const writer *x, const char *name, const char *dtype, const char *heads, const char *columns,
                       const char *way) {
    PUT("  %s: %s[batches, tokens, %s%s%s] strides [%s_b, %s_t, %s_h%s] %s,\n", name, dtype, heads,
        *columns ? ", " : "", columns, name, name, name, *columns ? ", 1" : "", way);
}

static void put_parameters(const writer *x) {
    char dim[24], dim_v[24], out_heads[32] = "kv_heads";
    if (x->group > 1) snprintf(out_heads, sizeof out_heads, "kv_heads * %lld", x->group);
    snprintf(dim, sizeof dim, x->is_any ? "dim" : "%lld", x->dim);
    snprintf(dim_v, sizeof dim_v, x->is_any ? "dim_v" : "%lld", x->dim_v);
    PUT("kernel @linear_attention (\n");
    put_tensor(x, "q", x->dtype, x->group > 1 ? out_heads : "q_heads", dim, "in");
    put_tensor(x, "k", x->dtype, "k_heads", dim, "in");
    put_tensor(x, "v", x->dtype, "kv_heads", dim_v, "in");
    if (x->decay) put_tensor(x, "decay", x->decay_dtype, "kv_heads", x->decay == ATTUNE_DECAY_KEY ? dim : "", "in");
    if (x->beta) put_tensor(x, "beta", x->beta_dtype, "kv_heads", "", "in");
    PUT("  state: %s[states, kv_heads, %s, %s] strides [state_b, state_h, state_t, 1] inout,\n", x->state, dim, dim_v);
    put_tensor(x, "y", x->dtype, out_heads, dim_v, lin_has_finish(x) ? "inout" : "out");
    if (x->gate) put_tensor(x, "gate", x->dtype, out_heads, dim_v, "in");
    if (x->out_norm > 0) PUT("  norm: %s[%s] in,\n", x->dtype, dim_v);
    PUT("  parts: i32[batch, 3] in, batch: idx, batches: idx, tokens: idx, states: idx,\n");
    PUT("  q_heads: idx, k_heads: idx, kv_heads: idx, dim: idx, dim_v: idx,\n");
    PUT("  q_b: idx, q_h: idx, q_t: idx, k_b: idx, k_h: idx, k_t: idx, v_b: idx, v_h: idx, v_t: idx,\n");
    if (x->decay) PUT("  decay_b: idx, decay_h: idx, decay_t: idx,\n");
    if (x->beta) PUT("  beta_b: idx, beta_h: idx, beta_t: idx,\n");
    PUT("  state_b: idx, state_h: idx, state_t: idx, y_b: idx, y_h: idx, y_t: idx,\n");
    if (x->gate) PUT("  gate_b: idx, gate_h: idx, gate_t: idx,\n");
    PUT("  scale: f32, qk_eps: f32) {\n");
    PUT("assume batches >= 1\nassume tokens >= 1\nassume states >= 1\n");
    PUT("assume q_heads >= 1\nassume k_heads >= 1\nassume kv_heads >= 1\n");
    if (x->is_any) PUT("assume dim >= 1\nassume dim <= %d\nassume dim_v >= 1\n", LIN_ANY_DIM);
}

/* ---- Rows of Q and K, in scratch as f32 ---- */

/* The row of (a k) that belongs to token `t`. */
static void put_next_key(writer *x, const char *t, const char *ahead) {
    char row[64], decay[64], factor[32] = "";
    snprintf(row, sizeof row, "k[b, %s, k_head", t);
    snprintf(decay, sizeof decay, "decay[b, %s, head", t);
    if (x->decay == ATTUNE_DECAY_HEAD) {
        const int n = x->names++;
        PUT("let of_next%d = exp2(%s(decay[b, %s, head]) * 0x1.715476p+0)\n", n, lin_cast(x->decay_dtype), t);
        snprintf(factor, sizeof factor, "of_next%d", n);
    }
    lin_put_row(x, row, "next[0", *factor ? factor : NULL, x->decay == ATTUNE_DECAY_KEY ? decay : NULL, ahead);
}

/* All that token `t` needs: beta k, q of the heads that share the state, and its decays. */
static void put_token(writer *x) {
    char row[64], to[32], ahead[64];
    if (x->beta && x->has_delta) PUT("let strength = %s(beta[b, t, head])\n", lin_cast(x->beta_dtype));
    lin_put_row(x, "k[b, t, k_head", "key[0", x->beta && x->has_delta ? "strength" : NULL, NULL,
                x->has_delta ? NULL : "k[b, t_ahead, k_head");
    for (long long g = 0; g < x->group; g++) {
        snprintf(row, sizeof row, "q[b, t, q_head + %lld", g);
        snprintf(to, sizeof to, "query[%lld", g);
        snprintf(ahead, sizeof ahead, "q[b, t_ahead, q_head + %lld", g);
        lin_put_row(x, row, to, "scale", NULL, ahead);
    }
    if (x->decay == ATTUNE_DECAY_HEAD)
        PUT("let kept = splat.x%d(exp2(%s(decay[b, t, head]) * 0x1.715476p+0))\n", x->lanes, lin_cast(x->decay_dtype));
    if (x->decay == ATTUNE_DECAY_KEY) lin_put_decays(x, "decay[b, t, head", "decays[0");
}

/* ---- The state ---- */

static bool has_scratch(const writer *x) { return x->which != LIN_FEW || !lin_is_f32(x->state); }

/* The row of the copy in scratch: one block of columns lies behind the other. */
static const char *copied_row(const writer *x, const char *row) {
    static _Thread_local char text[64];
    if (x->which != LIN_CHUNKS) return row;
    snprintf(text, sizeof text, "base%d + %s", x->place, row);
    return text;
}

/* Between the state and its copy in scratch. */
static void put_copy(writer *x, bool is_back) {
    const bool is_f32 = lin_is_f32(x->state);
    lin_open_columns(x);
    PUT(x->is_any ? "for row%d in 0..dim {\n" : "for row%d in 0..%lld {\n", is_back, x->dim);
    for (int v = 0; v < x->vectors; v++) {
        char state[96], copy[96];
        snprintf(state, sizeof state, "state[slot, head, row%d, %s]:x%d%s", is_back, lin_column(x, v), x->lanes,
                 lin_live(x, v));
        snprintf(copy, sizeof copy, "s[%s, %d]:x%d", copied_row(x, is_back ? "row1" : "row0"), v * x->lanes, x->lanes);
        if (is_back)
            PUT("%s = %s%s(%s)\n", state, is_f32 ? "" : "cast.", is_f32 ? "" : x->state, copy);
        else
            PUT("%s = %s(%s)\n", copy, lin_cast(x->state), state);
    }
    PUT("}\n");
    lin_close_columns(x);
}

/* An access to a vector of the state of row `row`. */
static const char *state_at(const writer *x, const char *row, int v) {
    static _Thread_local char text[128];
    if (has_scratch(x))
        snprintf(text, sizeof text, "s[%s, %d]:x%d", copied_row(x, row), v * x->lanes, x->lanes);
    else
        snprintf(text, sizeof text, "state[slot, head, %s, %s]:x%d%s", row, lin_column(x, v), x->lanes, lin_live(x, v));
    return text;
}

/* ---- Passes over the rows ---- */

typedef void row_body(writer *x, const char *row, int half);

/* Even and odd rows have sums of their own. */
static void put_rows(writer *x, row_body *body) {
    const int n = x->names++;
    char row[32];
    if (x->dim > 1) {
        if (x->is_any)
            PUT("for pair%d in 0..dim / 2 {\nlet i_%d = pair%d * 2\n", n, n, n);
        else
            PUT("for i_%d in 0..%lld by 2 {\n", n, x->dim / 2 * 2);
        for (int half = 0; half < 2; half++) {
            snprintf(row, sizeof row, half ? "i_%d + 1" : "i_%d", n);
            body(x, row, half);
        }
        PUT("}\n");
    }
    if (x->dim % 2) {
        snprintf(row, sizeof row, "%lld", x->dim - 1);
        body(x, row, 0);
    }
}

static void put_zeros(const writer *x, const char *name, int first, int count) {
    for (int i = first; i < first + count; i++)
        for (int v = 0; v < x->vectors; v++)
            for (int half = 0; half < 2; half++) PUT("%s[%d, %d, %d] = splat.x%d(0.0)\n", name, i, v, half, x->lanes);
}

/* u = S^T (a k) of a token. */
static void row_of_first(writer *x, const char *row, int half) {
    const int n = x->names++;
    char key[32], sum[48];
    PUT("let w%d = splat.x%d(next[0, %s])\n", n, x->lanes, row);
    snprintf(key, sizeof key, "w%d", n);
    for (int v = 0; v < x->vectors; v++) {
        snprintf(sum, sizeof sum, "u[0, %d, %d]", v, half);
        PUT("%s = ", sum);
        at_put_madd(x->w, x->has_fma, state_at(x, row, v), key, sum);
        PUT("\n");
    }
}

/* o of the heads at hand, of the state `made`. */
static void add_outputs(const writer *x, const char *made, int n, int v, int half) {
    char query[32], sum[48];
    for (int g = 0; g < x->now; g++) {
        snprintf(query, sizeof query, "q%d.%d", n, g);
        snprintf(sum, sizeof sum, "o[%d, %d, %d]", g, v, half);
        PUT("%s = ", sum);
        at_put_madd(x->w, x->has_fma, made, query, sum);
        PUT("\n");
    }
}

static void put_queries(const writer *x, const char *row, int n) {
    for (int g = 0; g < x->now; g++) PUT("let q%d.%d = splat.x%d(query[%d, %s])\n", n, g, x->lanes, x->first + g, row);
}

static void row_of_update(writer *x, const char *row, int half) {
    const int n = x->names++;
    char key[32], next[32], sum[48], old[160], right[32], made[32];
    snprintf(key, sizeof key, "k%d", n);
    snprintf(next, sizeof next, "w%d", n);
    PUT("let %s = splat.x%d(key[0, %s])\n", key, x->lanes, row);
    if (has_next(x)) PUT("let %s = splat.x%d(next[0, %s])\n", next, x->lanes, row);
    if (x->decay == ATTUNE_DECAY_KEY) PUT("let a%d = splat.x%d(decays[0, %s])\n", n, x->lanes, row);
    put_queries(x, row, n);
    for (int v = 0; v < x->vectors; v++) {
        snprintf(old, sizeof old, "%s", state_at(x, row, v));
        if (x->decay == ATTUNE_DECAY_KEY) snprintf(old, sizeof old, "(a%d * %s)", n, state_at(x, row, v));
        if (x->decay == ATTUNE_DECAY_HEAD) snprintf(old, sizeof old, "(kept * %s)", state_at(x, row, v));
        snprintf(right, sizeof right, "r[%d]", v);
        snprintf(made, sizeof made, "s%d.%d", n, v);
        PUT("let %s = ", made);
        at_put_madd(x->w, x->has_fma, key, right, old);
        PUT("\n%s = %s\n", state_at(x, row, v), made);
        add_outputs(x, made, n, v, half);
        if (!has_next(x)) continue;
        snprintf(sum, sizeof sum, "u[0, %d, %d]", v, half);
        PUT("%s = ", sum);
        at_put_madd(x->w, x->has_fma, made, next, sum);
        PUT("\n");
    }
}

/* Heads of q beyond those of the pass that updates. */
static void row_of_more_heads(writer *x, const char *row, int half) {
    const int n = x->names++;
    char made[32];
    put_queries(x, row, n);
    for (int v = 0; v < x->vectors; v++) {
        snprintf(made, sizeof made, "s%d.%d", n, v);
        PUT("let %s = %s\n", made, state_at(x, row, v));
        add_outputs(x, made, n, v, half);
    }
}

/* ---- A token ---- */

static void put_outputs(const writer *x) {
    for (int g = 0; g < x->now; g++)
        for (int v = 0; v < x->vectors; v++) {
            PUT("y[b, t, out_head + %d, %s]:x%d%s = %s%s(o[%d, %d, 0] + o[%d, %d, 1])\n", x->first + g,
                lin_column(x, v), x->lanes, lin_live(x, v), lin_is_f32(x->dtype) ? "" : "cast.",
                lin_is_f32(x->dtype) ? "" : x->dtype, g, v, g, v);
        }
}

/* r: what the state is to hold for the key of this token beyond what it holds. */
static void put_right_side(const writer *x) {
    for (int v = 0; v < x->vectors; v++) {
        PUT("prefetch v[b, t_ahead, head, %s]\n", lin_column(x, v));
        PUT("let value%d = %s(v[b, t, head, %s]:x%d%s)\n", v, lin_cast(x->dtype), lin_column(x, v), x->lanes,
            lin_live(x, v));
        if (x->has_delta)
            PUT("r[%d] = value%d - (u[0, %d, 0] + u[0, %d, 1])\n", v, v, v, v);
        else
            PUT("r[%d] = value%d\n", v, v);
    }
}

static void put_first_pass(writer *x, const char *t) {
    PUT("let t_ahead.first = %s + 1\n", t);
    put_next_key(x, t, "k[b, t_ahead.first, k_head");
    put_zeros(x, "u", 0, 1);
    put_rows(x, row_of_first);
}

static void put_tokens(writer *x) {
    enum { AHEAD = 4 }; /* tokens: rows of them lie far apart, where caches do not look by themselves */
    if (has_next(x)) put_first_pass(x, x->begin);
    PUT("for t in %s..end {\nlet t_ahead = t + %d\n", x->begin, AHEAD);
    if (x->has_delta && !has_next(x)) put_first_pass(x, "t");
    put_token(x);
    put_right_side(x);
    if (has_next(x)) {
        PUT("let t_next in 0..tokens = min(t + 1, end - 1)\n");
        put_next_key(x, "t_next", "k[b, t_ahead, k_head");
        put_zeros(x, "u", 0, 1);
    }
    for (x->first = 0; x->first < x->group; x->first += x->at_once) {
        const int left = (int)x->group - x->first;
        x->now = left < x->at_once ? left : x->at_once;
        put_zeros(x, "o", 0, x->now);
        put_rows(x, x->first ? row_of_more_heads : row_of_update);
        put_outputs(x);
    }
    PUT("}\n");
}

/* ---- The kernel ---- */

static void put_memory(const writer *x) {
    const long long padded = (x->dim + x->lanes - 1) / x->lanes * x->lanes;
    PUT("alloc key: f32[1, %lld] scratch\nalloc query: f32[%lld, %lld] scratch\n", padded, x->group, padded);
    if (x->decay == ATTUNE_DECAY_KEY) PUT("alloc decays: f32[1, %lld] scratch\n", padded);
    PUT("alloc o: f32x%d[%d, %d, 2] reg\nalloc r: f32x%d[%d] reg\n", x->lanes, x->at_once, x->vectors, x->lanes,
        x->vectors);
    if (x->has_delta)
        PUT("alloc next: f32[1, %lld] scratch\nalloc u: f32x%d[1, %d, 2] reg\n", padded, x->lanes, x->vectors);
    if (x->which == LIN_CHUNKS) lin_put_chunk_memory(x);
    if (has_scratch(x)) PUT("alloc s: f32[%lld, %d] scratch\n", x->blocks * x->dim, x->vectors * x->lanes);
}

static void put_heads(const writer *x) {
    PUT("let k_head in 0..k_heads = head / max(kv_heads / k_heads, 1)\n");
    if (x->group > 1)
        PUT("let q_head = head * %lld\nlet out_head = head * %lld\n", x->group, x->group);
    else
        PUT("let q_head in 0..q_heads = head / max(kv_heads / q_heads, 1)\nlet out_head = head\n");
}

int lin_build(void *user, const attune_build_request *request, attune_ir_writer *w) {
    writer all = {.w = w}, *const x = &all;
    (void)user;
    if (!read_problem(x, request->problem)) {
        PUT("%s is no problem of linear attention", request->problem);
        return 1;
    }
    choose_sizes(x, request);
    const long long width = x->blocks * x->vectors * x->lanes, parts = (x->dim_v + width - 1) / width;
    put_parameters(x);
    PUT("parallel for number in 0..batch, head in 0..kv_heads, part in 0..");
    PUT(x->is_any ? "dim_v / %lld {\n" : "%lld {\n", x->is_any ? width : parts);
    PUT("let first in 0..tokens + 1 = cast.idx(parts[number, 0])\nlet end in 0..tokens + 1 = cast.idx(parts[number, 1])"
        "\nlet slot in 0..states = cast.idx(parts[number, 2])\nif first < end {\n");
    PUT("let b in 0..batches = min(number, batches - 1)\n");
    put_heads(x);
    put_memory(x);
    if (has_scratch(x)) put_copy(x, false);
    if (x->which == LIN_CHUNKS) lin_put_chunks(x);
    x->begin = x->which == LIN_CHUNKS ? "rest" : "first";
    if (x->which == LIN_CHUNKS)
        PUT("let rest in 0..tokens + 1 = end - (end - first) %% %d\nif rest < end {\n", LIN_CHUNK);
    lin_open_columns(x);
    put_tokens(x);
    lin_close_columns(x);
    if (x->which == LIN_CHUNKS) PUT("}\n");
    if (has_scratch(x)) put_copy(x, true);
    PUT("}\n}\n");
    if (lin_has_finish(x)) lin_put_finish(x);
    PUT("}\n");
    return 0;
}
