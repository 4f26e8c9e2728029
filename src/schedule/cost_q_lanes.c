/* The cost of q-lanes: src/attend/prefill in numbers. */
#include "base/integers.h"
#include "problem/problem_sight.h"
#include "schedule/cost_parts.h"

enum { LINE = 64, WAY = 4096 };

/* Keys that at least one of some neighbouring rows attends to, if a row attends to `seen`. */
static double seen_by(const mha_cost_context *c, double rows) {
    const double queries = cost_larger(0, cost_smaller(rows, c->rows) / c->group - 1);
    return cost_smaller(c->keys, c->seen + c->ends / 2 * queries);
}

static double tiles_of(const mha_cost_context *c, double seen, double tile) {
    const double all = cost_steps(c->keys, tile);
    return c->ends > 0 ? cost_smaller(all, seen / tile + c->ends / 2) : all;
}

/* The time of reading bytes. The part that the first cache cannot hold in addition to `held` comes from the second. */
static double from_l2(const mha_cost_context *c, double bytes, double held) {
    const at_description *d = c->machine.description;
    return cost_beyond(held, d->l1 * COST_OF(l1_share)) * bytes / d->l2_rate;
}

/* The space that a strip of `bytes` of each row takes in a cache, per row. Rows a power of two apart map to few of its
 * sets, so the other sets are as good as occupied. */
static double crowded(double bytes, double row) {
    int64_t x = WAY, y = (int64_t)row;
    while (y) {
        const int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return cost_larger(bytes, (double)x);
}

/* ---- Scores ---- */

/* The mean number of register tiles of a stripe under causality, if stripes are so few that their ends matter: vectors
 * of 8 rows attend to 8, 16, 24 … keys. Otherwise -1. */
static double causal_tiles(const mha_q_head *h) {
    enum { FEW_STRIPES = 8 };
    const attune_problem *p = h->c->p;
    const bool is_causal = mha_has_last_key(p) && !mha_has_first_key(p) && p->window_right <= 0;
    const double shift =
        (double)p->causal_offset + (mha_is_bottom_right(p) ? h->c->keys - h->c->rows / h->c->group : 0);
    if (h->c->ends + (p->has_kv_lens ? 1 : 0) != 1 || !is_causal) return -1;
    if (p->seq_q <= 0 || p->seq_kv <= 0 || h->stripes > FEW_STRIPES) return -1;
    double tiles = 0;
    for (double row = h->stripe_rows; row < h->c->rows + h->stripe_rows; row += h->stripe_rows) {
        const double queries = (double)(int64_t)((cost_smaller(row, h->c->rows) - 1) / h->c->group) + 1;
        tiles += cost_steps(cost_larger(0, cost_smaller(h->c->keys, queries + shift)), h->s->score_keys);
    }
    return tiles / h->stripes;
}

/* Register tiles of a stripe. Tiles at a moving end are computed whole. */
static double score_tiles(const mha_q_head *h) {
    const mha_cost_context *c = h->c;
    const double ends = c->ends + (c->p->has_kv_lens ? 1 : 0);
    if (h->causal_tiles >= 0) return h->causal_tiles;
    if (ends > 0) return h->seen / h->s->score_keys + ends / 2;
    const double whole = (h->tiles - 1) * h->s->kv_tile;
    return whole / h->s->score_keys + cost_steps(c->keys - whole, h->s->score_keys);
}

/* The cost of a key of a register tile. If a tile may reach beyond the last key, each key's address is computed. The
 * saving of tiles that begin earlier was measured with few registers only. */
static double key_cost(const mha_cost_context *c, const mha_schedule *s, const mha_variant *v) {
    const attune_problem *p = c->p;
    const bool is_known = p->seq_kv >= 0 && !p->has_kv_lens && !p->is_ragged && !p->page_size && !p->short_masks;
    if (is_known && p->seq_kv % s->score_keys == 0) return COST_OF(score_key);
    const bool overlaps = at_has_few_registers(c->machine.target) && v->score_tiles_overlap;
    return overlaps ? COST_OF(overlapped_key) : COST_OF(clamped_key);
}

/* The cost of a key in a page for each register tile, unless K or V, whose element has that many bytes, is copied.
 * (d-lanes looks a page up once for its keys.) With many registers it was not measured. */
static double looking_up(const mha_cost_context *c, double bytes) {
    const bool is_copied = c->by_pairs || bytes != c->lane_bytes;
    const bool looks = c->p->page_size && !is_copied && at_has_few_registers(c->machine.target);
    return looks ? COST_OF(page_key) : 0;
}

/* Cycles of a register tile with that many vectors, whose lanes run along the rows. */
static double score_tile(const mha_q_head *h, double whole) {
    const mha_schedule *s = h->s;
    const mha_cost_context *c = h->c;
    const double keys = s->score_keys, sums = keys * s->score_row_vectors;
    const cost_iteration iteration = {keys, whole, keys, whole, s->score_columns};
    const double key = h->key + looking_up(c, c->k_bytes);
    const bool by_codes = mha_quantises_keys(c->p), has_dots = c->machine.target->flags & AT_TARGET_BYTE_DOT;
    const double iterations = by_codes ? (has_dots ? 0.25 : 1) : h->iterations;
    const bool in_dots = by_codes ? has_dots : c->by_pairs;
    const double multiplying =
        whole > 0 ? c->columns * iterations * mha_cost_iteration(c, &h->v, &iteration, in_dots) : 0;
    /* Q of the stripe is read again for each register tile. */
    const double q = h->stripe_rows * c->columns * h->bytes;
    return cost_limit(multiplying, from_l2(c, q, q) * COST_OF(l2_reached)) + COST_OF(score_start) + key * keys +
           sums * (h->v.store + COST_OF(score_end) * h->v.multiply);
}

/* The products of a stripe, with that many cycles per register tile. */
static double scores_of_stripe(const mha_q_head *h, double tile) {
    const mha_schedule *s = h->s;
    const mha_cost_context *c = h->c;
    const double keys = s->score_keys, vectors = s->score_row_vectors, sums = keys * vectors;
    const double q = h->stripe_rows * c->columns * h->bytes;
    /* Each stripe of a task reads K of the tile. */
    const double reading =
        from_l2(c, h->seen * c->columns * h->k_bytes, h->tile * c->columns * h->k_bytes + q) * COST_OF(k_from_l2);
    const double crossing =
        c->has_elements ? h->seen * vectors : c->ends * (h->stripe_rows / c->group / keys + 1) * sums;
    return h->score_tiles * tile + reading + crossing * COST_OF(hide) * h->v.multiply +
           (c->has_elements ? h->seen * vectors * COST_OF(mask) * h->v.shuffle : 0);
}

/* Scores on the diagonal that are skipped: for every second key, those of the rows before it. */
static double hidden_by_square(const mha_q_head *h) {
    const double rows = h->s->lanes, last = h->c->rows - (h->stripes - 1) * rows;
    return h->variant.is_square ? (h->stripes - 1) * rows * (rows - 2) / 2 + last * (rows - (last + 2) / 2) : 0;
}

/* A score whose lanes are along the columns. */
static double dot_by_columns(const mha_q_head *h) {
    const mha_cost_context *c = h->c;
    const int64_t full = c->machine.target->vector_bytes;
    const cost_vector v = mha_cost_vector(&c->machine, (double)full);
    const double vectors = cost_steps(c->columns, (double)full / c->lane_bytes);
    return vectors * v.multiply + (h->variant.scores_by_columns ? COST_OF(column_sum) : COST_OF(rest_sum)) * v.shuffle;
}

/* The rest rows are those of the last stripe. */
static double all_scores(const mha_q_head *h) {
    const mha_cost_context *c = h->c;
    const double keys = h->score_tiles * h->s->score_keys;
    const mha_variant *v = &h->variant;
    const double by_columns = v->scores_by_columns ? c->rows * keys - hidden_by_square(h) : (double)v->rest_rows * keys;
    const double others = h->stripes > 1 ? (h->stripes - 1) * scores_of_stripe(h, h->other_tile) : 0;
    return others + scores_of_stripe(h, h->last_tile) + (by_columns > 0 ? by_columns * dot_by_columns(h) : 0);
}

static double softmax_of_stripe(const mha_q_head *h) {
    const double exp = h->c->by_pairs ? COST_OF(exp_pairs) : COST_OF(exp);
    return h->s->score_row_vectors * (h->seen * exp * h->v.multiply + h->tiles * COST_OF(softmax_start));
}

/* ---- Values ---- */

/* A register tile of columns of V, and what it reads: P of its rows, and its columns of V. */
static double value_tile(const mha_q_head *h, double columns) {
    const double vectors = h->s->value_row_vectors, sums = columns * vectors;
    const cost_iteration iteration = {columns, vectors, columns, vectors, h->s->value_keys};
    const double end = h->v.load + h->v.multiply + h->v.store;
    const double key = COST_OF(value_key) + looking_up(h->c, h->c->v_bytes);
    return h->seen * h->iterations * (mha_cost_iteration(h->c, &h->v, &iteration, h->c->by_pairs) + key) +
           h->tiles * (COST_OF(value_start) + sums * end * COST_OF(value_end));
}

/* Bytes of the cache lines that hold a key's columns, each counted as often as a register tile of that many columns
 * reads it. */
static double lines_of(const mha_q_head *h, double columns) {
    const mha_cost_context *c = h->c;
    const double tiles = cost_steps(c->columns_v, columns);
    return c->columns_v * h->v_bytes + (tiles - 1) * LINE / 2;
}

static double values_by_columns(const mha_q_head *h) {
    const mha_schedule *s = h->s;
    const mha_cost_context *c = h->c;
    const int64_t all = c->p->head_dim_v, whole = all / s->value_columns, rest = all % s->value_columns;
    const double passes = (double)s->score_row_vectors / s->value_row_vectors;
    const double tiles = (double)whole * value_tile(h, s->value_columns) + (rest ? value_tile(h, (double)rest) : 0);
    /* Each register tile reads P of its rows, and its columns of V. */
    const double p = h->stripe_rows * h->bytes, v = lines_of(h, s->value_columns);
    const double p_read = h->seen * p * (double)(whole + !!rest), v_read = h->seen * passes * v;
    const double held = h->tile * (p + v / (double)(whole + !!rest));
    return passes * tiles + from_l2(c, p_read, held) * COST_OF(p_from_l2) +
           from_l2(c, v_read, h->tile * (p + v)) * COST_OF(v_from_l2);
}

/* Keys that all rows of a register tile attend to and that fill whole iterations; the others have a loop of their own.
 * If an end moves, half an iteration is left over in the mean. */
static double in_whole_iterations(const mha_q_head *h, double keys) {
    const int64_t iteration = (int64_t)(h->s->value_keys / h->iterations);
    const bool is_known = h->c->ends <= 0 && !h->c->p->has_kv_lens;
    const double left = is_known ? (double)((int64_t)h->tile % iteration) : (double)(iteration - 1) / 2;
    return cost_larger(0, keys - h->tiles * left);
}

/* The products of a register tile of neighbouring rows with all keys that the rows attend to: first the keys common to
 * all rows, then at each moving end some keys row by row. Rows do not wait for one another's sums. */
static double products_of_rows(const mha_q_head *h, double rows, double vectors, const cost_vector *v) {
    const mha_cost_context *c = h->c;
    const double widened = c->by_pairs || h->v_bytes == c->lane_bytes ? 0 : vectors * COST_OF(widen) * v->shuffle;
    const double more = widened + looking_up(c, c->v_bytes);
    const double own = c->ends * (rows - 1) / 2 / c->group; /* keys of a row */
    const double shared = cost_larger(0, c->seen - own);
    const cost_iteration iteration = {rows, vectors, rows, vectors, 1};
    const double saved = in_whole_iterations(h, shared) * (1 - 1 / (double)h->s->value_keys) * COST_OF(iteration);
    const double of_all = shared * (mha_cost_iteration(c, v, &iteration, c->by_pairs) + more) - saved;
    const double loads = 1 / c->machine.description->load + vectors * v->load;
    const double key = cost_limit(vectors * (c->by_pairs ? v->dot : v->multiply), loads) + COST_OF(iteration) + more;
    return h->iterations * (of_all + rows * own * key) + h->tiles * (rows - 1) * c->ends * COST_OF(value_start);
}

/* Rows of register tiles of `vectors` vectors of `lanes` columns. */
static double strip_of_rows(const mha_q_head *h, double rows, double step, double vectors, double lanes) {
    const mha_cost_context *c = h->c;
    const at_description *d = c->machine.description;
    const cost_vector v = mha_cost_vector(&c->machine, lanes * c->lane_bytes);
    const double sums = step * vectors;
    const double end = mha_values_at_once(&h->variant) ? (v.store + v.multiply) * COST_OF(once_end)
                                                       : (v.load + v.multiply + v.store) * COST_OF(kept_end);
    /* Reads a key's columns of V, and the line of its P if P of neighbouring keys is not contiguous. */
    const bool is_strided = h->variant.values == MHA_VALUES_WHOLE && h->s->score_row_vectors > 1;
    const double v_row = vectors * lanes * h->v_bytes, p_row = h->stripe_rows * h->bytes;
    const double v_held = cost_smaller(h->tile, h->seen) * (crowded(v_row, c->columns_v * h->v_bytes) + LINE);
    /* If stripes attend to more and more keys, the keys of the first stripes fit. */
    const double beyond = c->ends > 0 ? cost_beyond(v_held, d->l1) : v_held > d->l1;
    const double v_read = h->seen * v_row / d->l2_rate * COST_OF(l2_reached);
    const double p_read = from_l2(c, h->seen * LINE, h->tile * (v_row + p_row)) * COST_OF(row_from_l2) * is_strided;
    const double products = products_of_rows(h, step, vectors, &v);
    const double multiplying = (1 - beyond) * products + beyond * cost_limit(products, v_read);
    const double tile = multiplying + p_read + h->tiles * (COST_OF(value_start) + sums * end + step * COST_OF(row));
    return cost_steps(rows, step) * tile;
}

/* Rows of a register tile. Kept ones are all in one vector of rows. */
static double rows_of_tile(const mha_q_head *h, double vectors) {
    const double room = (double)(h->s->value_columns * h->s->value_row_vectors / (int)vectors);
    double rows = h->s->lanes;
    if (h->variant.values == MHA_VALUES_WHOLE)
        return cost_smaller(cost_larger(room, 1), cost_smaller(h->c->rows, h->stripe_rows));
    while (rows > room && rows > 1) rows /= 2;
    return rows;
}

/* All rows of a head: strips of vectors of columns, and then ever narrower ones. */
static double values_by_rows(const mha_q_head *h) {
    const mha_cost_context *c = h->c;
    const double full = c->machine.target->vector_bytes / c->lane_bytes;
    const bool at_once = mha_values_at_once(&h->variant);
    double lanes = full, left = c->columns_v, cost = 0;
    while (left >= 1) {
        while (lanes > left && lanes > 1 && !(at_once && lanes / 2 < left)) lanes /= 2;
        const mha_strips next = mha_next_strips(c->p, h->s, c->machine.target, max_of((int64_t)(left / lanes), 1));
        const double vectors = next.vectors, alike = (double)next.alike;
        cost += alike * strip_of_rows(h, c->rows, rows_of_tile(h, vectors), vectors, lanes);
        left -= alike * vectors * lanes;
    }
    return cost;
}

/* ---- Tasks ---- */

/* Q is transposed into scratch, and O is brought out, transposed as well if values go by columns. */
static double rows_cost(const mha_q_head *h) {
    const mha_cost_context *c = h->c;
    const double lanes = h->s->lanes, rows = h->stripes * h->stripe_rows;
    const mha_variant *v = &h->variant;
    const double transposed = v->scores_by_columns ? 0 : v->rest_rows ? c->rows - (double)v->rest_rows : rows;
    const double q = transposed * c->columns / lanes * COST_OF(transpose_q);
    const double vectors = cost_steps(c->columns_v, lanes);
    const double o = mha_values_at_once(v) ? 0
                     : v->values == MHA_VALUES_KEPT
                         ? c->rows * vectors * COST_OF(store_o) * (h->v.load + h->v.store)
                         : rows * c->columns_v / lanes * COST_OF(transpose_o) * h->v.shuffle * 4;
    return q * h->v.shuffle * 4 + o + rows * COST_OF(row);
}

static bool prefetches_task(const mha_q_head *h) { return h->s->task_prefetch == MHA_PREFETCH_HEAD; }

/* The time that a call from memory waits. Hardware prefetchers follow the keys of a register tile if these are few.
 * Each register tile of the scores prefetches its share of the lines at once: the more lines, the longer it waits until
 * the core has room for the outstanding requests. */
static double waiting(const mha_q_head *h, double lines) {
    enum { FOLLOWED = 4, MANY = 16, OUTSTANDING = 32 };
    const mha_cost_context *c = h->c;
    if (!c->is_far) return 0;
    const double tiles = h->stripes * h->score_tiles, line = LINE / c->machine.description->memory_rate;
    const double crowded = cost_larger(0, h->s->score_keys - FOLLOWED) / (MANY - FOLLOWED);
    if (prefetches_task(h)) return cost_larger(0, lines - tiles * OUTSTANDING) * line * COST_OF(prefetch_far);
    return c->keys * c->columns * c->k_bytes / LINE * crowded * line * COST_OF(keys_far);
}

/* Reading K and V once for each task. The first task finds them in the third cache, or prefetched; the others find them
 * in the second if that is large enough. */
static double reading(const mha_q_head *h) {
    const mha_cost_context *c = h->c;
    const at_description *d = c->machine.description;
    const double key = c->columns * c->k_bytes + c->columns_v * c->v_bytes;
    const double row = (c->columns + c->columns_v) * c->q_bytes, once = c->keys * key + c->rows * row;
    const bool asks = prefetches_task(h);
    const double far = d->l3 > 0 ? d->l3_rate : d->memory_rate;
    const double share = cost_beyond(c->keys * key, d->l2);
    const double again = cost_larger(0, h->tasks - 1) * h->task_seen * key;
    const double first = once / far * COST_OF(from_l3) * (asks ? COST_OF(prefetched) : 1);
    return first + again * (share / far + (1 - share) / d->l2_rate) * COST_OF(from_l3) +
           (asks ? once / LINE * COST_OF(prefetch) / d->load : 0) + waiting(h, once / LINE);
}

/* V in pairs, once for a head: read, interleaved and written. */
static double pairing(const mha_q_head *h) {
    const mha_cost_context *c = h->c;
    const at_description *d = c->machine.description;
    const double bytes = c->keys * c->columns_v * c->v_bytes, far = d->l3 > 0 ? d->l3_rate : d->memory_rate;
    if (h->s->kv_copy != MHA_COPY_ONCE) return 0;
    return c->keys * c->columns_v / h->s->lanes * COST_OF(convert) * h->v.shuffle + 2 * bytes / far * COST_OF(from_l3);
}

/* What a task does to each tile before its stripes: conversions, and the search for NaN. */
static double opening(const mha_q_head *h) {
    const mha_cost_context *c = h->c;
    const double k = c->columns / h->s->lanes, v = c->columns_v / h->s->lanes;
    const bool rounds = c->by_pairs && !c->decodes_by_pairs;
    const bool converts_k = rounds || (!c->by_pairs && c->k_bytes != c->lane_bytes);
    const bool pairs_v = c->by_pairs && h->s->kv_copy != MHA_COPY_ONCE;
    const bool converts_v =
        pairs_v || (!c->by_pairs && c->v_bytes != c->lane_bytes && h->variant.values == MHA_VALUES_TRANSPOSED);
    const double converted = h->task_seen * ((converts_k ? k : 0) + (converts_v ? v : 0));
    const double partial =
        c->has_elements
            ? h->task_seen
            : cost_smaller(h->task_seen, c->ends * (h->tile + h->stripes_of_task * h->stripe_rows / c->group));
    /* By rows, a causal or windowed problem multiplies no hidden key, so V is not searched. */
    const bool searches = c->has_elements || (c->ends > 0 && h->variant.values == MHA_VALUES_TRANSPOSED);
    const double searched = searches ? partial * v : 0;
    return h->task_tiles * COST_OF(tile) + converted * COST_OF(convert) * h->v.shuffle +
           searched * COST_OF(search) * h->v.load;
}

/* ---- All of it ---- */

/* What does not depend on the tiles of keys. */
static void set_rows(mha_q_head *h) {
    const mha_cost_context *c = h->c;
    const mha_schedule *s = h->s;
    h->v = mha_cost_vector(&c->machine, s->lanes * c->lane_bytes);
    h->iterations = c->by_pairs ? 0.5 : 1;
    h->bytes = c->by_pairs ? 2 : c->lane_bytes;
    h->k_bytes = s->kv_copy == MHA_COPY_NONE ? c->k_bytes : h->bytes;
    h->stripe_rows = (double)s->score_row_vectors * s->lanes;
    h->stripes = cost_steps(c->rows, h->stripe_rows);
    h->seen = seen_by(c, h->stripe_rows);
    h->causal_tiles = causal_tiles(h);
    const double rest = (double)h->variant.rest_rows, whole = h->stripes > 1 ? 0 : (c->rows - rest) / s->lanes;
    const double others = h->variant.scores_by_columns ? 0 : s->score_row_vectors, last = rest > 0 ? whole : others;
    h->last_tile = score_tile(h, last);
    h->other_tile = last == others ? h->last_tile : score_tile(h, others);
}

static void set_tiles(mha_q_head *h) {
    const mha_cost_context *c = h->c;
    const mha_schedule *s = h->s;
    const bool by_rows = h->variant.values != MHA_VALUES_TRANSPOSED;
    h->v_bytes = s->kv_copy == MHA_COPY_NONE || by_rows ? c->v_bytes : h->bytes;
    h->tile = cost_smaller(s->kv_tile, c->keys);
    h->tiles = tiles_of(c, h->seen, h->tile);
    h->score_tiles = score_tiles(h);
}

static void set_tasks(mha_q_head *h) {
    const mha_cost_context *c = h->c;
    h->tasks = cost_steps(h->stripes, h->s->task_row_vectors / h->s->score_row_vectors);
    h->stripes_of_task = h->stripes / h->tasks;
    h->task_seen = seen_by(c, h->stripe_rows * h->stripes_of_task);
    h->task_tiles = tiles_of(c, h->task_seen, h->tile);
}

static bool has_same_rows(const mha_schedule *a, const mha_schedule *b) {
    return a->lanes == b->lanes && a->score_row_vectors == b->score_row_vectors && a->score_keys == b->score_keys &&
           a->score_columns == b->score_columns && a->kv_copy == b->kv_copy;
}

static bool has_same_values(const mha_schedule *a, const mha_schedule *b) {
    return a->lanes == b->lanes && a->score_row_vectors == b->score_row_vectors && a->kv_copy == b->kv_copy &&
           a->value_by == b->value_by && a->value_row_vectors == b->value_row_vectors &&
           a->value_columns == b->value_columns && a->value_keys == b->value_keys;
}

static bool has_same_tasks(const mha_schedule *a, const mha_schedule *b) {
    return a->task_row_vectors == b->task_row_vectors && a->task_prefetch == b->task_prefetch;
}

/* For values it does not matter how much longer than all keys a tile is. */
void mha_cost_q_lanes_next(const mha_cost_context *c, const mha_schedule *s, const mha_variant *v, mha_q_costs *of) {
    mha_q_head *h = &of->head;
    mha_costs *costs = &of->costs;
    const double tile = h->tile;
    const bool is_first = h->c != c;
    const mha_value_form form = h->variant.values;
    const double key = key_cost(c, s, v);
    const bool rows = is_first || key != h->key || !has_same_rows(&of->schedule, s);
    const bool tiles = rows || s->kv_tile != of->schedule.kv_tile || s->value_by != of->schedule.value_by;
    const bool tasks = tiles || !has_same_tasks(&of->schedule, s);
    bool values = is_first || !has_same_values(&of->schedule, s);
    of->schedule = *s;
    h->c = c;
    h->s = &of->schedule;
    h->variant = *v;
    h->key = key;
    if (rows) set_rows(h);
    if (tiles) {
        set_tiles(h);
        costs->scores = all_scores(h);
        costs->softmax = h->stripes * softmax_of_stripe(h);
        values = values || h->tile != tile || v->values != form;
    }
    if (values)
        costs->values = v->values != MHA_VALUES_TRANSPOSED ? values_by_rows(h) : h->stripes * values_by_columns(h);
    if (!tasks) return;
    set_tasks(h);
    costs->tasks = h->tasks * (COST_OF(task) + opening(h)) + rows_cost(h) + reading(h) + pairing(h);
}

mha_costs mha_cost_q_lanes(const mha_cost_context *c, const mha_schedule *s, const mha_variant *v) {
    mha_q_costs of = {.head.c = NULL};
    mha_cost_q_lanes_next(c, s, v, &of);
    return of.costs;
}
