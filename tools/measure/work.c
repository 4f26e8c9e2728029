/* Counts pairs of query and key that are visible, and rows of K and V that some query attends to, sequence by sequence;
 * the roofline follows from both. */
#include "measure/work.h"

#include <string.h>

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t settled(int64_t of_problem, int64_t of_call) {
    return of_problem == ATTUNE_DYNAMIC ? of_call : of_problem;
}

static bool is_attention(const attune_problem *p) { return p->op == ATTUNE_ATTENTION || p->op == ATTUNE_MHA; }

/* A block whose keys are those of x, which no cache holds. */
static bool is_plain_self(const attune_problem *p) {
    return ref_is_block(p) && !p->is_cross && !p->seq_new && !p->kv_projected;
}

/* One sequence of the batch. */
typedef struct sequence {
    int64_t rows, keys, fresh; /* fresh: of the keys, those that the call appends */
    int64_t projected;         /* keys that a block computes */
    int64_t offset;            /* of its positions, as the call says it */
} sequence;

static sequence sequence_of(const tensors *t, int64_t b) {
    const attune_problem *const p = &t->problem;
    const attune_arguments *const a = &t->arguments;
    sequence e = {.rows = settled(p->seq_q, a->seq_q), .keys = settled(p->seq_kv, a->seq_kv)};
    if (p->is_ragged) e.rows = a->cu_seqlens_q[b + 1] - a->cu_seqlens_q[b];
    if (tensors_find(t, "cu_seqlens_kv")) e.keys = a->cu_seqlens_kv[b + 1] - a->cu_seqlens_kv[b];
    if (p->is_ragged && is_plain_self(p)) e.keys = e.rows;
    e.projected = e.keys;
    if (p->has_kv_lens) e.keys = a->kv_lens[b];
    if (p->low_rank) e.keys = p->low_rank;
    if (p->seq_new) e.fresh = p->is_ragged ? e.rows : settled(p->seq_new, a->seq_new);
    if (p->seq_new || p->kv_projected) e.projected = e.fresh;
    if (tensors_find(t, "causal_offsets")) e.offset = a->causal_offsets[b];
    return e;
}

/* The sight of the sequence's queries: no key if the tables of the call are not sound, which running it will say. */
static attune_sight sight_of(const attune_problem *p, const sequence *e) {
    attune_sight sight = ATTUNE_SIGHT_INIT;
    const bool is_sound = attune_sight_of(p, e->rows, e->keys, e->offset, 0, e->rows, &sight) == ATTUNE_OK;
    return is_sound ? sight : (attune_sight)ATTUNE_SIGHT_INIT;
}

/* Keys of the sequence that are read. */
static int64_t read_keys(const attune_problem *p, const sequence *e, const attune_sight *sight) {
    const bool shows_hidden = p->weights_mode == ATTUNE_WEIGHTS_SCALED || p->weights_mode == ATTUNE_WEIGHTS_CAPPED;
    return shows_hidden && e->rows > 0 ? e->keys : sight->keys;
}

/* The keys of the lists of a sequence, each as often as it is listed. */
static int64_t listed_keys(const tensors *t, int64_t b, int64_t rows) {
    const attune_arguments *const a = &t->arguments;
    const bool is_by_query = t->problem.kv_ids == ATTUNE_KV_IDS_QUERY;
    const int64_t first = !is_by_query ? b : t->problem.is_ragged ? a->cu_seqlens_q[b] : b * rows;
    const int64_t lists = is_by_query ? rows : 1, most = settled(t->problem.num_ids, a->num_ids);
    int64_t sum = 0;
    for (int64_t list = first; list < first + lists; list++)
        sum += larger(t->problem.has_kv_id_lens ? a->kv_id_lens[list] : most, 0);
    return sum;
}

/* The projections of a block: a product for each element of its weights and each row. */
static double projection_flops(const tensors *t, const sequence *e) {
    const attune_problem *const p = &t->problem;
    const double q = (double)(p->num_heads * p->head_dim), k = (double)(p->num_kv_heads * p->head_dim);
    const double v = p->v_in_k ? 0 : (double)(p->num_kv_heads * p->head_dim_v);
    const double values_from = (double)(p->v_embed_dim ? p->v_embed_dim : p->kv_embed_dim);
    const double rows = (double)larger(e->rows, 0), keys = (double)larger(e->projected, 0);
    double products = rows * (double)p->embed_dim * q + keys * ((double)p->kv_embed_dim * k + values_from * v);
    if (!p->no_out_projection) products += rows * (double)(p->num_heads * p->head_dim_v) * (double)p->out_dim;
    return 2 * (products + (double)p->low_rank * keys * (k + v));
}

/* The work of operators other than attention, whose lengths are those of the call. */
static double whole_flops(const tensors *t) {
    attune_problem whole = t->problem;
    whole.seq_q = settled(whole.seq_q, t->arguments.seq_q);
    whole.seq_kv = settled(whole.seq_kv, t->arguments.seq_kv);
    if (whole.has_row_ids) whole.num_rows = settled(whole.num_rows, t->arguments.num_rows);
    return attune_problem_flops(&whole);
}

/* Elements that differ: a dim with stride 0 is one. */
static double elements(const attune_tensor *info) {
    double count = 1;
    for (int d = 0; d < info->rank; d++)
        if (info->strides[d] || !info->dims[d]) count *= (double)info->dims[d];
    return count;
}

static bool is_one_of(const char *name, const char *a, const char *b) {
    return strcmp(name, a) == 0 || strcmp(name, b) == 0;
}

static void add_attention(const attune_problem *p, const sequence *e, const attune_sight *sight, call_work *work) {
    const double heads = (double)p->num_heads;
    work->pairs += heads * sight->pairs;
    work->all_pairs += heads * (double)larger(e->rows, 0) * (double)larger(e->keys, 0);
    work->flops += 2.0 * heads * (double)(p->head_dim + p->head_dim_v) * sight->pairs;
}

call_work work_of_call(const tensors *t) {
    const attune_problem *const p = &t->problem;
    const bool has_keys = tensors_find(t, "k") != NULL;
    const bool turns_keys = (has_keys || ref_is_block(p)) && !p->seq_new && !p->kv_projected;
    double keys = 0;        /* that are seen, over all sequences */
    int64_t most_turns = 0; /* rows of cos and sin that a sequence can need */
    call_work work = {0};
    for (int64_t b = 0; b < t->arguments.batch; b++) {
        const sequence e = sequence_of(t, b);
        attune_sight sight = sight_of(p, &e);
        if (p->kv_ids) {
            sight.keys = listed_keys(t, b, larger(e.rows, 0));
            const bool is_by_query = p->kv_ids == ATTUNE_KV_IDS_QUERY;
            sight.pairs = (double)sight.keys * (is_by_query ? 1 : (double)larger(e.rows, 0));
        }
        if (has_keys) keys += (double)read_keys(p, &e, &sight);
        work.keys += (double)e.keys;
        most_turns = larger(most_turns, larger(e.rows, turns_keys ? e.keys : e.fresh));
        if (is_attention(p)) add_attention(p, &e, &sight, &work);
        if (ref_is_block(p)) work.flops += projection_flops(t, &e);
    }
    if (!is_attention(p)) work.flops = whole_flops(t);
    for (size_t i = 0; i < t->count; i++) {
        const attune_tensor *const info = &t->list[i].info;
        double count = elements(info);
        const double seen = keys * (double)t->arguments.num_kv_heads * (double)info->dims[info->rank - 1];
        /* Sequences may share pages. */
        if (is_one_of(info->name, "k", "v") && seen < count) count = seen;
        const double tokens = keys * (double)t->arguments.num_kv_heads * (info->rank > 3 ? (double)info->dims[3] : 1);
        if (is_one_of(info->name, "k_scale", "v_scale") && info->rank > 2 && tokens < count) count = tokens;
        if (is_one_of(info->name, "cos", "sin") && info->dims[1] > most_turns)
            count = count / (double)info->dims[1] * (double)most_turns;
        work.bytes += count * (double)ref_dtype_bytes(info->dtype);
    }
    return work;
}

/* The size of the call that decides how many keys there are. */
static const char *name_of_keys(const tensors *t, int64_t *size) {
    const attune_problem *const p = &t->problem;
    const attune_arguments *const a = &t->arguments;
    *size = a->max_pages;
    if (p->page_size) return "max_pages";
    *size = a->total_kv;
    if (p->is_ragged) return is_plain_self(p) ? "total_q" : "total_kv";
    *size = a->seq_kv;
    return is_plain_self(p) ? "seq_q" : "seq_kv";
}

bool work_can_be_measured(const char *problem, const tensors *t, const call_work *work) {
    const attune_problem *const p = &t->problem;
    const tensor *const written = tensors_find(t, p->op == ATTUNE_WEIGHTS ? "weights" : "out");
    int64_t size;
    if (written->count == 0) {
        tool_error("%s: %s has no elements to be measured", problem, written->info.name);
        return false;
    }
    if (is_attention(p) && work->keys <= 0) {
        const char *const name = name_of_keys(t, &size);
        tool_error("%s: there are no keys to be measured with: %s is %lld (see --sizes)", problem, name,
                   (long long)size);
        return false;
    }
    if (work->flops <= 0) {
        tool_error("%s: there is nothing to be measured: no query attends to a key", problem);
        return false;
    }
    if (work->bytes < 0x1p62) return true;
    tool_error("%s: a call that touches %g bytes cannot be measured", problem, work->bytes);
    return false;
}
