/* Random problems: odd sizes, every layout, every feature, and features in any combination. */
#include "check/check_draft.h"
#include "problem_fields.h"

static bool chance(const draft *d, int percent) { return draft_chance(d, percent); }
static bool has_feature(const draft *d) { return draft_feature(d); }
static int64_t between(const draft *d, int64_t low, int64_t high) { return draft_between(d, low, high); }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- Sizes ---- */

static int64_t draw_head_dim(const draft *d) {
    static const int16_t usual[] = {1, 7, 40, 64, 72, 80, 96, 112, 128, 160, 256};
    return chance(d, 30) ? usual[between(d, 0, 10)] : draft_size(d, 160);
}

static double work(const draft *d) {
    const attune_problem *const p = d->p;
    return 2.0 * (double)(p->batch * p->num_heads * larger(d->rows, 1) * larger(d->keys, 1)) *
               (double)(p->head_dim + p->head_dim_v) +
           draft_block_work(d);
}

static void draw_sizes(draft *d, double max_flops) {
    static const int8_t group_sizes[] = {1, 1, 1, 2, 3, 4, 7, 8};
    attune_problem *const p = d->p;
    p->batch = chance(d, 60) ? 1 : between(d, 2, 4);
    p->num_kv_heads = chance(d, 40) ? 1 : between(d, 2, 4);
    p->num_heads = p->num_kv_heads * group_sizes[between(d, 0, 7)];
    d->rows = chance(d, 25) ? between(d, 1, 4) : draft_size(d, 400);
    d->keys = chance(d, 30) ? d->rows : draft_size(d, 400);
    p->head_dim = draw_head_dim(d);
    p->head_dim_v = chance(d, 50) ? p->head_dim : draw_head_dim(d);
    if (d->block) draft_block(d);
    while (work(d) > max_flops) {
        int64_t *const sizes[] = {&d->rows,      &d->keys,         &p->head_dim,    &p->head_dim_v, &p->batch,
                                  &p->embed_dim, &p->kv_embed_dim, &p->v_embed_dim, &p->out_dim,    &p->low_rank};
        int64_t *largest = sizes[0];
        for (size_t i = 1; i < sizeof sizes / sizeof *sizes; i++)
            if (*sizes[i] > *largest) largest = sizes[i];
        if (*largest <= 1) break;
        *largest = larger(*largest * 2 / 3, 1);
    }
}

/* Either length may be known at run time only, and is 0 now and then. */
static void draw_dynamic(draft *d) {
    attune_problem *const p = d->p;
    p->seq_q = d->rows;
    p->seq_kv = d->keys;
    if (has_feature(d)) {
        if (chance(d, 8)) d->rows = 0;
        p->seq_q = ATTUNE_DYNAMIC;
        if (chance(d, 30)) p->max_seq_q = d->rows + between(d, 1, 100);
    }
    if (has_feature(d)) {
        if (chance(d, 8)) d->keys = 0;
        p->seq_kv = ATTUNE_DYNAMIC;
        if (chance(d, 30)) p->max_seq_kv = d->keys + between(d, 1, 100);
    }
    if (d->block) draft_tie_lengths(d);
}

static attune_dtype draw_dtype(const draft *d) {
    static const attune_dtype types[] = {ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64, ATTUNE_F32};
    return types[between(d, 0, 3)];
}

/* A format that takes rows of whole blocks of columns, for codes of any kind. */
static void draw_format(const draft *d, attune_dtype *dtype, attune_scales *scales, int64_t *group) {
    enum { LEAST_GROUP = 32 };
    *dtype = (attune_dtype[]){ATTUNE_I4, ATTUNE_I4, ATTUNE_I8, ATTUNE_F8}[between(d, 0, 3)];
    const attune_scales most = *dtype == ATTUNE_F8   ? ATTUNE_SCALES_CHANNEL
                               : *dtype == ATTUNE_I8 ? ATTUNE_SCALES_INLINE
                                                     : ATTUNE_SCALES_CHANNEL_MIN;
    *scales = (attune_scales)between(d, ATTUNE_SCALES_HEAD, most);
    const bool has_groups = *scales == ATTUNE_SCALES_GROUP || *scales == ATTUNE_SCALES_GROUP_MIN;
    if (has_groups && chance(d, 60)) *group = LEAST_GROUP << between(d, 0, 1);
}

/* The same for K and V; head_dim follows. */
static void draw_formats(const draft *d) {
    attune_problem *const p = d->p;
    p->k_group = p->v_group = 0;
    draw_format(d, &p->k_dtype, &p->k_scales, &p->k_group);
    draw_format(d, &p->v_dtype, &p->v_scales, &p->v_group);
    if (chance(d, 60)) p->v_dtype = p->k_dtype, p->v_scales = p->k_scales, p->v_group = p->k_group;
    p->head_dim = p->k_group == 64 || chance(d, 30) ? 64 : chance(d, 30) ? 96 : 32;
    p->head_dim_v = p->v_group == 64 || chance(d, 30) ? 64 : 32;
}

/* Caches of codes, for problems that have caches. */
static void draw_codes(const draft *d) {
    attune_problem *const p = d->p;
    static const attune_dtype types[] = {ATTUNE_I8, ATTUNE_F8};
    if (p->op != ATTUNE_ATTENTION && p->op != ATTUNE_WEIGHTS) return;
    if (d->block ? !draft_has_caches(d) : false) return;
    if (!chance(d, d->block ? 30 : 12)) return;
    p->k_dtype = types[between(d, 0, 1)];
    p->v_dtype = chance(d, 70) ? p->k_dtype : chance(d, 50) ? types[between(d, 0, 1)] : draw_dtype(d);
    p->k_scales = (attune_scales)between(d, p->k_dtype == ATTUNE_I8 ? ATTUNE_SCALES_HEAD : ATTUNE_SCALES_NONE,
                                         ATTUNE_SCALES_TOKEN);
    p->v_scales = p->v_dtype == ATTUNE_I8 || chance(d, 70)
                      ? (attune_scales)between(d, ATTUNE_SCALES_HEAD, ATTUNE_SCALES_TOKEN)
                      : ATTUNE_SCALES_DEFAULT;
    if (chance(d, 40)) draw_formats(d);
}

static void draw_weight_codes(const draft *d) {
    enum { LEAST_GROUP = 32 };
    d->p->w_dtype = chance(d, 50) ? ATTUNE_I8 : ATTUNE_I4;
    d->p->w_group = chance(d, 50) ? 0 : (int64_t)LEAST_GROUP << between(d, 0, 2);
    d->p->x_planes = chance(d, 40);
}

static void draw_dtypes(const draft *d) {
    attune_problem *const p = d->p;
    /* Models often have weights and caches of another type than the rest. */
    if (d->block && chance(d, 10)) p->w_dtype = draw_dtype(d);
    if (d->block && chance(d, 15)) draw_weight_codes(d);
    if (draft_has_caches(d) && chance(d, 10)) p->k_dtype = p->v_dtype = draw_dtype(d);
    if (!has_feature(d)) return;
    p->dtype = draw_dtype(d);
    if (p->op == ATTUNE_ATTENTION || p->op == ATTUNE_WEIGHTS) {
        if (chance(d, 20)) p->k_dtype = draw_dtype(d);
        if (chance(d, 20)) p->v_dtype = draw_dtype(d);
        if (chance(d, 20)) p->bias_dtype = draw_dtype(d);
    }
    if (chance(d, 10)) p->softmax_precision = ATTUNE_F64;
}

/* ---- Scores, positions and masks ---- */

static void draw_causality(draft *d) {
    attune_problem *const p = d->p;
    p->causal_align = chance(d, 50) ? ATTUNE_BOTTOM_RIGHT : ATTUNE_TOP_LEFT;
    p->is_causal = chance(d, 80);
    if (chance(d, 40)) {
        const int64_t reach = chance(d, 10) ? INT32_MAX / 4 : d->rows + d->keys + 2;
        p->causal_offset = between(d, -reach, reach);
    }
    p->has_causal_offsets = has_feature(d);
}

static void draw_window(draft *d) {
    attune_problem *const p = d->p;
    if (chance(d, 80)) p->window_left = between(d, 0, chance(d, 50) ? 5 : d->keys + 2);
    if (chance(d, 50)) p->window_right = between(d, 0, chance(d, 50) ? 5 : d->keys + 2);
    if (chance(d, 40)) p->global_tokens = between(d, 1, chance(d, 80) ? 6 : d->keys + 2);
}

/* The dims of a mask; the columns of a short one end before the keys do. */
static void draw_mask(draft *d, int64_t dims[4], int64_t *columns) {
    attune_problem *const p = d->p;
    const bool is_short = p->short_masks && chance(d, 70);
    dims[0] = chance(d, 50) ? 1 : p->batch;
    dims[1] = chance(d, 50) ? 1 : p->num_heads;
    dims[2] = chance(d, 30) ? 1 : p->seq_q;
    dims[3] = chance(d, 10) ? 1 : p->seq_kv;
    if (!is_short || dims[3] == 1 || d->keys < 2) return;
    const int64_t some = between(d, 2, d->keys);
    if (chance(d, 50)) {
        dims[3] = some;
    } else {
        dims[3] = ATTUNE_DYNAMIC;
        *columns = some;
    }
}

static void draw_scores(draft *d) {
    draft_numbers(d, 50);
    if (chance(d, d->rate / 2 + 30)) draw_causality(d);
    if (has_feature(d)) draw_window(d);
    draft_flags(d);
}

static void draw_masks(draft *d) {
    attune_problem *const p = d->p;
    p->short_masks = chance(d, 20);
    if (has_feature(d)) draw_mask(d, p->attn_mask_dims, &d->sizes->mask_seq_kv);
    if (has_feature(d)) draw_mask(d, p->attn_bias_dims, &d->sizes->bias_seq_kv);
    if (d->has_functions || has_feature(d)) draft_functions(d);
}

/* ---- Caches ---- */

static void draw_append(draft *d) {
    attune_problem *const p = d->p;
    d->fresh = chance(d, 40) ? d->rows : between(d, 1, larger(d->rows, 4));
    if (d->block == BLOCK_SELF_CACHE) {
        d->fresh = d->rows;
        p->seq_new = p->seq_q;
    } else if (chance(d, 25)) {
        if (chance(d, 10)) d->fresh = 0;
        p->seq_new = ATTUNE_DYNAMIC;
    } else {
        d->fresh = larger(d->fresh, 1);
        p->seq_new = d->fresh;
    }
    /* There must be at least as many keys as new ones. */
    if (d->keys < d->fresh) {
        d->keys = d->fresh;
        if (p->seq_kv != ATTUNE_DYNAMIC) p->seq_kv = d->keys;
        if (p->max_seq_kv) p->max_seq_kv = larger(p->max_seq_kv, d->keys);
    }
}

static void draw_pages(draft *d) {
    static const int8_t page_sizes[] = {1, 2, 3, 5, 8, 16, 16, 32, 64};
    attune_problem *const p = d->p;
    p->page_size = page_sizes[between(d, 0, 8)];
    d->keys = larger(d->keys, 1);
    if (!p->is_ragged && chance(d, 80)) p->has_kv_lens = 1;
}

static void draw_rotary(draft *d) {
    attune_problem *const p = d->p;
    p->rotary_dim = chance(d, 50) ? p->head_dim / 2 * 2 : 2 * between(d, 1, p->head_dim / 2);
    p->rotary_interleaved = chance(d, 50);
    p->has_position_ids = chance(d, 40);
    if (p->causal_offset < 0 || p->causal_offset > 1000) p->causal_offset = 0;
    if (d->block && chance(d, 40)) p->causal_offset += between(d, 1, 20);
}

/* With position_ids every position needs a row of cos and sin, and a key has the id of its query. */
static void fit_rotary(draft *d) {
    attune_problem *const p = d->p;
    if (!p->rotary_dim) return;
    const bool has_keys = p->op != ATTUNE_ROTARY;
    if (p->has_position_ids && has_keys && p->is_ragged && !p->seq_new && (p->page_size || p->has_kv_lens))
        p->has_position_ids = 0;
    if (p->has_position_ids && has_keys && !p->is_ragged && !p->kv_projected) {
        const int64_t keys = p->seq_new ? p->seq_new : p->seq_kv, length = p->seq_new ? d->fresh : d->keys;
        if (keys != p->seq_q || length != d->rows) p->has_position_ids = 0;
    }
    if (has_keys && !p->has_position_ids && p->causal_align == ATTUNE_BOTTOM_RIGHT && d->keys < d->rows)
        p->causal_align = ATTUNE_TOP_LEFT;
}

/* ---- Run-time sizes ---- */

static void set_ragged_sizes(draft *d) {
    attune_problem *const p = d->p;
    call_sizes *const s = d->sizes;
    p->seq_q = p->seq_kv = ATTUNE_DYNAMIC;
    if (p->seq_new) p->seq_new = ATTUNE_DYNAMIC;
    p->max_seq_q = p->max_seq_kv = 0;
    s->total_q = p->batch * d->rows - between(d, 0, p->batch * d->rows / 2);
    /* Entries may need as many keys as they have queries. */
    if (p->seq_new || p->rotary_dim) d->keys = larger(d->keys, s->total_q);
    s->total_kv = p->batch * d->keys - between(d, 0, p->batch * d->keys / 2);
    if (p->seq_new || p->rotary_dim) s->total_kv = larger(s->total_kv, s->total_q);
    if (d->block == BLOCK_SELF) s->total_kv = ATTUNE_NOT_SET; /* x has the keys */
    /* The longest sequence decides how a mask or a row of ids lies in memory, so its length is given with them. */
    const bool has_rows = p->has_position_ids || p->attn_mask_dims[3] || p->attn_bias_dims[3] || p->tensors[0].rank;
    if (has_rows || chance(d, 50)) s->seq_q = larger(d->rows, 1);
    if (d->block != BLOCK_SELF && (has_rows || chance(d, 50))) s->seq_kv = larger(d->keys, 1);
}

static void set_page_sizes(draft *d) {
    attune_problem *const p = d->p;
    call_sizes *const s = d->sizes;
    s->max_pages = (d->keys + p->page_size - 1) / p->page_size + between(d, 0, 2);
    s->num_pages = p->batch * s->max_pages + between(d, 0, 3);
    /* Entries may share pages that are only read. */
    if (!p->seq_new && chance(d, 30)) s->num_pages = between(d, 1, larger(s->num_pages, 1));
}

static void set_rotary_sizes(draft *d) {
    attune_problem *const p = d->p;
    call_sizes *const s = d->sizes;
    const int64_t tokens = larger(s->total_q, 0), paged = p->page_size ? s->max_pages * p->page_size : 0;
    const int64_t longest = d->rows + larger(d->keys, s->total_kv) + tokens + paged;
    s->rotary_positions = longest + p->causal_offset + 8 + between(d, 0, 9);
    if (chance(d, 30)) s->rotary_batch_stride = s->rotary_positions * p->rotary_dim / 2 + between(d, 0, 5);
}

static void set_sizes(draft *d) {
    attune_problem *const p = d->p;
    call_sizes *const s = d->sizes;
    if (p->is_ragged) {
        set_ragged_sizes(d);
    } else {
        if (p->seq_q == ATTUNE_DYNAMIC) s->seq_q = d->rows;
        if (p->seq_kv == ATTUNE_DYNAMIC && d->block != BLOCK_SELF) s->seq_kv = d->keys;
        /* The tables of a paged cache give the longest length. It must be set if another tensor's layout depends on it.
         */
        const bool has_columns = p->weights_mode || p->has_position_ids || p->attn_mask_dims[3] ||
                                 p->attn_bias_dims[3] || p->tensors[0].rank;
        if (s->seq_kv > 0 && p->page_size && p->has_kv_lens && !has_columns && chance(d, 40))
            s->seq_kv = ATTUNE_NOT_SET;
        if (p->seq_new == ATTUNE_DYNAMIC && d->block != BLOCK_SELF_CACHE) s->seq_new = d->fresh;
    }
    if (p->page_size) set_page_sizes(d);
    if (p->rotary_dim) set_rotary_sizes(d);
}

/* ---- The operations ---- */

static bool multiplies(attune_dtype dtype) { return dtype == ATTUNE_I8 || dtype == ATTUNE_I4; }

static void draw_integer(draft *d) {
    attune_problem *const p = d->p;
    const bool rotates_cache = p->rotary_dim && !p->seq_new;
    const bool has_runs = p->k_scales == ATTUNE_SCALES_TOKEN_MIN || p->k_scales == ATTUNE_SCALES_GROUP_MIN;
    const bool k_fits = p->k_scales <= ATTUNE_SCALES_GROUP || has_runs, v_fits = p->v_scales <= ATTUNE_SCALES_TOKEN;
    if (!multiplies(p->k_dtype) || !k_fits || p->weights_mode || p->prob_mod[0] || rotates_cache || !chance(d, 50))
        return;
    const bool may_all = multiplies(p->v_dtype) && v_fits;
    p->integer = may_all && chance(d, 60) ? ATTUNE_INTEGER_ALL : ATTUNE_INTEGER_SCORES;
    p->q_planes = (attune_q_planes)between(d, ATTUNE_Q_PLANES_DEFAULT, ATTUNE_Q_PLANES_2);
}

/* Scores in integers of keys that are numbers, which each call makes codes of. */
static void draw_key_codes(draft *d) {
    attune_problem *const p = d->p;
    const attune_dtype k = p->k_dtype ? p->k_dtype : p->dtype;
    const bool is_f64 = p->dtype == ATTUNE_F64 || k == ATTUNE_F64 || p->v_dtype == ATTUNE_F64 ||
                        p->bias_dtype == ATTUNE_F64 || p->w_dtype == ATTUNE_F64 || p->softmax_precision == ATTUNE_F64;
    const bool attends = p->op == ATTUNE_ATTENTION || p->op == ATTUNE_MHA;
    if (!attends || ref_is_quantised(k) || is_f64 || p->weights_mode || p->reproducible) return;
    if (!chance(d, 12)) return;
    p->integer = ATTUNE_INTEGER_SCORES;
    p->q_planes = chance(d, 50) ? ATTUNE_Q_PLANES_DEFAULT : ATTUNE_Q_PLANES_1;
}

/* Products of rounded factors, where nothing forbids them. A generator of its own leaves all other draws of a seed what
 * they were before there was this field. */
static void draw_matmul_precision(const draft *of) {
    tool_random own = *of->random;
    draft copy = *of, *const d = &copy;
    attune_problem *const p = d->p;
    d->random = &own;
    const bool is_f64 = p->dtype == ATTUNE_F64 || p->k_dtype == ATTUNE_F64 || p->v_dtype == ATTUNE_F64 ||
                        p->bias_dtype == ATTUNE_F64 || p->softmax_precision == ATTUNE_F64;
    if (p->op != ATTUNE_ATTENTION || d->block || !has_feature(d) || !chance(d, 40)) return;
    const bool rounds = !is_f64 && !p->reproducible && !p->integer && chance(d, 80);
    p->matmul_precision = rounds ? ATTUNE_BF16 : ATTUNE_F32;
}

static attune_dtype panel_dtype(const draft *d) { return chance(d, 50) ? ATTUNE_BF16 : ATTUNE_F32; }

/* Draws the type of packed K or V. Only int4 and int8 are quantised there, with scales of heads or tokens. */
static void draw_panel_dtype(draft *d, attune_dtype *dtype, attune_scales *scales, int64_t *group) {
    const attune_dtype codes = chance(d, 40) ? ATTUNE_I4 : ATTUNE_I8;
    *dtype = chance(d, 30) ? codes : chance(d, 60) ? d->p->dtype : panel_dtype(d);
    if (*dtype != ATTUNE_BF16 && !multiplies(*dtype)) *dtype = ATTUNE_F32;
    *group = 0;
    *scales = !multiplies(*dtype) ? ATTUNE_SCALES_DEFAULT : chance(d, 50) ? ATTUNE_SCALES_TOKEN : ATTUNE_SCALES_HEAD;
}

/* Rounds columns up to whole units of packed K. */
static int64_t dim_of_units(int64_t columns, attune_dtype dtype) {
    enum { BLOCK = 32 };
    const int64_t unit = dtype == ATTUNE_I4 ? BLOCK : dtype == ATTUNE_I8 ? 4 : dtype == ATTUNE_BF16 ? 2 : 1;
    return (columns + unit - 1) / unit * unit;
}

/* Caches in panels; what does not go with them is left out. */
static void draw_panels(draft *d) {
    attune_problem *const p = d->p;
    const bool prepares_all = p->rotary_dim && !p->seq_new;
    if (d->block || p->v_in_k || prepares_all || !chance(d, 12)) return;
    if (p->is_ragged && !p->page_size) draw_pages(d);
    if (p->page_size) p->page_size = ATTUNE_PANEL_TOKENS * between(d, 1, 3);
    p->k_layout = chance(d, 80) ? ATTUNE_LAYOUT_PANELS : ATTUNE_LAYOUT_ROWS;
    p->v_layout =
        p->op == ATTUNE_ATTENTION && (!p->k_layout || chance(d, 80)) ? ATTUNE_LAYOUT_PANELS : ATTUNE_LAYOUT_ROWS;
    if (chance(d, 50)) p->dtype = panel_dtype(d);
    if (p->k_layout) draw_panel_dtype(d, &p->k_dtype, &p->k_scales, &p->k_group);
    if (p->v_layout) draw_panel_dtype(d, &p->v_dtype, &p->v_scales, &p->v_group);
    if (p->k_layout) p->head_dim = dim_of_units(p->head_dim, p->k_dtype);
    if (p->v_layout && p->v_dtype == ATTUNE_I4)
        p->head_dim_v = dim_of_units(p->head_dim_v ? p->head_dim_v : p->head_dim, p->v_dtype);
}

static void draw_attention(draft *d) {
    attune_problem *const p = d->p;
    draw_dynamic(d);
    p->has_lse = chance(d, 50);
    draw_scores(d);
    p->is_ragged = has_feature(d) || (d->block && chance(d, 8));
    const bool appends = d->block == BLOCK_SELF_CACHE || d->block == BLOCK_CROSS_CACHE;
    if (d->block ? appends : has_feature(d)) draw_append(d);
    if (has_feature(d) && (!d->block || draft_has_caches(d))) draw_pages(d);
    p->has_kv_lens = p->has_kv_lens || has_feature(d);
    if (p->head_dim_v <= p->head_dim && !p->v_embed_dim && has_feature(d)) p->v_in_k = 1;
    if (p->v_in_k) p->v_dtype = ATTUNE_DTYPE_DEFAULT;
    if (p->v_in_k) p->v_scales = ATTUNE_SCALES_DEFAULT, p->k_group = p->v_group = 0; /* the usual one fits V as well */
    if (p->head_dim > 1 && !p->v_in_k && (has_feature(d) || (d->block && chance(d, 15)))) draw_rotary(d);
    if (p->is_ragged) p->seq_q = p->seq_kv = ATTUNE_DYNAMIC;
    draw_masks(d);
    if (!p->is_ragged && has_feature(d)) {
        p->weights_mode = (attune_weights_mode)between(d, ATTUNE_WEIGHTS_SCALED, ATTUNE_WEIGHTS_SOFTMAX);
        p->weights_average = chance(d, 40);
    }
    draw_panels(d);
    draw_integer(d);
}

static void draw_weights(draft *d) {
    attune_problem *const p = d->p;
    draw_dynamic(d);
    draw_scores(d);
    if (has_feature(d)) draw_pages(d);
    p->has_kv_lens = p->has_kv_lens || has_feature(d);
    if (p->head_dim > 1 && has_feature(d)) draw_rotary(d);
    draw_masks(d);
    p->weights_mode = chance(d, 60) ? ATTUNE_WEIGHTS_SOFTMAX
                                    : (attune_weights_mode)between(d, ATTUNE_WEIGHTS_SCALED, ATTUNE_WEIGHTS_SOFTMAX);
    p->weights_average = chance(d, 40);
    if (d->rows == 0 || !chance(d, 50)) return;
    p->has_row_ids = 1;
    p->num_rows = between(d, 1, d->rows + 2);
    if (!chance(d, 40)) return;
    d->sizes->num_rows = chance(d, 10) ? 0 : p->num_rows;
    p->num_rows = ATTUNE_DYNAMIC;
}

static void draw_rotary_op(draft *d) {
    attune_problem *const p = d->p;
    draw_dynamic(d);
    p->seq_kv = p->max_seq_kv = 0;
    p->num_kv_heads = p->head_dim_v = 0;
    p->head_dim = larger(p->head_dim, 2);
    draw_rotary(d);
    p->causal_offset = chance(d, 50) ? 0 : between(d, 0, 20);
    p->has_causal_offsets = chance(d, 30);
}

static void draw_merge(draft *d) {
    attune_problem *const p = d->p;
    draw_dynamic(d);
    p->seq_kv = p->max_seq_kv = 0;
    p->num_kv_heads = 0;
    p->num_parts = chance(d, 20) ? 1 : between(d, 2, 9);
    p->has_lse = chance(d, 70);
}

static block_kind draw_kind(const draft *d) {
    static const struct {
        block_kind kind;
        int until; /* percent */
    } kinds[] = {{BLOCK_SELF, 35},        {BLOCK_SELF_CACHE, 53}, {BLOCK_CROSS, 68},
                 {BLOCK_CROSS_CACHE, 78}, {BLOCK_PROJECTED, 90},  {BLOCK_LOW_RANK, 100}};
    const int64_t percent = between(d, 1, 100);
    size_t i = 0;
    while (percent > kinds[i].until) i++;
    return kinds[i].kind;
}

/* Rows that this call normalises. */
static void draw_norm(draft *d) {
    attune_problem *const p = d->p;
    const bool in_panels = (p->k_layout || p->v_layout) && !p->seq_new;
    const bool is_never =
        p->op == ATTUNE_ROTARY || p->op == ATTUNE_MERGE || d->block == BLOCK_LOW_RANK || p->v_in_k || in_panels;
    const bool has_codes = ref_is_quantised(p->k_dtype);
    if (is_never || (has_codes && !p->seq_new && !p->kv_projected) || !(has_feature(d) || chance(d, 3))) return;
    p->qk_norm_eps = chance(d, 50) ? 1e-6 : 0.125 * (double)between(d, 1, 8);
}

/* Rows that this call spreads over their columns. */
static void draw_hadamard(draft *d) {
    attune_problem *const p = d->p;
    const bool has_keys = p->op != ATTUNE_ROTARY && p->op != ATTUNE_MERGE;
    const bool prepares_all = !p->seq_new && !p->kv_projected;
    const bool is_bound = prepares_all && (p->k_layout || p->v_layout || ref_is_quantised(p->k_dtype));
    const bool fits = p->head_dim > 0 && (p->head_dim & (p->head_dim - 1)) == 0;
    if (!has_keys || !fits || is_bound || p->v_in_k || d->block == BLOCK_LOW_RANK) return;
    p->qk_hadamard = has_feature(d) || chance(d, 3);
}

static void list_columns(int64_t dims[4], int64_t columns) {
    if (dims[3] && dims[3] != 1) dims[3] = columns;
}

/* Lists of keys, in the place of whatever else says which keys a query attends to. Their numbers come from a stream of
 * their own, so that other problems are drawn as they were before there were lists. */
static void draw_lists(const draft *whole) {
    tool_random own = {whole->random->state ^ UINT64_C(0x9ae16a3b2f90404f)};
    draft lists = *whole;
    draft *const d = &lists;
    attune_problem *const p = d->p;
    const bool prepares_all = (p->rotary_dim || p->qk_norm_eps > 0 || p->qk_hadamard) && !p->seq_new;
    const bool has_functions = p->score_mod[0] || p->mask_mod[0] || p->prob_mod[0];
    d->random = &own;
    if (p->op != ATTUNE_ATTENTION || d->block || has_functions || prepares_all || p->weights_mode || p->k_layout ||
        p->v_layout || p->integer || !chance(d, 8))
        return;
    p->is_causal = 0;
    p->window_left = p->window_right = -1;
    p->global_tokens = 0;
    p->has_alibi_slopes = 0;
    p->kv_ids = chance(d, 70) ? ATTUNE_KV_IDS_QUERY : ATTUNE_KV_IDS_SEQUENCE;
    p->num_ids = between(d, 1, 2 * d->keys + 3);
    p->has_kv_id_lens = p->reproducible || p->is_ragged || p->has_kv_lens || !d->keys || chance(d, 50);
    d->sizes->num_ids = chance(d, 40) ? p->num_ids : ATTUNE_NOT_SET;
    if (d->sizes->num_ids != ATTUNE_NOT_SET) p->num_ids = ATTUNE_DYNAMIC;
    p->short_masks = 0;
    list_columns(p->attn_mask_dims, p->num_ids);
    list_columns(p->attn_bias_dims, p->num_ids);
    d->sizes->mask_seq_kv = d->sizes->bias_seq_kv = ATTUNE_NOT_SET;
}

/* A kernel for all groups, where there is one. By a stream of its own, too. */
static void draw_general(const draft *whole) {
    tool_random own = {whole->random->state ^ UINT64_C(0x5be0cd19137e2179)};
    const draft d = {.random = &own};
    attune_problem general = *whole->p;
    general.is_general = 1;
    if (whole->p->seq_q == ATTUNE_DYNAMIC && chance(&d, 20) && !attune_problem_check(&general)) *whole->p = general;
}

static attune_op draw_op(const draft *d) {
    const int64_t op = d->block ? 100 : between(d, 1, 100);
    if (op <= 6) return ATTUNE_WEIGHTS;
    if (op > 16 || d->has_functions) return ATTUNE_ATTENTION;
    return op <= 11 ? ATTUNE_ROTARY : ATTUNE_MERGE;
}

/* Fields that mean nothing would be refused. */
static void leave_out_parts(attune_problem *p) {
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        const mha_field *const field = &mha_fields[i];
        const bool has_default = p->op == ATTUNE_WEIGHTS && field->part_of == MHA_ID_weights_mode;
        if (field->part_of && !has_default && mha_field_is_initial(p, &mha_fields[field->part_of]))
            mha_field_reset(p, field);
    }
    if (!ref_is_quantised(p->k_dtype)) p->k_scales = ATTUNE_SCALES_DEFAULT;
    if (!ref_is_quantised(p->v_dtype)) p->v_scales = ATTUNE_SCALES_DEFAULT;
}

static void draw_any(tool_random *random, check_kind kind, double max_flops, attune_problem *p, call_sizes *sizes) {
    static const int8_t rates[] = {0, 0, 6, 15, 30};
    draft d = {.random = random, .p = p, .sizes = sizes, .has_functions = kind == CHECK_FUNCTIONS};
    *p = (attune_problem)ATTUNE_PROBLEM_INIT;
    *sizes = (call_sizes)CALL_SIZES_NONE;
    d.rate = rates[tool_random_range(random, 0, 4)];
    /* A block's products have no functions and take most of its time. */
    if (chance(&d, d.has_functions ? 5 : 33)) d.block = draw_kind(&d);
    if (d.has_functions && d.block == BLOCK_LOW_RANK) d.block = BLOCK_SELF;
    draw_sizes(&d, max_flops);
    p->op = draw_op(&d);
    draw_dtypes(&d);
    draw_codes(&d);
    if (d.block == BLOCK_LOW_RANK)
        draft_low_rank(&d);
    else
        switch (p->op) {
        case ATTUNE_WEIGHTS: draw_weights(&d); break;
        case ATTUNE_ROTARY: draw_rotary_op(&d); break;
        case ATTUNE_MERGE: draw_merge(&d); break;
        default: draw_attention(&d); break;
        }
    fit_rotary(&d);
    set_sizes(&d);
    draw_norm(&d);
    draw_hadamard(&d);
    draw_key_codes(&d);
    draw_matmul_precision(&d);
    draw_lists(&d);
    if (d.block) draft_leave_out(&d);
    leave_out_parts(p);
    draw_general(&d);
}

static bool draw_legal(tool_random *random, check_kind kind, double max_flops, attune_problem *problem,
                       call_sizes *sizes) {
    draw_any(random, kind, max_flops, problem, sizes);
    /* A refused problem is a failure of the check. */
    if (attune_problem_check(problem) == ATTUNE_OK && check_draw_strides(random, problem, sizes)) return true;
    char *const text = problem_text(problem);
    char sizes_text[SIZES_TEXT];
    char doing[ATTUNE_MESSAGE_BYTES];
    snprintf(doing, sizeof doing, "a problem that should be legal (%.300s --sizes=%.100s)", text ? text : "",
             sizes_print(sizes, sizes_text));
    tool_library_error(doing);
    return false;
}

bool check_draw_problem(tool_random *random, double max_flops, attune_problem *problem, call_sizes *sizes) {
    return draw_legal(random, CHECK_ALL_KINDS, max_flops, problem, sizes);
}

bool check_draw_functions(tool_random *random, double max_flops, attune_problem *problem, call_sizes *sizes) {
    return draw_legal(random, CHECK_FUNCTIONS, max_flops, problem, sizes);
}
