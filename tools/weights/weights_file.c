/* Sizes of the block follow from the shapes of its matrices; then each matrix is handed to the packer in the layout
 * that its library has. */
#include "weights/weights_file.h"

#include <stdlib.h>
#include <string.h>

bool weights_file_open(weights_file *file, const char *path, const weights_request *request) {
    *file = (weights_file){.weights = {.struct_size = sizeof file->weights}};
    if (!weights_source_open(&file->source, path)) return false;
    bool good = weights_match_find(&file->match, &file->source, request);
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS && good; id++)
        if (file->match.has[id])
            good = weights_source_get(&file->source, file->match.index[id], &file->weights.tensor[id]);
    file->weights.layout = file->match.layout;
    if (!good) weights_file_close(file);
    return good;
}

void weights_file_close(weights_file *file) {
    weights_match_free(&file->match);
    weights_source_close(&file->source);
    *file = (weights_file){.source = {.path = NULL}};
}

static const char *tensor_name(const weights_file *file, int id) {
    /* A part of a packed tensor has the name of that tensor. */
    if (!file->match.has[id]) id = id < ATTUNE_Q_BIAS ? ATTUNE_QKV_WEIGHT : ATTUNE_QKV_BIAS;
    return file->source.names[file->match.index[id]];
}

/* ---- Sizes ---- */

/* The two sides of a matrix; heads and dim if the file keeps them apart. All 0: there is no such weight, or it is of a
 * form that tells nothing. */
typedef struct sides {
    int64_t inputs, outputs, heads;
} sides;

/* `heads_in`: the inputs are those of heads, not the outputs. */
static sides sides_of(const weights_file *file, int id, bool heads_in) {
    const attune_weight *const w = &file->weights.tensor[id];
    const bool in_first = file->weights.layout == ATTUNE_IN_OUT, heads_first = in_first == heads_in;
    sides s = {0, 0, 0};
    if (!w->data || (w->rank != 2 && w->rank != 3)) return s;
    const int64_t *const d = w->dims;
    for (int i = 0; i < w->rank; i++)
        if (!d[i]) return s;
    if (w->rank == 3) s.heads = heads_first ? d[0] : d[1];
    const int64_t first = w->rank == 3 && heads_first ? d[0] * d[1] : d[0];
    const int64_t second = w->rank == 2 ? d[1] : heads_first ? d[2] : d[1] * d[2];
    s.inputs = in_first ? first : second;
    s.outputs = in_first ? second : first;
    return s;
}

static bool divide(const weights_file *file, int id, const char *what, int64_t total, const char *by_name, int64_t by,
                   int64_t *result) {
    if (*result || !total) return true;
    if (by > 0 && total % by == 0 && total >= by) {
        *result = total / by;
        return true;
    }
    tool_error("%s: tensor '%s' has %lld %s, which %s=%lld does not divide", file->source.path, tensor_name(file, id),
               (long long)total, what, by_name, (long long)by);
    return false;
}

/* Finds the heads of one matrix for Q, K and V: it has (num_heads + 2 num_kv_heads) head_dim outputs, if all heads are
 * equally wide. */
static void split_packed(int64_t outputs, int64_t out_inputs, attune_problem *p) {
    if (p->num_heads < 1 || p->num_heads > outputs || p->num_kv_heads < 0 || p->num_kv_heads > outputs) return;
    if (p->head_dim < 0 || (p->head_dim_v && p->head_dim_v != p->head_dim)) return;
    if (!p->head_dim && p->num_kv_heads) {
        const int64_t heads = p->num_heads + 2 * p->num_kv_heads;
        if (outputs % heads == 0) p->head_dim = outputs / heads;
        return;
    }
    if (!p->head_dim && out_inputs % p->num_heads == 0) p->head_dim = out_inputs / p->num_heads;
    if (!p->head_dim && outputs % (3 * p->num_heads) == 0) p->head_dim = outputs / 3 / p->num_heads;
    if (p->num_kv_heads || !p->head_dim || outputs % p->head_dim) return;
    const int64_t rest = outputs / p->head_dim - p->num_heads;
    if (rest > 0 && rest % 2 == 0) p->num_kv_heads = rest / 2;
}

/* Libraries that keep heads in front, [heads, in, head_dim], have no layout of attune. Such a matrix would pass for
 * one of other heads, so it is found by its sides: its middle dim is the width of x, its first one is the heads. */
static bool check_heads_first(const weights_file *file, const attune_problem *p) {
    if (!p->embed_dim || file->weights.layout != ATTUNE_IN_OUT) return true;
    for (int id = 0; id < ATTUNE_OUT_WEIGHT; id++) {
        const attune_weight *const w = &file->weights.tensor[id];
        const int64_t inputs = id == ATTUNE_Q_WEIGHT                     ? p->embed_dim
                               : id == ATTUNE_V_WEIGHT && p->v_embed_dim ? p->v_embed_dim
                               : p->kv_embed_dim                         ? p->kv_embed_dim
                                                                         : p->embed_dim;
        if (!w->data || w->rank != 3 || w->dims[0] == inputs || w->dims[1] != inputs) continue;
        tool_error("%s: tensor '%s' is [%lld, %lld, %lld]: its dims must be [in, heads, head_dim]; transpose it by "
                   "(1, 0, 2)",
                   file->source.path, tensor_name(file, id), (long long)w->dims[0], (long long)w->dims[1],
                   (long long)w->dims[2]);
        return false;
    }
    return true;
}

bool weights_file_sizes(const weights_file *file, attune_problem *p) {
    if (!check_heads_first(file, p)) return false;
    const sides q = sides_of(file, ATTUNE_Q_WEIGHT, false), k = sides_of(file, ATTUNE_K_WEIGHT, false);
    const sides v = sides_of(file, ATTUNE_V_WEIGHT, false), out = sides_of(file, ATTUNE_OUT_WEIGHT, true);
    const sides packed = sides_of(file, ATTUNE_QKV_WEIGHT, false);
    if (!p->num_heads) p->num_heads = q.heads ? q.heads : out.heads;
    if (!p->num_heads) {
        tool_error("the problem does not name num_heads, and the shapes of the weights in %s do not tell it",
                   file->source.path);
        return false;
    }
    if (packed.outputs) split_packed(packed.outputs, out.inputs, p);
    if (!divide(file, ATTUNE_Q_WEIGHT, "outputs", q.outputs, "num_heads", p->num_heads, &p->head_dim)) return false;
    if (!p->num_kv_heads && k.heads) p->num_kv_heads = k.heads;
    /* Packing reports queries that contradict the problem. */
    const bool is_whole = p->head_dim > 0 && q.outputs / p->head_dim == p->num_heads;
    if (is_whole && !divide(file, ATTUNE_K_WEIGHT, "outputs", k.outputs, "head_dim", p->head_dim, &p->num_kv_heads))
        return false;
    const int64_t kv_heads = p->num_kv_heads ? p->num_kv_heads : p->num_heads;
    if (!divide(file, ATTUNE_V_WEIGHT, "outputs", v.outputs, "num_kv_heads", kv_heads, &p->head_dim_v)) return false;
    if (!packed.outputs &&
        !divide(file, ATTUNE_OUT_WEIGHT, "inputs", out.inputs, "num_heads", p->num_heads, &p->head_dim_v))
        return false;
    if (!p->out_dim && !p->no_out_projection) p->out_dim = out.outputs;
    return true;
}

/* ---- Packing ---- */

static bool check_dtypes(const weights_file *file, const tensors *t) {
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++) {
        const attune_weight *const w = &t->weights.tensor[id];
        const bool has_codes = t->problem.w_dtype == ATTUNE_I8 || t->problem.w_dtype == ATTUNE_I4;
        if (!w->data || has_codes || w->dtype == t->problem.w_dtype) continue;
        tool_error("%s: tensor '%s' is of %s, but the problem has w_dtype=%s: weights are kept as they are, so set "
                   "w_dtype=%s",
                   file->source.path, tensor_name(file, id), tool_dtype_name(w->dtype),
                   tool_dtype_name(t->problem.w_dtype), tool_dtype_name(w->dtype));
        return false;
    }
    return true;
}

/* The name that a missing weight would have, and the names that are there. */
static bool check_missing(const weights_file *file, const attune_mha_weights *expected, const tensors *t) {
    char text[SOME_NAMES_TEXT];
    const char *const prefix = file->match.prefix ? file->match.prefix : "";
    for (int id = 0; id < ATTUNE_Q_BIAS; id++) {
        const bool may_be_packed = id != ATTUNE_OUT_WEIGHT && t->weights.tensor[ATTUNE_QKV_WEIGHT].data;
        if (!expected->tensor[id].rank || t->weights.tensor[id].data || may_be_packed) continue;
        const char *const called = file->match.called[id];
        const char *const own = attune_weight_name((attune_weight_id)id);
        weights_some_names(&file->source, prefix, text);
        if (called)
            tool_error("%s: there is no tensor '%s%s' (%s of %s), but %s", file->source.path, prefix, called, own,
                       file->match.convention, text);
        else
            tool_error("%s: no tensor is named for %s; the file has %s%s", file->source.path, own, text,
                       id == ATTUNE_OUT_WEIGHT ? "; --name out_weight=TENSOR chooses one, or set no_out_projection=1"
                                               : "");
        return false;
    }
    return true;
}

/* The library calls weights by its own names, and the message opens with the one that is wrong. */
static void report(const weights_file *file) {
    const char *const message = attune_last_message();
    const int id = weights_id(message, strcspn(message, " "));
    const char *const option = strstr(message, "ATTUNE_OUT_IN")   ? " (--layout=out_in)"
                               : strstr(message, "ATTUNE_IN_OUT") ? " (--layout=in_out)"
                                                                  : "";
    if (id < ATTUNE_NUM_WEIGHTS && file->match.has[id])
        tool_error("%s: tensor '%s': %s%s", file->source.path, tensor_name(file, id), message, option);
    else
        tool_error("%s: %s%s", file->source.path, message, option);
}

/* Keys and values that are given need no weights, nor does an output that is not projected: models have them all the
 * same. Of one matrix for all three the rows of the queries come first; as columns they are no matrix of their own. */
static void leave_aside(tensors *t, const attune_mha_weights *expected) {
    const attune_problem *const p = &t->problem;
    attune_weight *const w = t->weights.tensor;
    const int64_t queries = p->num_heads * p->head_dim;
    const int64_t all = queries + p->num_kv_heads * (p->head_dim + p->head_dim_v);
    for (int id = 0; id < ATTUNE_QKV_WEIGHT; id++)
        if (!expected->tensor[id].rank) w[id].data = NULL;
    for (int kind = 0; p->kv_projected && kind < 2; kind++) {
        attune_weight *const one = &w[kind ? ATTUNE_Q_BIAS : ATTUNE_Q_WEIGHT], *const packed =
                                                                                   &w[ATTUNE_QKV_WEIGHT + kind];
        const bool is_first = kind || t->weights.layout == ATTUNE_OUT_IN;
        if (!packed->data || one->data || !is_first || packed->rank != 2 - kind || packed->dims[0] != all) continue;
        *one = *packed;
        one->dims[0] = queries;
        packed->data = NULL;
    }
}

static const char *const norm_names[WEIGHTS_NORMS] = {"q_norm", "k_norm"};

static int norm_of(const weights_file *file, const char *input) {
    int i = 0;
    while (i < WEIGHTS_NORMS && strcmp(input, norm_names[i]) != 0) i++;
    return i < WEIGHTS_NORMS && file->match.has_norm[i] ? i : WEIGHTS_NORMS;
}

bool weights_file_has(const weights_file *file, const char *input) { return norm_of(file, input) < WEIGHTS_NORMS; }

bool weights_file_load(weights_file *file, tensor *input) {
    const size_t index = file->match.norm_index[norm_of(file, input->info.name)];
    attune_weight w;
    if (!weights_source_get(&file->source, index, &w)) return false;
    if (w.rank != 1 || (size_t)w.dims[0] != input->count) {
        tool_error("%s: tensor '%s' has %lld elements; %s has head_dim = %zu", file->source.path,
                   file->source.names[index], (long long)w.dims[0], input->info.name, input->count);
        return false;
    }
    for (int64_t i = 0; i < w.dims[0]; i++) ref_store(input->info.dtype, input->data, i, ref_load(w.dtype, w.data, i));
    return true;
}

/* A block that leaves them out would compute something else. */
static bool check_norms(const weights_file *file, const attune_problem *p) {
    for (int i = 0; i < WEIGHTS_NORMS && p->qk_norm_eps == 0; i++) {
        if (!file->match.has_norm[i]) continue;
        const char *const name = file->source.names[file->match.norm_index[i]];
        tool_error(
            "%s: tensor '%s' normalises %s, but the problem has no qk_norm_eps (1e-6 in most models); --ignore=%s "
            "leaves it aside",
            file->source.path, name, i ? "keys" : "queries", name);
        return false;
    }
    return true;
}

bool weights_file_pack(const weights_file *file, tensors *t) {
    const tensor *const packed = tensors_find(t, "packed_weights");
    attune_mha_weights expected = {.struct_size = sizeof expected};
    if (attune_mha_weights_init(&expected, &t->problem, file->weights.layout) != ATTUNE_OK) {
        tool_library_error(NULL);
        return false;
    }
    t->weights = file->weights;
    leave_aside(t, &expected);
    if (!check_missing(file, &expected, t) || !check_dtypes(file, t) || !check_norms(file, &t->problem)) return false;
    const size_t bytes = packed->count * ref_dtype_bytes(packed->info.dtype);
    if (attune_pack_weights(&t->problem, &t->weights, packed->data, bytes) != ATTUNE_OK) {
        report(file);
        return false;
    }
    /* The shapes fit: from here on they are plain matrices. */
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++) {
        expected.tensor[id].data = t->weights.tensor[id].data;
        t->weights.tensor[id] = expected.tensor[id];
    }
    return true;
}
