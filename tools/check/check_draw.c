/* Random cases: a problem, a schedule that is legal for it, data and the rest. */
#include "check/check_case.h"

static int32_t pick(tool_random *random, const int8_t *values, int count) {
    return values[tool_random_range(random, 0, count - 1)];
}

/* Mostly small tiles: they show as many mistakes as large ones, and compile faster. */
static const int8_t rows[] = {1, 1, 2, 3, 4, 5, 6, 8, 16}, vectors[] = {1, 1, 1, 2, 2, 3, 4};

static void draw_q_lanes(tool_random *random, attune_schedule *s) {
    s->strategy = ATTUNE_Q_LANES;
    s->value_row_vectors = pick(random, vectors, 7);
    s->score_row_vectors = s->value_row_vectors * pick(random, vectors, 7);
    s->task_row_vectors = s->score_row_vectors * pick(random, vectors, 7);
    s->score_keys = pick(random, rows, 9);
    s->value_columns = pick(random, rows, 9);
    s->score_columns = pick(random, vectors, 7);
    s->value_keys = pick(random, vectors, 7);
    s->kv_tile = s->score_keys * (int32_t)tool_random_range(random, 1, 24);
    s->kv_chunk = 0;
}

static void draw_d_lanes(tool_random *random, attune_schedule *s) {
    s->strategy = ATTUNE_D_LANES;
    s->score_keys = pick(random, rows, 9);
    s->score_rows = pick(random, rows, 9);
    s->score_column_vectors = pick(random, vectors, 7);
    s->value_rows = pick(random, rows, 9);
    s->value_column_vectors = pick(random, vectors, 7);
    s->value_keys = pick(random, vectors, 7);
    s->kv_tile = s->score_keys * (int32_t)tool_random_range(random, 1, 24);
    s->kv_chunk = s->kv_tile * (int32_t)tool_random_range(random, 1, tool_random_chance(random, 50) ? 2 : 20);
}

static void draw_gemm(tool_random *random, attune_schedule *s) {
    const bool is_deep = tool_random_chance(random, 50);
    int most = 0; /* logarithm: vectors of a panel's tile */
    while (s->lanes << (most + 1) <= 64) most++;
    s->gemm_rows = pick(random, rows, 9);
    s->gemm_column_vectors = 1 << tool_random_range(random, 0, most < 2 ? most : 2);
    s->gemm_task_rows = s->gemm_rows * (int32_t)tool_random_range(random, 1, 9);
    s->gemm_depth = is_deep ? 0 : (int32_t)tool_random_range(random, 1, tool_random_chance(random, 50) ? 8 : 100);
}

/* Whether a random schedule of this strategy was found. */
static bool try_strategy(attune_context *context, tool_random *random, attune_strategy strategy, check_case *c) {
    const int32_t lanes = c->schedule.lanes;
    for (int attempt = 0; attempt < 200; attempt++) {
        attune_schedule s = {.struct_size = sizeof s, .lanes = lanes};
        if (tool_random_chance(random, 30)) s.lanes = 1 << tool_random_range(random, 0, 4);
        if (strategy == ATTUNE_D_LANES)
            draw_d_lanes(random, &s);
        else
            draw_q_lanes(random, &s);
        if (c->problem.embed_dim) draw_gemm(random, &s);
        if (attune_schedule_check(context, &c->problem, &s) != ATTUNE_OK) continue;
        c->schedule = s;
        return true;
    }
    return false;
}

bool check_draw_schedule(check_machine *machine, tool_random *random, check_case *c) {
    attune_context *const context = check_context(machine, c->isa, c->threads);
    if (!context) return false;
    c->schedule = (attune_schedule)ATTUNE_SCHEDULE_INIT;
    if (attune_schedule_choose(context, &c->problem, &c->schedule) != ATTUNE_OK) {
        tool_library_error("choosing a schedule");
        return false;
    }
    if (tool_random_chance(random, 25)) return true;
    const attune_strategy first = tool_random_chance(random, 50) ? ATTUNE_D_LANES : ATTUNE_Q_LANES;
    const attune_strategy second = first == ATTUNE_D_LANES ? ATTUNE_Q_LANES : ATTUNE_D_LANES;
    if (!try_strategy(context, random, first, c)) try_strategy(context, random, second, c);
    return true;
}

bool check_draw(check_machine *machine, tool_random *random, double max_flops, check_case *c) {
    *c = (check_case){.isa = (uint32_t)tool_random_range(random, 0, machine->num_isas - 1), .sizes = CALL_SIZES_NONE};
    c->threads = (uint32_t)tool_random_range(random, 1, CHECK_MAX_THREADS);
    c->inputs = tool_random_chance(random, 50) ? INPUT_ORDINARY
                                               : (input_kind)tool_random_range(random, 0, INPUT_KIND_COUNT - 1);
    c->ftz = tool_random_chance(random, 25);
    c->seed = tool_random_next(random) >> 32;
    return check_draw_problem(random, max_flops, &c->problem, &c->sizes) && check_draw_schedule(machine, random, c);
}
