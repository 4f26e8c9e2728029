/* Makes DLPack tensors arguments of a call. */
#include "call/call.h"

#include <string.h>

_Static_assert(offsetof(attune_dltensor, data) == 0 && offsetof(attune_dltensor, device_type) == 8 &&
                   offsetof(attune_dltensor, device_id) == 12 && offsetof(attune_dltensor, ndim) == 16 &&
                   offsetof(attune_dltensor, dtype_code) == 20 && offsetof(attune_dltensor, dtype_bits) == 21 &&
                   offsetof(attune_dltensor, dtype_lanes) == 22 && offsetof(attune_dltensor, shape) == 24 &&
                   offsetof(attune_dltensor, strides) == 32 && offsetof(attune_dltensor, byte_offset) == 40 &&
                   sizeof(attune_dltensor) == 48,
               "the layout of DLTensor, DLPack 1");

/* DLPack's numbers. */
enum { DL_CPU = 1, DL_CUDA_HOST = 3, DL_ROCM_HOST = 11 };
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6, DL_FLOAT8_E4M3FN = 10 };

/* One tensor that is being bound. `dims` and `strides` are those of attune's table. For a matrix that all heads share,
 * the table has one dimension more than the caller's tensor: it is 1. */
typedef struct binding {
    const at_signature *s;
    const mha_tensor *t;
    const attune_dltensor *from;
    attune_arguments arguments;
    int first; /* dimensions of the table that the caller's tensor does not have */
    int64_t dims[4], strides[4];
} binding;

/* ---- Types and places ---- */

typedef struct dl_type {
    int code, bits;
    const char *name;
} dl_type;

static dl_type type_of(attune_dtype dtype) {
    switch (dtype) {
    case ATTUNE_F64: return (dl_type){DL_FLOAT, 64, "f64"};
    case ATTUNE_F16: return (dl_type){DL_FLOAT, 16, "f16"};
    case ATTUNE_BF16: return (dl_type){DL_BFLOAT, 16, "bf16"};
    case ATTUNE_BOOL: return (dl_type){DL_BOOL, 8, "bool"};
    case ATTUNE_I32: return (dl_type){DL_INT, 32, "i32"};
    case ATTUNE_I8: return (dl_type){DL_INT, 8, "i8"};
    case ATTUNE_F8: return (dl_type){DL_FLOAT8_E4M3FN, 8, "f8 (e4m3fn)"};
    default: return (dl_type){DL_FLOAT, 32, "f32"};
    }
}

static attune_status check_type(const binding *b, at_error *err) {
    const attune_dltensor *from = b->from;
    const dl_type want = type_of(b->t->dtype);
    /* Some libraries have no type for booleans, and bytes have no sign. */
    const bool is_byte = (b->t->dtype == ATTUNE_BOOL || b->t->is_packed) && from->dtype_code == DL_UINT;
    if (from->dtype_lanes == 1 && from->dtype_bits == want.bits && (from->dtype_code == want.code || is_byte))
        return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                   "%s has DLPack type code %d, %d bits, %d lanes; it must be %s: code %d, %d bits, 1 lane", b->t->name,
                   from->dtype_code, from->dtype_bits, from->dtype_lanes, want.name, want.code, want.bits);
}

static attune_status check_place(const binding *b, at_error *err) {
    const attune_dltensor *from = b->from;
    const int rank = b->t->rank - b->first, device = from->device_type;
    if (device != DL_CPU && device != DL_CUDA_HOST && device != DL_ROCM_HOST)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is on a device of DLPack type %d; it must be 1 (CPU)",
                       b->t->name, device);
    if (from->ndim != rank)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s has %d dimensions; attune_tensors gives it %d", b->t->name,
                       (int)from->ndim, rank);
    if (!from->shape) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the shape of %s is NULL", b->t->name);
    return ATTUNE_OK;
}

/* ---- Dims ---- */

static attune_status read_dims(binding *b, at_error *err) {
    int64_t stride = 1;
    b->dims[0] = 1;
    b->strides[0] = 0;
    for (int d = b->t->rank - 1; d >= b->first; d--) {
        const int64_t dim = b->from->shape[d - b->first];
        if (dim < 0)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s has %lld at dimension %d", b->t->name, (long long)dim,
                           d - b->first);
        b->dims[d] = dim;
        b->strides[d] = b->from->strides ? b->from->strides[d - b->first] : stride;
        if (__builtin_mul_overflow(stride, dim > 1 ? dim : 1, &stride))
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s has more elements than there are addresses", b->t->name);
    }
    return ATTUNE_OK;
}

/* Names of sizes, and their members in a call. */
static const struct {
    const char *name;
    size_t field;
} sizes[MHA_NUM_SIZES] = {
#define FIELD(name) {#name, offsetof(attune_arguments, name)}
    [MHA_BATCH] = FIELD(batch),
    [MHA_KV_HEADS] = FIELD(num_kv_heads),
    [MHA_HEADS] = FIELD(num_heads),
    [MHA_SEQ_Q] = FIELD(seq_q),
    [MHA_SEQ_KV] = FIELD(seq_kv),
    [MHA_SEQ_NEW] = FIELD(seq_new),
    [MHA_TOTAL_Q] = FIELD(total_q),
    [MHA_TOTAL_KV] = FIELD(total_kv),
    [MHA_NUM_PAGES] = FIELD(num_pages),
    [MHA_MAX_PAGES] = FIELD(max_pages),
    [MHA_MASK_KV] = FIELD(mask_seq_kv),
    [MHA_BIAS_KV] = FIELD(bias_seq_kv),
    [MHA_ROTARY_POSITIONS] = FIELD(rotary_positions),
    [MHA_NUM_ROWS] = FIELD(num_rows),
    [MHA_NUM_IDS] = FIELD(num_ids),
#undef FIELD
    [MHA_ENTRIES] = {"batch + 1", 0},
    [MHA_Q_ENTRIES] = {"batch + 1", 0},
    [MHA_Q_BATCH] = {"that dimension", 0},
    [MHA_PART_ROWS] = {"batch * num_heads * seq_q", 0},
    [MHA_PAGE_SIZE] = {"page_size", 0},
    [MHA_PANELS] = {"the number of panels of 16 keys", 0},
    [MHA_PAGE_PANELS] = {"page_size / 16", 0},
    [MHA_K_PANEL] = {"the elements of a panel of k", 0},
    [MHA_V_PANEL] = {"the elements of a panel of v", 0},
    [MHA_HEAD_DIM] = {"head_dim", 0},
    [MHA_HEAD_DIM_V] = {"head_dim_v", 0},
    [MHA_K_ROW_BYTES] = {"the bytes of a quantised row of head_dim", 0},
    [MHA_V_ROW_BYTES] = {"the bytes of a quantised row of head_dim_v", 0},
    [MHA_K_GROUPS] = {"the length of a row of k_scale", 0},
    [MHA_V_GROUPS] = {"the length of a row of v_scale", 0},
    [MHA_ROTARY_HALF] = {"rotary_dim / 2", 0},
    [MHA_NUM_PARTS] = {"num_parts", 0},
    [MHA_EMBED_DIM] = {"embed_dim", 0},
    [MHA_KV_EMBED_DIM] = {"kv_embed_dim", 0},
    [MHA_V_EMBED_DIM] = {"v_embed_dim", 0},
    [MHA_OUT_DIM] = {"out_dim", 0},
    [MHA_LOW_RANK] = {"low_rank", 0},
    [MHA_LOW_RANK_HEADS] = {"num_kv_heads", 0},
    [MHA_PACKED] = {"the number of elements that attune_packed_weights_size gives", 0},
    [MHA_ONE] = {"that dimension", 0},
};

/* The size that sets a dimension. Lengths may be those of another tensor. */
static mha_size deciding(const at_signature *s, mha_size size) {
    const attune_problem *p = &s->problem;
    const bool is_columns = size == MHA_MASK_KV || size == MHA_BIAS_KV;
    if (is_columns && !s->parameters.has[size] && s->compiled.of[size] < 0) size = MHA_SEQ_KV;
    if (size == MHA_SEQ_KV && mha_keys_follow_queries(p)) return MHA_SEQ_Q;
    if (size == MHA_TOTAL_KV && mha_keys_follow_queries(p)) return MHA_TOTAL_Q;
    if (size == MHA_SEQ_NEW && mha_is_self(p) && !p->is_ragged) return MHA_SEQ_Q;
    return size;
}

static attune_status expect(const binding *b, int d, mha_size size, int64_t expected, at_error *err) {
    if (b->dims[d] == expected) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s has %lld at dimension %d, but %s is %lld", b->t->name,
                   (long long)b->dims[d], d - b->first, sizes[size].name, (long long)expected);
}

/* Rows of partial results: they give the number of queries, if that is not set. */
static attune_status take_part_rows(binding *b, int d, at_error *err) {
    attune_arguments *a = &b->arguments;
    int64_t heads, rows;
    if (__builtin_mul_overflow(a->batch, a->num_heads, &heads) || heads < 1)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "batch is %lld and num_heads %lld", (long long)a->batch,
                       (long long)a->num_heads);
    if (a->seq_q == ATTUNE_NOT_SET && b->dims[d] % heads == 0) a->seq_q = b->dims[d] / heads;
    if (a->seq_q == ATTUNE_NOT_SET)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "%s has %lld at dimension %d, no multiple of batch * num_heads = %lld", b->t->name,
                       (long long)b->dims[d], d - b->first, (long long)heads);
    if (__builtin_mul_overflow(heads, a->seq_q, &rows)) rows = -1;
    return expect(b, d, MHA_PART_ROWS, rows, err);
}

static attune_status take_entries(binding *b, int d, at_error *err) {
    int64_t entries;
    if (__builtin_add_overflow(b->arguments.batch, 1, &entries))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "batch is %lld", (long long)b->arguments.batch);
    return expect(b, d, MHA_ENTRIES, entries, err);
}

/* The last panel may have room for more keys than there are, so the call says their number. */
static attune_status take_panels(binding *b, int d, at_error *err) {
    if (b->arguments.seq_kv == ATTUNE_NOT_SET)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "%s is in panels, which do not tell the number of keys: set seq_kv", b->t->name);
    return expect(b, d, MHA_PANELS, mha_panels(b->arguments.seq_kv), err);
}

static attune_status take_dim(binding *b, int d, at_error *err) {
    const mha_size size = deciding(b->s, b->t->dims[d]);
    const bool is_angle = b->t->id == MHA_COS || b->t->id == MHA_SIN;
    if (mha_is_broadcast(&b->s->problem, b->t, d) || (is_angle && d == 0)) {
        if (b->dims[d] == 1) return ATTUNE_OK;
        if (!is_angle && b->strides[d] != 0)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "%s has %lld at dimension %d; the kernel was compiled for one that is 1 there", b->t->name,
                           (long long)b->dims[d], d);
    }
    if (b->s->compiled.of[size] >= 0) return expect(b, d, size, b->s->compiled.of[size], err);
    if (size == MHA_ENTRIES || size == MHA_Q_ENTRIES) return take_entries(b, d, err);
    if (size == MHA_PART_ROWS) return take_part_rows(b, d, err);
    if (size == MHA_PANELS) return take_panels(b, d, err);
    int64_t *const of_call = (int64_t *)(void *)((char *)&b->arguments + sizes[size].field);
    if (*of_call == ATTUNE_NOT_SET) *of_call = b->dims[d];
    return expect(b, d, size, *of_call, err);
}

/* ---- Strides ---- */

/* In attune_arguments, zeros mean contiguous. Strides of dims that the kernel was compiled without do not count. */
static attune_status check_not_repeated(const binding *b, at_error *err) {
    int repeated = -1;
    for (int d = b->first; d < b->t->rank; d++) {
        if (mha_is_broadcast(&b->s->problem, b->t, d)) continue;
        if (b->strides[d]) return ATTUNE_OK;
        if (b->dims[d] > 1) repeated = d - b->first;
    }
    if (repeated < 0) return ATTUNE_OK;
    return at_fail(
        err, ATTUNE_INVALID_ARGUMENT,
        "%s repeats one element: its stride is 0 at dimension %d, and strides that are all 0 mean contiguous "
        "in attune_arguments; make a contiguous copy, or compile for a tensor that is 1 there",
        b->t->name, repeated);
}

/* Tensors without elements may have any strides, and 0 in some libraries: they become contiguous ones. */
static void take_no_elements(binding *b) {
    const int last = b->t->rank - 1;
    int64_t stride = b->t->inner_stride;
    bool is_empty = false;
    for (int d = b->first; d <= last; d++) is_empty |= b->dims[d] == 0;
    for (int d = last; is_empty && d >= b->first; d--) {
        if (!mha_is_broadcast(&b->s->problem, b->t, d)) b->strides[d] = stride;
        if (b->dims[d] > 1 && __builtin_mul_overflow(stride, b->dims[d], &stride)) stride = INT64_MAX;
    }
}

/* With at most one element along a dimension its stride may be anything. attune chooses one that suits it. */
static attune_status take_strides(binding *b, at_error *err) {
    const int last = b->t->rank - 1;
    take_no_elements(b);
    for (int d = b->first; d <= last; d++) {
        if (b->dims[d] <= 1) b->strides[d] = d == last ? b->t->inner_stride : 0;
        if (b->strides[d] < 0 || b->strides[d] > MHA_MAX_STRIDE)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "%s has stride %lld at dimension %d; it must be from 0 to %lld", b->t->name,
                           (long long)b->strides[d], d - b->first, (long long)MHA_MAX_STRIDE);
    }
    if (b->strides[last] != b->t->inner_stride)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "the innermost stride of %s is %lld; the kernel was compiled for %lld", b->t->name,
                       (long long)b->strides[last], (long long)b->t->inner_stride);
    if (b->t->has_strides && check_not_repeated(b, err)) return ATTUNE_INVALID_ARGUMENT;
    if (b->t->has_strides)
        memcpy(mha_strides_in(&b->arguments, b->t), b->strides, (size_t)b->t->rank * sizeof *b->strides);
    return ATTUNE_OK;
}

/* Tables, and other tensors without strides in a call; for cos, sin and block_table all dimensions except the first. */
static attune_status check_contiguous(const binding *b, at_error *err) {
    const int outermost = b->t->id == MHA_COS || b->t->id == MHA_SIN || b->t->id == MHA_BLOCK_TABLE;
    int64_t stride = 1;
    for (int d = b->first; d < b->t->rank; d++)
        if (b->dims[d] == 0) return ATTUNE_OK;
    for (int d = b->t->rank - 1; d >= outermost; stride *= b->dims[d--])
        if (b->dims[d] > 1 && b->strides[d] != stride)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "%s has stride %lld at dimension %d; it must be contiguous: %lld", b->t->name,
                           (long long)b->strides[d], d - b->first, (long long)stride);
    return ATTUNE_OK;
}

/* cos and sin share one stride between sequences. */
static attune_status take_angles(binding *b, at_error *err) {
    attune_arguments *a = &b->arguments;
    const bool is_second = b->t->id == MHA_COS ? a->sin != NULL : a->cos != NULL;
    const int64_t stride = b->dims[0] > 1 ? b->strides[0] : 0;
    if (is_second && stride != a->rotary_batch_stride)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "%s has %lld elements between two sequences of the batch, but rotary_batch_stride is %lld",
                       b->t->name, (long long)stride, (long long)a->rotary_batch_stride);
    a->rotary_batch_stride = stride;
    return ATTUNE_OK;
}

/* A view of a wider table has rows that lie further apart. */
static attune_status take_rows_of_pages(binding *b, at_error *err) {
    const int64_t columns = b->dims[1], stride = b->dims[0] > 1 && columns ? b->strides[0] : 0;
    if (stride && stride < columns)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s has stride %lld at dimension 0; it must be at least %lld",
                       b->t->name, (long long)stride, (long long)columns);
    b->arguments.block_table_stride = stride == columns ? 0 : stride;
    return ATTUNE_OK;
}

/* ---- The pointer ---- */

static attune_status take_pointer(binding *b, at_error *err) {
    const size_t align = at_element_bytes(b->t);
    bool is_empty = false;
    for (int d = 0; d < b->t->rank; d++) is_empty = is_empty || b->dims[d] == 0;
    uintptr_t address = (uintptr_t)b->from->data;
    if (address && __builtin_add_overflow(address, b->from->byte_offset, &address))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the data of %s (%p) and its byte_offset %llu are no address",
                       b->t->name, b->from->data, (unsigned long long)b->from->byte_offset);
    if (!address && !is_empty) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the data of %s is NULL", b->t->name);
    char *const data = (char *)address;
    if (address % align)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the data of %s (%p) is not aligned to %zu bytes", b->t->name,
                       (void *)data, align);
    memcpy((char *)&b->arguments + b->t->pointer, &data, sizeof data);
    return ATTUNE_OK;
}

/* ---- All of it ---- */

static attune_status find(const at_signature *s, const char *name, const mha_tensor **found, at_error *err) {
    for (size_t i = 0; i < s->count; i++)
        if (!strcmp(s->tensors[i].name, name)) {
            *found = &s->tensors[i];
            return ATTUNE_OK;
        }
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the kernel has no tensor named %.64s", name);
}

static attune_status bind(binding *b, at_error *err) {
    const bool is_angle = b->t->id == MHA_COS || b->t->id == MHA_SIN;
    if (check_type(b, err) || check_place(b, err) || read_dims(b, err)) return ATTUNE_INVALID_ARGUMENT;
    for (int d = b->first; d < b->t->rank; d++)
        if (take_dim(b, d, err)) return ATTUNE_INVALID_ARGUMENT;
    if (take_strides(b, err) || (!b->t->has_strides && check_contiguous(b, err)) || (is_angle && take_angles(b, err)) ||
        (b->t->id == MHA_BLOCK_TABLE && take_rows_of_pages(b, err)))
        return ATTUNE_INVALID_ARGUMENT;
    return take_pointer(b, err);
}

attune_status at_bind(const at_signature *s, attune_arguments *arguments, const char *name,
                      const attune_dltensor *tensor, at_error *err) {
    const at_struct kind = at_arguments_struct(s);
    binding b = {.s = s, .from = tensor};
    if (at_copy_in(&kind, arguments, &b.arguments, err) || find(s, name, &b.t, err)) return err->status;
    b.first = mha_is_headless(&s->problem, b.t);
    return bind(&b, err) ? err->status : at_copy_back(&kind, &b.arguments, arguments, err);
}

attune_status at_set_size(const at_signature *s, attune_arguments *arguments, const char *name, int64_t value,
                          at_error *err) {
    const at_struct kind = at_arguments_struct(s);
    attune_arguments whole;
    for (int i = 0; i < MHA_NUM_SIZES; i++) {
        if (!sizes[i].field || strcmp(sizes[i].name, name)) continue;
        if (at_copy_in(&kind, arguments, &whole, err)) return err->status;
        *(int64_t *)(void *)((char *)&whole + sizes[i].field) = value;
        return at_copy_back(&kind, &whole, arguments, err);
    }
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "a call has no size named %.64s", name);
}

attune_status at_set_number(const at_signature *s, attune_arguments *arguments, const char *name, double value,
                            at_error *err) {
    const at_struct kind = at_arguments_struct(s);
    attune_arguments whole;
    if (strcmp(name, "softmax_scale"))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "a call has no number named %.64s; there is softmax_scale", name);
    if (!s->problem.has_softmax_scale)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "the problem fixes softmax_scale; only with softmax_scale=dynamic each call has its own");
    if (at_copy_in(&kind, arguments, &whole, err)) return err->status;
    whole.softmax_scale = value;
    return at_copy_back(&kind, &whole, arguments, err);
}
