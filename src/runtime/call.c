/* The arguments of one run: sizes and strides as compiled, pointers aligned, nothing that overlaps. */
#include "runtime/kernel.h"

#include <string.h>

/* The strides of both structs lie in the same order without gaps, so that one comparison tells a call that repeats the
 * compiled problem from one that has to be checked anew. */
enum {
    STRIDE_BYTES = offsetof(attune_problem, lse_strides) + sizeof(int64_t[3]) - offsetof(attune_problem, q_strides)
};
_Static_assert(offsetof(attune_arguments, lse_strides) - offsetof(attune_arguments, q_strides) ==
                   offsetof(attune_problem, lse_strides) - offsetof(attune_problem, q_strides),
               "strides have the same order in problem and arguments");

static bool same_sizes(const attune_problem *p, const attune_arguments *a) {
    const size_t used = p->has_lse ? STRIDE_BYTES : STRIDE_BYTES - sizeof p->lse_strides;
    return a->batch == p->batch && a->num_heads == p->num_heads && a->num_kv_heads == p->num_kv_heads &&
           !memcmp(a->q_strides, p->q_strides, used);
}

static attune_status check_inner(const char *name, int64_t actual, int64_t compiled, at_error *err) {
    if (actual == compiled) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the innermost stride of %s is %lld; the kernel was compiled for %lld",
                   name, (long long)actual, (long long)compiled);
}

/* Other sizes than the compiled ones: the problem they make must be a legal one of the same kernel. */
static attune_status check_sizes(const attune_problem *compiled, const attune_arguments *a, attune_problem *actual,
                                 at_error *err) {
    if (a->batch < 1 || a->num_heads < 1 || a->num_kv_heads < 1)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "batch is %lld, num_heads %lld, num_kv_heads %lld; each must be at least 1", (long long)a->batch,
                       (long long)a->num_heads, (long long)a->num_kv_heads);
    const int64_t group = compiled->num_heads / compiled->num_kv_heads;
    if (a->num_heads % a->num_kv_heads || a->num_heads / a->num_kv_heads != group)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "num_heads is %lld and num_kv_heads %lld; the kernel was compiled for groups of %lld",
                       (long long)a->num_heads, (long long)a->num_kv_heads, (long long)group);
    attune_problem wanted = *compiled;
    wanted.batch = a->batch;
    wanted.num_heads = a->num_heads;
    wanted.num_kv_heads = a->num_kv_heads;
    memcpy(wanted.q_strides, a->q_strides, STRIDE_BYTES);
    at_error why = {0};
    if (mha_canonicalize(&wanted, actual, &why)) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s", why.message);
    if (check_inner("q", actual->q_strides[3], compiled->q_strides[3], err) ||
        check_inner("k", actual->k_strides[3], compiled->k_strides[3], err) ||
        check_inner("v", actual->v_strides[3], compiled->v_strides[3], err) ||
        check_inner("out", actual->out_strides[3], compiled->out_strides[3], err) ||
        (compiled->has_lse && check_inner("lse", actual->lse_strides[2], compiled->lse_strides[2], err)))
        return ATTUNE_INVALID_ARGUMENT;
    return ATTUNE_OK;
}

attune_status at_call_sizes(const attune_problem *compiled, const attune_arguments *arguments, at_call *call,
                            attune_problem *actual, at_error *err) {
    if (arguments->struct_size != sizeof *arguments)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "attune_arguments.struct_size is %zu, expected %zu: use attune_arguments_init",
                       arguments->struct_size, sizeof *arguments);
    if (same_sizes(compiled, arguments)) {
        *actual = *compiled;
    } else if (check_sizes(compiled, arguments, actual, err)) {
        return ATTUNE_INVALID_ARGUMENT;
    }
    attune_arguments settled = *arguments;
    memcpy(settled.q_strides, actual->q_strides, STRIDE_BYTES);
    mha_scalars(&settled, call->scalars);
    return ATTUNE_OK;
}

/* ---- Pointers ---- */

typedef struct tensor {
    const char *name;
    const void *data;
    const int64_t *dims, *strides;
    int rank;
    bool output;
    uintptr_t begin, end;
} tensor;

static attune_status locate(tensor *t, at_error *err) {
    if (!t->data) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the pointer to %s is NULL", t->name);
    t->begin = (uintptr_t)t->data;
    if (t->begin % sizeof(float))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the pointer to %s (%p) is not aligned to %zu bytes", t->name,
                       t->data, sizeof(float));
    /* Strides are not negative and the extent was checked, so the last element is the highest. */
    uint64_t elements = 1;
    for (int i = 0; i < t->rank; i++) elements += (uint64_t)(t->dims[i] - 1) * (uint64_t)t->strides[i];
    if (__builtin_add_overflow(t->begin, elements * sizeof(float), &t->end))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s reaches beyond the end of the address space", t->name);
    return ATTUNE_OK;
}

/* Whether two tensors that share a range of memory still share no element, as the columns of one packed buffer do: for
 * some stride of the output, all dimensions whose stride is no multiple of it reach less far, and the addresses of both
 * modulo it are in intervals that do not meet. Sufficient only. */
static bool interleaved(const tensor *output, const tensor *other) {
    for (int i = 0; i < output->rank; i++) {
        const uint64_t period = (uint64_t)output->strides[i] * sizeof(float);
        if (output->dims[i] == 1 || period == 0) continue;
        uint64_t reach[2] = {sizeof(float), sizeof(float)};
        const tensor *const both[2] = {output, other};
        for (int t = 0; t < 2; t++)
            for (int d = 0; d < both[t]->rank; d++) {
                const uint64_t step = (uint64_t)both[t]->strides[d] * sizeof(float);
                if (step % period) reach[t] += (uint64_t)(both[t]->dims[d] - 1) * step;
            }
        /* How far behind the output's first element the other's is, modulo the period. */
        const uint64_t distance = other->begin >= output->begin
                                      ? (other->begin - output->begin) % period
                                      : (period - (output->begin - other->begin) % period) % period;
        if (distance >= reach[0] && period - distance >= reach[1]) return true;
    }
    return false;
}

static attune_status check_overlap(const tensor *tensors, size_t count, at_error *err) {
    for (size_t i = 0; i < count; i++) {
        if (!tensors[i].output) continue;
        for (size_t j = 0; j < count; j++) {
            if (j == i || tensors[i].begin >= tensors[j].end || tensors[j].begin >= tensors[i].end) continue;
            if (interleaved(&tensors[i], &tensors[j])) continue;
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the output %s overlaps %s", tensors[i].name, tensors[j].name);
        }
    }
    return ATTUNE_OK;
}

attune_status at_call_make(const attune_problem *compiled, const attune_arguments *arguments, at_call *call,
                           at_error *err) {
    attune_problem p;
    const attune_status status = at_call_sizes(compiled, arguments, call, &p, err);
    if (status) return status;
    const int64_t q[] = {p.batch, p.num_heads, p.seq_q, p.head_dim};
    const int64_t k[] = {p.batch, p.num_kv_heads, p.seq_kv, p.head_dim};
    const int64_t v[] = {p.batch, p.num_kv_heads, p.seq_kv, p.head_dim_v};
    const int64_t out[] = {p.batch, p.num_heads, p.seq_q, p.head_dim_v};
    tensor tensors[] = {
        {.name = "q", .data = arguments->q, .dims = q, .strides = p.q_strides, .rank = 4},
        {.name = "k", .data = arguments->k, .dims = k, .strides = p.k_strides, .rank = 4},
        {.name = "v", .data = arguments->v, .dims = v, .strides = p.v_strides, .rank = 4},
        {.name = "out", .data = arguments->out, .dims = out, .strides = p.out_strides, .rank = 4, .output = true},
        {.name = "lse", .data = arguments->lse, .dims = out, .strides = p.lse_strides, .rank = 3, .output = true},
    };
    call->num_buffers = p.has_lse ? 5 : 4;
    for (size_t i = 0; i < call->num_buffers; i++) {
        if (locate(&tensors[i], err)) return ATTUNE_INVALID_ARGUMENT;
        call->buffers[i] = (void *)tensors[i].data;
    }
    return check_overlap(tensors, call->num_buffers, err);
}
