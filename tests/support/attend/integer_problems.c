#include "support/attend/integer_problems.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Random numbers ---- */

typedef struct source {
    uint64_t state;
} source;

static uint64_t mixed(uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}
static uint64_t next(source *s) { return mixed(s->state += 0x9e3779b97f4a7c15); }
static int64_t below(source *s, int64_t count) { return (int64_t)(next(s) % (uint64_t)count); }
static int64_t between(source *s, int64_t low, int64_t high) { return low + below(s, high - low + 1); }
static bool chance(source *s, int percent) { return below(s, 100) < percent; }

/* Stream 0 of a problem draws it; the others are for tensors, numbered by their names. */
static source stream(uint64_t problem, uint64_t number) {
    const uint64_t version = (uint64_t)INTEGER_PROBLEMS_VERSION << 56;
    return (source){mixed(mixed(version + problem) + number)};
}

/* ---- What is computed ---- */

/* The lengths and what depends on them. */
typedef struct shape {
    int64_t batch, kv_heads, group, rows, keys, dim, dim_v, fresh, rotary;
    bool is_ragged, shares_v, ends_right;
} shape;

static int64_t work(const shape *h) {
    return h->batch * h->kv_heads * h->group * h->rows * h->keys * (h->dim + h->dim_v);
}

static void halve(int64_t *length) { *length = (*length + 1) / 2; }

/* Less work, of one thing or another, and never fewer keys. */
static void make_smaller(source *s, shape *h) {
    switch (below(s, 5)) {
    case 0: halve(&h->batch); break;
    case 1: halve(&h->rows); break;
    case 2: halve(&h->group); break;
    case 3: halve(&h->kv_heads); break;
    default: halve(&h->dim); halve(&h->dim_v);
    }
}

/* Keys of less than a chunk, and of up to three: chunks of probabilities have 512 keys. */
static shape draw_shape(source *s) {
    enum { MOST_WORK = 24000 };
    static const uint8_t dims[] = {1, 3, 5, 8, 13, 16, 17, 24, 32, 33, 40, 64};
    shape h = {.batch = chance(s, 30) ? between(s, 2, INTEGER_MOST_BATCH) : 1};
    h.kv_heads = between(s, 1, 3);
    h.group = INT64_C(1) << below(s, 3);
    h.rows = chance(s, 40) ? 1 : between(s, 2, 20);
    const int64_t length = below(s, 100);
    h.keys = length < 60 ? between(s, 1, 70) : length < 85 ? between(s, 71, 300) : between(s, 500, 1100);
    h.dim = dims[below(s, sizeof dims)];
    h.dim_v = chance(s, 60) ? h.dim : dims[below(s, sizeof dims)];
    while (work(&h) > MOST_WORK) make_smaller(s, &h);
    h.is_ragged = chance(s, 12);
    h.shares_v = chance(s, 6) && h.dim_v <= h.dim;
    h.ends_right = chance(s, 60);
    if (h.ends_right && h.keys < h.rows) h.keys = h.rows;
    if (chance(s, 25) && !h.is_ragged && !h.shares_v)
        h.fresh = chance(s, 50) && h.rows <= h.keys ? h.rows : between(s, 1, h.keys < 8 ? h.keys : 8);
    /* Keys that are there already lie rotated. */
    h.rotary = h.fresh && h.dim > 1 && chance(s, 40) ? 2 * between(s, 1, h.dim / 2) : 0;
    return h;
}

static void say(integer_problem *p, const char *format, ...) {
    const size_t used = strlen(p->text);
    va_list values;
    va_start(values, format);
    vsnprintf(p->text + used, sizeof p->text - used, format, values);
    va_end(values);
}

static void say_shape(integer_problem *p, const shape *h) {
    say(p, "batch=%d,num_heads=%d,num_kv_heads=%d,head_dim=%d,head_dim_v=%d", (int)h->batch,
        (int)(h->kv_heads * h->group), (int)h->kv_heads, (int)h->dim, (int)h->dim_v);
    if (h->is_ragged)
        say(p, ",seq_q=dynamic,seq_kv=dynamic,is_ragged=1");
    else
        say(p, ",seq_q=%d,seq_kv=%d", (int)h->rows, (int)h->keys);
    if (h->fresh) say(p, ",seq_new=%d", (int)h->fresh);
    if (h->shares_v) say(p, ",v_in_k=1");
    if (h->ends_right) say(p, ",causal_align=bottom_right");
}

static void draw_types(source *s, integer_problem *p, const shape *h) {
    static const char *const dtypes[] = {"f32", "f32", "f32", "bf16", "f16", "f64"};
    static const char *const scales[] = {"head", "token"};
    const int64_t k = below(s, 2), v = h->shares_v ? k : below(s, 2);
    say(p, ",dtype=%s,kv_dtype=i8,k_scales=%s,v_scales=%s", dtypes[below(s, 6)], scales[k], scales[v]);
    say(p, ",integer=all,q_planes=%d", (int)between(s, 1, 2));
    if (chance(s, 60)) say(p, ",has_lse=1");
    if (chance(s, 10)) say(p, ",reproducible=1");
    if (chance(s, 30)) say(p, ",softmax_scale=%s", chance(s, 50) ? "0.125" : "-0.75");
}

/* Which keys a query sees. With the rotary embedding no query stands before the first position. */
static void draw_sight(source *s, integer_problem *p, const shape *h) {
    p->first_offset = h->rotary ? 0 : -5;
    p->num_offsets = h->rotary ? 6 : 11;
    if (chance(s, 40)) say(p, ",is_causal=1");
    if (chance(s, 20)) say(p, ",causal_offset=%d", (int)(p->first_offset + below(s, p->num_offsets)));
    if (chance(s, 12)) say(p, ",has_causal_offsets=1");
    if (chance(s, 20)) {
        say(p, ",window_left=%d", (int)between(s, 0, 40));
        if (chance(s, 50)) say(p, ",window_right=%d", (int)between(s, 0, 40));
        if (chance(s, 30)) say(p, ",global_tokens=%d", (int)between(s, 1, 5));
    }
    if (h->is_ragged) return;
    static const char *const dims[] = {"qk", "bqk", "hqk", "bhqk", "bk", "k"};
    if (chance(s, 15)) say(p, ",attn_mask_dims=%s", dims[below(s, 6)]);
    if (chance(s, 15)) say(p, ",attn_bias_dims=%s", dims[below(s, 6)]);
}

static void draw_scores(source *s, integer_problem *p) {
    static const char *const scores[] = {"score * 0.5 + float(kv - q) * 0.0625", "tanh(score * 0.25) * 4",
                                         "select((kv + h) % 3 == 0, score - 1, score)", "score + exp(-abs(score))"};
    static const char *const masks[] = {"kv % 3 != q % 2", "kv <= q + 7 | h == 0", "(q - kv) // 4 < 5"};
    if (chance(s, 15)) say(p, ",logits_soft_cap=%d", (int)between(s, 1, 30));
    if (chance(s, 10)) say(p, ",has_alibi_slopes=1");
    if (chance(s, 15)) say(p, ",has_sinks=1");
    if (chance(s, 12)) say(p, ",score_mod=\"%s\"", scores[below(s, 4)]);
    if (chance(s, 12)) say(p, ",mask_mod=\"%s\"", masks[below(s, 3)]);
}

/* The lengths of each entry, and where its keys lie. */
static void draw_lengths(source *s, integer_problem *p, const shape *h) {
    const bool has_lens = !h->is_ragged && chance(s, 30), has_pages = !h->is_ragged && chance(s, 20);
    const int64_t page = INT64_C(4) << below(s, 4);
    int64_t rows = 0, keys = 0;
    for (int64_t b = 0; b < h->batch; b++) {
        p->rows[b] = h->is_ragged ? between(s, b == 0, h->rows) : h->rows;
        const int64_t fewest = h->ends_right ? p->rows[b] : h->fresh > 0;
        const int64_t least = fewest < h->fresh ? h->fresh : fewest;
        p->keys[b] = h->is_ragged || has_lens ? between(s, least, h->keys) : h->keys;
        rows += p->rows[b];
        keys += p->keys[b];
    }
    if (has_lens) say(p, ",has_kv_lens=1");
    if (has_pages) {
        p->sizes.max_pages = (h->keys + page - 1) / page;
        p->sizes.num_pages = h->batch * p->sizes.max_pages + 2;
        say(p, ",page_size=%d", (int)page);
    }
    if (!h->is_ragged) return;
    p->sizes.seq_q = h->rows;
    p->sizes.seq_kv = h->keys;
    p->sizes.total_q = rows + 1;
    p->sizes.total_kv = keys + 1;
}

static void draw_rotary(source *s, integer_problem *p, const shape *h) {
    const bool is_interleaved = chance(s, 50), has_ids = chance(s, 30) && h->fresh == h->rows;
    if (!h->rotary) return;
    say(p, ",rotary_dim=%d", (int)h->rotary);
    if (is_interleaved) say(p, ",rotary_interleaved=1");
    if (has_ids) say(p, ",has_position_ids=1");
    p->sizes.rotary_positions = h->keys + h->rows + 2 * p->num_offsets;
}

bool integer_problem_make(uint64_t number, integer_problem *p) {
    source s = stream(number, 0);
    *p = (integer_problem){.number = number, .problem = ATTUNE_PROBLEM_INIT, .sizes = CALL_SIZES_NONE};
    const shape h = draw_shape(&s);
    say_shape(p, &h);
    draw_types(&s, p, &h);
    draw_sight(&s, p, &h);
    draw_scores(&s, p);
    draw_lengths(&s, p, &h);
    draw_rotary(&s, p, &h);
    const int64_t inputs = below(&s, 100);
    p->inputs = inputs < 70 ? INTEGER_USUAL : inputs < 80 ? INTEGER_LARGE : inputs < 90 ? INTEGER_TIES : INTEGER_ODD;
    if (!problem_from_text(p->text, &p->problem)) return false;
    /* The text is frozen: it is of a time when this was the default. */
    if (!h.ends_right) p->problem.causal_align = ATTUNE_TOP_LEFT;
    return true;
}

/* ---- Its inputs ---- */

/* How many significant bits a type has; 0: it holds no fractions. */
static int bits_of(attune_dtype dtype) {
    switch (dtype) {
    case ATTUNE_F64: return 53;
    case ATTUNE_F32: return 24;
    case ATTUNE_F16: return 11;
    case ATTUNE_BF16: return 8;
    default: return 0;
    }
}

/* Uniform between -2 and 2, a few eight times as large. */
static long double usual(source *s, attune_dtype dtype) {
    const int bits = bits_of(dtype);
    const int64_t most = (INT64_C(1) << bits) - 1, whole = between(s, -most, most);
    return ldexpl(whole, (chance(s, 4) ? 4 : 1) - bits);
}

static long double odd(source *s, attune_dtype dtype) {
    const long double numbers[] = {(long double)NAN,
                                   (long double)INFINITY,
                                   -(long double)INFINITY,
                                   -0.0L,
                                   dtype == ATTUNE_F16 ? 0x1p-22L : 0x1p-130L,
                                   dtype == ATTUNE_F16 ? 0x1p15L : 0x1p126L};
    return numbers[below(s, 6)];
}

static long double number_of(source *s, integer_inputs inputs, attune_dtype dtype) {
    static const float ties[] = {0, 0, 1, -1, 0.5f};
    const long double x = usual(s, dtype);
    const int64_t choice = below(s, 100);
    switch (inputs) {
    case INTEGER_LARGE: return 16 * x;
    case INTEGER_TIES: return ties[choice % 5];
    case INTEGER_ODD: return choice < 2 ? odd(s, dtype) : x;
    default: return x;
    }
}

/* Around 1/64, positive except with odd inputs: there some are 0, denormal or no numbers, and those of k negative. */
static long double scale_of(source *s, integer_inputs inputs, bool is_value) {
    const long double odd_scales[] = {0, 0x1p-130L, (long double)NAN, is_value ? 0 : -0x1p-6L};
    const int64_t whole = between(s, 0x800000, 0xffffff), power = between(s, -30, -28);
    const long double x = ldexpl(whole, (int)power);
    const int64_t choice = below(s, 400);
    if (inputs == INTEGER_TIES) return 0x1p-6L;
    if (inputs == INTEGER_LARGE) return is_value ? x : 4 * x;
    return inputs == INTEGER_ODD && choice < 4 ? odd_scales[choice] : x;
}

typedef struct filling {
    const integer_problem *p;
    tensor *one;
    source s;
} filling;

static bool is_named(const filling *f, const char *name) { return strcmp(f->one->info.name, name) == 0; }

/* What is neither q, k, v nor a scale is of usual numbers whatever the inputs are. */
static long double element(filling *f) {
    const attune_dtype dtype = f->one->info.dtype;
    const bool of_values = is_named(f, "v_scale") || f->p->problem.v_in_k;
    if (is_named(f, "k_scale") || is_named(f, "v_scale")) return scale_of(&f->s, f->p->inputs, of_values);
    if (is_named(f, "q") || is_named(f, "k_new") || is_named(f, "v_new")) return number_of(&f->s, f->p->inputs, dtype);
    const long double x = usual(&f->s, dtype);
    return is_named(f, "attn_bias") && chance(&f->s, 10) ? -(long double)INFINITY : x / 2;
}

static void fill_numbers(filling *f) {
    for (size_t i = 0; i < f->one->count; i++) ref_store(f->one->info.dtype, f->one->data, (int64_t)i, element(f));
}

static void fill_bytes(filling *f, bool is_mask) {
    unsigned char *const bytes = f->one->data;
    for (size_t i = 0; i < f->one->count; i++)
        bytes[i] = (unsigned char)(is_mask ? !chance(&f->s, 25) : between(&f->s, 0, 255));
}

/* Every entry has pages of its own. */
static void fill_block_table(filling *f) {
    int32_t *const table = f->one->data;
    const int64_t pages = f->p->sizes.num_pages, count = (int64_t)f->one->count, start = below(&f->s, pages);
    for (int64_t i = 0; i < count; i++) table[i] = (int32_t)((start + i) % pages);
    for (int64_t i = count; i > 1; i--) {
        const int64_t other = below(&f->s, i);
        const int32_t swapped = table[i - 1];
        table[i - 1] = table[other];
        table[other] = swapped;
    }
}

static void fill_integers(filling *f) {
    const integer_problem *const p = f->p;
    int32_t *const to = f->one->data;
    const bool of_keys = is_named(f, "cu_seqlens_kv");
    if (is_named(f, "block_table")) {
        fill_block_table(f);
        return;
    }
    for (size_t i = 0; i < f->one->count; i++) {
        if (is_named(f, "kv_lens"))
            to[i] = (int32_t)p->keys[i];
        else if (is_named(f, "causal_offsets"))
            to[i] = (int32_t)(p->first_offset + below(&f->s, p->num_offsets));
        else if (is_named(f, "position_ids"))
            to[i] = (int32_t)below(&f->s, p->sizes.rotary_positions);
        else
            to[i] = i ? to[i - 1] + (int32_t)(of_keys ? p->keys : p->rows)[i - 1] : 0;
    }
}

bool integer_problem_tensors(const integer_problem *p, tensors *t) {
    if (!tensors_create_sized(t, &p->problem, &p->sizes)) return false;
    for (size_t i = 0; i < t->count; i++) {
        filling f = {.p = p, .one = &t->list[i]};
        uint64_t name = 0;
        for (const char *c = f.one->info.name; *c; c++) name = name * 131 + (unsigned char)*c;
        f.s = stream(p->number, name);
        if (!f.one->info.is_input) continue;
        if (bits_of(f.one->info.dtype))
            fill_numbers(&f);
        else if (f.one->info.dtype == ATTUNE_I32)
            fill_integers(&f);
        else
            fill_bytes(&f, f.one->info.dtype == ATTUNE_BOOL);
    }
    tensors_clear_outputs(t);
    return true;
}
