/* attune run op=index: the tensors of an index, its step and its reference. */
#include "run/step.h"

#include "ref_described.h"

#include <math.h>
#include <stdlib.h>

static const attune_index_desc *desc_of(const step_call *c) { return &c->desc.index; }

static bool is_paged(const step_call *c) { return desc_of(c)->page_size > 0; }
static bool is_dense(const step_call *c) { return !is_paged(c); }
static bool has_scores(const step_call *c) { return desc_of(c)->has_scores; }
static bool has_scales(const step_call *c) { return desc_of(c)->dtype == ATTUNE_I8 || desc_of(c)->dtype == ATTUNE_F8; }
static bool has_dense_scales(const step_call *c) { return has_scales(c) && is_dense(c); }
static bool has_paged_scales(const step_call *c) { return has_scales(c) && is_paged(c); }

static const step_tensor list[] = {
    {"q", "batch seq_q num_heads head_dim", STEP_INPUT, FILL_NORMAL, "dtype", 0, NULL},
    {"k", "batch seq_kv head_dim", STEP_INPUT, FILL_NORMAL, "dtype", 0, is_dense},
    {"k", "num_pages page_size head_dim", STEP_INPUT, FILL_NORMAL, "dtype", 0, is_paged},
    {"w", "batch seq_q num_heads", STEP_INPUT, FILL_NORMAL, "w_dtype", 0, NULL},
    {"q_scale", "batch seq_q num_heads", STEP_INPUT, FILL_SHARE, NULL, ATTUNE_F32, has_scales},
    {"k_scale", "batch seq_kv", STEP_INPUT, FILL_SHARE, NULL, ATTUNE_F32, has_dense_scales},
    {"k_scale", "num_pages page_size", STEP_INPUT, FILL_SHARE, NULL, ATTUNE_F32, has_paged_scales},
    {"kv_lens", "batch", STEP_LIST, FILL_ZERO, NULL, ATTUNE_I32, is_dense},
    {"kv_lens", "batch", STEP_INPUT, FILL_KEYS, NULL, ATTUNE_I32, is_paged},
    {"block_table", "batch max_pages", STEP_INPUT, FILL_PAGES, NULL, ATTUNE_I32, is_paged},
    {"ids", "batch seq_q num_ids", STEP_OUTPUT, FILL_ZERO, NULL, ATTUNE_I32, NULL},
    {"lens", "batch seq_q", STEP_OUTPUT, FILL_ZERO, NULL, ATTUNE_I32, NULL},
    {"scores", "batch seq_q num_ids", STEP_OUTPUT, FILL_ZERO, NULL, ATTUNE_F32, has_scores},
};
static const char *const sizes[] = {"batch", "seq_q", "seq_kv", "max_pages", "num_pages", NULL};

static bool take_files(step_call *c) {
    if (files_find(c->o->files.outputs, c->o->files.num_outputs, "scores")) c->desc.index.has_scores = 1;
    return true;
}

static bool derive(step_call *c) {
    const int64_t page = desc_of(c)->page_size;
    step_set_default(c, "batch", 1);
    if (page) step_set_default(c, "seq_kv", step_size_of(c, "max_pages") * page);
    step_set_default(c, "seq_kv", step_size_of(c, "seq_q"));
    step_size_pages(c, page);
    return true;
}

static attune_status create(step_call *c, attune_context *context) {
    return attune_index_create(context, desc_of(c), (attune_index **)&c->object);
}

static attune_status run(step_call *c, bool is_interpreted) {
    attune_index_step s = ATTUNE_INDEX_STEP_INIT;
    s.batch = step_size_of(c, "batch"), s.seq_q = step_size_of(c, "seq_q"), s.seq_kv = step_size_of(c, "seq_kv");
    s.q.data = step_data(c, "q"), s.k.data = step_data(c, "k"), s.w.data = step_data(c, "w");
    s.q_scale.data = step_data(c, "q_scale"), s.k_scale.data = step_data(c, "k_scale");
    s.kv_lens = step_data(c, "kv_lens"), s.block_table = step_data(c, "block_table");
    if (is_paged(c)) s.max_pages = step_size_of(c, "max_pages"), s.num_pages = step_size_of(c, "num_pages");
    s.ids = step_data(c, "ids"), s.lens = step_data(c, "lens"), s.scores = step_data(c, "scores");
    s.max_threads = c->o->threads;
    return (is_interpreted ? attune_index_run_interpreted : attune_index_run)(c->object, &s);
}

static void destroy(step_call *c) { attune_index_destroy(c->object); }

/* ---- The reference ---- */

static int64_t keys_of(const step_call *c, int64_t b) {
    const int32_t *const lens = step_data(c, "kv_lens");
    return lens ? lens[b] : step_size_of(c, "seq_kv");
}

/* How many keys a query attends to. */
static int64_t seen_by(const step_call *c, int64_t b, int64_t query) {
    const int64_t keys = keys_of(c, b), seen = keys - step_size_of(c, "seq_q") + query + 1;
    return !desc_of(c)->is_causal ? keys : seen < 0 ? 0 : seen;
}

static double flops(const step_call *c) {
    const attune_index_desc *const d = desc_of(c);
    const double queries = (double)step_size_of(c, "batch") * (double)step_size_of(c, "seq_q");
    return 2 * queries * (double)step_size_of(c, "seq_kv") * (double)d->num_heads * (double)d->head_dim *
           (d->is_causal && step_size_of(c, "seq_q") > 1 ? 0.5 : 1);
}

/* NaN is below all numbers. */
static double rank_of(double score) { return isnan(score) ? -INFINITY : score; }

/* Whether the ids ascend, are keys that the query attends to, and are as many as there are. Marks them. */
static bool are_ids(step_call *c, const int32_t *ids, int64_t query, int64_t seen, bool *is_chosen) {
    const int64_t most = desc_of(c)->num_ids, len = seen < most ? seen : most;
    const int32_t has = ((const int32_t *)step_data(c, "lens"))[query];
    for (int64_t i = 0; i < most; i++) {
        const bool fits = i >= len ? ids[i] == -1 : ids[i] >= (i ? ids[i - 1] + 1 : 0) && ids[i] < seen;
        if (!fits || has != len)
            return step_fault(
                c, "ids[%lld, %lld] is %d of %d; query %lld attends to %lld keys, and has %lld ids in order",
                (long long)query, (long long)i, ids[i], has, (long long)query, (long long)seen, (long long)len);
        if (i < len) is_chosen[ids[i]] = true;
    }
    return true;
}

/* Whether no key that was left out is better than one that was chosen, by more than rounding explains. */
static void check_choice(step_call *c, int64_t query, int64_t seen, const bool *is_chosen, const double *scores,
                         const double *limits) {
    int64_t worst = -1, best = -1; /* of those that were chosen; of the others */
    for (int64_t i = 0; i < seen; i++) {
        int64_t *const one = is_chosen[i] ? &worst : &best;
        const double sign = is_chosen[i] ? -1 : 1;
        if (*one < 0 || sign * rank_of(scores[i]) - limits[i] > sign * rank_of(scores[*one]) - limits[*one]) *one = i;
    }
    if (worst < 0 || best < 0 || !(rank_of(scores[best]) > rank_of(scores[worst]))) return;
    if (isnan(limits[best]) || isnan(limits[worst])) return;
    const double share = (scores[best] - rank_of(scores[worst])) / (limits[best] + limits[worst]);
    if (share > 1)
        step_fault(c, "query %lld lists key %lld with the score %.9g, but not key %lld with %.9g", (long long)query,
                   (long long)worst, scores[worst], (long long)best, scores[best]);
    else
        c->errors.share = fmax(c->errors.share, share);
}

static bool judge_query(step_call *c, int64_t b, int64_t i, double *scores, double *limits, bool *is_chosen) {
    const attune_index_desc *const d = desc_of(c);
    const int64_t query = b * step_size_of(c, "seq_q") + i, seen = seen_by(c, b, i), page = d->page_size;
    const int64_t first = page ? 0 : b * step_size_of(c, "seq_kv");
    const size_t bytes = npy_type_bytes(step_array(c, "q")->header.type);
    const size_t w_bytes = npy_type_bytes(step_array(c, "w")->header.type);
    const float *const q_scale = step_data(c, "q_scale"), *const k_scale = step_data(c, "k_scale");
    const ref_index r = {.desc = d,
                         .q = (const char *)step_data(c, "q") + (size_t)(query * d->num_heads * d->head_dim) * bytes,
                         .k = (const char *)step_data(c, "k") + (size_t)(first * d->head_dim) * bytes,
                         .w = (const char *)step_data(c, "w") + (size_t)(query * d->num_heads) * w_bytes,
                         .q_scale = q_scale ? q_scale + query * d->num_heads : NULL,
                         .k_scale = k_scale ? k_scale + first : NULL,
                         .pages = page ? (const int32_t *)step_data(c, "block_table") + b * step_size_of(c, "max_pages")
                                       : NULL};
    const int32_t *const ids = (const int32_t *)step_data(c, "ids") + query * d->num_ids;
    for (int64_t k = 0; k < seen; k++) is_chosen[k] = false;
    ref_index_compute(&r, seen, scores, limits);
    c->errors.count += d->num_ids;
    if (!are_ids(c, ids, query, seen, is_chosen)) return true;
    check_choice(c, query, seen, is_chosen, scores, limits);
    for (int64_t n = 0; d->has_scores && n < d->num_ids; n++) {
        const double wanted = ids[n] < 0 ? -INFINITY : scores[ids[n]];
        const double limit = ids[n] < 0 ? 0 : step_limit(ATTUNE_F32, wanted, limits[ids[n]]);
        step_compare(c, "scores", query * d->num_ids + n, &wanted, &limit, 1);
    }
    return true;
}

static bool judge(step_call *c) {
    int64_t most = 0;
    for (int64_t b = 0; b < step_size_of(c, "batch"); b++) most = keys_of(c, b) > most ? keys_of(c, b) : most;
    double *const scores = malloc((size_t)(2 * most + 1) * sizeof *scores);
    bool *const is_chosen = malloc((size_t)most + 1);
    bool good = scores && is_chosen;
    for (int64_t b = 0; b < step_size_of(c, "batch"); b++)
        for (int64_t i = 0; good && i < step_size_of(c, "seq_q"); i++)
            good = judge_query(c, b, i, scores, scores + most, is_chosen);
    free(scores), free(is_chosen);
    return good;
}

const step_operator step_index = {STEP_OPERATOR(&idx_table), .take_files = take_files, .has_pairs = true};
