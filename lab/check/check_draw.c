/* Random cases: a problem, a schedule that is legal for it, data and the rest. */
#include "check/check_case.h"
#include "schedule_fields.h"

static int64_t between(void *random, int64_t low, int64_t high) { return tool_random_range(random, low, high); }

/* ---- Choices ---- */

/* Half of them stay with attune; so do those that would not be legal. */
static void draw_choices(attune_context *context, tool_random *random, const attune_problem *p, mha_schedule *s) {
    const unsigned parts = mha_schedule_parts(s);
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const mha_schedule_field *field = &mha_schedule_fields[i];
        if (!mha_schedule_is_choice(field) || !mha_schedule_has(parts, field)) continue;
        int count = 0; /* of a new choice: none yet */
        if (!field->values[0] || tool_random_chance(random, 50)) continue;
        while (field->values[count]) count++;
        *mha_schedule_at(s, field->word) = field->values[tool_random_range(random, 0, count - 1)];
        if (attune_schedule_choose(context, p, mha_schedule_text(s).text, NULL, 0) != ATTUNE_OK)
            *mha_schedule_at(s, field->word) = MHA_SCHEDULE_AUTO;
    }
}

/* ---- Schedules ---- */

/* Those that all schedules of a problem with integer=all share. */
static void set_integer_numbers(mha_schedule *s, const check_case *c) {
    s->kv_tile = s->kv_chunk = c->schedule.kv_tile;
    s->value_keys = 1;
    if (!c->problem.v_layout) s->value_column_vectors = 1;
}

/* Whether a random schedule of this strategy was found. */
static bool try_strategy(attune_context *context, tool_random *random, mha_strategy strategy, check_case *c) {
    const int32_t lanes = c->schedule.lanes;
    for (int attempt = 0; attempt < 200; attempt++) {
        mha_schedule s = {.lanes = lanes};
        if (tool_random_chance(random, 30)) s.lanes = 1 << tool_random_range(random, 0, 4);
        s.strategy = strategy;
        mha_schedule_draw_numbers(strategy == MHA_D_LANES ? MHA_PART_D_LANES : MHA_PART_Q_LANES, between, random, &s);
        if (c->problem.embed_dim) mha_schedule_draw_numbers(MHA_PART_PRODUCTS, between, random, &s);
        if (c->problem.integer == ATTUNE_INTEGER_ALL) set_integer_numbers(&s, c);
        if (attune_schedule_choose(context, &c->problem, mha_schedule_text(&s).text, NULL, 0) != ATTUNE_OK) continue;
        draw_choices(context, random, &c->problem, &s);
        c->schedule = s;
        return true;
    }
    return false;
}

bool check_take_schedule(const attune_context *context, check_case *c, const char *text) {
    char all[ATTUNE_SCHEDULE_BYTES];
    c->schedule = (mha_schedule){0};
    return attune_schedule_choose(context, &c->problem, text, all, sizeof all) == ATTUNE_OK &&
           mha_schedule_parse(all, &c->schedule, NULL) == ATTUNE_OK;
}

bool check_draw_schedule(check_machine *machine, tool_random *random, check_case *c) {
    attune_context *const context = check_context(machine, c->isa, c->threads);
    if (!context) return false;
    if (!check_take_schedule(context, c, NULL)) {
        tool_library_error("choosing a schedule");
        return false;
    }
    if (tool_random_chance(random, 25)) return true;
    const mha_strategy first = tool_random_chance(random, 50) ? MHA_D_LANES : MHA_Q_LANES;
    const mha_strategy second = first == MHA_D_LANES ? MHA_Q_LANES : MHA_D_LANES;
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
