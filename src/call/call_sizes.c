/* The run-time sizes of a call. */
#include "call/call.h"
#include "problem/problem_fields.h"

static const int64_t MAX_SIZE = INT32_MAX;

static attune_status take(mha_sizes *sizes, mha_size size, const char *name, int64_t value, int64_t least, int64_t most,
                          at_error *err) {
    const char *const bound = most == MAX_SIZE || size == MHA_NUM_IDS ? ""
                              : size == MHA_SEQ_Q                     ? " (max_seq_q)"
                                                                      : " (max_seq_kv)";
    sizes->of[size] = value;
    if (value >= least && value <= most) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is %lld; this kernel takes %lld to %lld%s", name, (long long)value,
                   (long long)least, (long long)most, bound);
}

/* A size that the problem leaves open. */
static attune_status take_open(mha_sizes *sizes, mha_size size, const char *name, int64_t value, int64_t most,
                               at_error *err) {
    if (value != ATTUNE_NOT_SET) return take(sizes, size, name, value, 0, most, err);
    return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                   "%s is not set; the problem leaves it open, so every call must set it (0 is allowed)", name);
}

/* A size that the problem fixes: the call may repeat it. */
static attune_status check_fixed(const char *name, int64_t given, int64_t compiled, at_error *err) {
    if (given == ATTUNE_NOT_SET || given == compiled) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is %lld; this kernel was compiled for %lld", name,
                   (long long)given, (long long)compiled);
}

/* The heads of a block are compiled, because its weights are. */
static attune_status check_heads(const char *name, int64_t given, int64_t compiled, at_error *err) {
    if (given == compiled) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is %lld; this block was compiled for %lld", name, (long long)given,
                   (long long)compiled);
}

static attune_status settle_heads(const at_signature *s, const attune_arguments *a, mha_sizes *sizes, at_error *err) {
    const attune_problem *p = &s->problem;
    const int64_t group = p->num_heads / p->num_kv_heads;
    /* Without keys there are no key heads to check. */
    const bool has_kv = mha_has_keys(p);
    const int64_t kv_heads = has_kv ? a->num_kv_heads : a->num_heads / group;
    if (take(sizes, MHA_BATCH, "batch", a->batch, 1, MAX_SIZE, err) ||
        take(sizes, MHA_HEADS, "num_heads", a->num_heads, 1, MAX_SIZE, err) ||
        take(sizes, MHA_KV_HEADS, "num_kv_heads", kv_heads, 1, MAX_SIZE, err))
        return ATTUNE_INVALID_ARGUMENT;
    if (mha_is_block(p)) {
        const attune_status status = check_heads("num_heads", a->num_heads, p->num_heads, err);
        return status ? status : check_heads("num_kv_heads", a->num_kv_heads, p->num_kv_heads, err);
    }
    sizes->of[MHA_GROUP] = a->num_heads / kv_heads;
    if (p->is_general && a->num_heads % kv_heads)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "num_kv_heads is %lld, which does not divide num_heads = %lld",
                       (long long)kv_heads, (long long)a->num_heads);
    if (!p->is_general && (a->num_heads % kv_heads || a->num_heads / kv_heads != group))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "num_heads is %lld and num_kv_heads %lld; the kernel was compiled for groups of %lld",
                       (long long)a->num_heads, (long long)kv_heads, (long long)group);
    return ATTUNE_OK;
}

/* Whether some tensor is larger for more queries (MHA_SEQ_Q) or keys (MHA_SEQ_KV). */
static bool is_dim(const at_signature *s, mha_size size) {
    for (size_t i = 0; i < s->count; i++) {
        const mha_tensor *t = &s->tensors[i];
        for (int d = 0; d < t->rank; d++) {
            const bool columns = t->dims[d] == MHA_MASK_KV || t->dims[d] == MHA_BIAS_KV;
            if ((columns ? MHA_SEQ_KV : t->dims[d]) == size && !mha_is_broadcast(&s->problem, t, d)) return true;
        }
    }
    return false;
}

/* A length from index tensors is open, unless the caller sets the longest one. The caller must do so if the layout of
 * another tensor depends on it, because the layout must not change with the values in the tables. */
static attune_status settle_length(const at_signature *s, mha_size size, const char *name, int64_t given, int64_t bound,
                                   bool has_table, int64_t room, mha_sizes *sizes, bool *open, at_error *err) {
    *open = false;
    if (!s->parameters.has[size])
        return s->compiled.of[size] < 0 ? ATTUNE_OK : check_fixed(name, given, s->compiled.of[size], err);
    const int64_t most = bound ? bound : MAX_SIZE;
    const bool keys_too = size == MHA_SEQ_Q && mha_keys_follow_queries(&s->problem);
    if (!has_table || given != ATTUNE_NOT_SET || is_dim(s, size) || (keys_too && is_dim(s, MHA_SEQ_KV)))
        return take_open(sizes, size, name, given, most, err);
    *open = true;
    sizes->of[size] = room < most ? room : most;
    return ATTUNE_OK;
}

/* Whether a dense batch has ids of queries and of all keys. There must then be as many queries as keys. */
static bool keys_share_ids(const at_signature *s) {
    return s->place[MHA_POSITION_IDS] >= 0 && mha_rotates_keys(&s->problem) && !s->problem.is_ragged &&
           !s->problem.seq_new;
}

/* The number of tokens that the tables of a problem with ragged or paged keys can reach. */
static int64_t room_for_keys(const at_signature *s, const mha_sizes *sizes) {
    int64_t room;
    if (keys_share_ids(s)) return sizes->of[MHA_SEQ_Q];
    if (!s->problem.page_size) return sizes->of[MHA_TOTAL_KV];
    if (__builtin_mul_overflow(sizes->of[MHA_MAX_PAGES], s->problem.page_size, &room)) return INT64_MAX;
    return room;
}

/* Keys, or new keys, that are projected from x. A call need not set their number, and must not set another one. New
 * keys of ragged sequences have no number of their own. */
static attune_status follow(const char *name, const char *keys, int64_t given, const char *of, int64_t queries,
                            at_error *err) {
    if (given == ATTUNE_NOT_SET || given == queries) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is %lld, but the block projects %s from x, and %s is %lld", name,
                   (long long)given, keys, of, (long long)queries);
}

static attune_status follow_queries(const at_signature *s, const attune_arguments *a, mha_sizes *sizes,
                                    const at_open *open, at_error *err) {
    const bool appends = s->problem.seq_new != 0;
    const int64_t queries = sizes->of[MHA_SEQ_Q], tokens = sizes->of[MHA_TOTAL_Q];
    if (appends && s->problem.is_ragged) return ATTUNE_OK;
    sizes->of[appends ? MHA_SEQ_NEW : MHA_SEQ_KV] = queries;
    if (appends) return follow("seq_new", "new keys", a->seq_new, "seq_q", queries, err);
    if (s->problem.is_ragged) sizes->of[MHA_TOTAL_KV] = tokens;
    if (s->problem.is_ragged && follow("total_kv", "keys", a->total_kv, "total_q", tokens, err))
        return ATTUNE_INVALID_ARGUMENT;
    if (!open->q || a->seq_kv == ATTUNE_NOT_SET) return follow("seq_kv", "keys", a->seq_kv, "seq_q", queries, err);
    return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                   "seq_kv is %lld, but the block projects keys from x, and seq_q is not set", (long long)a->seq_kv);
}

attune_status at_sizes_begin(const at_signature *s, const attune_arguments *a, mha_sizes *sizes, at_open *open,
                             at_error *err) {
    const attune_problem *p = &s->problem;
    const struct {
        mha_size size;
        const char *name;
        int64_t value, most;
    } plain[] = {
        {MHA_TOTAL_Q, "total_q", a->total_q, MAX_SIZE},
        {MHA_TOTAL_KV, "total_kv", a->total_kv, MAX_SIZE},
        {MHA_NUM_PAGES, "num_pages", a->num_pages, MAX_SIZE},
        {MHA_MAX_PAGES, "max_pages", a->max_pages, MAX_SIZE},
        {MHA_NUM_ROWS, "num_rows", a->num_rows, MAX_SIZE},
        {MHA_ROTARY_POSITIONS, "rotary_positions", a->rotary_positions, MAX_SIZE},
        {MHA_NUM_IDS, "num_ids", a->num_ids, MHA_MAX_IDS},
    };
    *sizes = s->compiled;
    if (settle_heads(s, a, sizes, err)) return ATTUNE_INVALID_ARGUMENT;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (s->parameters.has[plain[i].size] &&
            take_open(sizes, plain[i].size, plain[i].name, plain[i].value, plain[i].most, err))
            return ATTUNE_INVALID_ARGUMENT;
    const bool ragged_q = s->place[MHA_CU_SEQLENS_Q] >= 0;
    const bool ragged_kv = s->place[MHA_CU_SEQLENS_KV] >= 0 || (p->page_size && s->place[MHA_KV_LENS] >= 0);
    const int64_t most = p->is_general ? 0 : p->max_seq_q;
    if (settle_length(s, MHA_SEQ_Q, "seq_q", a->seq_q, most, ragged_q, sizes->of[MHA_TOTAL_Q], sizes, &open->q, err) ||
        settle_length(s, MHA_SEQ_KV, "seq_kv", a->seq_kv, p->max_seq_kv, ragged_kv, room_for_keys(s, sizes), sizes,
                      &open->kv, err))
        return ATTUNE_INVALID_ARGUMENT;
    if (p->num_rows > 0 && check_fixed("num_rows", a->num_rows, p->num_rows, err)) return ATTUNE_INVALID_ARGUMENT;
    if (p->num_ids > 0 && check_fixed("num_ids", a->num_ids, p->num_ids, err)) return ATTUNE_INVALID_ARGUMENT;
    if (mha_is_self(p)) return follow_queries(s, a, sizes, open, err);
    if (p->seq_new > 0) return check_fixed("seq_new", a->seq_new, p->seq_new, err);
    if (s->parameters.has[MHA_SEQ_NEW] && !p->is_ragged)
        return take_open(sizes, MHA_SEQ_NEW, "seq_new", a->seq_new, MAX_SIZE, err);
    return ATTUNE_OK;
}

/* ---- Sizes that follow from the lengths ---- */

/* The columns of attn_mask or attn_bias. Short ones have their own number, from the call or compiled. A compiled number
 * may exceed the keys of a call: columns beyond the keys are not read. */
typedef struct columns {
    mha_size size;
    const char *mask, *name;
    int64_t dim, given;
} columns;

static attune_status take_columns(const columns *c, mha_sizes *sizes, at_error *err) {
    const int64_t seq_kv = sizes->of[MHA_SEQ_KV], number = c->given == ATTUNE_NOT_SET ? seq_kv : c->given;
    sizes->of[c->size] = number;
    if (number >= 0 && number <= seq_kv) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s has %lld columns; it must have from 0 to seq_kv = %lld", c->mask,
                   (long long)number, (long long)seq_kv);
}

static attune_status settle_columns(const at_signature *s, const columns *c, mha_sizes *sizes, at_error *err) {
    const int64_t seq_kv = sizes->of[MHA_SEQ_KV];
    if (c->dim == 0) return ATTUNE_OK;
    if (s->parameters.has[c->size]) return take_columns(c, sizes, err);
    if (c->given == ATTUNE_NOT_SET || c->given == (c->dim > 0 ? c->dim : seq_kv)) return ATTUNE_OK;
    if (c->dim == 1 || s->problem.short_masks)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is %lld, but %s was compiled with %lld columns", c->name,
                       (long long)c->given, c->mask, (long long)c->dim);
    return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                   "%s is %lld, but %s has seq_kv = %lld columns: only with short_masks may it have fewer", c->name,
                   (long long)c->given, c->mask, (long long)seq_kv);
}

/* Position ids belong to the queries, and to the keys that are rotated with them: so there must be as many such keys as
 * queries. */
static attune_status check_id_count(const at_signature *s, const mha_sizes *sizes, at_error *err) {
    if (s->place[MHA_POSITION_IDS] < 0 || !mha_rotates_keys(&s->problem) || s->problem.is_ragged) return ATTUNE_OK;
    const bool appends = s->problem.seq_new != 0;
    const int64_t keys = sizes->of[appends ? MHA_SEQ_NEW : MHA_SEQ_KV];
    if (keys == sizes->of[MHA_SEQ_Q]) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "seq_q is %lld and %s %lld; with position_ids they must be equal",
                   (long long)sizes->of[MHA_SEQ_Q], appends ? "seq_new" : "seq_kv", (long long)keys);
}

attune_status at_sizes_finish(const at_signature *s, const attune_arguments *a, mha_sizes *sizes, at_error *err) {
    const columns mask = {MHA_MASK_KV, "attn_mask", "mask_seq_kv", s->problem.attn_mask_dims[3], a->mask_seq_kv};
    const columns bias = {MHA_BIAS_KV, "attn_bias", "bias_seq_kv", s->problem.attn_bias_dims[3], a->bias_seq_kv};
    if (settle_columns(s, &mask, sizes, err) || settle_columns(s, &bias, sizes, err) || check_id_count(s, sizes, err))
        return ATTUNE_INVALID_ARGUMENT;
    mha_derive_sizes(&s->problem, sizes);
    if (s->problem.op != ATTUNE_MERGE || sizes->of[MHA_PART_ROWS] >= 0) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "batch %lld, num_heads %lld and seq_q %lld make too many rows",
                   (long long)sizes->of[MHA_BATCH], (long long)sizes->of[MHA_HEADS], (long long)sizes->of[MHA_SEQ_Q]);
}
