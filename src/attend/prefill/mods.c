/* Users' functions (score_mod, mask_mod, prob_mod), with lanes along query rows. Each subexpression is computed as
 * seldom as it can be:
 *
 *     depends on   computed                                 kept in
 *     neither      once for each task                       values_of_task
 *     the row      once for each row of a task              scratch; a vector of rows is loaded
 *     the key      once for each key of a register tile     q_lanes_key_values
 *     kv - q       once for each tile and stripe            scratch (mods_distance.c)
 *     both         for each vector of scores */
#include "attend/prefill/layout.h"

/* Whether rows differ in their head: the heads of a group are rows of the same task. */
static bool has_heads(const q_lanes *c) { return c->m->group > 1; }

static mha_place place_of_task(const q_lanes *c) {
    return (mha_place){
        .sequence = &c->whole, .kv_head = c->kv_head, .head = has_heads(c) ? NULL : c->kv_head, .lanes = 1};
}

void ql_open_functions(q_lanes *c) {
    if (!c->m->functions) return;
    const mha_place place = place_of_task(c);
    for (mha_function f = 0; f < MHA_NUM_FUNCTIONS; f++) mha_fill_values(c->m, f, &place, &c->values_of_task);
}

void ql_alloc_functions(q_lanes *c) {
    const int64_t rows[] = {c->max_stripes, c->stripe_rows};
    for (mha_function f = 0; f < MHA_NUM_FUNCTIONS; f++) {
        int nodes[EX_MAX_NODES];
        const int count = mha_row_values(c->m, f, has_heads(c), nodes);
        for (int i = 0; i < count; i++)
            if (!c->kept[nodes[i]])
                c->kept[nodes[i]] = ir_scratch(c->b, "of_rows", mha_kept_elem(c->m, nodes[i]), 2, rows);
    }
}

void ql_init_functions(q_lanes *c, const ir_expr *stripe) {
    ir_builder *b = c->b;
    bool has_any = false;
    for (int i = 0; i < EX_MAX_NODES; i++) has_any = has_any || c->kept[i];
    if (!has_any) return;
    IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, c->stripe_rows), 1) {
        const q_lanes_row row = ql_row(c, stripe, at);
        mha_place place = place_of_task(c);
        mha_values values = c->values_of_task;
        place.head = row.head;
        place.query = row.query;
        for (mha_function f = 0; f < MHA_NUM_FUNCTIONS; f++) mha_fill_values(c->m, f, &place, &values);
        for (int i = 0; i < EX_MAX_NODES; i++)
            if (c->kept[i]) ir_store(b, ir_at(b, c->kept[i], 1, 2, stripe, at), mha_keep_value(c->m, i, &values));
    }
}

mha_values ql_values_of_rows(q_lanes *c, mha_function f, const ir_expr *stripe, const ir_expr *at, int lanes) {
    mha_values values = c->values_of_task;
    int nodes[EX_MAX_NODES];
    const int count = mha_row_values(c->m, f, has_heads(c), nodes);
    for (int i = 0; i < count; i++) {
        const ir_expr *kept = ir_load(c->b, ir_at(c->b, c->kept[nodes[i]], lanes, 2, stripe, at));
        values.of[nodes[i]] = ir_let(c->b, "of_rows", mha_kept_value(c->m, nodes[i], kept));
    }
    return values;
}

static mha_place place_of_key(const q_lanes *c, const ir_expr *key) {
    mha_place place = place_of_task(c);
    place.key = key;
    return place;
}

void ql_fill_key(q_lanes *c, mha_function f, const ir_expr *key, q_lanes_key_values *of_key) {
    mha_values values = c->values_of_task;
    const mha_place place = place_of_key(c, key);
    of_key->count = 0;
    if (!mha_has_function(c->m, f)) return;
    mha_fill_values(c->m, f, &place, &values);
    for (int i = 0; i < EX_MAX_NODES && of_key->count < QL_KEY_VALUES; i++) {
        if (values.of[i] == c->values_of_task.of[i]) continue;
        of_key->node[of_key->count] = i;
        of_key->value[of_key->count++] = values.of[i];
    }
}

/* ---- Elements of rows and keys ---- */

/* Elements of a user's tensor at `lanes` rows and the quarter of a vector of keys from `key` on, as a vector of rows
 * for each key. Each row's keys are loaded together and transposed; a vector of rows alone would be a gather. */
static void load_quarter(q_lanes *c, int node, const q_lanes_row *rows, const ir_expr *key, const ir_expr *columns[4]) {
    const int lanes = c->m->lanes, quarter = mha_quarter(lanes);
    const ir_expr *parts[IR_MAX_LANES];
    for (int i = 0; i < quarter; i++) {
        for (int part = 0; part < lanes / quarter; part++) {
            mha_place place = place_of_key(c, key);
            place.head = rows[part * quarter + i].head;
            place.query = rows[part * quarter + i].query;
            place.lanes = quarter;
            parts[part] = mha_load_keys(c->m, node, &place);
        }
        columns[i] = ir_let(c->b, "elements", mha_concat(c->b, parts, lanes / quarter, quarter));
    }
    mha_transpose_quarters(c->b, lanes, columns);
}

void ql_open_pairs(q_lanes *c, mha_function f, const ir_expr *stripe, const ir_expr *at, q_lanes_pair_values *pairs) {
    int nodes[EX_MAX_NODES];
    const int count = mha_keys_in_rows(c->m, f, has_heads(c), nodes);
    pairs->count = 0;
    if (!count || !c->keys_fill_tiles || c->m->s->score_keys % mha_quarter(c->m->lanes)) return;
    for (int i = 0; i < count && i < QL_PAIR_VALUES; i++) pairs->node[pairs->count++] = nodes[i];
    for (int l = 0; l < c->m->lanes; l++) pairs->rows[l] = ql_row(c, stripe, ir_plus(c->b, at, l));
}

void ql_fill_pairs(q_lanes *c, const ir_expr *key, q_lanes_pair_values *pairs) {
    for (int i = 0; i < pairs->count; i++) load_quarter(c, pairs->node[i], pairs->rows, key, pairs->of_key[i]);
}

void ql_put_pairs(const q_lanes_pair_values *pairs, int key, mha_values *of_rows) {
    for (int i = 0; i < pairs->count; i++) of_rows->of[pairs->node[i]] = pairs->of_key[i][key];
}

/* ---- Results ---- */

static mha_values with_key(const mha_values *of_rows, const q_lanes_key_values *of_key) {
    mha_values values = *of_rows;
    for (int i = 0; i < of_key->count; i++) values.of[of_key->node[i]] = of_key->value[i];
    return values;
}

const ir_expr *ql_modified(q_lanes *c, mha_function f, const mha_values *of_rows, const q_lanes_key_values *of_key,
                           const ir_expr *key, const ir_expr *z) {
    if (!mha_has_function(c->m, f)) return z;
    const mha_values values = with_key(of_rows, of_key);
    const mha_place place = place_of_key(c, key);
    return mha_modified(c->m, f, &place, &values, z);
}

const ir_expr *ql_function_sees(q_lanes *c, const mha_values *of_rows, const ir_expr *key, int lanes) {
    q_lanes_key_values of_key;
    if (!mha_has_function(c->m, MHA_MASK_FUNCTION)) return NULL;
    ql_fill_key(c, MHA_MASK_FUNCTION, key, &of_key);
    const mha_values values = with_key(of_rows, &of_key);
    const mha_place place = place_of_key(c, key);
    return mha_function_sees(c->m, &place, &values, lanes);
}
