/* Sizes come from the shapes of the files first, then from the text, and both must agree; strides let files of either
 * layout be read without copies. */
#include "run/run_files.h"

#include "common/input.h"
#include "run/run_masks.h"

#include <stdlib.h>
#include <string.h>

bool files_add(run_file *list, size_t *count, const char *name, const char *path) {
    if (*count == FILES_MAX) return false;
    list[(*count)++] = (run_file){.name = name, .path = path};
    return true;
}

const run_file *files_find(const run_file *list, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0) return &list[i];
    return NULL;
}

bool files_read(run_files *files) {
    char message[ATTUNE_MESSAGE_BYTES];
    for (size_t i = 0; i < files->num_inputs; i++) {
        run_file *const file = &files->inputs[i];
        if (!npy_read(file->path, &file->array, message)) {
            tool_error("%s", message);
            return false;
        }
        file->path = input_name(file->path); /* for messages, from here on */
    }
    return true;
}

void files_free(run_files *files) {
    for (size_t i = 0; i < files->num_inputs; i++) npy_free(&files->inputs[i].array);
}

/* ---- Sizes: from the files, then from the text, which must agree ---- */

static bool has_heads(const char *name) {
    static const char *const names[] = {"q", "k", "v", "k_new", "v_new", "out"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

static void swap_heads(int64_t dims[4]) {
    const int64_t other = dims[1];
    dims[1] = dims[2];
    dims[2] = other;
}

/* The dims of q, k or v in the order batch, heads, rows, columns, wherever its file has them. Inputs of a block have
 * one "head". */
typedef struct shape {
    const char *path; /* NULL: there is no such file */
    int64_t dims[4];
} shape;

/* A tensor may have no rows, and a pool no pages: these are sizes of the call. All others belong to the kernel. */
static bool read_shape(const run_files *files, const char *name, const char *dtype_name, attune_dtype dtype,
                       size_t rank, bool is_pool, shape *s) {
    const run_file *const file = files_find(files->inputs, files->num_inputs, name);
    char text[NPY_SHAPE_TEXT];
    *s = (shape){.path = NULL};
    if (!file) return true;
    const npy_header *const h = &file->array.header;
    if (h->type != files_type(dtype)) return run_types_refuse(file, dtype_name, dtype);
    npy_print_shape(h->rank, h->shape, text);
    if (h->rank != rank && h->rank != rank - 1) {
        tool_error("%s: shape %s has %zu dimensions instead of %zu, or %zu for a batch of one", file->path, text,
                   h->rank, rank, rank - 1);
        return false;
    }
    s->path = file->path;
    s->dims[0] = h->rank == rank ? h->shape[0] : 1;
    s->dims[1] = 1;
    memcpy(s->dims + 5 - rank, h->shape + (h->rank - (rank - 1)), (rank - 1) * sizeof *s->dims);
    if (files->is_bshd && rank == 4) swap_heads(s->dims);
    for (int i = 0; i < 4; i++) {
        if (s->dims[i] > 0 || i == 2 || (i == 0 && is_pool)) continue;
        tool_error("%s: shape %s has a dimension of 0; only the sequence length%s may be 0", file->path, text,
                   is_pool ? " or the number of pages" : "");
        return false;
    }
    return true;
}

static bool agree(const char *what, int64_t expected, const char *source, int64_t found, const char *path) {
    if (expected == found || !source || !path) return true;
    tool_error("%s is %lld by %s but %lld in %s", what, (long long)expected, source, (long long)found, path);
    return false;
}

typedef struct shapes {
    shape q, k, v, x, x_kv, x_v;
} shapes;

static bool check_block_shapes(const attune_problem *p, const shapes *s) {
    const char *const text = "the problem";
    const int64_t seq_q = p->seq_q == ATTUNE_DYNAMIC ? s->x.dims[2] : p->seq_q;
    const int64_t of_problem = p->seq_new ? p->seq_new : p->seq_kv;
    const int64_t keys = of_problem == ATTUNE_DYNAMIC ? s->x_kv.dims[2] : of_problem;
    return agree("batch", p->batch, text, s->x.dims[0], s->x.path) &&
           agree("seq_q", seq_q, text, s->x.dims[2], s->x.path) &&
           agree("embed_dim", p->embed_dim, text, s->x.dims[3], s->x.path) &&
           agree(p->seq_new ? "seq_new" : "seq_kv", keys, text, s->x_kv.dims[2], s->x_kv.path) &&
           agree("kv_embed_dim", p->kv_embed_dim, text, s->x_kv.dims[3], s->x_kv.path) &&
           agree("v_embed_dim", p->v_embed_dim, text, s->x_v.dims[3], s->x_v.path) &&
           agree("batch", s->x.dims[0], s->x.path, s->x_kv.dims[0], s->x_kv.path) &&
           agree("batch", s->x.dims[0], s->x.path, s->x_v.dims[0], s->x_v.path);
}

/* Dense batches only: the files of q, k and v must agree with the text and with each other. */
static bool check_shapes(const attune_problem *p, const shapes *s) {
    const char *const text = "the problem";
    const int64_t seq_q = p->seq_q == ATTUNE_DYNAMIC ? s->q.dims[2] : p->seq_q;
    const int64_t seq_kv = p->seq_kv == ATTUNE_DYNAMIC ? s->k.dims[2] : p->seq_kv;
    return agree("batch", p->batch, text, s->q.dims[0], s->q.path) &&
           agree("num_heads", p->num_heads, text, s->q.dims[1], s->q.path) &&
           agree("seq_q", seq_q, text, s->q.dims[2], s->q.path) &&
           agree("head_dim", p->head_dim, text, s->q.dims[3], s->q.path) &&
           agree("num_kv_heads", p->num_kv_heads, text, s->k.dims[1], s->k.path) &&
           agree("seq_kv", seq_kv, text, s->k.dims[2], s->k.path) &&
           agree("head_dim_v", p->head_dim_v, text, s->v.dims[3], s->v.path) &&
           agree("batch", s->q.dims[0], s->q.path, s->k.dims[0], s->k.path) &&
           agree("batch", s->q.dims[0], s->q.path, s->v.dims[0], s->v.path) &&
           agree("head_dim", s->q.dims[3], s->q.path, s->k.dims[3], s->k.path) &&
           agree("num_kv_heads", s->k.dims[1], s->k.path, s->v.dims[1], s->v.path) &&
           agree("seq_kv", s->k.dims[2], s->k.path, s->v.dims[2], s->v.path) &&
           (!p->embed_dim || check_block_shapes(p, s));
}

/* The rows of a file. No kernel is for 0 rows, so that number is left to the call. */
static int64_t rows_of(const shape *s) { return s->dims[2] ? s->dims[2] : ATTUNE_DYNAMIC; }

static void take_block_shapes(const attune_problem *said, const shapes *s, attune_problem *p) {
    const bool is_dense = !said->is_ragged;
    if (s->x.path) {
        p->embed_dim = s->x.dims[3];
        if (is_dense) p->batch = s->x.dims[0];
        if (is_dense) p->seq_q = rows_of(&s->x);
    }
    if (s->x_kv.path) {
        p->is_cross = 1;
        p->kv_embed_dim = s->x_kv.dims[3];
        if (is_dense && !said->seq_new) p->seq_kv = rows_of(&s->x_kv);
    }
    if (s->x_v.path) p->v_embed_dim = s->x_v.dims[3];
}

/* `said` is the problem by its text alone, which decides the meaning of the files' dims. */
static void take_shapes(const attune_problem *said, const shapes *s, attune_problem *p) {
    const bool is_dense = !said->is_ragged;
    if (s->q.path) {
        if (is_dense) p->batch = s->q.dims[0];
        p->num_heads = s->q.dims[1];
        if (is_dense) p->seq_q = rows_of(&s->q);
        p->head_dim = s->q.dims[3];
    }
    if (s->k.path) {
        p->num_kv_heads = s->k.dims[1];
        if (said->page_size == 0 && is_dense) p->seq_kv = rows_of(&s->k);
    }
    if (s->v.path) p->head_dim_v = s->v.dims[3];
    take_block_shapes(said, s, p);
    if (said->is_ragged) p->seq_q = p->seq_kv = ATTUNE_DYNAMIC;
}

/* Where a size of the call comes from: dimension `from_end` of a file, counted from the last one. */
typedef struct origin {
    const char *path; /* NULL: there is no such file */
    int64_t size;
} origin;

static origin dim_of(const run_files *files, const char *name, size_t from_end) {
    const run_file *const file = files_find(files->inputs, files->num_inputs, name);
    const npy_header *const h = file ? &file->array.header : NULL;
    if (!h || h->rank <= from_end) return (origin){.path = NULL};
    return (origin){file->path, h->shape[h->rank - 1 - from_end]};
}

static origin rows_from(const shape *s) { return (origin){s->path, s->dims[2]}; }

typedef struct taker {
    call_sizes *sizes;
    bool agrees; /* false after a message */
} taker;

/* A size that the caller named must be that of the file. */
static void take(taker *t, int64_t *size, const char *name, origin from) {
    if (!t->agrees || !from.path) return;
    if (*size == ATTUNE_NOT_SET) *size = from.size;
    t->agrees = *size == from.size;
    if (!t->agrees)
        tool_error("--sizes: %s is %lld, but %lld in %s", name, (long long)*size, (long long)from.size, from.path);
}
#define TAKE(name, from) take(&t, &t.sizes->name, #name, from)

/* Keys come from the file of k, or are projected from that of x_kv or x: new ones where there are caches. */
static bool take_sizes(const run_files *files, const attune_problem *p, const shapes *s, call_sizes *sizes) {
    taker t = {sizes, true};
    const origin tokens_q = rows_from(s->q.path ? &s->q : &s->x);
    const origin projected = rows_from(s->x_kv.path ? &s->x_kv : &s->x);
    const origin tokens_kv = s->k.path ? rows_from(&s->k) : projected;
    if (p->seq_new == ATTUNE_DYNAMIC && p->embed_dim && !p->is_ragged) TAKE(seq_new, projected);
    if (p->seq_q == ATTUNE_DYNAMIC && !p->is_ragged) TAKE(seq_q, tokens_q);
    if (p->seq_kv == ATTUNE_DYNAMIC && !p->is_ragged && !p->page_size) TAKE(seq_kv, tokens_kv);
    if (p->is_ragged) TAKE(total_q, tokens_q);
    if (p->is_ragged && !p->page_size) TAKE(total_kv, tokens_kv);
    if (p->page_size) TAKE(num_pages, dim_of(files, "k", 3));
    if (p->page_size) TAKE(max_pages, dim_of(files, "block_table", 0));
    if (p->seq_new == ATTUNE_DYNAMIC) TAKE(seq_new, dim_of(files, "k_new", files->is_bshd ? 2 : 1));
    if (p->num_ids == ATTUNE_DYNAMIC) TAKE(num_ids, dim_of(files, "kv_ids", 0));
    if (p->num_rows == ATTUNE_DYNAMIC) TAKE(num_rows, dim_of(files, "row_ids", 0));
    if (p->short_masks && p->attn_mask_dims[3] == ATTUNE_DYNAMIC) TAKE(mask_seq_kv, dim_of(files, "attn_mask", 0));
    if (p->short_masks && p->attn_bias_dims[3] == ATTUNE_DYNAMIC) TAKE(bias_seq_kv, dim_of(files, "attn_bias", 0));
    TAKE(rotary_positions, dim_of(files, "cos", 1));
    /* The caller may leave gaps between the sequences. */
    if (dim_of(files, "cos", 2).size > 1 && sizes->rotary_batch_stride == ATTUNE_NOT_SET)
        sizes->rotary_batch_stride = dim_of(files, "cos", 1).size * dim_of(files, "cos", 0).size;
    return t.agrees;
}

/* The file's shape would be taken for that of heads which come from x. */
static bool has_queries(const run_files *files) {
    const run_file *const q = files_find(files->inputs, files->num_inputs, "q");
    if (q) tool_error("%s: the problem has no tensor named q: a block projects its queries from x", q->path);
    return q != NULL;
}

/* A ragged batch has as many sequences as cu_seqlens_q has numbers, less one. */
static origin sequences_of(const run_files *files, const attune_problem *said) {
    origin from = dim_of(files, "cu_seqlens_q", 0);
    if (!said->is_ragged || from.size < 2) from.path = NULL;
    from.size--;
    return from;
}

bool files_complete(const run_files *files, const char *text, const char *sizes_text, attune_problem *problem,
                    call_sizes *sizes) {
    attune_problem said = ATTUNE_PROBLEM_INIT, p = ATTUNE_PROBLEM_INIT;
    shapes s;
    const bool has_text = text && *text;
    const int64_t columns = dim_of(files, "x", 0).size;
    if (columns > 0) said.embed_dim = columns; /* how many out_strides there are depends on it */
    if (has_text && attune_problem_parse(&said, text) != ATTUNE_OK) {
        problem_refuse();
        return false;
    }
    if (sizes_text && !sizes_parse(sizes_text, sizes)) return false;
    if (said.embed_dim && has_queries(files)) return false;
    const bool has_pages = said.page_size != 0;
    attune_problem types = said;
    problem_fill_defaults(&types);
    if (!read_shape(files, "q", "dtype", types.dtype, 4, false, &s.q) ||
        !read_shape(files, "k", "k_dtype", types.k_dtype, 4, has_pages, &s.k) ||
        !read_shape(files, "v", "v_dtype", types.v_dtype, 4, has_pages, &s.v) ||
        !read_shape(files, "x", "dtype", types.dtype, 3, false, &s.x) ||
        !read_shape(files, "x_kv", "dtype", types.dtype, 3, false, &s.x_kv) ||
        !read_shape(files, "x_v", "dtype", types.dtype, 3, false, &s.x_v))
        return false;
    const origin lengths = sequences_of(files, &said);
    if (lengths.path) p.batch = lengths.size;
    if (files->weights) p.num_heads = 0; /* open: the weights may tell it, and 1 would compute something else */
    take_shapes(&said, &s, &p);
    /* The text overrides the files. Both are compared right below. */
    if (has_text && attune_problem_parse(&p, text)) return false;
    if (files->weights && !files->weights->take_sizes(files->weights->user, &p)) return false;
    if (files_find(files->outputs, files->num_outputs, "lse")) p.has_lse = 1;
    problem_fill_defaults(&p);
    if (!p.is_ragged && !p.page_size && !check_shapes(&p, &s)) return false;
    if (!agree("batch", p.batch, "the problem", lengths.size, lengths.path)) return false;
    if (attune_problem_check(&p) != ATTUNE_OK) {
        tool_library_error(NULL);
        return false;
    }
    if (!sizes_check(sizes, &p) || !take_sizes(files, &p, &s, sizes)) return false;
    *problem = p;
    return true;
}

/* ---- Files into tensors ---- */

static bool refuse_shape(const run_files *files, const run_file *file, const attune_tensor *info, const run_mask *mask,
                         const int64_t dims[4], const int64_t strides[4]) {
    char found[NPY_SHAPE_TEXT], wanted[NPY_SHAPE_TEXT];
    const npy_header *const h = &file->array.header;
    int64_t full[4], expected[4], ignored[4];
    tensor_shape(info, full, ignored);
    memcpy(expected, full, sizeof expected);
    for (int d = 0; d < info->rank; d++)
        if (strides[d] == 0 || run_mask_is_one(mask, d)) expected[d] = 1; /* the shortest that fits */
    if (files->is_bshd && has_heads(info->name)) swap_heads(expected);
    npy_print_shape((size_t)info->rank, expected, wanted);
    if (mask->dims)
        run_mask_refuse(file, info->name, mask, dims, full, wanted);
    else
        tool_error("%s: shape %s does not fit %s, whose shape is %s", file->path,
                   npy_print_shape(h->rank, h->shape, found), info->name, wanted);
    return false;
}

/* A file's dims as four, missing ones being 1 in front, and the tensor's strides in the same order. */
static bool match_dims(const run_files *files, const run_file *file, const tensor *one, const run_mask *mask,
                       int64_t dims[4], int64_t strides[4]) {
    const npy_header *const h = &file->array.header;
    const attune_tensor *const info = &one->info;
    int64_t expected[4], letters[4];
    const int rank = info->rank;
    bool fits = h->rank <= (size_t)rank;
    tensor_shape(info, expected, strides);
    for (int d = 0; d < 4; d++) dims[d] = expected[d];
    for (int d = 0; d < rank && fits; d++) {
        const int at = d - (rank - (int)h->rank);
        dims[d] = at < 0 ? 1 : h->shape[at];
    }
    if (fits && files->is_bshd && has_heads(info->name)) swap_heads(dims);
    for (int d = 0; d < rank && fits; d++) {
        const bool is_one = !mask->has_strides && run_mask_is_one(mask, d);
        fits = is_one ? dims[d] == 1 : dims[d] == expected[d] || (dims[d] == 1 && strides[d] == 0);
    }
    if (fits) return true;
    if (!mask->dims || !run_mask_has_letters(h, mask, expected, letters))
        return refuse_shape(files, file, info, mask, dims, strides);
    memcpy(dims, letters, sizeof letters);
    return true;
}

static bool load_one(const run_files *files, const run_file *file, const attune_problem *p, tensor *one) {
    int64_t dims[4], strides[4], order[4], order_strides[4];
    const run_mask mask = run_mask_of(p, one->info.name);
    if (!match_dims(files, file, one, &mask, dims, strides)) return false;
    void *const dense = run_types_convert(file, one->info.dtype);
    if (!dense) return false;
    memcpy(order, dims, sizeof order);
    memcpy(order_strides, strides, sizeof strides);
    if (files->is_bshd && has_heads(one->info.name)) {
        swap_heads(order);
        swap_heads(order_strides);
    }
    const size_t bytes = ref_dtype_bytes(one->info.dtype), total = file->array.header.count * bytes;
    tensors_scatter(one->data, order_strides, order, bytes, dense);
    /* Inputs may overlap themselves (a stride of 0 repeats a row). The file must then hold equal elements there. */
    void *const again = malloc(total + 1);
    if (again) tensors_gather(again, order_strides, order, bytes, one->data);
    const bool kept = again && memcmp(again, dense, total) == 0;
    if (!again)
        tool_error("out of memory for a copy of %s", file->path);
    else if (!kept)
        tool_error("%s_strides is %lld:%lld:%lld:%lld, which gives one place to different elements of %s",
                   one->info.name, (long long)strides[0], (long long)strides[1], (long long)strides[2],
                   (long long)strides[3], file->path);
    free(again);
    free(dense);
    return kept;
}

/* ---- Weights of a block ---- */

/* The files that are named as weights. The library checks them. */
static bool load_weights(const run_files *files, tensors *t) {
    char text[NPY_SHAPE_TEXT];
    t->weights.layout = files->layout;
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++) {
        const run_file *const file =
            files_find(files->inputs, files->num_inputs, attune_weight_name((attune_weight_id)id));
        attune_weight *const w = &t->weights.tensor[id];
        *w = (attune_weight){.data = NULL};
        if (!file) continue;
        const npy_header *const h = &file->array.header;
        if (h->rank < 1 || h->rank > 4) {
            tool_error("%s: shape %s has %zu dimensions; a weight has from 1 to 4", file->path,
                       npy_print_shape(h->rank, h->shape, text), h->rank);
            return false;
        }
        *w = (attune_weight){.data = file->array.data, .dtype = run_types_dtype(h->type), .rank = (int)h->rank};
        memcpy(w->dims, h->shape, h->rank * sizeof *w->dims);
    }
    return tensors_pack(t);
}

static bool is_weight(const run_files *files, const tensors *t, const char *name) {
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++)
        if (strcmp(attune_weight_name((attune_weight_id)id), name) == 0)
            return tensors_find(t, "packed_weights") != NULL && !files->weights;
    return false;
}

#define ADD(field) "; add " field " to the problem"

/* How a problem gets a tensor that it lacks; "" if that is no matter of one field. */
static const char *missing_field(const attune_problem *p, const char *name) {
    static const struct {
        const char *name, *advice;
    } fields[] = {
        {"attn_mask", ADD("attn_mask_dims=bqk")},
        {"attn_bias", ADD("attn_bias_dims=bqk")},
        {"alibi_slopes", ADD("has_alibi_slopes=1")},
        {"sinks", ADD("has_sinks=1")},
        {"kv_lens", ADD("has_kv_lens=1")},
        {"causal_offsets", ADD("has_causal_offsets=1")},
        {"cu_seqlens_q", ADD("is_ragged=1")},
        {"cu_seqlens_kv", ADD("is_ragged=1")},
        {"block_table", ADD("page_size=N")},
        {"k_new", ADD("seq_new=dynamic")},
        {"v_new", ADD("seq_new=dynamic")},
        {"cos", ADD("rotary_dim=N")},
        {"sin", ADD("rotary_dim=N")},
        {"q_norm", ADD("qk_norm_eps=1e-6")},
        {"k_norm", ADD("qk_norm_eps=1e-6")},
        {"position_ids", ADD("has_position_ids=1")},
        {"row_ids", ADD("op=weights,has_row_ids=1")},
        {"kv_ids", ADD("kv_ids=query")},
        {"kv_id_lens", ADD("kv_ids=query,has_kv_id_lens=1")},
        {"weights", ADD("weights_mode=softmax")},
        {"lse", ADD("has_lse=1")},
    };
    const bool is_ragged = p->is_ragged && strncmp(name, "cu_seqlens", strlen("cu_seqlens")) == 0;
    const bool has_new = p->seq_new && (strcmp(name, "k_new") == 0 || strcmp(name, "v_new") == 0);
    if (p->op != ATTUNE_ATTENTION || is_ragged || has_new) return "";
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (strcmp(fields[i].name, name) == 0) return fields[i].advice;
    return "";
}
#undef ADD

bool files_load(const run_files *files, tensors *t) {
    bool has_weights = tensors_find(t, "packed_weights") != NULL;
    for (size_t i = 0; i < files->num_inputs; i++)
        if (!tensors_find(t, files->inputs[i].name) && !is_weight(files, t, files->inputs[i].name)) {
            tool_error("%s: the problem has no tensor named %s%s", files->inputs[i].path, files->inputs[i].name,
                       missing_field(&t->problem, files->inputs[i].name));
            return false;
        }
    for (size_t i = 0; i < t->count; i++) {
        tensor *const one = &t->list[i];
        const run_file *const file = files_find(files->inputs, files->num_inputs, one->info.name);
        const bool is_packed = strcmp(one->info.name, "packed_weights") == 0;
        const bool is_held = !file && files->weights && files->weights->has(files->weights->user, one->info.name);
        if (is_held && !files->weights->load(files->weights->user, one)) return false;
        if ((!one->info.is_input || is_packed || is_held) && !file) continue;
        if (!one->info.is_input || !file) {
            tool_error(file ? "%s is an output of the problem, not an input" : "the problem needs --tensor %s=F.npy",
                       one->info.name);
            return false;
        }
        if (!load_one(files, file, &t->problem, one)) return false;
        if (is_packed) has_weights = false;
    }
    if (!has_weights) return true;
    return files->weights ? files->weights->pack(files->weights->user, t) : load_weights(files, t);
}

/* ---- Tensors into files ---- */

void *files_gather(const run_files *files, const tensor *one, size_t *rank, int64_t dims[4]) {
    int64_t own[4], strides[4];
    const size_t bytes = ref_dtype_bytes(one->info.dtype);
    tensor_shape(&one->info, own, strides);
    if (files->is_bshd && has_heads(one->info.name)) {
        swap_heads(own);
        swap_heads(strides);
    }
    const size_t count = (size_t)(own[0] * own[1] * own[2] * own[3]);
    void *const dense = malloc(count * bytes + 1);
    if (!dense) {
        tool_error("out of memory for a copy of %s", one->info.name);
        return NULL;
    }
    tensors_gather(dense, strides, own, bytes, one->data);
    /* A batch of one that came without its dimension goes without it. */
    const run_file *const q = files_find(files->inputs, files->num_inputs, "q");
    const run_file *const x = files_find(files->inputs, files->num_inputs, "x");
    const bool has_none = (q && q->array.header.rank == 3) || (x && x->array.header.rank == 2);
    const bool drops = has_none && own[0] == 1 && one->info.rank >= 3;
    *rank = (size_t)one->info.rank - drops;
    for (size_t d = 0; d < 4; d++) dims[d] = d < *rank ? own[d + drops] : 1;
    return dense;
}

bool files_check_outputs(const run_files *files, const tensors *t) {
    for (size_t i = 0; i < files->num_outputs; i++) {
        const tensor *const one = tensors_find(t, files->outputs[i].name);
        if (one && one->info.is_output) continue;
        tool_error("the problem has no output named %s%s", files->outputs[i].name,
                   missing_field(&t->problem, files->outputs[i].name));
        return false;
    }
    return true;
}

bool files_write(const run_files *files, const tensors *t) {
    char message[ATTUNE_MESSAGE_BYTES];
    for (size_t i = 0; i < files->num_outputs; i++) {
        const run_file *const file = &files->outputs[i];
        const tensor *const one = tensors_find(t, file->name);
        size_t rank;
        int64_t dims[4];
        void *const dense = files_gather(files, one, &rank, dims);
        if (!dense) return false;
        const bool written = npy_write(file->path, files_type(one->info.dtype), rank, dims, dense, message);
        free(dense);
        if (written) continue;
        tool_error("%s", message);
        return false;
    }
    return true;
}
