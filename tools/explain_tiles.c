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

/* Keys that a query may see, from low to high. */
typedef struct span {
    int64_t low, high;
} span;

static span seen_by(const attune_problem *p, const tile_cut *cut, int64_t query) {
    const int64_t aligned = p->causal_align == ATTUNE_BOTTOM_RIGHT ? cut->keys - p->seq_q : 0;
    const int64_t at = query + p->causal_offset + aligned;
    span s = {0, p->is_causal ? smaller(cut->keys - 1, at) : cut->keys - 1};
    if (p->window_left >= 0) s.low = larger(0, at - p->window_left);
    if (p->window_right >= 0) s.high = smaller(s.high, at + p->window_right);
    return s;
}

tile_sight tile_sight_of(const attune_problem *p, const tile_cut *cut, int64_t block, int64_t tile) {
    const int64_t group = p->num_heads / p->num_kv_heads;
    const int64_t first_query = block * cut->block / group;
    const int64_t last_query = (smaller((block + 1) * cut->block, cut->rows) - 1) / group;
    const int64_t first = tile * cut->tile, last = smaller(first + cut->tile, cut->keys) - 1;
    const span of_first = seen_by(p, cut, first_query), of_last = seen_by(p, cut, last_query);
    if (of_last.low <= first && of_first.high >= last) return TILE_SEEN;
    const bool is_global = first < p->global_tokens || first_query < p->global_tokens;
    return is_global || (of_first.low <= last && of_last.high >= first) ? TILE_COMPARED : TILE_LEFT_OUT;
}

static void count(const attune_problem *p, const tile_cut *cut, int64_t number[TILE_SIGHTS]) {
    for (int64_t block = 0; block < cut->blocks; block++)
        for (int64_t tile = 0; tile < cut->tiles; tile++) number[tile_sight_of(p, cut, block, tile)]++;
}

/* ---- Text ---- */

static const char *plural(int64_t n) { return n == 1 ? "" : "s"; }

enum { MOST_CELLS = 44, LINE_BYTES = 2 * MOST_CELLS + 8, MOST_LINES = 24 };

/* A letter for each tile, and a bar where another task begins. */
static void print_cells(const attune_problem *p, const tile_cut *cut, int64_t block, char line[LINE_BYTES]) {
    static const char letters[TILE_SIGHTS] = {'.', '/', '#'};
    for (int64_t tile = 0; tile < smaller(cut->tiles, MOST_CELLS); tile++) {
        if (tile && tile % cut->tiles_in_task == 0) *line++ = '|';
        *line++ = letters[tile_sight_of(p, cut, block, tile)];
    }
    strcpy(line, cut->tiles > MOST_CELLS ? " ..." : "");
}

static void print_lines(const attune_problem *p, const tile_cut *cut) {
    int printed = 0;
    for (int64_t first = 0, next; first < cut->blocks; first = next) {
        char line[LINE_BYTES], other[LINE_BYTES];
        print_cells(p, cut, first, line);
        for (next = first + 1; next < cut->blocks; next++) {
            print_cells(p, cut, next, other);
            if (strcmp(line, other) != 0) break;
        }
        if (printed++ == MOST_LINES) {
            printf("              ... and other lines for the rows behind them\n");
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
