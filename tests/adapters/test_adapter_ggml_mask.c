/* What the plug-in of ggml reads of a mask: the keys that its class and its arrays stand for are those that the mask
 * shows, for random masks of all forms. */
#include "ggml/mask.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { MOST_ROWS = 40, MOST_KEYS = 150, TRIALS = 4000 };

static uint64_t seed = 7;
static int64_t below(int64_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((seed >> 33) % (uint64_t)n);
}

/* A mask of one of several forms, at a random place; one of eight has biases. */
static void draw_mask(uint16_t *mask, int64_t rows, int64_t keys) {
    const int64_t biased = below(8), form = below(11), a = below(keys), b = below(keys), step = below(2),
                  part = 1 + below(4);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < keys; j++) {
            const int64_t lo = a < b ? a : b, hi = (a < b ? b : a) + step * r;
            const bool in = j >= lo && j <= hi;
            const bool sees = form == 0    ? in
                              : form == 1  ? !in
                              : form == 2  ? j % part == r % part
                              : form == 3  ? r < rows / 2 ? in : j % part == 0 && j <= hi
                              : form == 4  ? j >= a + step * r && j < a + step * r + part
                              : form == 5  ? j <= a + r && j % 5 != 1
                              : form == 7  ? in && part == 4
                              : form == 9  ? ((a + r - j) % keys + keys) % keys < b + 1                 /* a ring */
                              : form == 10 ? j % 3 ? (r - j / 3 % (b + 1) + b + 1) % (b + 1) < part * 2 /* scattered */
                                                   : 0
                              : form == 6  ? j < lo ? j % 2 == r * 2 / rows /* prompts of two sequences */
                                                    : j - lo <= r && (j - lo) * 2 / rows == r * 2 / rows
                                           : below(3) == 0;
            mask[r * keys + j] = !sees ? 0xfc00 : !biased && below(4) == 0 ? (uint16_t)(0x3c00 + below(900)) : 0;
        }
}

static uint16_t listed_bias[MOST_ROWS * MOST_KEYS];

static bool is_in_group(const mask_rows *m, const int32_t *table, int64_t r, int64_t key) {
    int64_t g = 0;
    while (m->starts[g + 1] <= r) g++;
    const int64_t end = m->lens[g] - (m->starts[g + 1] - 1 - r);
    for (int64_t i = m->window && end > m->window ? end - m->window : 0; i < end; i++)
        if (table[g * m->listed + i] == key) return true;
    return false;
}

/* What row r sees of key j according to what was read; with lists *bias becomes its bias. */
static bool is_read_as_seen(const mask_rows *m, const int32_t *table, int64_t rows, int64_t r, int64_t j,
                            uint16_t *bias) {
    const int64_t key = j - m->begin;
    if (key < 0 || key >= m->keys) return false;
    switch (m->class) {
    case MASK_NONE: return true;
    case MASK_CAUSAL: return key < m->keys - rows + 1 + r;
    case MASK_WINDOW: return key <= m->keys - rows + r && key > m->keys - rows + r - m->longest;
    case MASK_RANGES: return key >= m->lo[r] && key < m->hi[r];
    case MASK_HOLES: return (key >= m->lo[r] && key < m->mid[r]) || (key >= m->next[r] && key < m->hi[r]);
    case MASK_LISTS:
        for (int64_t i = r * m->longest; i < r * m->longest + m->count[r]; i++)
            if (table[i] == key) return *bias = listed_bias[i], true;
        return false;
    case MASK_GROUPS: return is_in_group(m, table, r, key);
    default: return false;
    }
}

static void check_mask(const uint16_t *mask, int64_t rows, int64_t keys, const mask_rows *m, int trial) {
    static int32_t table[MOST_ROWS * (MOST_KEYS + MOST_ROWS)];
    if (m->class == MASK_LISTS || m->class == MASK_GROUPS)
        mask_list(mask, rows, keys, m, table, m->class == MASK_LISTS ? listed_bias : NULL);
    for (int64_t i = 0; i < rows * keys && m->class != MASK_DENSE; i++) {
        uint16_t bias = 0;
        const bool sees = is_read_as_seen(m, table, rows, i / keys, i % keys, &bias);
        if (sees != (mask[i] != 0xfc00) || (sees && bias != mask[i]))
            fail_msg("trial %d, class %d: row %d, key %d of %d", trial, (int)m->class, (int)(i / keys), (int)(i % keys),
                     (int)keys);
    }
}

static void what_is_read_of_a_mask_is_what_it_says(void **state) {
    (void)state;
    static uint16_t mask[MOST_ROWS * MOST_KEYS];
    static int32_t room[MASK_ROOM * MOST_ROWS];
    int classes[MASK_DENSE + 1] = {0}, with_window[2] = {0};
    for (int trial = 0; trial < TRIALS; trial++) {
        const int64_t rows = 1 + below(trial % 2 ? 4 : MOST_ROWS), keys = 1 + below(MOST_KEYS);
        mask_rows m = {0};
        draw_mask(mask, rows, keys);
        mask_place(&m, room, rows);
        mask_read(mask, rows, keys, keys, &m);
        classes[m.class]++;
        bool has_bias = false;
        for (int64_t i = 0; i < rows * keys; i++) has_bias |= mask[i] != 0xfc00 && mask[i];
        assert_int_equal(m.has_bias, has_bias);
        check_mask(mask, rows, keys, &m, trial);
        if (has_bias || m.class == MASK_EMPTY || !mask_group(mask, rows, keys, &m)) continue;
        with_window[m.window != 0]++;
        check_mask(mask, rows, keys, &m, trial);
    }
    for (int c = 0; c <= MASK_DENSE; c++)
        if (classes[c] <= 10) fail_msg("class %d was drawn %d times", c, classes[c]);
    for (int w = 0; w < 2; w++)
        if (with_window[w] <= 10) fail_msg("groups %s window: %d times", w ? "with a" : "without", with_window[w]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_read_of_a_mask_is_what_it_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
