/* Cuts rows and keys as a schedule does, asks for each stripe of rows which keys it attends to, and counts or draws the
 * tiles: # all visible, / compared, . left out. */
#include "explain/explain_tiles.h"
#include "common/tool.h"

#include <stdio.h>
#include <string.h>

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* How many tiles of keys the longest chunk has. */
static int64_t tiles_of_chunk(const attune_problem *p, const mha_schedule *s, int64_t keys) {
    const int64_t most = p->integer == ATTUNE_INTEGER_ALL ? keys : ceil_div(MHA_CHUNK_TASKS, p->num_kv_heads);
    return ceil_div(ceil_div(keys, s->kv_chunk), most) * ceil_div(s->kv_chunk, s->kv_tile);
}

bool tile_cut_of(const attune_problem *p, const mha_schedule *s, bool is_open, tile_cut *cut) {
    const bool q = s->strategy == MHA_Q_LANES;
    const int64_t keys = p->low_rank ? p->low_rank : p->seq_kv;
    *cut =
        (tile_cut){.rows = p->seq_q > 0 ? p->seq_q * (p->num_heads / p->num_kv_heads) : 0, .keys = keys > 0 ? keys : 0};
    if (!cut->rows || !cut->keys) return false;
    cut->stripe = q ? (int64_t)s->score_row_vectors * s->lanes : s->score_rows;
    cut->tile = smaller(s->kv_tile, cut->keys);
    cut->stripes = ceil_div(cut->rows, cut->stripe);
    cut->tiles = ceil_div(cut->keys, cut->tile);
    cut->stripes_in_task = q ? smaller(s->task_row_vectors / s->score_row_vectors, cut->stripes) : cut->stripes;
    const bool has_functions = p->score_mod[0] || p->mask_mod[0] || p->prob_mod[0];
    cut->has_more = q && is_open && !has_functions && cut->keys >= MHA_LONG_KEYS && cut->stripes_in_task < cut->stripes;
    cut->tiles_in_task = q ? cut->tiles : smaller(tiles_of_chunk(p, s, cut->keys), cut->tiles);
    return true;
}

/* Numbers of keys, or of tiles, from low to high; none if high < low. */
typedef struct span {
    int64_t low, high;
} span;

/* The keys that the rows of a stripe attend to, as spans of tiles. */
typedef struct sights {
    span some;    /* some row may attend to a key of these by window and causality */
    span globals; /* these hold a key that is visible to all */
    span all;     /* every row attends to every key of these */
} sights;

/* The visible range of rows first … end - 1. */
static attune_sight sight_of(const attune_problem *p, const tile_cut *cut, int64_t first, int64_t end) {
    const int64_t group = p->num_heads / p->num_kv_heads;
    attune_sight sight = ATTUNE_SIGHT_INIT;
    if (attune_sight_of(p, p->seq_q, cut->keys, 0, first / group, (end - 1) / group + 1, &sight))
        tool_library_error(NULL);
    return sight;
}

static sights sights_of(const attune_problem *p, const tile_cut *cut, int64_t stripe) {
    const int64_t tile = cut->tile;
    const attune_sight s = sight_of(p, cut, stripe * cut->stripe, smaller((stripe + 1) * cut->stripe, cut->rows));
    return (sights){
        .some = {s.some_begin / tile, ceil_div(s.some_end, tile) - 1},
        .globals = {0, ceil_div(s.global_end, tile) - 1},
        .all = {ceil_div(s.all_begin, tile), s.all_end == cut->keys ? cut->tiles - 1 : s.all_end / tile - 1}};
}

/* Whether the rows of a stripe attend to the keys of a tile, as far as the problem alone says it. */
typedef enum tile_sight { TILE_LEFT_OUT = 0, TILE_COMPARED, TILE_SEEN, TILE_SIGHTS } tile_sight;

static bool holds(span s, int64_t tile) { return s.low <= tile && tile <= s.high; }

static tile_sight sight_in(const sights *s, int64_t tile) {
    if (holds(s->all, tile)) return TILE_SEEN;
    return holds(s->some, tile) || holds(s->globals, tile) ? TILE_COMPARED : TILE_LEFT_OUT;
}

static int64_t length(span s) { return larger(0, s.high - s.low + 1); }

static int64_t common(span a, span b) { return length((span){larger(a.low, b.low), smaller(a.high, b.high)}); }

/* Whether every stripe attends to all keys. */
static bool shows_all(const attune_problem *p, const tile_cut *cut) {
    const attune_sight all = sight_of(p, cut, 0, cut->rows);
    return all.all_end - all.all_begin == cut->keys;
}

static void count(const attune_problem *p, const tile_cut *cut, int64_t number[TILE_SIGHTS]) {
    if (shows_all(p, cut)) {
        number[TILE_SEEN] = cut->stripes * cut->tiles;
        return;
    }
    for (int64_t stripe = 0; stripe < cut->stripes; stripe++) {
        const sights s = sights_of(p, cut, stripe);
        /* Tiles that are visible to all rows are among those that are visible to some. */
        const int64_t seen = length(s.all), taken = length(s.some) + length(s.globals) - common(s.some, s.globals);
        number[TILE_SEEN] += seen;
        number[TILE_COMPARED] += taken - seen;
        number[TILE_LEFT_OUT] += cut->tiles - taken;
    }
}

/* ---- Text ---- */

static const char *plural(int64_t n) { return n == 1 ? "" : "s"; }

enum { MOST_CHARACTERS = 76, LINE_BYTES = MOST_CHARACTERS + 8, MOST_LINES = 24 };

/* A letter for each tile, and a bar where another task begins. */
static void print_cells(const attune_problem *p, const tile_cut *cut, int64_t stripe, char line[LINE_BYTES]) {
    static const char letters[TILE_SIGHTS] = {'.', '/', '#'};
    const sights s = sights_of(p, cut, stripe);
    const char *const end = line + MOST_CHARACTERS - 1;
    int64_t tile = 0;
    for (; tile < cut->tiles && line < end; tile++) {
        if (tile && tile % cut->tiles_in_task == 0) *line++ = '|';
        *line++ = letters[sight_in(&s, tile)];
    }
    strcpy(line, tile < cut->tiles ? " ..." : "");
}

static void print_lines(const attune_problem *p, const tile_cut *cut) {
    int printed = 0;
    const bool is_one_line = shows_all(p, cut);
    for (int64_t first = 0, next; first < cut->stripes; first = next) {
        char line[LINE_BYTES], other[LINE_BYTES];
        print_cells(p, cut, first, line);
        for (next = is_one_line ? cut->stripes : first + 1; next < cut->stripes; next++) {
            print_cells(p, cut, next, other);
            if (strcmp(line, other) != 0) break;
        }
        if (printed++ == MOST_LINES) {
            printf("              ... and other lines for the rows after them\n");
            return;
        }
        printf("              rows %5lld to %5lld  %s\n", (long long)(first * cut->stripe),
               (long long)smaller(next * cut->stripe, cut->rows) - 1, line);
    }
}

void tile_print(const attune_problem *p, const tile_cut *cut, bool lanes_along_rows) {
    int64_t number[TILE_SIGHTS] = {0};
    count(p, cut, number);
    printf("\ntiles         %lld stripe%s of %lld row%s by %lld tile%s of %lld keys; lanes run along %s\n",
           (long long)cut->stripes, plural(cut->stripes), (long long)cut->stripe, plural(cut->stripe),
           (long long)cut->tiles, plural(cut->tiles), (long long)cut->tile, lanes_along_rows ? "rows" : "head_dim");
    printf("              a task has %lld %sstripe%s by %lld tile%s\n", (long long)cut->stripes_in_task,
           cut->has_more ? "or more " : "", plural(cut->stripes_in_task + cut->has_more), (long long)cut->tiles_in_task,
           plural(cut->tiles_in_task));
    print_lines(p, cut);
    printf("              # computed%s%s%s\n", number[TILE_COMPARED] ? ", / computed with some keys hidden" : "",
           number[TILE_LEFT_OUT] ? ", . left out" : "", cut->tiles_in_task < cut->tiles ? ", | the next task" : "");
}

/* ---- JSON ---- */

json_t *tile_json(const attune_problem *p, const tile_cut *cut) {
    int64_t number[TILE_SIGHTS] = {0};
    count(p, cut, number);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "rows", (json_int_t)cut->rows, "keys",
                     (json_int_t)cut->keys, "stripe_rows", (json_int_t)cut->stripe, "tile_keys", (json_int_t)cut->tile,
                     "stripes", (json_int_t)cut->stripes, "tiles", (json_int_t)cut->tiles, "stripes_in_task",
                     (json_int_t)cut->stripes_in_task, "tiles_in_task", (json_int_t)cut->tiles_in_task, "computed",
                     (json_int_t)number[TILE_SEEN], "compared", (json_int_t)number[TILE_COMPARED], "left_out",
                     (json_int_t)number[TILE_LEFT_OUT]);
}
