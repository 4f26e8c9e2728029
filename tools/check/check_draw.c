/* Random cases: a problem, a schedule that is legal for it, data and the rest. */
#include "check/check_case.h"
#include "schedule_fields.h"

static int32_t pick(tool_random *random, const int8_t *values, int count) {
    return values[tool_random_range(random, 0, count - 1)];
}

/* ---- Numbers, by the list of fields ---- */

static int32_t draw_number(tool_random *random, const mha_schedule_field *field) {
    static const int8_t tiles[] = {1, 1, 2, 3, 4, 5, 6, 8, 16}, few[] = {1, 1, 1, 2, 2, 3, 4};
    switch (field->draw) {
    case MHA_DRAW_TILE: return pick(random, tiles, sizeof tiles);
    case MHA_DRAW_FEW: return pick(random, few, sizeof few);
    case MHA_DRAW_FACTORS: return pick(random, few, sizeof few) * pick(random, few, sizeof few);
    case MHA_DRAW_POWER: return 1 << tool_random_range(random, 0, 2);
    default: break;
    }
    const bool is_few = field->draw_few && tool_random_chance(random, 50);
    return (int32_t)tool_random_range(random, 1, is_few ? field->draw_few : field->draw_most);
}

/* What it must divide, or be a multiple of, is an earlier number. */
static int32_t fitting(const attune_schedule *s, const mha_schedule_field *field, int32_t x) {
    if (field->multiple_of) x *= mha_schedule_value(s, field->multiple_of);
    while (field->divides && mha_schedule_value(s, field->divides) % x) x--;
    return x;
}

static void draw_numbers(tool_random *random, unsigned part, attune_schedule *s) {
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const mha_schedule_field *field = &mha_schedule_fields[i];
        if (field->part != part || !field->draw) continue;
        if (field->is_often_0 && tool_random_chance(random, 50)) continue;
        *mha_schedule_at(s, field->word) = fitting(s, field, draw_number(random, field));
    }
}

/* ---- Choices ---- */

/* Half of them stay with attune; so do those that would not be legal. */
static void draw_choices(attune_context *context, tool_random *random, const attune_problem *p, attune_schedule *s) {
    const unsigned parts = mha_schedule_parts(s);
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const mha_schedule_field *field = &mha_schedule_fields[i];
        if (!mha_schedule_is_choice(field) || !mha_schedule_has(parts, field) || tool_random_chance(random, 50))
            continue;
        int count = 0;
        while (field->values[count]) count++;
        *mha_schedule_at(s, field->word) = field->values[tool_random_range(random, 0, count - 1)];
        if (attune_schedule_check(context, p, s) != ATTUNE_OK) *mha_schedule_at(s, field->word) = MHA_SCHEDULE_AUTO;
    }
}

/* ---- Schedules ---- */

/* Those that all schedules of a problem with integer=all share. */
static void set_integer_numbers(attune_schedule *s, const check_case *c) {
    s->kv_tile = s->kv_chunk = c->schedule.kv_tile;
    s->value_keys = 1;
    if (!c->problem.v_layout) s->value_column_vectors = 1;
}

/* Whether a random schedule of this strategy was found. */
static bool try_strategy(attune_context *context, tool_random *random, attune_strategy strategy, check_case *c) {
    const int32_t lanes = c->schedule.lanes;
    for (int attempt = 0; attempt < 200; attempt++) {
        attune_schedule s = {.struct_size = sizeof s, .lanes = lanes};
        if (tool_random_chance(random, 30)) s.lanes = 1 << tool_random_range(random, 0, 4);
        s.strategy = strategy;
        draw_numbers(random, strategy == ATTUNE_D_LANES ? MHA_PART_D_LANES : MHA_PART_Q_LANES, &s);
        if (c->problem.embed_dim) draw_numbers(random, MHA_PART_PRODUCTS, &s);
        if (c->problem.integer == ATTUNE_INTEGER_ALL) set_integer_numbers(&s, c);
        if (attune_schedule_check(context, &c->problem, &s) != ATTUNE_OK) continue;
        draw_choices(context, random, &c->problem, &s);
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

bool check_draw(check_machine *machine, tool_random *random, check_kind kind, double max_flops, check_case *c) {
    *c = (check_case){.isa = (uint32_t)tool_random_range(random, 0, machine->num_isas - 1), .sizes = CALL_SIZES_NONE};
    c->threads = (uint32_t)tool_random_range(random, 1, CHECK_MAX_THREADS);
    c->inputs = tool_random_chance(random, 50) ? INPUT_ORDINARY
                                               : (input_kind)tool_random_range(random, 0, INPUT_KIND_COUNT - 1);
    c->ftz = tool_random_chance(random, 25);
    c->seed = tool_random_next(random) >> 32;
    return (kind == CHECK_FUNCTIONS ? check_draw_functions : check_draw_problem)(random, max_flops, &c->problem,
                                                                                 &c->sizes) &&
           check_draw_schedule(machine, random, c);
}
