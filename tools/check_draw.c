/* Random cases: sizes that are multiples of nothing, every layout, every kind of mask and input. */
#include "check_case.h"

#include <string.h>

static int64_t draw_size(tool_random *random, int64_t limit) {
    /* Small sizes meet most of the edges, large ones meet the loops between them. */
    const int64_t top = tool_random_chance(random, 40) ? 20 : tool_random_chance(random, 60) ? 90 : limit;
    return tool_random_range(random, 1, top < limit ? top : limit);
}

/* Strides of dims in a random order of the inner axes, with gaps or without. */
static void draw_strides(tool_random *random, const int64_t *dims, int rank, bool is_output, int64_t *strides) {
    static const int orders[][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {1, 0, 2, 3}, {2, 0, 1, 3}};
    const int *const order = orders[tool_random_range(random, 0, 3)];
    const bool has_gaps = tool_random_chance(random, 50);
    int64_t next = tool_random_chance(random, 15) ? tool_random_range(random, 2, 3) : 1;
    for (int at = 3; at >= 0; at--) {
        const int axis = order[at];
        if (axis >= rank) continue;
        strides[axis] = next;
        next *= dims[axis];
        if (has_gaps) next += tool_random_range(random, 0, 9);
    }
    /* One head or one batch entry of an input may serve all. */
    if (!is_output && tool_random_chance(random, 10)) strides[tool_random_range(random, 0, 1)] = 0;
}

static void draw_all_strides(tool_random *random, attune_problem *p) {
    const int64_t q[] = {p->batch, p->num_heads, p->seq_q, p->head_dim};
    const int64_t k[] = {p->batch, p->num_kv_heads, p->seq_kv, p->head_dim};
    const int64_t v[] = {p->batch, p->num_kv_heads, p->seq_kv, p->head_dim_v};
    const int64_t out[] = {p->batch, p->num_heads, p->seq_q, p->head_dim_v};
    if (tool_random_chance(random, 60)) draw_strides(random, q, 4, false, p->q_strides);
    if (tool_random_chance(random, 60)) draw_strides(random, k, 4, false, p->k_strides);
    if (tool_random_chance(random, 60)) draw_strides(random, v, 4, false, p->v_strides);
    if (tool_random_chance(random, 60)) draw_strides(random, out, 4, true, p->out_strides);
    if (p->has_lse && tool_random_chance(random, 60)) draw_strides(random, out, 3, true, p->lse_strides);
}

static void draw_causality(tool_random *random, attune_problem *p) {
    p->is_causal = 1;
    p->causal_align = tool_random_chance(random, 50) ? ATTUNE_BOTTOM_RIGHT : ATTUNE_TOP_LEFT;
    if (tool_random_chance(random, 40)) return;
    const int64_t reach = tool_random_chance(random, 10) ? INT32_MAX : p->seq_q + p->seq_kv + 2;
    p->causal_offset = tool_random_range(random, -reach, reach);
}

static double work(const attune_problem *p) {
    return 2.0 * (double)(p->batch * p->num_heads * p->seq_q * p->seq_kv) * (double)(p->head_dim + p->head_dim_v);
}

static void draw_problem(tool_random *random, double max_flops, attune_problem *p) {
    static const int64_t group_sizes[] = {1, 1, 1, 2, 3, 4, 7, 8};
    *p = (attune_problem)ATTUNE_PROBLEM_INIT;
    p->batch = tool_random_chance(random, 70) ? 1 : tool_random_range(random, 2, 3);
    p->num_kv_heads = tool_random_chance(random, 40) ? 1 : tool_random_range(random, 2, 4);
    p->num_heads = p->num_kv_heads * group_sizes[tool_random_range(random, 0, 7)];
    p->seq_q = draw_size(random, 400);
    p->seq_kv = tool_random_chance(random, 30) ? p->seq_q : draw_size(random, 400);
    p->head_dim = draw_size(random, 160);
    p->head_dim_v = tool_random_chance(random, 50) ? p->head_dim : draw_size(random, 160);
    while (work(p) > max_flops) {
        int64_t *const sizes[] = {&p->seq_q, &p->seq_kv, &p->head_dim, &p->head_dim_v, &p->batch};
        int64_t *largest = sizes[0];
        for (int i = 1; i < 5; i++)
            if (*sizes[i] > *largest) largest = sizes[i];
        if (*largest <= 1) break;
        *largest = *largest * 2 / 3;
        if (*largest < 1) *largest = 1;
    }
    p->has_lse = tool_random_chance(random, 50);
    if (tool_random_chance(random, 50)) draw_causality(random, p);
    if (tool_random_chance(random, 15)) p->softmax_scale = 0.125 * (double)tool_random_range(random, -4, 8);
    if (tool_random_chance(random, 50)) draw_all_strides(random, p);
}

static int32_t pick(tool_random *random, const int8_t *values, int count) {
    return values[tool_random_range(random, 0, count - 1)];
}

bool check_draw_schedule(check_machine *machine, tool_random *random, check_case *c) {
    static const int8_t rows[] = {1, 2, 3, 4, 5, 6, 8, 12, 16}, vectors[] = {1, 1, 2, 2, 3, 4, 6};
    attune_context *const context = check_context(machine, c->isa, c->threads);
    if (!context) return false;
    c->schedule = (attune_schedule)ATTUNE_SCHEDULE_INIT;
    if (attune_schedule_choose(context, &c->problem, &c->schedule) != ATTUNE_OK) {
        tool_library_error("choosing a schedule");
        return false;
    }
    if (tool_random_chance(random, 25)) return true;
    const attune_schedule chosen = c->schedule;
    for (int attempt = 0; attempt < 200; attempt++) {
        attune_schedule s = chosen;
        if (tool_random_chance(random, 30)) s.lanes = 1 << tool_random_range(random, 0, 4);
        s.value_vectors = pick(random, vectors, 7);
        s.score_vectors = s.value_vectors * pick(random, vectors, 7);
        s.q_vectors = s.score_vectors * pick(random, vectors, 7);
        s.score_rows = pick(random, rows, 9);
        s.value_rows = pick(random, rows, 9);
        s.score_unroll = pick(random, vectors, 7);
        s.value_unroll = pick(random, vectors, 7);
        s.kv_tile = s.score_rows * (int32_t)tool_random_range(random, 1, 24);
        if (attune_schedule_check(context, &c->problem, &s) != ATTUNE_OK) continue;
        c->schedule = s;
        break;
    }
    return true;
}

bool check_draw(check_machine *machine, tool_random *random, double max_flops, check_case *c) {
    *c = (check_case){.isa = (uint32_t)tool_random_range(random, 0, machine->num_isas - 1)};
    c->threads = (uint32_t)tool_random_range(random, 1, CHECK_MAX_THREADS);
    c->inputs = tool_random_chance(random, 60) ? INPUT_ORDINARY
                                               : (input_kind)tool_random_range(random, 0, INPUT_KIND_COUNT - 1);
    c->ftz = tool_random_chance(random, 25);
    c->seed = tool_random_next(random) >> 32;
    draw_problem(random, max_flops, &c->problem);
    return check_draw_schedule(machine, random, c);
}
