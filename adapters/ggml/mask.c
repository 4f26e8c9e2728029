/* First each row is read: its first and its last visible key, how many there are between, and one hole. Then the rows
 * are compared, which gives the mask's class (classify). Finally lists of keys are written for the classes that need
 * them.
 *
 *     key        0 1 2 3 4 5 6 7          first 1, last 6 (exclusive), count 4, hole 3 to 3: mid 3, next 4
 *     row        . x x . x x . .
 *
 * Rows are read in vectors of 64 bytes, which the compiler lowers to what the CPU has. Most masks take one pass over
 * the visible keys. */
#include "mask.h"

#include <string.h>

enum { HIDDEN = 0xfc00, LANES = 32 }; /* HIDDEN is -infinity in f16 */

typedef uint16_t lanes __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef int16_t signed_lanes __attribute__((vector_size(2 * LANES)));
typedef uint64_t words __attribute__((vector_size(2 * LANES)));

/* The visible keys of a row. */
typedef struct row {
    int64_t first, last; /* first is visible, and last - 1; first == last: no key is visible */
    int64_t mid, next;   /* the hole is mid to next - 1; mid == next: there is none; mid == -1: there are several */
    int64_t count;       /* visible keys */
    bool has_bias;       /* a visible key has a number other than 0 */
} row;

static inline __attribute__((always_inline)) bool is_any(const signed_lanes *x) {
    const words w = (words)*x;
    return (w[0] | w[1] | w[2] | w[3] | w[4] | w[5] | w[6] | w[7]) != 0;
}

static inline __attribute__((always_inline)) int64_t first_visible(const uint16_t *m, int64_t keys) {
    int64_t j = 0;
    for (; j + LANES <= keys; j += LANES) {
        const signed_lanes is_visible = (signed_lanes)(*(const lanes *)(m + j) != HIDDEN);
        if (is_any(&is_visible)) break;
    }
    while (j < keys && m[j] == HIDDEN) j++;
    return j;
}

static inline __attribute__((always_inline)) int64_t after_visible(const uint16_t *m, int64_t first, int64_t keys) {
    int64_t j = keys;
    for (; j - LANES >= first; j -= LANES) {
        const signed_lanes is_visible = (signed_lanes)(*(const lanes *)(m + j - LANES) != HIDDEN);
        if (is_any(&is_visible)) break;
    }
    while (j > first && m[j - 1] == HIDDEN) j--;
    return j;
}

/* Counts visible keys, and looks for a bias. The counters of the lanes have 15 bits, so they are summed in time. */
static inline __attribute__((always_inline)) void count_visible(const uint16_t *m, int64_t keys, row *r) {
    enum { MOST = 32000 };
    signed_lanes biased = {0};
    int64_t j = 0;
    while (j + LANES <= keys) {
        const int64_t end = (keys - j) / LANES > MOST ? j + (int64_t)MOST * LANES : keys;
        signed_lanes visible = {0};
        for (; j + LANES <= end; j += LANES) {
            const lanes x = *(const lanes *)(m + j);
            const signed_lanes is_visible = (signed_lanes)(x != HIDDEN);
            visible -= is_visible;
            biased |= is_visible & (signed_lanes)(x & 0x7fff);
        }
        for (int i = 0; i < LANES; i++) r->count += visible[i];
    }
    r->has_bias = is_any(&biased);
    for (; j < keys; j++) {
        r->count += m[j] != HIDDEN;
        r->has_bias |= m[j] != HIDDEN && (m[j] & 0x7fff);
    }
}

/* Finds the hole between first and last. */
static inline __attribute__((always_inline)) void find_hole(const uint16_t *m, row *r) {
    r->mid = r->next = r->last;
    if (r->count == r->last - r->first) return;
    int64_t j = r->first;
    while (r->last - j >= LANES) {
        const signed_lanes is_hidden = (signed_lanes)(*(const lanes *)(m + j) == HIDDEN);
        if (is_any(&is_hidden)) break;
        j += LANES;
    }
    while (m[j] != HIDDEN) j++; /* ends, because a key before the last one is hidden */
    r->mid = j;
    r->next = j + first_visible(m + j, r->last - j);
    if (r->count != r->last - r->first - (r->next - r->mid)) r->mid = -1;
}

static inline __attribute__((always_inline)) row read_row(const uint16_t *m, int64_t keys) {
    row r = {.first = first_visible(m, keys)};
    if (r.first == keys) return (row){0};
    r.last = after_visible(m, r.first, keys);
    count_visible(m + r.first, r.last - r.first, &r);
    find_hole(m, &r);
    return r;
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static row read_row_avx2(const uint16_t *m, int64_t keys) { return read_row(m, keys); }
__attribute__((target("avx512bw"))) static row read_row_avx512(const uint16_t *m, int64_t keys) {
    return read_row(m, keys);
}
#endif
static row read_row_base(const uint16_t *m, int64_t keys) { return read_row(m, keys); }

typedef row row_reader(const uint16_t *m, int64_t keys);

static row_reader *best_reader(void) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512bw")) return read_row_avx512;
    if (__builtin_cpu_supports("avx2")) return read_row_avx2;
#endif
    return read_row_base;
}

/* ---- Rows together ---- */

/* What is true of all rows. */
typedef struct summary {
    bool is_same;       /* all keys are visible */
    bool is_step;       /* causal: the last row attends to all keys, each row before it to one less */
    bool is_window;     /* the same, but only to the last `longest` of them */
    bool is_contiguous; /* no row has a hole */
    bool has_one_hole;  /* no row has several holes */
    int64_t seen;       /* visible keys, summed over the rows */
} summary;

static summary summarise(int64_t rows, const mask_rows *m) {
    summary s = {.is_same = true, .is_step = true, .is_window = true, .is_contiguous = true, .has_one_hole = true};
    for (int64_t r = 0; r < rows; r++) {
        const int64_t end = m->keys - rows + 1 + r, first = end > m->longest ? end - m->longest : 0;
        s.seen += m->count[r];
        s.is_contiguous &= m->count[r] == m->hi[r] - m->lo[r];
        s.has_one_hole &= m->mid[r] >= 0;
        s.is_same &= m->lo[r] == 0 && m->hi[r] == m->keys;
        s.is_step &= m->lo[r] == 0 && m->hi[r] == end && end > 0;
        s.is_window &= m->lo[r] == first && m->hi[r] == end && end > 0;
    }
    return s;
}

/* The first key from `j` on that is visible in one row and hidden in the other. */
static int64_t first_difference(const uint16_t *a, const uint16_t *b, int64_t j, int64_t keys) {
    for (; j + LANES <= keys; j += LANES) {
        const signed_lanes differs =
            (signed_lanes)(*(const lanes *)(a + j) == HIDDEN) ^ (signed_lanes)(*(const lanes *)(b + j) == HIDDEN);
        if (is_any(&differs)) break;
    }
    while (j < keys && (a[j] == HIDDEN) == (b[j] == HIDDEN)) j++;
    return j;
}

/* Whether row r attends to one key that the row before it does not, and hides at most one that it does. Sets added[r]
 * and dropped[r]. */
static bool continues(const uint16_t *mask, int64_t stride, mask_rows *m, int64_t r) {
    const uint16_t *const after = mask + r * stride + m->begin, *const before = after - stride;
    const int64_t more = m->count[r] - m->count[r - 1];
    if (!m->count[r - 1] || more < 0 || more > 1) return false;
    for (int64_t j = 0; (j = first_difference(after, before, j, m->keys)) < m->keys; j++) {
        int32_t *const key = after[j] == HIDDEN ? &m->dropped[r] : &m->added[r];
        if (*key >= 0) return false;
        *key = (int32_t)j;
    }
    return m->added[r] >= 0;
}

/* Whether row r belongs to the group that begins with row `start`: the group's list begins with the first row's keys
 * and goes on with the key that each row adds. A row may drop a key only if it is the oldest of a window's `longest`
 * last listed keys. The first row's keys may be listed in any order, so that those that are dropped come first. */
static bool joins(const uint16_t *mask, int64_t stride, mask_rows *m, int64_t start, int64_t r) {
    m->added[r] = m->dropped[r] = -1;
    if (r == start || !continues(mask, stride, m, r)) return false;
    const uint16_t *const first = mask + start * stride + m->begin;
    const int64_t dropped_before = r - start - 1 - (m->longest - m->count[start]);
    if (first[m->added[r]] != HIDDEN) return false;
    if (m->dropped[r] < 0) return true;
    if (m->count[r] != m->longest) return false;
    return dropped_before < m->count[start] ? first[m->dropped[r]] != HIDDEN
                                            : m->dropped[r] == m->added[start + 1 + dropped_before - m->count[start]];
}

/* Divides the rows into groups. Returns how many keys the kernel will read: those of a group once for each of its rows.
 */
static int64_t find_groups(const uint16_t *mask, int64_t rows, int64_t stride, mask_rows *m) {
    int64_t read = 0;
    m->groups = m->listed = m->window = 0;
    for (int64_t r = 0; r < rows; r++) {
        if (!joins(mask, stride, m, m->groups ? m->starts[m->groups - 1] : 0, r)) {
            m->added[r] = m->dropped[r] = -1;
            m->starts[m->groups] = (int32_t)r;
            m->lens[m->groups++] = m->count[r];
        } else {
            m->lens[m->groups - 1]++;
            if (m->dropped[r] >= 0) m->window = m->longest;
        }
    }
    m->starts[m->groups] = (int32_t)rows;
    for (int64_t g = 0; g < m->groups; g++) {
        const int64_t seen = m->lens[g] < m->longest ? m->lens[g] : m->longest;
        read += (int64_t)(m->starts[g + 1] - m->starts[g]) * seen;
        if (m->lens[g] > m->listed) m->listed = m->lens[g];
    }
    return read;
}

enum { FEW = 16, ROWS_OF_GROUP = 8 }; /* fewer rows are few; groups pay with so many rows each, on average */

/* A list for each row pays if the row attends to at most half of the keys, since rows then share no loads. Many rows
 * gain more by tiles. A list for a group of rows costs little, because its keys are gathered once for all of them. */
static mask_class classify(const uint16_t *mask, int64_t rows, int64_t stride, mask_rows *m) {
    enum { TILES_GAIN = 8 };
    const summary s = summarise(rows, m);
    const int64_t all = rows * m->keys;
    if (!s.seen) return MASK_EMPTY;
    if (m->has_bias) return (rows < FEW ? 2 : TILES_GAIN) * s.seen <= all ? MASK_LISTS : MASK_DENSE;
    if (s.is_contiguous) {
        if (s.is_same) return MASK_NONE;
        if (s.is_step) return MASK_CAUSAL;
        if (rows >= FEW) return s.is_window ? MASK_WINDOW : MASK_RANGES;
    }
    const int64_t read = find_groups(mask, rows, stride, m);
    if (rows >= ROWS_OF_GROUP * m->groups && read <= all) return MASK_GROUPS;
    const bool gain = 2 * s.seen <= all;
    if (gain && rows > 1 && rows < FEW) return MASK_LISTS;
    if (s.is_contiguous) return s.is_window ? MASK_WINDOW : MASK_RANGES;
    if (s.has_one_hole) return MASK_HOLES;
    return gain ? MASK_LISTS : MASK_DENSE;
}

void mask_place(mask_rows *m, int32_t *room, int64_t rows) {
    int32_t **const arrays[] = {&m->lo,    &m->mid,     &m->next, &m->hi,    &m->count,
                                &m->added, &m->dropped, &m->lens, &m->starts}; /* the last one has one more */
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) *arrays[i] = room + (int64_t)i * rows;
}

void mask_read(const uint16_t *mask, int64_t rows, int64_t keys, int64_t stride, mask_rows *m) {
    row_reader *const read = best_reader();
    int64_t begin = keys, end = 0;
    m->has_bias = false;
    m->longest = 0;
    for (int64_t i = 0; i < rows; i++) {
        const row r = read(mask + i * stride, keys);
        m->lo[i] = (int32_t)r.first, m->mid[i] = (int32_t)r.mid, m->next[i] = (int32_t)r.next;
        m->hi[i] = (int32_t)r.last, m->count[i] = (int32_t)r.count;
        m->has_bias |= r.has_bias;
        if (r.count > m->longest) m->longest = r.count;
        if (r.count && r.first < begin) begin = r.first;
        if (r.last > end) end = r.last;
    }
    m->begin = end ? begin : 0;
    m->keys = end - m->begin;
    const int32_t shift = (int32_t)m->begin;
    for (int64_t i = 0; i < rows; i++) {
        if (!m->count[i]) continue;
        m->lo[i] -= shift, m->next[i] -= shift, m->hi[i] -= shift;
        if (m->mid[i] >= 0) m->mid[i] -= shift;
    }
    m->class = classify(mask, rows, stride, m);
}

bool mask_group(const uint16_t *mask, int64_t rows, int64_t stride, mask_rows *m) {
    const int64_t read = find_groups(mask, rows, stride, m);
    if (rows >= FEW && rows < ROWS_OF_GROUP * m->groups && 2 * read > rows * m->keys) return false;
    m->class = MASK_GROUPS;
    return true;
}

/* ---- Lists ---- */

int64_t mask_columns(const mask_rows *m) { return m->class == MASK_GROUPS ? m->listed : m->longest; }

/* Writes a group's list: keys in the order in which its rows drop them, then those that no row drops, then keys in the
 * order in which rows add them. Returns how many there are. */
static int64_t list_group(const uint16_t *mask, int64_t stride, const mask_rows *m, int64_t g, int32_t *table) {
    const int64_t start = m->starts[g], end = m->starts[g + 1];
    const uint16_t *const first = mask + start * stride + m->begin, *const last = mask + (end - 1) * stride + m->begin;
    int64_t n = 0;
    for (int64_t r = start + 1; r < end && n < m->count[start]; r++)
        if (m->dropped[r] >= 0) table[n++] = m->dropped[r];
    for (int32_t j = m->lo[start]; j < m->hi[start] && n < m->count[start]; j++)
        if (first[j] != HIDDEN && last[j] != HIDDEN) table[n++] = j;
    for (int64_t r = start + 1; r < end; r++) table[n++] = m->added[r];
    return n;
}

static int64_t list_row(const uint16_t *numbers, int32_t lo, int32_t hi, int32_t *table, uint16_t *bias) {
    int64_t n = 0;
    for (int32_t j = lo; j < hi; j++) {
        if (numbers[j] == HIDDEN) continue;
        if (bias) bias[n] = numbers[j];
        table[n++] = j;
    }
    return n;
}

void mask_list(const uint16_t *mask, int64_t rows, int64_t stride, const mask_rows *m, int32_t *table, uint16_t *bias) {
    const bool has_groups = m->class == MASK_GROUPS;
    const int64_t lists = has_groups ? m->groups : rows, columns = mask_columns(m);
    for (int64_t i = 0; i < lists; i++, table += columns) {
        const int64_t n = has_groups ? list_group(mask, stride, m, i, table)
                                     : list_row(mask + i * stride + m->begin, m->lo[i], m->hi[i], table, bias);
        memset(table + n, 0, (size_t)(columns - n) * sizeof *table);
        if (!bias) continue;
        memset(bias + n, 0, (size_t)(columns - n) * sizeof *bias);
        bias += columns;
    }
}

/* ---- ALiBi ---- */

/* -number in f16, rounded to nearest, ties to even. The number is at most 65504. */
static uint16_t minus(uint32_t number) {
    if (!number) return 0x8000;
    const int top = 31 - __builtin_clz(number);
    const uint32_t exponent = (uint32_t)(top + 15) << 10;
    if (top <= 10) return (uint16_t)(0x8000 + exponent + ((number << (10 - top)) & 0x3ff));
    const int drop = top - 10;
    const uint32_t half = 1U << (drop - 1), kept = number >> drop, rest = number & ((1U << drop) - 1);
    const uint32_t up = rest > half || (rest == half && (kept & 1));
    return (uint16_t)(0x8000 + exponent + (kept & 0x3ff) + up);
}

void mask_distances(uint16_t *end, int64_t count) {
    for (int64_t i = 0; i < count; i++) end[-1 - i] = minus((uint32_t)i);
}

/* Whether a row at `position`, which attends to the first `end` keys, has minus the distance at each key. At its own
 * key it may have 0 or -0. */
static bool has_distances(const uint16_t *numbers, int64_t position, int64_t end, const uint16_t *distances_end) {
    if (numbers[position] & 0x7fff) return false;
    if (memcmp(numbers, distances_end - position - 1, (size_t)position * sizeof *numbers) != 0) return false;
    for (int64_t j = position + 1; j < end; j++)
        if (numbers[j] != distances_end[position - j - 1]) return false;
    return true;
}

mask_alibi mask_alibi_of(const uint16_t *mask, int64_t rows, int64_t stride, const mask_rows *m,
                         const uint16_t *distances_end) {
    const bool is_whole = rows > 1 && m->hi[0] == m->keys;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t position = m->keys - rows + r, end = is_whole ? m->keys : position + 1;
        if (position < 0 || m->lo[r] || m->hi[r] != end || m->count[r] != end) return MASK_NO_ALIBI;
        if (!has_distances(mask + r * stride + m->begin, position, end, distances_end)) return MASK_NO_ALIBI;
    }
    return is_whole ? MASK_WHOLE_ALIBI : MASK_CAUSAL_ALIBI;
}
