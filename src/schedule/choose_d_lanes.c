/* Decoding: a usual schedule by what the problem is, then the register tiles that cost less.
 *
 *     usual tiles ► others, by a rule ► kv_tile, kv_chunk ► panels: their vectors ► search
 *
 * The search knows two tiles, of scores and of values, each rows by keys. Where it is not asked, and which tiles are
 * taken without it, is said by corrections.def. Figures: notes/2026-11-28-schedules.md. */
#include "base/integers.h"
#include "problem/problem.h"
#include "schedule/choose.h"
#include "schedule/corrections.h"
#include "schedule/schedule_fields.h"
#include "schedule/variant.h"

#include <math.h>

#define ID(member) MHA_SCHEDULE_ID(member)

/* Four keys at a time, each from its own stream. With four streams, a tile has few rows: more rows would need more
 * registers, and the next rows find K and V in L1 anyway. Tiles of scores for more than two rows are no faster, and
 * take longer to compile. An iteration over several keys is long enough without unrolling. */
static void choose_tiles(const mha_cost_context *c, int64_t rows, mha_schedule *s) {
    const bool many = !c->few_registers;
    const int64_t probabilities = many ? 16 : 10;
    s->score_rows = (int32_t)(rows <= 3 ? rows : 2);
    s->value_rows = (int32_t)(rows <= 3 ? rows : many ? 4 : 2);
    s->score_keys = s->score_rows == 3 && !many ? 2 : 4;
    s->score_column_vectors = rows > 1 ? 1 : (int32_t)min_of(4, max_of(c->p->head_dim / s->lanes, 1));
    s->value_column_vectors = 1;
    s->value_keys = (int32_t)min_of(4, probabilities / s->value_rows);
}

/* Whether vectors of V are converted as they are loaded. i4 uses the tiles of f32, because its rows are dequantised
 * before. */
static bool is_converted(attune_dtype v) {
    return v == ATTUNE_BF16 || v == ATTUNE_F16 || v == ATTUNE_I8 || v == ATTUNE_F8;
}

/* ---- Other tiles, where a row of corrections.def says so ---- */

/* K is loaded once for four rows. V that needs no conversion is read in whole rows, for as many query rows as registers
 * allow. */
static void take_rows(const mha_cost_context *c, int64_t rows, mha_schedule *s) {
    enum { ROWS = 4, COLUMNS = 8 };
    s->score_rows = ROWS;
    if (rows > ROWS || is_converted(c->p->v_dtype) || c->p->head_dim_v % (COLUMNS * s->lanes)) return;
    s->value_rows = ROWS - 1;
    s->value_column_vectors = COLUMNS;
}

/* Two rows of four keys, which are streams, and then the third. */
static void take_streams_of_keys(const mha_cost_context *c, int64_t rows, mha_schedule *s) {
    (void)c, (void)rows;
    s->score_rows = 2;
    s->score_keys = 4;
}

/* Sums of values stay in registers: for as many rows as fit, such that the last tile has few rows left over. */
static void hold_values(const mha_cost_context *c, int64_t rows, mha_schedule *s) {
    enum { USUAL = 4, MORE = 6, VECTORS = 2 };
    (void)c;
    s->value_rows = (int32_t)(rows == USUAL + 1 || rows % MORE == 0 ? min_of(rows, MORE) : USUAL);
    s->value_column_vectors = VECTORS;
    s->value_keys = 1;
}

static void hold_converted_values(const mha_cost_context *c, int64_t rows, mha_schedule *s) {
    hold_values(c, rows, s);
    s->value_streams = 1;
}

/* Two rows of Q by whole rows of V of up to six vectors, or by two stripes of wider rows. If four divides the rows of
 * Q, wider rows get tiles of four rows by three vectors, unless a stripe of one vector would remain. Stripes of two
 * rows gain nothing. Three rows take as many instructions as sums in memory. */
static void hold_narrow_values(const mha_cost_context *c, int64_t rows, mha_schedule *s) {
    enum { WHOLE = 6 };
    const int64_t vectors = ceil_div(c->p->head_dim_v, s->lanes), stripes = ceil_div(vectors, WHOLE);
    const bool by_fours = stripes > 1 && rows % 4 == 0 && vectors % 3 != 1;
    mha_schedule usual = *s;
    if (rows == 3 || s->value_keys == 1 || (stripes > 1 && rows == 2)) return;
    mha_settle(&c->usual, c->p, c->machine.target, &usual);
    if (s->value_keys != usual.value_streams) return; /* the batch decides, and may not change the order of sums */
    s->value_streams = usual.value_streams;
    s->value_keys = 1;
    s->value_rows = by_fours ? 4 : 2;
    s->value_column_vectors = (int32_t)(by_fours ? 3 : ceil_div(vectors, stripes));
}

static void take_narrow_heads(const mha_cost_context *c, int64_t rows, mha_schedule *s) {
    s->score_column_vectors = (int32_t)max_of(c->p->head_dim / s->lanes, 1);
    hold_narrow_values(c, rows, s);
}

typedef void tile_fn(const mha_cost_context *c, int64_t rows, mha_schedule *s);

static void take_if_chosen(mha_priced of, tile_fn *tile, const mha_cost_context *c, int64_t rows, mha_schedule *s) {
    mha_schedule other = *s;
    tile(c, rows, &other);
    if (mha_is_chosen(of, c, &other, NULL)) *s = other;
}

/* ---- Panels ---- */

/* Quantised values of panels from memory are used up faster than others. So a tile is a panel, in the order of memory,
 * if that leaves more sums than a product has cycles of latency. */
static void choose_panel_by_panel(int64_t planes, mha_schedule *s) {
    enum { SUMS = 8, UNITS = 4, MOST_SUMS = 32 };
    const int64_t in_panel = max_of(ATTUNE_PANEL_TOKENS / s->lanes, 1), of_key = s->score_rows * planes;
    s->score_keys = (int32_t)min_of(max_of(in_panel, SUMS / of_key), MOST_SUMS / of_key);
    s->score_column_vectors = UNITS;
}

/* Scores of panels have a sum for each vector of keys: enough sums that none waits for the one before. From memory each
 * vector of a single row is a stream of its own; in the caches eight vectors are faster than sixteen. */
static void choose_panel_tiles(const mha_cost_context *c, int64_t rows, mha_schedule *s) {
    enum { SUMS = 16, FEW_SUMS = 8, ROWS = 4, FEW_ROWS = 2, VECTORS = 8 };
    const attune_problem *const p = c->p;
    const bool many = !c->few_registers, all_codes = p->integer == ATTUNE_INTEGER_ALL;
    const int64_t planes = p->integer ? mha_query_planes(p) : 1, sums = many ? SUMS : FEW_SUMS;
    if (p->v_layout == ATTUNE_LAYOUT_PANELS) s->value_column_vectors = 2;
    if (p->v_layout == ATTUNE_LAYOUT_PANELS && all_codes) {
        s->value_rows = (int32_t)min_of(rows, many ? ROWS : FEW_ROWS);
        const int64_t of_load = p->v_dtype == ATTUNE_I4 ? 2 : 1; /* vectors of columns */
        s->value_column_vectors = (int32_t)min_of(power_below(sums / (s->value_rows * planes * of_load)), VECTORS);
    }
    if (p->k_layout != ATTUNE_LAYOUT_PANELS) return;
    s->score_rows = (int32_t)min_of(rows, many ? ROWS : FEW_ROWS);
    s->score_keys = power_below(min_of(sums, s->kv_tile / s->lanes) / (s->score_rows * planes));
    if (!c->is_from_memory) s->score_keys = (int32_t)min_of(s->score_keys, VECTORS);
    s->score_column_vectors = 1;
    if (p->integer && c->is_from_memory) choose_panel_by_panel(planes, s);
}

/* Keys between two rescalings: many, because the streams of a tile are longer then. But K and V of a tile should fit
 * the second cache, unless they come from memory anyway. With many registers, scores of more than four rows by 1024
 * keys would fill a first cache of 32 KiB. */
static int32_t choose_tile(const mha_cost_context *c, int64_t rows) {
    enum { ELEMENTS = 65536, LEAST = 32, MOST = 512, FEW_ROWS = 4 };
    const int64_t times = c->is_from_memory ? 2 : 1, columns = max_of(c->p->head_dim, c->p->head_dim_v);
    const int64_t most = rows <= FEW_ROWS || c->few_registers ? times * MOST : MOST;
    if (c->fixed_tile) return c->fixed_tile;
    return power_below(max_of(min_of(times * ELEMENTS / columns, most), LEAST));
}

/* Whether heads of equal length make as many tasks as threads usually need. */
static bool heads_are_tasks(const attune_problem *p) {
    enum { MANY_TASKS = 32 };
    if (p->batch < 1 || p->seq_kv < 1 || p->is_ragged || p->has_kv_lens) return false;
    return p->batch >= MANY_TASKS || p->batch * p->num_kv_heads >= MANY_TASKS;
}

/* Keys in a task: few enough to make tasks for many threads, many enough that merging costs little. With integer=all a
 * task has one tile, or all keys. */
static int32_t choose_chunk(const attune_problem *p, int32_t tile) {
    enum { KEYS = 512, MANY_KEYS = 4096, MOST_KEYS = 1 << 20 };
    if (p->integer == ATTUNE_INTEGER_ALL)
        return heads_are_tasks(p) && p->seq_kv <= MOST_KEYS ? (int32_t)(ceil_div(p->seq_kv, tile) * tile) : tile;
    return (int32_t)(ceil_div(mha_most_keys(p) >= MANY_KEYS ? 2 * KEYS : KEYS, tile) * tile);
}

/* ---- Register tiles that cost less than those of the rules ---- */

static int64_t rows_of(const mha_search *t) { return *(const int64_t *)t->more; } /* of a head of K and V */

static double price(mha_search *t) { return mha_cost_of_choice(t->c, &t->tried.s); }

static void vary_scores(mha_search *t) { mha_search_pairs(t, ID(score_rows), ID(score_keys)); }

static void vary_values(mha_search *t) { mha_search_pairs(t, ID(value_rows), ID(value_keys)); }

/* Sums that stay in registers, for some numbers of rows. */
static void vary_held_values(mha_search *t) {
    enum { LEAST_ROWS = 4, MOST_ROWS = 6 };
    mha_schedule s = t->best.s;
    hold_values(t->c, rows_of(t), &s);
    for (s.value_rows = LEAST_ROWS; s.value_rows <= min_of(rows_of(t), MOST_ROWS); s.value_rows++)
        mha_search_try(t, &s);
}

static bool has_registers(const mha_search *t, int64_t rows, int64_t keys) {
    return rows * keys + keys + 1 <= t->c->machine.target->vector_registers && rows <= rows_of(t);
}

static bool scores_fit(mha_search *t) { return has_registers(t, t->tried.s.score_rows, t->tried.s.score_keys); }

static bool values_fit(mha_search *t) { return has_registers(t, t->tried.s.value_rows, t->tried.s.value_keys); }

enum { QUANTISED_ROWS = 4, QUANTISED_KEYS = 4 }; /* usual ones */

/* An open number of rows is rounded up to a multiple of both kinds of tiles; three and four would make it twelve. */
static bool rounds_rows_far(const mha_cost_context *c, const mha_schedule *s) {
    const int64_t larger = max_of(s->score_rows, s->value_rows), smaller = min_of(s->score_rows, s->value_rows);
    return (c->p->seq_q < 1 || c->p->is_ragged) && larger % smaller;
}

static int rows_in_vector(const mha_cost_context *c, const mha_schedule *s) {
    return mha_variant_of(c->p, s, c->machine.target).rows_in_vector;
}

static bool quantised_scores_fit(const mha_cost_context *c, const mha_schedule *s) {
    if (s->score_rows % rows_in_vector(c, s) || rounds_rows_far(c, s)) return false;
    return s->score_rows * s->score_keys * mha_query_planes(c->p) <= MHA_MAX_D_SUMS;
}

/* The search begins, with many registers, at tiles of eight keys. They were 3 % faster on a Zen 4 in cases in which the
 * cost is equal. */
static void choose_usual_codes(const mha_cost_context *c, int64_t rows, mha_schedule *s) {
    s->score_rows = (int32_t)(rows <= 2 ? rows : QUANTISED_ROWS);
    if (rounds_rows_far(c, s)) s->score_rows = 1;
    s->score_rows = (int32_t)max_of(s->score_rows, rows_in_vector(c, s));
    s->score_column_vectors = 1;
    s->score_keys = 2 * QUANTISED_KEYS;
    const bool may = quantised_scores_fit(c, s) && !isinf(mha_correction(MHA_QUANTISED_SCORES, c, s, NULL));
    if (c->few_registers || !may) s->score_keys = QUANTISED_KEYS;
}

static bool score_codes_fit(mha_search *t) {
    return t->tried.s.score_rows < 2 * rows_of(t) && quantised_scores_fit(t->c, &t->tried.s);
}

static bool value_codes_fit(mha_search *t) {
    return t->tried.s.value_rows <= rows_of(t) && !rounds_rows_far(t->c, &t->tried.s);
}

/* Whether values are products of integers, in tiles that are not those of panels. */
static bool has_tile_of_codes(const attune_problem *p) {
    return p->integer == ATTUNE_INTEGER_ALL && p->v_layout != ATTUNE_LAYOUT_PANELS;
}

static bool may_have_values(const mha_cost_context *c, const mha_schedule *s) {
    return !rounds_rows_far(c, s) && !isinf(mha_correction(MHA_QUANTISED_VALUES, c, s, NULL));
}

/* Panels have their tiles already. */
static void vary_codes_of_scores(mha_search *t) {
    mha_schedule s = t->best.s;
    if (t->c->p->k_layout == ATTUNE_LAYOUT_PANELS) return;
    choose_usual_codes(t->c, rows_of(t), &s);
    mha_search_begin(t, MHA_USUAL_TILE, &s);
    vary_scores(t);
}

/* Begins with the legal tile that has most rows. */
static void vary_codes_of_values(mha_search *t) {
    mha_schedule s = t->best.s;
    if (!has_tile_of_codes(t->c->p)) return;
    s.value_rows = (int32_t)min_of(rows_of(t), QUANTISED_ROWS);
    while (!may_have_values(t->c, &s)) s.value_rows--;
    mha_search_begin(t, MHA_USUAL_TILE, &s);
    vary_values(t);
}

/* Another tile than the usual one has to be cheaper by a margin. Sums of integers are exact, so their tiles change no
 * bit. While those of scores vary, tiles of values have one row, which goes with every number of rows of scores. */
static void search_tiles(const mha_cost_context *c, int64_t rows, mha_schedule *s) {
    static const mha_step TILES[] = {{MHA_SCORE_TILE, scores_fit, vary_scores},
                                     {MHA_VALUE_TILE, values_fit, vary_values},
                                     {MHA_HELD_TILE, NULL, vary_held_values},
                                     {0}};
    static const mha_step CODES[] = {{MHA_QUANTISED_SCORES, score_codes_fit, vary_codes_of_scores},
                                     {MHA_QUANTISED_VALUES, value_codes_fit, vary_codes_of_values},
                                     {0}};
    mha_search t = {.c = c, .price = price, .more = &rows};
    if (c->p->integer) {
        if (c->p->integer == ATTUNE_INTEGER_ALL) s->value_keys = 1;
        if (has_tile_of_codes(c->p)) s->value_rows = 1;
        t.best.s = *s; /* each step begins anew */
        *s = mha_search_steps(&t, CODES);
    } else if (!isinf(mha_correction(MHA_CHEAPER_TILES, c, s, NULL))) {
        mha_search_begin(&t, MHA_USUAL_TILE, s);
        *s = mha_search_steps(&t, TILES);
    }
}

/* ---- All of it ---- */

bool mha_may_go_by_d_lanes(const attune_problem *p) {
    return mha_attends(p) && !p->prob_mod[0] && !mha_quantises_keys(p);
}

static int64_t rows_of_head(const attune_problem *p) {
    return mha_likely_queries(p) * (p->num_heads / p->num_kv_heads);
}

/* The streams of values decide the order of sums. So of what is chosen for the given call, only the keys of a task may
 * differ. */
void mha_choose_d_lanes(const mha_cost_context *call, const mha_cost_context *c, mha_schedule *s) {
    const int64_t rows = rows_of_head(c->p);
    s->strategy = MHA_D_LANES;
    s->lanes = c->widest;
    choose_tiles(c, rows, s);
    take_if_chosen(MHA_MEMORY_ROWS, take_rows, c, rows, s);
    take_if_chosen(MHA_MEMORY_KEYS, take_streams_of_keys, c, rows, s);
    take_if_chosen(MHA_MEMORY_HELD, hold_converted_values, c, rows, s);
    s->kv_tile = choose_tile(c, rows);
    s->kv_chunk = choose_chunk(call->p, s->kv_tile);
    choose_panel_tiles(c, rows, s);
    search_tiles(c, max_of(rows, 1), s);
}

void mha_hold_narrow_heads(const mha_cost_context *c, mha_schedule *s) {
    take_if_chosen(MHA_NARROW, take_narrow_heads, c, rows_of_head(c->p), s);
}
