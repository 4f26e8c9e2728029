/* The functions of libattune-tvm.so, which TVM-FFI loads as a module. */
#include "call.h"
#include "common/context.h"
#include "common/plans.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define TVM_EXPORT __attribute__((visibility("default")))

TVM_EXPORT tvm_function __tvm_ffi_run, __tvm_ffi_attention, __tvm_ffi_set_threads;

const common_engine_info common_engine = {.max_plans = 1024};

static common_plans plans;
static atomic_uint max_threads;

/* set_threads(count): the maximum number of threads for later calls; 0: as many as the process may use CPUs. */
int __tvm_ffi_set_threads(void *self, const tvm_any *arguments, int32_t count, tvm_any *result) {
    (void)self;
    call c = {.name = "set_threads", .arguments = arguments, .count = count};
    int64_t threads = 0;
    if (call_check_version(&c) && call_integer(&c, 0, "the number of threads", &threads)) {
        if (threads < 0 || threads > 65536)
            call_fail(&c, "ValueError", "%lld threads; it must be 0 to 65536", (long long)threads);
        else
            atomic_store(&max_threads, (unsigned)threads);
    }
    return call_end(&c, result);
}

static bool run(call *c, const common_plan *p, const attune_arguments *arguments) {
    const char *message;
    const attune_status status = common_plan_run(p, arguments, NULL, atomic_load(&max_threads), &message);
    return !status || call_refuse(c, status, message);
}

/* The plan of a problem as text, and its arguments. */
static bool find(call *c, const char *text, size_t length, common_plan **p, attune_arguments *a) {
    attune_status status;
    const char *message;
    *p = common_plan_of_text(&plans, text, length, &status, &message);
    if (!*p) return call_refuse(c, status, message);
    *a = (*p)->arguments;
    return true;
}

/* ---- run(problem, name, value, name, value, …) ---- */

enum { NAME_BYTES = 40 };

static bool name_of(call *c, int32_t index, char name[NAME_BYTES]) {
    tvm_bytes text;
    if (!call_text(c, index, "a name", &text)) return false;
    if (text.size >= NAME_BYTES) return call_fail(c, "ValueError", "a name has %zu bytes", text.size);
    memcpy(name, text.data, text.size);
    name[text.size] = 0;
    return true;
}

/* A size must not change after a tensor was checked against it, as the call would read beyond that tensor. */
static bool set_size(call *c, const attune_plan *plan, attune_arguments *a, const char *name, int64_t size,
                     bool has_tensor) {
    if (has_tensor) return call_fail(c, "ValueError", "the size %s comes after a tensor; sizes come first", name);
    return call_check(c, attune_plan_set_size(plan, a, name, size));
}

/* Sets a size, a number, or a tensor, depending on the value's type. */
static bool set(call *c, const attune_plan *plan, attune_arguments *a, int32_t index, bool *has_tensor) {
    char name[NAME_BYTES];
    const attune_dltensor *tensor;
    double number;
    if (!name_of(c, index, name)) return false;
    if (!call_has(c, index + 1)) return true;
    switch (c->arguments[index + 1].type) {
    case TVM_INT: return set_size(c, plan, a, name, c->arguments[index + 1].value.integer, *has_tensor);
    case TVM_FLOAT:
        return call_number(c, index + 1, name, &number) && call_check(c, attune_plan_set_number(plan, a, name, number));
    default:
        *has_tensor = true;
        return call_tensor(c, index + 1, name, &tensor) && call_check(c, attune_plan_bind(plan, a, name, tensor));
    }
}

/* run(problem, name, value, …): any problem of attune.h as text, with its tensors and sizes by their names. Sizes come
 * before all tensors; a name whose value is None is ignored. */
int __tvm_ffi_run(void *self, const tvm_any *arguments, int32_t count, tvm_any *result) {
    (void)self;
    call c = {.name = "run", .arguments = arguments, .count = count};
    common_plan *p = NULL;
    attune_arguments a;
    tvm_bytes text;
    bool has_tensor = false;
    bool ok =
        call_check_version(&c) && call_text(&c, 0, "the problem", &text) && find(&c, text.data, text.size, &p, &a);
    for (int32_t i = 1; ok && i < count; i += 2) ok = set(&c, p->plan, &a, i, &has_tensor);
    if (ok) run(&c, p, &a);
    common_plan_release(p);
    return call_end(&c, result);
}

/* ---- attention(q, k, v, out, is_causal, softmax_scale) ---- */

static const char *dtype_name(const attune_dltensor *x) {
    const int code = x->dtype_code, bits = x->dtype_bits;
    if (x->dtype_lanes != 1) return NULL;
    if (code == 4 && bits == 16) return "bf16";
    if (code != 2) return NULL;
    return bits == 32 ? "f32" : bits == 16 ? "f16" : bits == 64 ? "f64" : NULL;
}

typedef struct operands {
    const attune_dltensor *q, *k, *v, *out;
    int64_t is_causal;
    double scale; /* NaN: 1 / sqrt(head_dim) */
} operands;

static bool take(call *c, operands *o) {
    const char *const names[] = {"q", "k", "v", "out"};
    const attune_dltensor **const tensors[] = {&o->q, &o->k, &o->v, &o->out};
    for (int i = 0; i < 4; i++) {
        if (!call_tensor(c, i, names[i], tensors[i])) return false;
        if ((*tensors[i])->ndim != 4)
            return call_fail(c, "ValueError", "%s has %d dims; it must have [batch, heads, length, dim]", names[i],
                             (*tensors[i])->ndim);
    }
    if (!dtype_name(o->q)) return call_fail(c, "TypeError", "q must be f32, f16, bf16 or f64");
    if (o->k->shape[1] < 1 || o->q->shape[1] % o->k->shape[1])
        return call_fail(c, "ValueError", "q has %lld heads, which is no multiple of the %lld heads of k",
                         (long long)o->q->shape[1], (long long)o->k->shape[1]);
    o->is_causal = 0;
    o->scale = (double)NAN;
    return (!call_has(c, 4) || call_integer(c, 4, "is_causal", &o->is_causal)) &&
           (!call_has(c, 5) || call_number(c, 5, "softmax_scale", &o->scale));
}

static bool attend(call *c, const operands *o, common_plan **p) {
    char text[256];
    const long long heads = o->q->shape[1], kv_heads = o->k->shape[1];
    snprintf(text, sizeof text,
             "dtype=%s,num_heads=%lld,num_kv_heads=%lld,seq_q=dynamic,seq_kv=dynamic,head_dim=%lld,head_dim_v=%lld,"
             "softmax_scale=dynamic,is_causal=%d",
             dtype_name(o->q), heads, kv_heads, (long long)o->q->shape[3], (long long)o->v->shape[3],
             o->is_causal != 0);
    attune_arguments a;
    if (!find(c, text, strlen(text), p, &a)) return false;
    const attune_plan *const plan = (*p)->plan;
    a.batch = o->q->shape[0];
    a.softmax_scale = o->scale;
    return call_check(c, attune_plan_bind(plan, &a, "q", o->q)) &&
           call_check(c, attune_plan_bind(plan, &a, "k", o->k)) &&
           call_check(c, attune_plan_bind(plan, &a, "v", o->v)) &&
           call_check(c, attune_plan_bind(plan, &a, "out", o->out)) && run(c, *p, &a);
}

/* attention(q, k, v, out, is_causal=false, softmax_scale=None): tensors [batch, heads, length, dim] with any outer
 * strides; writes out. k and v may have fewer heads. */
int __tvm_ffi_attention(void *self, const tvm_any *arguments, int32_t count, tvm_any *result) {
    (void)self;
    call c = {.name = "attention", .arguments = arguments, .count = count};
    common_plan *p = NULL;
    operands o;
    if (count > 6) call_fail(&c, "TypeError", "there are %d arguments; it takes at most 6", (int)count);
    if (call_check_version(&c) && !c.kind && take(&c, &o)) attend(&c, &o, &p);
    common_plan_release(p);
    return call_end(&c, result);
}
