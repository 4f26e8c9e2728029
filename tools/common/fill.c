/* The contents of inputs: numbers of each kind, and masks, lengths and tables that fit the sizes. */
#include "common/fill.h"

#include "ref_codes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[INPUT_KIND_COUNT] = {
    "ordinary", "large", "overflow", "denormal", "constant", "nonfinite", "hidden",
};

const char *input_kind_name(input_kind kind) { return kind_names[kind]; }

long double fill_odd(tool_random *random) {
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    return odd[tool_random_range(random, 0, 2)];
}

/* Powers of two at which the type overflows, nearly, and at which its denormals begin. */
static int largest_exponent(attune_dtype dtype) {
    return dtype == ATTUNE_F8 ? 6 : dtype == ATTUNE_F16 ? 13 : dtype == ATTUNE_F64 ? 1000 : 126;
}
int fill_denormal_exponent(attune_dtype dtype) {
    return dtype == ATTUNE_F8 ? -7 : dtype == ATTUNE_F16 ? -18 : dtype == ATTUNE_F64 ? -1030 : -130;
}

static long double draw(input_kind kind, attune_dtype dtype, bool is_value, tool_random *random) {
    const long double normal = (long double)tool_random_normal(random);
    switch (kind) {
    case INPUT_LARGE: return is_value ? normal : 4 * normal;
    case INPUT_OVERFLOW:
        return is_value ? normal : ldexpl(normal, (int)tool_random_range(random, 4, largest_exponent(dtype)));
    case INPUT_DENORMAL: return tool_random_chance(random, 50) ? ldexpl(normal, fill_denormal_exponent(dtype)) : normal;
    case INPUT_CONSTANT: return is_value ? roundl(normal) : 0.5L * (long double)tool_random_chance(random, 50);
    case INPUT_NONFINITE: return tool_random_chance(random, 2) ? fill_odd(random) : normal;
    default: return normal;
    }
}

static bool is_named(const tensor *one, const char *name) { return strcmp(one->info.name, name) == 0; }
static bool is_cache(const tensor *one) { return is_named(one, "k") || is_named(one, "v"); }

/* All codes of a cache have the same typical size; the scales give them their meaning. Codes without scales are f8, and
 * stand for themselves. */
static long double code_size(const tensors *t, const tensor *one, bool is_value) {
    const ref_format f = ref_format_of(&t->problem, !is_value || t->problem.v_in_k);
    if (is_cache(one) && f.dtype == ATTUNE_I4) return 4;
    if (one->info.dtype == ATTUNE_I8) return 40;
    return one->info.dtype == ATTUNE_F8 && tensors_find(t, is_value ? "v_scale" : "k_scale") ? 100 : 1;
}

static void fill_numbers(const tensors *t, tensor *one, input_kind kind, bool is_value, tool_random *random) {
    const long double size = code_size(t, one, is_value);
    for (size_t i = 0; i < one->count; i++) {
        long double value = size * draw(kind, one->info.dtype, is_value, random);
        /* f8 has NaN beyond its range. */
        if (one->info.dtype == ATTUNE_F8 && isfinite(value)) value = fmaxl(-448, fminl(448, value));
        ref_store(one->info.dtype, one->data, (int64_t)i, value);
    }
}

/* Scales inline, at the blocks of 32 columns of a packed row. */
static void fill_inline(tensor *one, const ref_format *f, int64_t row, input_kind kind, tool_random *random) {
    const bool is_large = kind == INPUT_LARGE && is_named(one, "k");
    const float usual = (is_large ? 4 : 1) * (f->dtype == ATTUNE_I4 ? 0.25f : 0.02f);
    const int64_t elements = ref_row_elements(f), block = elements / (f->columns / ref_run(f));
    for (int64_t at = 0; at < elements; at += block) {
        float scale = usual * expf(0.3f * tool_random_normal(random));
        if (tool_random_chance(random, 2)) scale = tool_random_chance(random, 50) ? 0 : -scale;
        if (kind == INPUT_DENORMAL && tool_random_chance(random, 20)) scale = ldexpf(scale, -20);
        if (kind == INPUT_NONFINITE && tool_random_chance(random, 2)) scale = NAN;
        const _Float16 half = (_Float16)scale, least = (_Float16)(-7.5F * scale);
        memcpy((char *)one->data + row + at, &half, sizeof half);
        if (f->has_least) memcpy((char *)one->data + row + at + sizeof half, &least, sizeof least);
    }
}

/* Bytes of any content; then scales. */
static void fill_packed(tensor *one, const ref_format *f, input_kind kind, tool_random *random) {
    const int64_t *const dims = one->info.dims, *const strides = one->info.strides;
    for (size_t i = 0; i < one->count; i++)
        ((unsigned char *)one->data)[i] = (unsigned char)tool_random_range(random, 0, 255);
    if (!f->is_inline) return;
    for (int64_t a = 0; a < dims[0]; a++)
        for (int64_t b = 0; b < dims[1]; b++)
            for (int64_t c = 0; c < dims[2]; c++)
                fill_inline(one, f, a * strides[0] + b * strides[1] + c * strides[2], kind, random);
}

static void fill_cache(const tensors *t, tensor *one, bool is_value, input_kind kind, tool_random *random) {
    const ref_format f = ref_format_of(&t->problem, !is_value);
    if (f.is_packed)
        fill_packed(one, &f, kind, random);
    else
        fill_numbers(t, one, kind, is_value, random);
}

/* Least numbers, after the scales of a row: about those of numbers around 0, some far from that, and any where a scale
 * is 0. */
static void fill_least(const tensors *t, tensor *one, bool is_value, tool_random *random) {
    const ref_format f = ref_format_of(&t->problem, !is_value || t->problem.v_in_k);
    const int64_t scales = ref_row_scales(&f);
    int64_t dims[4], strides[4];
    if (!f.has_least) return;
    tensor_shape(&one->info, dims, strides);
    for (int64_t row = 0; row < dims[0] * dims[1] * dims[2]; row++) {
        const int64_t a = row / (dims[1] * dims[2]), b = row / dims[2] % dims[1], c = row % dims[2];
        const int64_t at = a * strides[0] + b * strides[1] + c * strides[2];
        for (int64_t i = 0; i < scales; i++) {
            const long double scale = ref_load(one->info.dtype, one->data, at + i * strides[3]);
            const float code = -7.5F + (tool_random_chance(random, 10) ? 6 : 1) * tool_random_normal(random);
            const long double least = scale == 0 ? 0.3L * code : code * scale;
            ref_store(one->info.dtype, one->data, at + (scales + i) * strides[3], least);
        }
    }
}

/* Scales that make numbers of the usual size of codes; some are 0 or negative, or no numbers where others are none.
 * None is infinite: a score is the product of q and codes, times the scale, which is not what the reference computes
 * then. */
static void fill_scales(const tensors *t, tensor *one, bool is_value, input_kind kind, tool_random *random) {
    const tensor *const codes = tensors_find(t, is_value && !t->problem.v_in_k ? "v" : "k");
    const bool is_large = kind == INPUT_LARGE && !is_value && ref_format_of(&t->problem, true).is_packed;
    const float usual = (float)((is_large ? 4 : 1) / code_size(t, codes, is_value));
    /* integer=all makes NaN of negative scales of v. */
    const bool may_be_negative = t->problem.integer != ATTUNE_INTEGER_ALL || !(is_value || t->problem.v_in_k);
    for (size_t i = 0; i < one->count; i++) {
        long double scale = usual * expf(0.3f * tool_random_normal(random));
        if (tool_random_chance(random, 1)) scale = tool_random_chance(random, 50) || !may_be_negative ? 0 : -scale;
        if (kind == INPUT_NONFINITE && tool_random_chance(random, 2)) scale = (long double)NAN;
        ref_store(one->info.dtype, one->data, (int64_t)i, scale);
    }
    fill_least(t, one, is_value, random);
}

static int64_t row_length(const attune_tensor *info) { return info->rank ? info->dims[info->rank - 1] : 1; }

/* Inputs of a block. One NaN or infinity spoils every projection of its row, so they are rare. */
static void fill_tokens(const tensors *t, tensor *one, input_kind kind, tool_random *random) {
    const int64_t columns = row_length(&one->info);
    fill_numbers(t, one, kind == INPUT_NONFINITE ? INPUT_ORDINARY : kind, false, random);
    for (int64_t at = 0; kind == INPUT_NONFINITE && at + columns <= (int64_t)one->count; at += columns)
        if (tool_random_chance(random, 8))
            ref_store(one->info.dtype, one->data, at + tool_random_range(random, 0, columns - 1), fill_odd(random));
}

/* Hides the same columns of many rows: tiles of a kernel are then hidden as a whole, and whole rows, too. */
static void hide_columns(tensor *one, int64_t period, tool_random *random) {
    const int64_t rows = (int64_t)one->count / period;
    if (rows < 1) return;
    const int64_t begin = tool_random_range(random, 0, period - 1), end = tool_random_range(random, begin + 1, period);
    const int64_t first = tool_random_chance(random, 50) ? 0 : tool_random_range(random, 0, rows - 1);
    const int64_t last = tool_random_chance(random, 50) ? rows : tool_random_range(random, first, rows);
    for (int64_t row = first; row < last; row++)
        memset((unsigned char *)one->data + row * period + begin, 0, (size_t)(end - begin));
}

/* Any byte but 0 means true. Whole runs of columns are all kept or all hidden now and then. */
static void fill_mask(tensor *one, tool_random *random) {
    static const int densities[] = {0, 5, 50, 50, 95, 100};
    const int64_t period = row_length(&one->info) > 0 ? row_length(&one->info) : 1;
    int density = densities[tool_random_range(random, 0, 5)];
    for (size_t i = 0; i < one->count; i++) {
        if ((int64_t)i % period == 0 && tool_random_chance(random, 50))
            density = densities[tool_random_range(random, 0, 5)];
        if ((int64_t)i % 32 == 0 && tool_random_chance(random, 10)) density = tool_random_chance(random, 50) ? 0 : 100;
        ((unsigned char *)one->data)[i] =
            tool_random_chance(random, density) ? (unsigned char)tool_random_range(random, 1, 255) : 0;
    }
    for (int times = one->count && tool_random_chance(random, 40) ? 2 : 0; times > 0; times--)
        hide_columns(one, period, random);
}

static void fill_bias(tensor *one, input_kind kind, tool_random *random) {
    static const int densities[] = {0, 0, 2, 30, 90, 100};
    const int64_t period = row_length(&one->info) > 0 ? row_length(&one->info) : 1;
    const bool has_nan = kind == INPUT_NONFINITE && tool_random_chance(random, 30);
    int density = 0;
    for (size_t i = 0; i < one->count; i++) {
        if ((int64_t)i % period == 0 && tool_random_chance(random, 30))
            density = densities[tool_random_range(random, 0, 5)];
        long double value = (long double)tool_random_normal(random);
        if (tool_random_chance(random, density)) value = -(long double)INFINITY;
        if (has_nan && tool_random_chance(random, 1)) value = (long double)NAN;
        ref_store(one->info.dtype, one->data, (int64_t)i, value);
    }
}

static void fill_floats(tensor *one, float scale, int percent_minus_infinity, tool_random *random) {
    for (size_t i = 0; i < one->count; i++) {
        const bool is_minus_infinity = tool_random_chance(random, percent_minus_infinity);
        const float value = scale * tool_random_normal(random);
        ref_store(one->info.dtype, one->data, (int64_t)i, is_minus_infinity ? -(long double)INFINITY : value);
    }
}

/* Cosines and sines of the same angles. */
static void fill_angles(tensor *one, bool is_sine, tool_random *random) {
    for (size_t i = 0; i < one->count; i++) {
        const long double angle = 3 * (long double)tool_random_normal(random);
        ref_store(one->info.dtype, one->data, (int64_t)i, is_sine ? sinl(angle) : cosl(angle));
    }
}

static void fill_integers(tensor *one, int64_t low, int64_t high, tool_random *random) {
    for (size_t i = 0; i < one->count; i++)
        ((int32_t *)one->data)[i] = (int32_t)(high < low ? low : tool_random_range(random, low, high));
}

/* ---- Lengths ---- */

static int32_t *integers(const tensors *t, const char *name) {
    const tensor *const one = tensors_find(t, name);
    return one ? one->data : NULL;
}

/* Queries of a sequence; cu_seqlens_q must have been filled. */
static int64_t sequence_rows(const tensors *t, int64_t b) {
    const int32_t *const cu = integers(t, "cu_seqlens_q");
    if (cu) return cu[b + 1] - cu[b];
    return t->problem.seq_q == ATTUNE_DYNAMIC ? t->arguments.seq_q : t->problem.seq_q;
}

/* The fewest keys that the sequence's queries and new keys allow. */
static int64_t fewest_keys(const tensors *t, int64_t b) {
    const attune_problem *const p = &t->problem;
    const int64_t rows = sequence_rows(t, b);
    /* A query rotated by its position must not stand before the first one. */
    const bool starts_at_end = p->rotary_dim && !p->has_position_ids && p->causal_align == ATTUNE_BOTTOM_RIGHT;
    /* Without new keys the ids of the queries are those of the keys. */
    const bool shares_ids = p->is_ragged && p->has_position_ids && !p->seq_new;
    if (p->seq_new && p->is_ragged) return rows;
    const int64_t fresh = p->seq_new == ATTUNE_DYNAMIC ? t->arguments.seq_new : p->seq_new;
    return (starts_at_end || shares_ids) && rows > fresh ? rows : fresh;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* The tokens of each sequence's keys: without caches, those of a block's x are its keys too. */
static int32_t *cumulative_keys(const tensors *t) {
    const attune_problem *const p = &t->problem;
    const bool are_queries = ref_is_block(p) && !p->is_cross && !p->seq_new && !p->kv_projected;
    return integers(t, are_queries ? "cu_seqlens_q" : "cu_seqlens_kv");
}

/* The most keys that a sequence may have; b -1: before cu_seqlens_kv is there. A length of the call that only tables
 * tell is a bound where it is given. */
static int64_t most_keys(const tensors *t, int64_t b) {
    const attune_problem *const p = &t->problem;
    const int32_t *const cu = cumulative_keys(t);
    const bool is_open = cu || (p->page_size && p->has_kv_lens);
    int64_t most = p->seq_kv;
    if (p->seq_kv == ATTUNE_DYNAMIC) most = is_open && t->arguments.seq_kv < 0 ? INT32_MAX : t->arguments.seq_kv;
    if (cu && b >= 0) most = smaller(most, cu[b + 1] - cu[b]);
    if (p->page_size) most = smaller(most, t->arguments.max_pages * p->page_size);
    return p->max_seq_kv ? smaller(most, p->max_seq_kv) : most;
}

static int64_t most_rows(const tensors *t) {
    const int64_t most = t->arguments.seq_q < 0 ? INT32_MAX : t->arguments.seq_q;
    return t->problem.max_seq_q ? smaller(most, t->problem.max_seq_q) : most;
}

static void fill_kv_lens(tensors *t, tensor *one, tool_random *random) {
    for (size_t b = 0; b < one->count; b++) {
        const int64_t low = fewest_keys(t, (int64_t)b), high = most_keys(t, (int64_t)b);
        const bool is_full = t->fills_up || tool_random_chance(random, 20);
        ((int32_t *)one->data)[b] = (int32_t)(is_full || high < low ? high : tool_random_range(random, low, high));
    }
}

/* Lengths from `fewest` of each sequence on that add up to at most `total`; those that fill up share it evenly. */
static void fill_cumulative(tensors *t, tensor *one, int64_t total, int64_t most, bool is_kv, tool_random *random) {
    int32_t *const cu = one->data;
    const bool is_exact = is_kv && t->problem.has_position_ids && !t->problem.seq_new;
    int64_t left = total;
    for (size_t b = 0; is_kv && b + 1 < one->count; b++) left -= fewest_keys(t, (int64_t)b);
    cu[0] = 0;
    for (size_t b = 0; b + 1 < one->count; b++) {
        const int64_t needed = is_kv ? fewest_keys(t, (int64_t)b) : 0;
        const bool takes_all = b + 2 == one->count && tool_random_chance(random, 70);
        const bool takes_none = tool_random_chance(random, 15);
        int64_t more = is_exact                  ? 0
                       : t->fills_up             ? left / (int64_t)(one->count - 1 - b)
                       : takes_all               ? left
                       : takes_none || left <= 0 ? 0
                                                 : tool_random_range(random, 0, left);
        more = smaller(more, most - needed);
        if (more < 0) more = 0;
        left -= more;
        cu[b + 1] = (int32_t)(cu[b] + needed + more);
    }
    /* The first tokens need not belong to a sequence either. */
    const int64_t rest = total - cu[one->count - 1];
    if (rest <= 0 || t->fills_up || !tool_random_chance(random, 20)) return;
    const int64_t shift = tool_random_range(random, 1, rest);
    for (size_t b = 0; b < one->count; b++) cu[b] += (int32_t)shift;
}

/* Keys in pages are not counted together: each sequence may fill its row of the table. */
static void fill_cu_seqlens(tensors *t, tensor *one, bool is_kv, tool_random *random) {
    const int64_t most = is_kv ? most_keys(t, -1) : most_rows(t);
    const bool is_paged = is_kv && t->problem.page_size;
    int64_t total = is_kv ? t->arguments.total_kv : t->arguments.total_q;
    if (is_paged) total = most * (int64_t)(one->count - 1);
    fill_cumulative(t, one, total, most, is_kv, random);
}

static void shuffle(int32_t *table, size_t count, tool_random *random) {
    for (size_t i = count; i > 1; i--) {
        const size_t other = (size_t)tool_random_range(random, 0, (int64_t)i - 1);
        const int32_t swapped = table[i - 1];
        table[i - 1] = table[other];
        table[other] = swapped;
    }
}

/* Keys of a sequence, and how many of them are new; its lengths must have been filled. */
static int64_t sequence_keys(const tensors *t, int64_t b, int64_t *fresh) {
    const attune_problem *const p = &t->problem;
    const int32_t *const lens = integers(t, "kv_lens");
    const int64_t given = p->seq_new == ATTUNE_DYNAMIC ? t->arguments.seq_new : p->seq_new;
    *fresh = p->seq_new && p->is_ragged ? sequence_rows(t, b) : given;
    return lens ? lens[b] : most_keys(t, b);
}

/* Every page at most once while there are enough, then again: only what is read may be shared. So may the pages of a
 * prefix that nothing is appended to, with any page that is left. Where a sequence has no keys any number does. */
static void fill_block_table(tensors *t, tensor *one, tool_random *random) {
    const int64_t pages = t->arguments.num_pages, columns = t->arguments.max_pages, size = t->problem.page_size;
    const int64_t count = (int64_t)one->count, start = pages ? tool_random_range(random, 0, pages - 1) : 0;
    int32_t *const table = one->data;
    for (int64_t i = 0; i < count && pages; i++) table[i] = (int32_t)((start + i) % pages);
    shuffle(table, one->count, random);
    for (int64_t i = 0; i < count; i++) {
        int64_t fresh;
        const int64_t keys = sequence_keys(t, i / columns, &fresh), first = i % columns * size;
        if (first >= keys && tool_random_chance(random, 30))
            table[i] = tool_random_chance(random, 50) ? -1 : INT32_MAX;
        else if (first + size <= keys - fresh && pages > count && !t->fills_up && tool_random_chance(random, 30))
            table[i] = (int32_t)((start + tool_random_range(random, count, pages - 1)) % pages);
    }
}

/* The sequence that a list belongs to: of one that each sequence has, or of a query's in a batch that may be ragged. */
static int64_t sequence_of_list(const tensors *t, int64_t list) {
    const int32_t *const cu = integers(t, "cu_seqlens_q");
    if (t->problem.kv_ids == ATTUNE_KV_IDS_SEQUENCE) return list;
    const int64_t rows = sequence_rows(t, 0);
    if (!cu) return rows > 0 ? list / rows : -1;
    for (int64_t b = 0; b < t->arguments.batch; b++)
        if (list >= cu[b] && list < cu[b + 1]) return b;
    return -1;
}

static int64_t keys_of_list(const tensors *t, int64_t list) {
    int64_t fresh;
    const int64_t b = sequence_of_list(t, list);
    return b < 0 ? 0 : sequence_keys(t, b, &fresh);
}

/* Without keys only an empty list is sound. */
static void fill_id_lens(tensors *t, tensor *one, tool_random *random) {
    const int64_t most = tensors_find(t, "kv_ids")->info.dims[2];
    for (size_t i = 0; i < one->count; i++) {
        const int64_t keys = keys_of_list(t, (int64_t)i), high = t->problem.reproducible ? smaller(most, keys) : most;
        const bool is_full = t->fills_up || tool_random_chance(random, 30);
        const int64_t count = is_full ? high : tool_random_range(random, 0, high);
        ((int32_t *)one->data)[i] = (int32_t)(keys > 0 ? count : 0);
    }
}

/* Any keys, in any order and some twice; with `reproducible` ascending ones. What lies beyond a list is any number. */
static void fill_ids(tensors *t, tensor *one, tool_random *random) {
    const int64_t most = one->info.dims[2], lists = most ? (int64_t)one->count / most : 0;
    const int32_t *const lens = integers(t, "kv_id_lens");
    for (int64_t list = 0; list < lists; list++) {
        int32_t *const ids = (int32_t *)one->data + list * most;
        const int64_t keys = keys_of_list(t, list), count = lens ? lens[list] : most;
        int64_t at = 0;
        for (int64_t i = 0; i < most; i++) {
            const int64_t spare = keys - at - (count - i); /* keys that an ascending list may skip */
            if (i >= count || keys <= 0)
                ids[i] = tool_random_chance(random, 50) ? -1 : INT32_MAX;
            else if (!t->problem.reproducible)
                ids[i] = (int32_t)tool_random_range(random, 0, keys - 1);
            else
                ids[i] =
                    (int32_t)(at += spare > 0 ? tool_random_range(random, 0, smaller(spare, 2 * keys / count)) : 0);
            at++;
        }
    }
}

/* ---- All inputs ---- */

/* A tensor that the user's functions read: numbers, small integers and now and then a huge one. */
static bool is_users(const tensor *one) {
    const size_t begin = offsetof(attune_arguments, tensors), bytes = sizeof(((attune_arguments *)NULL)->tensors);
    return one->info.pointer_offset >= begin && one->info.pointer_offset < begin + bytes;
}

static void fill_users(tensor *one, tool_random *random) {
    const bool is_integer = one->info.dtype == ATTUNE_I32 || one->info.dtype == ATTUNE_I8;
    const int64_t most = tool_random_range(random, 1, 9);
    for (size_t i = 0; i < one->count; i++) {
        long double value = (long double)tool_random_normal(random);
        if (is_integer) value = tool_random_range(random, -1, most);
        if (is_integer && tool_random_chance(random, 2)) value = tool_random_range(random, INT32_MIN, INT32_MAX);
        if (one->info.dtype == ATTUNE_BOOL) value = tool_random_chance(random, 60);
        ref_store(one->info.dtype, one->data, (int64_t)i, value);
    }
}

static void fill_one(tensors *t, tensor *one, input_kind kind, tool_random *random, uint64_t seed) {
    const attune_arguments *const a = &t->arguments;
    tool_random angles = {seed ^ 0x5bd1e995u};
    if (is_named(one, "attn_mask"))
        fill_mask(one, random);
    else if (is_named(one, "attn_bias"))
        fill_bias(one, kind, random);
    else if (is_named(one, "alibi_slopes"))
        fill_floats(one, 0.2f, 0, random);
    else if (is_named(one, "sinks"))
        fill_floats(one, 2, 5, random);
    else if (is_named(one, "q_norm") || is_named(one, "k_norm"))
        fill_floats(one, 1, 0, random);
    else if (is_named(one, "parts_lse"))
        fill_floats(one, 3, 15, random);
    else if (is_named(one, "kv_lens"))
        fill_kv_lens(t, one, random);
    else if (is_named(one, "causal_offsets"))
        fill_integers(one, t->problem.rotary_dim ? 0 : -7, 7, random);
    else if (is_named(one, "cu_seqlens_q"))
        fill_cu_seqlens(t, one, false, random);
    else if (is_named(one, "cu_seqlens_kv"))
        fill_cu_seqlens(t, one, true, random);
    else if (is_named(one, "block_table"))
        fill_block_table(t, one, random);
    else if (is_named(one, "kv_ids"))
        fill_ids(t, one, random);
    else if (is_named(one, "kv_id_lens"))
        fill_id_lens(t, one, random);
    else if (is_named(one, "cos") || is_named(one, "sin"))
        fill_angles(one, is_named(one, "sin"), &angles);
    else if (is_named(one, "position_ids"))
        fill_integers(one, 0, a->rotary_positions - 1, random);
    else if (is_named(one, "row_ids"))
        fill_integers(one, 0, sequence_rows(t, 0) - 1, random);
    else if (is_named(one, "x") || is_named(one, "x_kv") || is_named(one, "x_v"))
        fill_tokens(t, one, kind, random);
    else if (is_named(one, "keys_low") || is_named(one, "values_low"))
        fill_floats(one, 1 / sqrtf((float)row_length(&one->info)), 0, random);
    else if (is_users(one))
        fill_users(one, random);
    else if (is_named(one, "k_scale") || is_named(one, "v_scale"))
        fill_scales(t, one, is_named(one, "v_scale"), kind, random);
    else if (is_cache(one))
        fill_cache(t, one, is_named(one, "v"), kind, random);
    else
        fill_numbers(t, one, kind, is_named(one, "v_new") || is_named(one, "parts"), random);
}

/* Whether positions of a sequence's queries and keys have a row in the rotary caches. */
static bool has_angles(const tensors *t, int64_t b, int64_t rows, int64_t keys, int64_t fresh) {
    const attune_problem *const p = &t->problem;
    const int32_t *const offsets = integers(t, "causal_offsets");
    if (!p->rotary_dim) return true;
    if (tensors_find(t, "position_ids"))
        return t->arguments.rotary_positions > 0 && (p->seq_new ? fresh : keys) <= rows;
    int64_t base = p->causal_offset + (offsets ? offsets[b] : 0);
    if (p->causal_align == ATTUNE_BOTTOM_RIGHT) base += keys - rows;
    return base >= 0 && base + rows <= t->arguments.rotary_positions && keys <= t->arguments.rotary_positions;
}

/* Rows of K, wherever they come from; 0 if there are none. */
static int64_t key_rows(const tensors *t) {
    const tensor *const k = tensors_find(t, "k"), *const x_kv = tensors_find(t, "x_kv"),
                        *const x = tensors_find(t, "x");
    return k ? k->info.dims[2] : x_kv ? x_kv->info.dims[1] : x ? x->info.dims[1] : 0;
}

/* Whether lists have no more keys than there are to list. */
static bool are_lists_sound(const tensors *t) {
    const tensor *const ids = tensors_find(t, "kv_ids");
    const int32_t *const lens = integers(t, "kv_id_lens");
    const int64_t most = ids ? ids->info.dims[2] : 0, lists = most ? (int64_t)ids->count / most : 0;
    for (int64_t list = 0; list < lists; list++) {
        const int64_t keys = keys_of_list(t, list), count = lens ? lens[list] : most;
        if (sequence_of_list(t, list) >= 0 && count > (t->problem.reproducible ? keys : keys ? most : 0)) return false;
    }
    return true;
}

/* Whether the reference can compute the call. The library refuses those that cannot be filled soundly. */
static bool is_sound(const tensors *t) {
    const attune_problem *const p = &t->problem;
    const bool has_keys = tensors_find(t, "k") || tensors_find(t, "x");
    const int32_t *const cu = cumulative_keys(t);
    if (!are_lists_sound(t)) return false;
    for (int64_t b = 0; has_keys && b < t->arguments.batch; b++) {
        int64_t fresh, room = p->page_size ? t->arguments.max_pages * p->page_size : key_rows(t);
        const int64_t rows = sequence_rows(t, b), keys = sequence_keys(t, b, &fresh);
        if (p->page_size && !t->arguments.num_pages) room = 0;
        if (cu) room = smaller(room, cu[b + 1] - cu[b]);
        if (rows < 0 || keys < 0 || fresh > keys || keys > room || !has_angles(t, b, rows, keys, fresh)) return false;
    }
    return true;
}

/* The logarithms that op = weights takes are those that attention would have given. */
static bool fill_lse(tensors *t) {
    tensor *const lse = tensors_find(t, "lse");
    if (!lse || !lse->info.is_input) return true;
    attune_tensor list[REF_MAX_TENSORS];
    const ref_call call = tensors_call(t, list);
    ref_result result;
    if (!ref_compute(&call, &result)) return false;
    int64_t dims[4], strides[4];
    tensor_shape(&lse->info, dims, strides);
    const long double *from = result.row_lse;
    for (int64_t b = 0; b < dims[0]; b++)
        for (int64_t h = 0; h < dims[1]; h++)
            for (int64_t i = 0; i < dims[2]; i++)
                ref_store(lse->info.dtype, lse->data, b * strides[0] + h * strides[1] + i * strides[2], *from++);
    ref_result_free(&result);
    return true;
}

bool tensors_fill(tensors *t, input_kind kind, uint64_t seed) {
    /* Lengths of queries come first, those of keys in tokens next: what follows depends on them. Each tensor has a
     * stream of its own, so that one can be dropped without changing the others. */
    static const char *const first[] = {"cu_seqlens_q", "cu_seqlens_kv", "kv_lens", "kv_id_lens"};
    enum { FIRST = sizeof first / sizeof *first };
    for (size_t n = 0; n < FIRST + t->count; n++) {
        tensor *const one = n < FIRST ? tensors_find(t, first[n]) : &t->list[n - FIRST];
        if (!one || !one->info.is_input || is_named(one, "packed_weights")) continue;
        bool is_done = false;
        for (size_t i = 0; n >= FIRST && i < FIRST; i++) is_done = is_done || is_named(one, first[i]);
        if (is_done) continue;
        if (t->is_unread && one->info.dtype != ATTUNE_I32) continue;
        uint64_t name = 0;
        for (const char *c = one->info.name; *c; c++) name = name * 131 + (unsigned char)*c;
        tool_random random = {seed * 0x9e3779b97f4a7c15u + name};
        fill_one(t, one, kind, &random, seed);
    }
    if (t->is_unread) return true;
    tool_random random = {seed ^ 0x2545f4914f6cdd1du};
    if (!fill_weights(t, kind, seed)) return false;
    if (!is_sound(t)) return true;
    if ((kind != INPUT_HIDDEN || fill_hidden(t, &random)) && fill_lse(t)) return true;
    tool_error("out of memory for the reference");
    return false;
}
