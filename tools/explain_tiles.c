#include "explain_tiles.h"

#include <stdio.h>
#include <string.h>

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool tile_cut_of(const attune_problem *p, const attune_schedule *s, tile_cut *cut) {
    const bool q = s->strategy == ATTUNE_Q_LANES;
    const int64_t keys = p->low_rank ? p->low_rank : p->seq_kv;
    *cut =
        (tile_cut){.rows = p->seq_q > 0 ? p->seq_q * (p->num_heads / p->num_kv_heads) : 0, .keys = keys > 0 ? keys : 0};
    if (!cut->rows || !cut->keys) return false;
    cut->block = q ? (int64_t)s->score_vectors * s->lanes : s->score_vectors;
    cut->tile = smaller(s->kv_tile, cut->keys);
    cut->blocks = ceil_div(cut->rows, cut->block);
    cut->tiles = ceil_div(cut->keys, cut->tile);
    cut->blocks_in_task = q ? smaller(s->q_vectors / s->score_vectors, cut->blocks) : cut->blocks;
    cut->tiles_in_task = q ? cut->tiles : smaller(ceil_div(s->kv_chunk, s->kv_tile), cut->tiles);
    return true;
}

/* Numbers of keys, or of tiles, from low to high; none if high < low. */
typedef struct span {
    int64_t low, high;
} span;

static int64_t position_of(const attune_problem *p, const tile_cut *cut, int64_t query) {
    return query + p->causal_offset + (p->causal_align == ATTUNE_BOTTOM_RIGHT ? cut->keys - p->seq_q : 0);
}

/* Keys that a query at this position sees, apart from those that all see: the kernels' mha_first_key and mha_last_key.
 */
static span seen_from(const attune_problem *p, const tile_cut *cut, int64_t at) {
    const bool is_bound = at >= p->global_tokens; /* by the window */
    span s = {0, p->is_causal ? smaller(cut->keys - 1, at) : cut->keys - 1};
    if (is_bound && p->window_left >= 0) s.low = larger(0, at - p->window_left);
    if (is_bound && p->window_right >= 0) s.high = smaller(s.high, at + p->window_right);
    return s;
}

/* The keys that the rows of a block see, as spans of tiles. */
typedef struct sights {
    span some;    /* that some row may see a key of by its window and causality */
    span globals; /* that hold a key which all may see */
    span all;     /* of which every row sees every key */
} sights;

static sights sights_of(const attune_problem *p, const tile_cut *cut, int64_t block) {
    const int64_t group = p->num_heads / p->num_kv_heads;
    const int64_t begin = position_of(p, cut, block * cut->block / group);
    const int64_t end = position_of(p, cut, (smaller((block + 1) * cut->block, cut->rows) - 1) / group);
    const span first = seen_from(p, cut, begin), last = seen_from(p, cut, end);
    /* Both ends move on from row to row, except for the step from the last global query to the first other one. */
    span some = {smaller(first.low, last.low), larger(first.high, last.high)};
    span all = {larger(first.low, last.low), smaller(first.high, last.high)};
    if (begin < p->global_tokens && end >= p->global_tokens) {
        const span other = seen_from(p, cut, p->global_tokens), global = seen_from(p, cut, p->global_tokens - 1);
        all.high = smaller(all.high, other.high);
        some.high = larger(some.high, global.high);
    }
    const int64_t last_global =
        smaller(p->global_tokens - 1, p->is_causal ? smaller(cut->keys - 1, end) : cut->keys - 1);
    sights s = {
        {some.low / cut->tile, some.high < 0 ? -1 : some.high / cut->tile},
        {0, last_global < 0 ? -1 : last_global / cut->tile},
        {ceil_div(all.low, cut->tile), all.high == cut->keys - 1 ? cut->tiles - 1 : (all.high + 1) / cut->tile - 1}};
    if (some.high < some.low) s.some = (span){0, -1};
    if (all.high < 0) s.all = (span){0, -1};
    return s;
}

/* Whether the rows of a block see the keys of a tile, as far as the problem alone says it. */
typedef enum tile_sight { TILE_LEFT_OUT = 0, TILE_COMPARED, TILE_SEEN, TILE_SIGHTS } tile_sight;

static bool holds(span s, int64_t tile) { return s.low <= tile && tile <= s.high; }

static tile_sight sight_in(const sights *s, int64_t tile) {
    if (holds(s->all, tile)) return TILE_SEEN;
    return holds(s->some, tile) || holds(s->globals, tile) ? TILE_COMPARED : TILE_LEFT_OUT;
}

static int64_t length(span s) { return larger(0, s.high - s.low + 1); }

static int64_t common(span a, span b) { return length((span){larger(a.low, b.low), smaller(a.high, b.high)}); }

/* Whether all blocks see the same: everything. */
static bool shows_all(const attune_problem *p) { return !p->is_causal && p->window_left < 0 && p->window_right < 0; }

static void count(const attune_problem *p, const tile_cut *cut, int64_t number[TILE_SIGHTS]) {
    if (shows_all(p)) {
        number[TILE_SEEN] = cut->blocks * cut->tiles;
        return;
    }
    for (int64_t block = 0; block < cut->blocks; block++) {
        const sights s = sights_of(p, cut, block);
        /* Tiles that all rows see are among those that some see. */
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
static void print_cells(const attune_problem *p, const tile_cut *cut, int64_t block, char line[LINE_BYTES]) {
    static const char letters[TILE_SIGHTS] = {'.', '/', '#'};
    const sights s = sights_of(p, cut, block);
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
    const bool is_one_line = shows_all(p);
    for (int64_t first = 0, next; first < cut->blocks; first = next) {
        char line[LINE_BYTES], other[LINE_BYTES];
        print_cells(p, cut, first, line);
        for (next = is_one_line ? cut->blocks : first + 1; next < cut->blocks; next++) {
            print_cells(p, cut, next, other);
            if (strcmp(line, other) != 0) break;
        }
        if (printed++ == MOST_LINES) {
            printf("              ... and other lines for the rows after them\n");
            return;
        }
        printf("              rows %5lld to %5lld  %s\n", (long long)(first * cut->block),
               (long long)smaller(next * cut->block, cut->rows) - 1, line);
    }
}

void tile_print(const attune_problem *p, const tile_cut *cut, bool lanes_along_rows) {
    int64_t number[TILE_SIGHTS] = {0};
    count(p, cut, number);
    printf("\ntiles         %lld block%s of %lld row%s by %lld tile%s of %lld keys; lanes run along %s\n",
           (long long)cut->blocks, plural(cut->blocks), (long long)cut->block, plural(cut->block),
           (long long)cut->tiles, plural(cut->tiles), (long long)cut->tile, lanes_along_rows ? "rows" : "head_dim");
    printf("              a task has %lld block%s by %lld tile%s\n", (long long)cut->blocks_in_task,
           plural(cut->blocks_in_task), (long long)cut->tiles_in_task, plural(cut->tiles_in_task));
    print_lines(p, cut);
    printf("              # computed%s%s%s\n",
           number[TILE_COMPARED] ? ", / computed and compared with what is hidden" : "",
           number[TILE_LEFT_OUT] ? ", . left out" : "", cut->tiles_in_task < cut->tiles ? ", | the next task" : "");
}

/* ---- JSON ---- */

json_t *tile_json(const attune_problem *p, const tile_cut *cut) {
    int64_t number[TILE_SIGHTS] = {0};
    count(p, cut, number);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "rows", (json_int_t)cut->rows, "keys",
                     (json_int_t)cut->keys, "block_rows", (json_int_t)cut->block, "tile_keys", (json_int_t)cut->tile,
                     "blocks", (json_int_t)cut->blocks, "tiles", (json_int_t)cut->tiles, "blocks_in_task",
                     (json_int_t)cut->blocks_in_task, "tiles_in_task", (json_int_t)cut->tiles_in_task, "computed",
                     (json_int_t)number[TILE_SEEN], "compared", (json_int_t)number[TILE_COMPARED], "left_out",
                     (json_int_t)number[TILE_LEFT_OUT]);
}
