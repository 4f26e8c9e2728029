/* A call that repeats the sizes and strides of a layout takes over all that was settled for it. Otherwise sizes,
 * index tensors and strides are settled anew. Pointers, overlap and ids are checked in every call. */
#include "call/call.h"
#include "problem/problem_sight.h"

#include "problem/problem_fields.h"

#include <math.h>
#include <string.h>

/* All sizes of a call stand side by side. */
enum {
    SIZES_BEGIN = offsetof(attune_arguments, batch),
    SIZES_BYTES = offsetof(attune_arguments, softmax_scale) - SIZES_BEGIN
};
_Static_assert(SIZES_BYTES == 17 * sizeof(int64_t) && sizeof(attune_arguments) == SIZES_BEGIN + SIZES_BYTES + 8,
               "a new size: it must lie between batch and softmax_scale");

/* Replaces pointers to tensors without elements: kernels and interpreter never see NULL. */
static _Alignas(64) char nothing[64];

/* ---- The signature ---- */

/* The same number means that a size is not compiled and that the problem lacks it: not set. */
_Static_assert(ATTUNE_NOT_SET == -1 && ATTUNE_DYNAMIC == -1, "compiled sizes are -1 where they are not known");

static void fill_defaults(const at_signature *s, attune_arguments *a) {
    const attune_problem *p = &s->problem;
    *a = (attune_arguments){.struct_size = sizeof *a,
                            .batch = p->batch,
                            .num_heads = p->num_heads,
                            .num_kv_heads = p->num_kv_heads,
                            .seq_q = s->compiled.of[MHA_SEQ_Q],
                            .seq_kv = s->compiled.of[MHA_SEQ_KV],
                            .seq_new = s->compiled.of[MHA_SEQ_NEW],
                            .num_rows = s->compiled.of[MHA_NUM_ROWS],
                            .num_ids = s->compiled.of[MHA_NUM_IDS],
                            .total_q = ATTUNE_NOT_SET,
                            .total_kv = ATTUNE_NOT_SET,
                            .num_pages = ATTUNE_NOT_SET,
                            .max_pages = ATTUNE_NOT_SET,
                            .mask_seq_kv = ATTUNE_NOT_SET,
                            .bias_seq_kv = ATTUNE_NOT_SET,
                            .rotary_positions = ATTUNE_NOT_SET,
                            .softmax_scale = ATTUNE_DEFAULT_SCALE};
    for (size_t i = 0; i < s->count; i++) {
        const mha_tensor *t = &s->tensors[i];
        if (t->problem_strides)
            memcpy(mha_strides_in(a, t), (const char *)p + t->problem_strides, (size_t)t->rank * sizeof(int64_t));
    }
}

at_struct at_arguments_struct(const at_signature *s) {
    return (at_struct){"attune_arguments", "use attune_arguments_init", sizeof(attune_arguments), &s->initial.arguments,
                       sizeof(attune_arguments)};
}

/* Makes arguments of another version of the struct whole. */
static attune_status take_arguments(const at_signature *s, const attune_arguments **a, attune_arguments *whole,
                                    at_error *err) {
    const at_struct kind = at_arguments_struct(s);
    const attune_status status = at_copy_in(&kind, *a, whole, err);
    *a = whole;
    return status;
}

/* Keys without pages count as one page: the sequence's tensor or, in a ragged batch, the tensor from the sequence's
 * first token on, where each token begins a page. Its size is rounded up to a power of two. */
static void take_as_pages(const at_signature *s, mha_sizes *sizes) {
    int64_t *const of = sizes->of;
    of[MHA_PAGE_SHIFT] = 4;
    while (((int64_t)1 << of[MHA_PAGE_SHIFT]) < of[MHA_SEQ_KV]) of[MHA_PAGE_SHIFT]++;
    of[MHA_PAGE_SIZE] = (int64_t)1 << of[MHA_PAGE_SHIFT];
    of[MHA_MAX_PAGES] = 1;
    of[MHA_NUM_PAGES] = s->problem.is_ragged ? of[MHA_TOTAL_KV] : of[MHA_BATCH];
}

/* A kernel finds a row of the block table by max_pages, which here is the stride of the rows. It reads no column beyond
 * the sequence's length, which was checked against the real number of columns. General code that may append appends as
 * many tokens as there are queries, or none. */
static mha_sizes sizes_of_code(const at_signature *s, const at_settled *settled) {
    const attune_problem *const p = &s->problem;
    mha_sizes sizes = settled->sizes;
    int64_t *const of = sizes.of;
    if (s->place[MHA_BLOCK_TABLE] >= 0)
        of[MHA_MAX_PAGES] = settled->strides[(int)s->place[MHA_BLOCK_TABLE]][0];
    else if (s->taken.has[MHA_MAX_PAGES])
        take_as_pages(s, &sizes);
    if (!s->taken.has[MHA_STARTS]) return sizes;
    of[MHA_Q_BATCH] = p->is_ragged ? 1 : of[MHA_BATCH];
    of[MHA_STARTS] = p->is_ragged ? of[MHA_BATCH] : 0;
    if (!p->seq_new) of[MHA_SEQ_NEW] = 0;
    if (p->seq_new && p->is_ragged) of[MHA_SEQ_NEW] = of[MHA_SEQ_Q];
    if (!p->is_ragged) of[MHA_TOTAL_Q] = of[MHA_SEQ_Q] > of[MHA_SEQ_NEW] ? of[MHA_SEQ_Q] : of[MHA_SEQ_NEW];
    return sizes;
}

/* The heads of a group become the queries of one head. Each of them must have one query. */
static void fold_group(const at_signature *s, mha_sizes *sizes, int64_t strides[MHA_NUM_TENSORS][4]) {
    const int64_t group = s->problem.num_heads / s->problem.num_kv_heads;
    sizes->of[MHA_SEQ_Q] = group;
    for (size_t i = 0; i < (size_t)s->num_taken; i++) {
        if (s->tensors[s->order[i]].dims[1] != MHA_HEADS) continue;
        strides[s->order[i]][2] = strides[s->order[i]][1];
        strides[s->order[i]][1] *= group;
    }
}

/* An lse that is no output counts as contiguous. */
static void place_lse(const at_signature *s, const mha_sizes *sizes, int64_t strides[4]) {
    strides[2] = 1;
    strides[1] = sizes->of[s->problem.is_ragged ? MHA_TOTAL_Q : MHA_SEQ_Q];
    strides[0] = sizes->of[MHA_HEADS] * strides[1];
}

static bool is_cache(mha_tensor_id id) { return id == MHA_K || id == MHA_V || id == MHA_K_SCALE || id == MHA_V_SCALE; }

static void begin_page_with_token(const at_signature *s, int64_t strides[MHA_NUM_TENSORS][4]) {
    for (size_t i = 0; i < s->count; i++)
        if (is_cache(s->tensors[i].id)) strides[i][0] = s->tensors[i].rank == 4 ? strides[i][2] : 1;
}

static size_t scalars_of_other(const at_signature *s, mha_sizes sizes, const int64_t given[][4], int64_t *scalars) {
    mha_tensor tensors[MHA_NUM_TENSORS];
    int64_t strides[MHA_NUM_TENSORS][4] = {{0}}, ordered[MHA_NUM_TENSORS][4];
    memcpy(strides, given, s->count * sizeof *strides);
    for (size_t i = s->count; i < MHA_NUM_TENSORS && s->adds[AT_ADDED_LSE]; i++)
        if (s->tensors[i].id == MHA_LSE) place_lse(s, &sizes, strides[i]);
    if (s->adds[AT_ADDED_TABLE] && s->problem.is_ragged) begin_page_with_token(s, strides);
    if (s->folds_group) fold_group(s, &sizes, strides);
    for (size_t i = 0; i < s->num_taken; i++) {
        tensors[i] = s->tensors[s->order[i]];
        memcpy(ordered[i], strides[s->order[i]], sizeof *ordered);
    }
    return mha_scalars(&s->problem, &s->taken, &sizes, tensors, s->num_taken, (const int64_t(*)[4])ordered, scalars);
}

static void take_scalars(const at_signature *s, at_settled *out) {
    const mha_sizes sizes = sizes_of_code(s, out);
    if (s->is_of_other)
        scalars_of_other(s, sizes, (const int64_t(*)[4])out->strides, out->scalars);
    else
        mha_scalars(&s->problem, &s->taken, &sizes, s->tensors, s->count, (const int64_t(*)[4])out->strides,
                    out->scalars);
}

static attune_status finish(const at_signature *s, const attune_arguments *a, at_settled *out, at_error *err) {
    if (at_sizes_finish(s, a, &out->sizes, err) || at_strides_settle(s, a, out, err)) return ATTUNE_INVALID_ARGUMENT;
    take_scalars(s, out);
    out->flops = mha_call_flops(&s->problem, &out->sizes);
    out->is_empty = true;
    for (size_t i = 0; i < s->count; i++)
        if ((s->tensors[i].access & IR_OUT) && out->bytes[i]) out->is_empty = false;
    return ATTUNE_OK;
}

void at_signature_moved(at_signature *s) {
    for (size_t i = 0; i < s->count; i++)
        if (s->tensors[i].id >= MHA_USER_TENSORS)
            s->tensors[i].name = s->problem.tensors[s->tensors[i].id - MHA_USER_TENSORS].name;
}

/* Settles what every call without arguments of its own has. */
static void settle_initial(at_signature *s) {
    const int64_t zeros[MHA_NUM_TENSORS][4] = {{0}};
    int64_t scalars[MHA_MAX_SCALARS];
    s->num_scalars = s->is_of_other
                         ? scalars_of_other(s, s->compiled, zeros, scalars)
                         : mha_scalars(&s->problem, &s->taken, &s->compiled, s->tensors, s->count, zeros, scalars);
    at_layout_settle(s, &s->initial);
}

void at_signature_init(at_signature *s, const attune_problem *canonical) {
    memset(s, 0, sizeof *s);
    s->problem = *canonical;
    s->count = mha_tensors(&s->problem, s->tensors);
    memset(s->place, -1, sizeof s->place);
    for (size_t i = 0; i < s->count; i++) {
        s->place[s->tensors[i].id] = (signed char)i;
        s->element[i] = (uint8_t)at_element_bytes(&s->tensors[i]);
    }
    mha_compiled_sizes(canonical, &s->compiled);
    s->parameters = mha_parameters_of(canonical);
    if (mha_is_block(canonical)) {
        mha_packed_layout layout;
        mha_packed_layout_of(canonical, &layout);
        s->packed_id = mha_packed_id_of(canonical, &layout);
    }
    s->has_position = mha_positions_matter(canonical);
    s->has_sequence_tables = s->place[MHA_CU_SEQLENS_Q] >= 0 || s->place[MHA_CU_SEQLENS_KV] >= 0 ||
                             s->place[MHA_KV_LENS] >= 0 || s->place[MHA_CAUSAL_OFFSETS] >= 0 ||
                             s->place[MHA_BLOCK_TABLE] >= 0 || s->place[MHA_KV_IDS] >= 0;
    fill_defaults(s, &s->initial.arguments);
    s->taken = s->parameters;
    settle_initial(s);
}

/* The number of a scalar: after the sizes, and after the strides of the tensors before. */
static uint8_t number_of_lse(const at_signature *s) {
    size_t n = 0;
    for (mha_size size = 0; size < MHA_NUM_SIZES; size++) n += s->taken.has[size];
    for (size_t i = 0; s->tensors[s->order[i]].id != MHA_LSE; i++)
        n += s->tensors[s->order[i]].has_strides ? (size_t)s->tensors[s->order[i]].rank - 1 : 0;
    return (uint8_t)n;
}

static const mha_tensor_id added_ids[AT_NUM_ADDED] = {MHA_LSE, MHA_SINKS, MHA_KV_LENS, MHA_CU_SEQLENS_Q,
                                                      MHA_BLOCK_TABLE};

void at_signature_take(at_signature *s, const attune_problem *code, bool folds_group) {
    mha_tensor tensors[MHA_NUM_TENSORS];
    size_t more = s->count;
    s->taken = mha_parameters_of(code);
    s->num_taken = (uint8_t)mha_tensors(code, tensors);
    s->is_of_other = true;
    s->folds_group = folds_group;
    memset(s->adds, 0, sizeof s->adds);
    for (size_t i = 0; i < s->num_taken; i++) {
        const mha_tensor_id id = tensors[i].id;
        s->order[i] = (uint8_t)(s->place[id] < 0 ? (int)more : s->place[id]);
        if (s->place[id] >= 0) continue;
        s->tensors[more++] = tensors[i];
        for (int which = 0; which < AT_NUM_ADDED; which++) s->adds[which] = s->adds[which] || id == added_ids[which];
    }
    if (s->adds[AT_ADDED_LSE]) s->lse_scalar = number_of_lse(s);
    settle_initial(s);
}

static int64_t size_of(const at_signature *s, const int64_t *scalars, mha_size wanted) {
    size_t n = 0;
    for (mha_size size = 0; size < wanted; size++) n += s->taken.has[size];
    return scalars[n];
}

int64_t at_call_added_bytes(const at_signature *s, at_added which, const int64_t *scalars) {
    const int64_t batch = scalars[0];
    int64_t elements = which == AT_ADDED_STARTS ? 2 : batch;
    if (which == AT_ADDED_SINKS)
        elements = size_of(s, scalars, MHA_KV_HEADS) * size_of(s, scalars, MHA_GROUP);
    else if (which == AT_ADDED_LSE &&
             __builtin_mul_overflow(s->problem.is_ragged ? 1 : batch, scalars[s->lse_scalar], &elements))
        return -1;
    return elements > INT64_MAX / 4 ? -1 : elements * 4;
}

static void fill_added(const at_signature *s, void *const *buffers, const int64_t *scalars,
                       void *const added[AT_NUM_ADDED]) {
    float *const sinks = added[AT_ADDED_SINKS];
    int32_t *const lens = added[AT_ADDED_LENS], *const starts = added[AT_ADDED_STARTS];
    int32_t *const table = added[AT_ADDED_TABLE];
    const int place = s->place[MHA_CU_SEQLENS_KV];
    const int32_t *const begin = place < 0 ? NULL : buffers[place];
    const int64_t batch = scalars[0];
    for (int64_t i = 0; s->adds[AT_ADDED_SINKS] && i < at_call_added_bytes(s, AT_ADDED_SINKS, scalars) / 4; i++)
        sinks[i] = -INFINITY;
    for (int64_t b = 0; s->adds[AT_ADDED_LENS] && b < batch; b++)
        lens[b] = begin ? begin[b + 1] - begin[b] : (int32_t)size_of(s, scalars, MHA_SEQ_KV);
    for (int64_t b = 0; s->adds[AT_ADDED_TABLE] && b < batch; b++) table[b] = begin ? begin[b] : (int32_t)b;
    if (!s->adds[AT_ADDED_STARTS]) return;
    starts[0] = 0;
    starts[1] = (int32_t)size_of(s, scalars, MHA_SEQ_Q);
}

static void *added_tensor(mha_tensor_id id, void *const added[AT_NUM_ADDED]) {
    for (int which = 0; which < AT_NUM_ADDED; which++)
        if (id == added_ids[which]) return added[which];
    return nothing;
}

size_t at_call_taken_buffers(const at_signature *s, void *const *buffers, const int64_t *scalars,
                             void *const added[AT_NUM_ADDED], void **taken) {
    fill_added(s, buffers, scalars, added);
    for (size_t i = 0; i < s->num_taken; i++) {
        const size_t from = s->order[i];
        taken[i] = from < s->count ? buffers[from] : added_tensor(s->tensors[from].id, added);
    }
    return s->num_taken;
}

/* ---- Settling ---- */

attune_status at_call_settle(const at_signature *s, const attune_arguments *a, at_settled *out, at_error *err) {
    at_open open;
    attune_arguments whole;
    if (a->struct_size != sizeof *a) {
        const attune_status status = take_arguments(s, &a, &whole, err);
        if (status) return status;
    }
    if (at_sizes_begin(s, a, &out->sizes, &open, err)) return ATTUNE_INVALID_ARGUMENT;
    return finish(s, a, out, err);
}

void at_layout_settle(const at_signature *s, at_layout *layout) {
    const attune_arguments *a = &layout->arguments;
    at_settled *settled = &layout->settled;
    at_open open;
    at_longest longest;
    layout->is_settled = false;
    /* Sizes that index tensors may change are settled for each call. */
    if (at_sizes_begin(s, a, &settled->sizes, &open, NULL) || open.q || open.kv) return;
    if (!s->has_sequence_tables && at_tables_check_sequences(s, a, &settled->sizes, &longest, NULL)) return;
    layout->is_settled = finish(s, a, settled, NULL) == ATTUNE_OK;
}

/* The same with pointers: index tensors are read and checked. */
static attune_status settle(const at_signature *s, const attune_arguments *a, at_settled *out, at_error *err) {
    at_open open;
    at_longest longest;
    if (at_sizes_begin(s, a, &out->sizes, &open, err) || at_tables_check_sequences(s, a, &out->sizes, &longest, err))
        return ATTUNE_INVALID_ARGUMENT;
    if (open.q) out->sizes.of[MHA_SEQ_Q] = longest.q;
    if (open.kv) out->sizes.of[MHA_SEQ_KV] = longest.kv;
    return finish(s, a, out, err);
}

static attune_status take_pointers(const at_signature *s, const attune_arguments *a, at_call *call, at_error *err) {
    for (size_t i = 0; i < s->count; i++) {
        const void *pointer = nothing;
        const uint64_t bytes = call->settled->bytes[i];
        uintptr_t end;
        if (bytes) pointer = *(const void *const *)((const char *)a + s->tensors[i].pointer);
        if (!pointer || (uintptr_t)pointer & (s->element[i] - 1u))
            return at_call_pointer(&s->tensors[i], a, &pointer, err);
        if (__builtin_add_overflow((uintptr_t)pointer, bytes, &end))
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "%s has %llu bytes from %p on: beyond the end of the address space", s->tensors[i].name,
                           (unsigned long long)bytes, pointer);
        call->buffers[i] = (void *)pointer;
    }
    return ATTUNE_OK;
}

/* Kernels do not check the packed weights of a block. Their header says for which block they were packed. */
static attune_status check_packed(const at_signature *s, void *const *buffers, at_error *err) {
    if (s->place[MHA_PACKED_WEIGHTS] < 0) return ATTUNE_OK;
    const void *packed = buffers[(int)s->place[MHA_PACKED_WEIGHTS]];
    if ((uintptr_t)packed % MHA_PACKED_HEADER)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the pointer to packed_weights (%p) is not aligned to %d bytes",
                       packed, MHA_PACKED_HEADER);
    if (mha_packed_header_matches(packed, s->packed_id)) return ATTUNE_OK;
    at_error why;
    at_error_clear(&why);
    mha_packed_check_header(&s->problem, packed, &why);
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "packed_weights cannot be used: %s", why.message);
}

/* Stores the call's scale, which is the last scalar. */
static attune_status take_scale(const at_signature *s, const attune_arguments *a, at_settled *settled, at_error *err) {
    if (!isnan(a->softmax_scale) && !(fabs(a->softmax_scale) <= MHA_MAX_SCALE))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "softmax_scale is %g; it must be from -%g to %g", a->softmax_scale,
                       MHA_MAX_SCALE, MHA_MAX_SCALE);
    settled->scalars[s->num_scalars - 1] = mha_scale_scalar(&s->problem, a->softmax_scale);
    return ATTUNE_OK;
}

/* ---- The call ---- */

static bool repeats(const at_signature *s, const attune_arguments *a, const at_layout *layout) {
    const attune_arguments *other = &layout->arguments;
    if (!layout->is_settled || memcmp((const char *)a + SIZES_BEGIN, (const char *)other + SIZES_BEGIN, SIZES_BYTES))
        return false;
    int64_t differs = 0; /* also in strides of dims that there are not: then the call is settled as a new one */
    for (size_t i = 0; i < s->count; i++) {
        const mha_tensor *t = &s->tensors[i];
        if (!t->has_strides) continue;
        const int64_t *own = mha_strides_in(a, t), *others = mha_strides_in(other, t);
        differs |= (own[0] ^ others[0]) | (own[1] ^ others[1]) | (own[2] ^ others[2]) | (own[3] ^ others[3]);
    }
    return !differs;
}

static attune_status settle_call(const at_signature *s, const at_layout *likely, const attune_arguments *a,
                                 at_call *call, at_error *err) {
    at_longest longest;
    const at_layout *layout = likely && repeats(s, a, likely) ? likely : &s->initial;
    if (layout != likely && !repeats(s, a, layout)) {
        call->settled = &call->own;
        return settle(s, a, &call->own, err);
    }
    call->settled = &layout->settled;
    if (!s->has_sequence_tables || layout->has_tables) return ATTUNE_OK;
    return at_tables_check_sequences(s, a, &layout->settled.sizes, &longest, err);
}

static __attribute__((noinline)) attune_status make_from_other(const at_signature *s, const at_layout *likely,
                                                               const attune_arguments *a, at_call *call,
                                                               at_error *err) {
    attune_arguments whole;
    const attune_status status = take_arguments(s, &a, &whole, err);
    return status ? status : at_call_make(s, likely, a, call, err);
}

attune_status at_call_make(const at_signature *s, const at_layout *likely, const attune_arguments *a, at_call *call,
                           at_error *err) {
    if (a->struct_size != sizeof *a) return make_from_other(s, likely, a, call, err);
    call->workspace = a->workspace;
    call->workspace_bytes = a->workspace_bytes;
    call->block_mask = a->block_mask;
    if (settle_call(s, likely, a, call, err)) return ATTUNE_INVALID_ARGUMENT;
    if (s->problem.has_softmax_scale) {
        if (call->settled != &call->own) call->own = *call->settled;
        call->settled = &call->own;
        if (take_scale(s, a, &call->own, err)) return ATTUNE_INVALID_ARGUMENT;
    }
    if (take_pointers(s, a, call, err) || check_packed(s, call->buffers, err) ||
        at_overlap_check(s, call->settled, call->buffers, err) || at_tables_check_ids(s, a, &call->settled->sizes, err))
        return ATTUNE_INVALID_ARGUMENT;
    return ATTUNE_OK;
}
