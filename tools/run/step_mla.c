/* attune run op=mla: the tensors of an MLA block, its step and its reference. */
#include "run/step.h"

#include "ref_described.h"

#include <stdlib.h>
#include <string.h>

static const attune_mla_desc *desc_of(const step_call *c) { return &c->desc.mla; }

static bool is_paged(const step_call *c) { return desc_of(c)->page_size > 0; }
static bool is_dense(const step_call *c) { return !is_paged(c); }
static bool is_low(const step_call *c) { return desc_of(c)->q_lora_rank > 0; }
static bool is_whole(const step_call *c) { return !is_low(c); }

static const step_tensor list[] = {
    {"x", "batch seq embed_dim", STEP_INPUT, FILL_NORMAL, "dtype", 0, NULL},
    {"cos", "num_positions rope_half", STEP_INPUT, FILL_COS, NULL, ATTUNE_F32, NULL},
    {"sin", "num_positions rope_half", STEP_INPUT, FILL_SIN, NULL, ATTUNE_F32, NULL},
    {"positions", "batch seq", STEP_LIST, FILL_ZERO, NULL, ATTUNE_I32, NULL},
    {"kv_lens", "batch", STEP_LIST, FILL_ZERO, NULL, ATTUNE_I32, is_dense},
    {"kv_lens", "batch", STEP_INPUT, FILL_KEYS, NULL, ATTUNE_I32, is_paged},
    {"block_table", "batch max_pages", STEP_INPUT, FILL_PAGES, NULL, ATTUNE_I32, is_paged},
    {"q_proj", "q_rows embed_dim", STEP_INPUT, FILL_UNIT_ROWS, "dtype", 0, is_whole},
    {"q_a_proj", "q_lora_rank embed_dim", STEP_INPUT, FILL_UNIT_ROWS, "dtype", 0, is_low},
    {"q_a_bias", "q_lora_rank", STEP_LIST, FILL_ZERO, "dtype", 0, is_low},
    {"q_a_layernorm", "q_lora_rank", STEP_INPUT, FILL_NEAR_ONE, "dtype", 0, is_low},
    {"q_b_proj", "q_rows q_lora_rank", STEP_INPUT, FILL_UNIT_ROWS, "dtype", 0, is_low},
    {"kv_a_proj", "width embed_dim", STEP_INPUT, FILL_UNIT_ROWS, "dtype", 0, NULL},
    {"kv_a_bias", "width", STEP_LIST, FILL_ZERO, "dtype", 0, NULL},
    {"kv_a_layernorm", "kv_lora_rank", STEP_INPUT, FILL_NEAR_ONE, "dtype", 0, NULL},
    {"kv_b_proj", "kv_b_rows kv_lora_rank", STEP_INPUT, FILL_UNIT_ROWS, "dtype", 0, NULL},
    {"o_proj", "out_dim o_columns", STEP_INPUT, FILL_UNIT_ROWS, "dtype", 0, NULL},
    {"o_bias", "out_dim", STEP_LIST, FILL_ZERO, "dtype", 0, NULL},
    {"cache", "batch cache_rows width", STEP_STATE, FILL_NORMAL, "dtype", 0, is_dense},
    {"cache", "num_pages page_size width", STEP_STATE, FILL_NORMAL, "dtype", 0, is_paged},
    {"out", "batch seq out_dim", STEP_OUTPUT, FILL_ZERO, "dtype", 0, NULL},
};
static const char *const sizes[] = {"batch",     "seq",       "seq_kv",        "cache_rows",
                                    "max_pages", "num_pages", "num_positions", NULL};
static const char *const follow[] = {"rope_half", "q_rows", "width", "kv_b_rows", "o_columns", NULL};

static bool derive(step_call *c) {
    const attune_mla_desc *const d = desc_of(c);
    const int64_t page = d->page_size;
    *step_size(c, "rope_half") = d->qk_rope_head_dim / 2;
    *step_size(c, "q_rows") = d->num_heads * (d->qk_nope_head_dim + d->qk_rope_head_dim);
    *step_size(c, "width") = d->kv_lora_rank + d->qk_rope_head_dim;
    *step_size(c, "kv_b_rows") = d->num_heads * (d->qk_nope_head_dim + d->v_head_dim);
    *step_size(c, "o_columns") = d->num_heads * d->v_head_dim;
    step_set_default(c, "batch", 1);
    step_set_default(c, "seq_kv", !page ? step_size_of(c, "cache_rows") : step_size_of(c, "max_pages") * page);
    step_set_default(c, "seq_kv", step_size_of(c, "seq"));
    const int64_t keys = step_size_of(c, "seq_kv");
    if (!page) step_set_default(c, "cache_rows", keys);
    step_size_pages(c, page);
    step_set_default(c, "num_positions", keys);
    if (!d->has_ids) return true;
    tool_error("attune run has no lists of keys for op=mla: leave out has_ids");
    return false;
}

static attune_mla_weights weights_of(const step_call *c) {
    attune_mla_weights w = ATTUNE_MLA_WEIGHTS_INIT;
    w.q_proj = step_data(c, "q_proj");
    w.q_a_proj = step_data(c, "q_a_proj"), w.q_a_bias = step_data(c, "q_a_bias");
    w.q_a_layernorm = step_data(c, "q_a_layernorm"), w.q_b_proj = step_data(c, "q_b_proj");
    w.kv_a_proj = step_data(c, "kv_a_proj"), w.kv_a_bias = step_data(c, "kv_a_bias");
    w.kv_a_layernorm = step_data(c, "kv_a_layernorm"), w.kv_b_proj = step_data(c, "kv_b_proj");
    w.o_proj = step_data(c, "o_proj"), w.o_bias = step_data(c, "o_bias");
    return w;
}

static attune_status create(step_call *c, attune_context *context) {
    const attune_mla_weights w = weights_of(c);
    return attune_mla_create(context, desc_of(c), &w, (attune_mla **)&c->object);
}

static attune_status run(step_call *c, bool is_interpreted) {
    attune_mla_step s = ATTUNE_MLA_STEP_INIT;
    s.batch = step_size_of(c, "batch"), s.seq = step_size_of(c, "seq");
    s.x.data = step_data(c, "x"), s.out.data = step_data(c, "out"), s.cache.data = step_data(c, "cache");
    s.cos = step_data(c, "cos"), s.sin = step_data(c, "sin"), s.positions = step_data(c, "positions");
    s.num_positions = step_size_of(c, "num_positions");
    s.kv_lens = step_data(c, "kv_lens"), s.block_table = step_data(c, "block_table");
    if (is_paged(c))
        s.max_pages = step_size_of(c, "max_pages"), s.num_pages = step_size_of(c, "num_pages");
    else
        s.cache_rows = step_size_of(c, "cache_rows");
    s.max_threads = c->o->threads;
    return (is_interpreted ? attune_mla_run_interpreted : attune_mla_run)(c->object, &s);
}

static void destroy(step_call *c) { attune_mla_destroy(c->object); }

/* In one form of the two. */
static double flops_by(const step_call *c, bool is_absorbed) {
    const attune_mla_desc *const d = desc_of(c);
    const double heads = (double)d->num_heads, e = (double)d->qk_rope_head_dim, embed = (double)d->embed_dim;
    const double n = (double)d->qk_nope_head_dim, v = (double)d->v_head_dim, rank = (double)d->kv_lora_rank;
    const double low = (double)d->q_lora_rank, seq = (double)step_size_of(c, "seq"),
                 keys = (double)step_size_of(c, "seq_kv");
    const double of_q = low > 0 ? low * (embed + heads * (n + e)) : embed * heads * (n + e);
    const double token = of_q + embed * (rank + e) + heads * v * (double)d->out_dim;
    const double pairs = seq * keys - seq * (seq - 1) / 2;
    const double of_head =
        is_absorbed ? seq * rank * (n + v) + pairs * (2 * rank + e) : keys * rank * (n + v) + pairs * (n + e + v);
    return 2 * (double)step_size_of(c, "batch") * (seq * token + heads * of_head);
}

/* A step is computed in the form of the description, else in the one that takes fewer. */
static double flops(const step_call *c) {
    const attune_mla_form form = desc_of(c)->form;
    const double absorbed = flops_by(c, true), unabsorbed = flops_by(c, false);
    if (form == ATTUNE_MLA_BY_COST) return absorbed < unabsorbed ? absorbed : unabsorbed;
    return form == ATTUNE_MLA_ABSORBED ? absorbed : unabsorbed;
}

static double reference_flops(const step_call *c) { return flops_by(c, false); }

/* ---- The reference ---- */

/* Where a sequence's key lies in the cache. */
static int64_t row_of(const step_call *c, int64_t b, int64_t key) {
    const int64_t page = desc_of(c)->page_size;
    const int32_t *const table = step_data(c, "block_table");
    if (!page) return b * step_size_of(c, "cache_rows") + key;
    return table[b * step_size_of(c, "max_pages") + key / page] * page + key % page;
}

static bool judge_one(step_call *c, int64_t b) {
    const attune_mla_desc *const d = desc_of(c);
    const int32_t *const lens = step_data(c, "kv_lens"), *const positions = step_data(c, "positions");
    const int64_t tokens = step_size_of(c, "seq"), keys = lens ? lens[b] : step_size_of(c, "cache_rows");
    const int64_t width = step_size_of(c, "width"), all = tokens * d->out_dim;
    const attune_mla_weights w = weights_of(c);
    const npy_array *const x = step_array(c, "x");
    const ref_mla r = {.desc = d,
                       .weights = &w,
                       .tokens = tokens,
                       .keys = keys,
                       .x =
                           (const char *)x->data + (size_t)(b * tokens * d->embed_dim) * npy_type_bytes(x->header.type),
                       .cos = step_data(c, "cos"),
                       .sin = step_data(c, "sin"),
                       .positions = positions ? positions + b * tokens : NULL};
    double *const rows = malloc((size_t)(2 * keys * width + 1) * sizeof *rows), *const row_limits = rows + keys * width;
    double *const out = malloc((size_t)(2 * all + 1) * sizeof *out), *const limits = out + all;
    bool good = rows && out;
    for (int64_t j = 0; good && j < keys; j++)
        for (int64_t i = 0; i < width; i++)
            rows[j * width + i] = npy_element(step_before(c, "cache"), (size_t)(row_of(c, b, j) * width + i));
    good = good && ref_mla_compute(&r, rows, row_limits, out, limits);
    for (int64_t i = 0; good && i < all; i++) limits[i] = step_limit(d->dtype, out[i], limits[i]);
    if (good) step_compare(c, "out", b * all, out, limits, all);
    /* Rows of earlier tokens stay as they are. */
    for (int64_t j = 0; good && j < keys; j++) {
        double *const row = rows + j * width, *const limit = row_limits + j * width;
        for (int64_t i = 0; i < width; i++) limit[i] = j < keys - tokens ? 0 : step_limit(d->dtype, row[i], limit[i]);
        step_compare(c, "cache", row_of(c, b, j) * width, row, limit, width);
    }
    free(rows), free(out);
    return good;
}

static bool judge(step_call *c) {
    bool good = true;
    for (int64_t b = 0; good && b < step_size_of(c, "batch"); b++) good = judge_one(c, b);
    return good;
}

const step_operator step_mla = {STEP_OPERATOR(&mla_table), .follow = follow, .has_pairs = true,
                                .reference_flops = reference_flops};
