/* The functions that a module of TVM-FFI finds in libattune-tvm.so. */
#include "call.h"
#include "plans.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define TVM_EXPORT __attribute__((visibility("default")))

TVM_EXPORT tvm_function __tvm_ffi_run, __tvm_ffi_attention, __tvm_ffi_set_threads;

static atomic_uint max_threads;

/* set_threads(count): the most threads for each later call; 0: as many as the process may use CPUs. */
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

static bool run(call *c, const plan_entry *entry, const attune_arguments *arguments) {
    attune_run_options options = ATTUNE_RUN_OPTIONS_INIT;
    attune_status status;
    options.max_threads = atomic_load(&max_threads);
    attune_context *const context = plans_context(&status);
    return call_check(c, status) && call_check(c, attune_plan_run(context, entry->plan, arguments, &options));
}

static bool find(call *c, const char *text, size_t length, plan_entry **entry) {
    attune_status status;
    *entry = plans_find(text, length, &status);
    return *entry || call_check(c, status);
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

/* A size that changed after a tensor was compared with it would make the call read beyond that tensor. */
static bool set_size(call *c, const attune_plan *plan, attune_arguments *a, const char *name, int64_t size,
                     bool has_tensor) {
    if (has_tensor) return call_fail(c, "ValueError", "the size %s comes after a tensor; sizes come first", name);
    return call_check(c, attune_plan_set_size(plan, a, name, size));
}

/* A value by its type: a size, a number, or a tensor. */
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
 * before all tensors; None leaves a name out. */
int __tvm_ffi_run(void *self, const tvm_any *arguments, int32_t count, tvm_any *result) {
    (void)self;
    call c = {.name = "run", .arguments = arguments, .count = count};
    plan_entry *entry = NULL;
    attune_arguments a;
    tvm_bytes text;
    bool has_tensor = false;
    bool ok =
        call_check_version(&c) && call_text(&c, 0, "the problem", &text) && find(&c, text.data, text.size, &entry);
    ok = ok && call_check(&c, attune_plan_arguments_init(entry->plan, &a));
    for (int32_t i = 1; ok && i < count; i += 2) ok = set(&c, entry->plan, &a, i, &has_tensor);
    if (ok) run(&c, entry, &a);
    plans_release(entry);
    return call_end(&c, result);
}

/* ---- attention(q, k, v, out, is_causal, scale) ---- */

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
           (!call_has(c, 5) || call_number(c, 5, "scale", &o->scale));
}

static bool attend(call *c, const operands *o, plan_entry **entry) {
    char text[256];
    const long long heads = o->q->shape[1], kv_heads = o->k->shape[1];
    snprintf(text, sizeof text,
             "dtype=%s,num_heads=%lld,num_kv_heads=%lld,seq_q=dynamic,seq_kv=dynamic,head_dim=%lld,head_dim_v=%lld,"
             "softmax_scale=dynamic,is_causal=%d",
             dtype_name(o->q), heads, kv_heads, (long long)o->q->shape[3], (long long)o->v->shape[3],
             o->is_causal != 0);
    attune_arguments a;
    if (!find(c, text, strlen(text), entry)) return false;
    const attune_plan *const plan = (*entry)->plan;
    if (!call_check(c, attune_plan_arguments_init(plan, &a))) return false;
    a.batch = o->q->shape[0];
    a.softmax_scale = o->scale;
    return call_check(c, attune_plan_bind(plan, &a, "q", o->q)) &&
           call_check(c, attune_plan_bind(plan, &a, "k", o->k)) &&
           call_check(c, attune_plan_bind(plan, &a, "v", o->v)) &&
           call_check(c, attune_plan_bind(plan, &a, "out", o->out)) && run(c, *entry, &a);
}

/* attention(q, k, v, out, is_causal=false, scale=None): tensors [batch, heads, length, dim] with any outer strides;
 * writes out. k and v may have fewer heads. */
int __tvm_ffi_attention(void *self, const tvm_any *arguments, int32_t count, tvm_any *result) {
    (void)self;
    call c = {.name = "attention", .arguments = arguments, .count = count};
    plan_entry *entry = NULL;
    operands o;
    if (count > 6) call_fail(&c, "TypeError", "there are %d arguments; it takes at most 6", (int)count);
    if (call_check_version(&c) && !c.kind && take(&c, &o)) attend(&c, &o, &entry);
    plans_release(entry);
    return call_end(&c, result);
}
