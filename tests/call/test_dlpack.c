/* DLPack tensors as arguments: of every sort of problem, and refusals. */
#include "support/calls.h"
#include "support/guarded.h"
#include "support/problems.h"
#include "support/statuses.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Tensors as another library would describe them ---- */

typedef struct foreign {
    attune_dltensor tensor;
    int64_t shape[4], strides[4];
} foreign;

static const struct {
    uint8_t code, bits;
} types[] = {[ATTUNE_F32] = {2, 32}, [ATTUNE_F16] = {2, 16}, [ATTUNE_BF16] = {4, 16}, [ATTUNE_F64] = {2, 64},
             [ATTUNE_BOOL] = {6, 8}, [ATTUNE_I32] = {0, 32}, [ATTUNE_I8] = {0, 8},    [ATTUNE_F8] = {10, 8}};

static void describe(foreign *f, const attune_tensor *t, void *data) {
    *f = (foreign){.tensor = {.data = data,
                              .device_type = 1,
                              .ndim = t->rank,
                              .dtype_code = types[t->dtype].code,
                              .dtype_bits = types[t->dtype].bits,
                              .dtype_lanes = 1}};
    memcpy(f->shape, t->dims, sizeof f->shape);
    memcpy(f->strides, t->strides, sizeof f->strides);
    f->tensor.shape = f->shape;
    f->tensor.strides = f->strides;
}

/* ---- What is bound is what is set by hand ---- */

static bool is_compact(const attune_tensor *t) {
    int64_t stride = 1;
    for (int d = t->rank - 1; d >= 0; stride *= t->dims[d--])
        if (t->strides[d] != stride) return false;
    return true;
}

/* Strides of dims of one element may be anything. */
static void make_odd(foreign *f) {
    for (int d = 0; d < f->tensor.ndim; d++)
        if (f->shape[d] == 1) f->strides[d] = d % 2 ? -3 : INT64_MAX;
}

static void binds_all(const sample *from, int variant) {
    sample_call by_hand, bound;
    attune_kernel *kernel;
    sample_call_open(&by_hand, from, ON_THE_HEAP);
    sample_call_open(&bound, from, BEFORE_A_GUARD);
    assert_ok_for(attune_compile(sample_context, &by_hand.problem, NULL, &kernel), from->problem);
    attune_arguments a;
    assert_ok_for(attune_arguments_init(&a, &bound.problem), from->problem);
    for (size_t n = 0; n < bound.count; n++) {
        const size_t i = variant == 1 ? bound.count - 1 - n : n; /* in any order */
        foreign f;
        describe(&f, &bound.tensors[i], bound.memory[i].data);
        if (variant == 1) make_odd(&f);
        if (variant == 2 && is_compact(&bound.tensors[i])) f.tensor.strides = NULL;
        if (variant == 2) {
            f.tensor.data = (char *)f.tensor.data - 4096;
            f.tensor.byte_offset = 4096;
        }
        assert_ok_for(attune_bind_dlpack(&a, kernel, bound.tensors[i].name, &f.tensor), bound.tensors[i].name);
    }
    assert_ok_for(attune_run(sample_context, kernel, &by_hand.arguments), from->problem);
    assert_ok_for(attune_run(sample_context, kernel, &a), from->problem);
    if (!sample_calls_agree(&by_hand, &bound)) fail_msg("%s: other bits", from->problem);
    attune_kernel_release(kernel);
    sample_call_close(&by_hand);
    sample_call_close(&bound);
}

static void every_sort_of_problem(void **state) {
    (void)state;
    for (int i = 0; i < NUM_SAMPLES; i++)
        for (int variant = 0; variant < 3; variant++) binds_all(&samples[i], variant);
}

/* [batch, seq, heads, dim], as most frameworks have it, permuted. */
static void permuted_tensors(void **state) {
    (void)state;
    static const sample from = {.problem = "batch=2,num_heads=3,seq_q=dynamic,seq_kv=dynamic,head_dim=4"};
    attune_arguments a;
    attune_kernel *kernel;
    float out[2 * 5 * 3 * 4], again[2 * 3 * 5 * 4], q[2 * 5 * 3 * 4], k[2 * 7 * 3 * 4];
    for (int i = 0; i < 120; i++) q[i] = (float)(i % 11) / 8;
    for (int i = 0; i < 168; i++) k[i] = (float)(i % 13) / 8;
    const attune_problem p = problem_parsed(from.problem);
    assert_ok_for(attune_compile(sample_context, &p, NULL, &kernel), "compile");
    assert_ok_for(attune_arguments_init(&a, &p), "init");
    const char *const names[] = {"q", "k", "v", "out"};
    void *const data[] = {q, k, k, out};
    for (int i = 0; i < 4; i++) {
        const int64_t seq = i % 3 ? 7 : 5;
        const attune_tensor t = {
            .dtype = ATTUNE_F32, .rank = 4, .dims = {2, 3, seq, 4}, .strides = {seq * 12, 4, 12, 1}};
        foreign f;
        describe(&f, &t, data[i]);
        assert_ok_for(attune_bind_dlpack(&a, kernel, names[i], &f.tensor), names[i]);
    }
    assert_int_equal(a.seq_q, 5);
    assert_int_equal(a.seq_kv, 7);
    assert_int_equal(a.out.strides[1], 4);
    assert_ok_for(attune_run(sample_context, kernel, &a), "run");
    a.out.data = again;
    memset(a.out.strides, 0, sizeof a.out.strides);
    assert_ok_for(attune_run(sample_context, kernel, &a), "run");
    for (int b = 0; b < 2; b++)
        for (int h = 0; h < 3; h++)
            for (int i = 0; i < 5; i++)
                assert_memory_equal(&out[((b * 5 + i) * 3 + h) * 4], &again[((b * 3 + h) * 5 + i) * 4], 16);
    attune_kernel_release(kernel);
}

/* Masks that are 1 where the problem's are; truth values as bytes. */
static void masks(void **state) {
    (void)state;
    static const sample from = {.problem = "batch=2,num_heads=3,seq_q=4,seq_kv=9,head_dim=4,attn_mask_dims=qk"};
    sample_call c;
    attune_kernel *kernel;
    foreign f;
    sample_call_open(&c, &from, ON_THE_HEAP);
    assert_ok_for(attune_compile(sample_context, &c.problem, NULL, &kernel), from.problem);
    describe(&f, sample_call_tensor(&c, "attn_mask"), sample_call_data(&c, "attn_mask"));
    f.shape[0] = f.shape[1] = 1;
    f.tensor.strides = NULL;
    f.tensor.dtype_code = 1;
    assert_ok_for(attune_bind_dlpack(&c.arguments, kernel, "attn_mask", &f.tensor), "bytes");
    assert_ok_for(attune_run(sample_context, kernel, &c.arguments), "run");
    f.shape[1] = 3;
    assert_int_equal(attune_bind_dlpack(&c.arguments, kernel, "attn_mask", &f.tensor), ATTUNE_INVALID_ARGUMENT);
    assert_non_null(strstr(attune_last_message(), "attn_mask has 3 at dimension 1"));
    attune_kernel_release(kernel);
    sample_call_close(&c);
}

/* ---- What is refused ---- */

static attune_kernel *kernel;
static sample_call call;

static void open_call(const sample *from) {
    sample_call_open(&call, from, ON_THE_HEAP);
    assert_ok_for(attune_compile(sample_context, &call.problem, NULL, &kernel), from->problem);
}

static void close_call(void) {
    attune_kernel_release(kernel);
    sample_call_close(&call);
}

static foreign foreign_of(const char *name) {
    foreign f;
    describe(&f, sample_call_tensor(&call, name), sample_call_data(&call, name));
    return f;
}

static void assert_refused(const char *name, const attune_dltensor *tensor, const char *part) {
    const attune_arguments before = call.arguments;
    assert_fails(attune_bind_dlpack(&call.arguments, kernel, name, tensor), ATTUNE_INVALID_ARGUMENT, part);
    assert_memory_equal(&before, &call.arguments, sizeof before);
}

/* The tensor of this name, changed. */
#define BAD(name, change, part)                                                                                        \
    do {                                                                                                               \
        foreign f = foreign_of(name);                                                                                  \
        f.tensor.shape = f.shape;                                                                                      \
        f.tensor.strides = f.strides;                                                                                  \
        f.change;                                                                                                      \
        assert_refused(name, &f.tensor, part);                                                                         \
    } while (0)

static void bad_tensors(void **state) {
    (void)state;
    open_call(&samples[PLAIN]); /* q f32 2x4x13x12, k 2x2x21x12 */
    BAD("q", tensor.dtype_code = 0, "q has DLPack type code 0, 32 bits, 1 lanes; it must be f32: code 2, 32 bits");
    BAD("q", tensor.dtype_bits = 16, "code 2, 16 bits");
    BAD("q", tensor.dtype_lanes = 4, "4 lanes");
    BAD("q", tensor.dtype_lanes = 0, "0 lanes");
    BAD("q", tensor.device_type = 2, "q is on a device of DLPack type 2; it must be 1 (CPU)");
    BAD("q", tensor.ndim = 3, "q has 3 dimensions; attune_tensors gives it 4");
    BAD("q", tensor.ndim = -1, "q has -1 dimensions");
    BAD("q", tensor.shape = NULL, "the shape of q is NULL");
    BAD("q", tensor.data = NULL, "the data of q is NULL");
    BAD("q", tensor.byte_offset = 2, "is not aligned to 4 bytes");
    BAD("q", tensor.byte_offset = UINT64_MAX - 3, "its byte_offset 18446744073709551612 are no address");
    BAD("q", shape[2] = -4, "q has -4 at dimension 2");
    BAD("q", shape[0] = 3, "q has 3 at dimension 0, but batch is 2");
    BAD("q", shape[1] = 2, "q has 2 at dimension 1, but num_heads is 4");
    BAD("k", shape[1] = 4, "k has 4 at dimension 1, but num_kv_heads is 2");
    BAD("q", shape[2] = 12, "q has 12 at dimension 2, but seq_q is 13");
    BAD("k", shape[2] = 22, "k has 22 at dimension 2, but seq_kv is 21");
    BAD("q", shape[3] = 13, "q has 13 at dimension 3, but head_dim is 12");
    BAD("q", strides[1] = -1, "q has stride -1 at dimension 1");
    BAD("q", strides[1] = INT64_MAX, "q has stride 9223372036854775807");
    BAD("q", strides[3] = 2, "the innermost stride of q is 2; the kernel was compiled for 1");
    BAD("q", tensor.strides = NULL; f.shape[0] = f.shape[1] = INT64_MAX, "more elements than there are addresses");
    foreign q = foreign_of("q");
    q.tensor.shape = q.shape;
    q.tensor.strides = q.strides;
    assert_refused("query", &q.tensor, "the kernel has no tensor named query");
    assert_refused("attn_mask", &q.tensor, "the kernel has no tensor named attn_mask");
    assert_int_equal(attune_bind_dlpack(NULL, kernel, "q", &q.tensor), ATTUNE_INVALID_ARGUMENT);
    assert_int_equal(attune_bind_dlpack(&call.arguments, NULL, "q", &q.tensor), ATTUNE_INVALID_ARGUMENT);
    assert_int_equal(attune_bind_dlpack(&call.arguments, kernel, NULL, &q.tensor), ATTUNE_INVALID_ARGUMENT);
    assert_refused("q", NULL, "was given NULL");
    call.arguments.struct_size = 0;
    assert_refused("q", &q.tensor, "struct_size is 0");
    close_call();
}

/* One number for all entries of the batch, as torch's expand leaves it: strides that are all zero once those of dims
 * that the kernel was compiled without are left out, which would mean contiguous. An accepted tensor must not be read
 * beyond its one element. */
static void repeated_elements(void **state) {
    (void)state;
    static const struct {
        const char *problem, *refused;
        int64_t shape[4], strides[4];
    } cases[] = {
        {"attn_bias_dims=2:1:1:1",
         "attn_bias repeats one element: its stride is 0 at dimension 0",
         {2, 1, 1, 1},
         {0, 1, 1, 1}},
        {"attn_bias_dims=2:1:1:1", "its stride is 0 at dimension 0", {2, 2, 3, 5}, {0}},
        {"attn_bias_dims=2:2:dynamic:1", "its stride is 0 at dimension 2", {2, 2, 3, 1}, {0, 0, 0, 1}},
        {"attn_bias_dims=2:1:1:5", NULL, {2, 1, 1, 5}, {0, 7, 9, 1}},
        {"attn_bias_dims=1:1:1:1", NULL, {2, 2, 3, 5}, {0}},
        {"attn_bias_dims=1:1:dynamic:1", NULL, {1, 1, 1, 1}, {3, 3, 3, 3}},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        char problem[256];
        snprintf(problem, sizeof problem, "batch=2,num_heads=2,seq_q=%s,seq_kv=5,head_dim=4,short_masks=1,%s",
                 n == 5                                ? "1"
                 : strstr(cases[n].problem, "dynamic") ? "dynamic"
                                                       : "3",
                 cases[n].problem);
        const sample from = {.problem = problem, .sizes = n == 2 ? "seq_q=3" : NULL};
        open_call(&from);
        foreign f = foreign_of("attn_bias");
        guarded few = guard(5 * sizeof(float)), one = guard(sizeof(float));
        f.tensor.data = cases[n].shape[3] == 5 && cases[n].strides[3] ? few.data : one.data;
        memcpy(f.shape, cases[n].shape, sizeof f.shape);
        memcpy(f.strides, cases[n].strides, sizeof f.strides);
        f.tensor.shape = f.shape;
        f.tensor.strides = f.strides;
        if (cases[n].refused) assert_refused("attn_bias", &f.tensor, cases[n].refused);
        const attune_status status = attune_bind_dlpack(&call.arguments, kernel, "attn_bias", &f.tensor);
        assert_int_equal(status, cases[n].refused ? ATTUNE_INVALID_ARGUMENT : ATTUNE_OK);
        if (!status) assert_ok_for(attune_run(sample_context, kernel, &call.arguments), problem);
        unguard(&few);
        unguard(&one);
        close_call();
    }
}

static void bad_tables(void **state) {
    (void)state;
    open_call(&samples[PAGED]); /* block_table 2x4 */
    BAD("block_table", strides[0] = 3, "block_table has stride 3 at dimension 0; it must be at least 4");
    BAD("block_table", strides[1] = 2, "the innermost stride of block_table is 2; the kernel was compiled for 1");
    BAD("block_table", shape[1] = 5, "block_table has 5 at dimension 1, but max_pages is 4");
    BAD("block_table", tensor.dtype_bits = 64, "it must be i32: code 0, 32 bits");
    BAD("k", shape[2] = 3, "k has 3 at dimension 2, but page_size is 4");
    BAD("kv_lens", shape[0] = 3, "kv_lens has 3 at dimension 0, but batch is 2");
    close_call();
    open_call(&samples[RAGGED]); /* cu_seqlens of 4, 12 tokens */
    BAD("cu_seqlens_q", shape[0] = 3, "cu_seqlens_q has 3 at dimension 0, but batch + 1 is 4");
    call.arguments.batch = INT64_MAX;
    BAD("cu_seqlens_q", shape[0] = INT64_MIN, "cu_seqlens_q has -9223372036854775808 at dimension 0");
    BAD("cu_seqlens_q", shape[0] = 4, "batch is 9223372036854775807");
    call.arguments.batch = 3;
    BAD("q", shape[0] = 2, "q has 2 at dimension 0, but that dimension is 1");
    BAD("q", shape[2] = 13, "q has 13 at dimension 2, but total_q is 12");
    close_call();
    open_call(&samples[BLOCK_CODES]);
    BAD("k", tensor.dtype_code = 1, "k has DLPack type code 1, 8 bits");
    BAD("packed_weights", shape[0] += 1, "packed_weights has");
    close_call();
}

static void bad_angles(void **state) {
    (void)state;
    open_call(&samples[ROTARY]); /* cos 2x5x4, 20 apart */
    BAD("cos", strides[1] = 8, "cos has stride 8 at dimension 1; it must be contiguous: 4");
    BAD("sin", strides[0] = 40,
        "sin has 40 elements between two sequences of the batch, but rotary_batch_stride is "
        "20");
    BAD("cos", shape[0] = 3, "cos has 3 at dimension 0, but batch is 2");
    BAD("cos", shape[1] = 6, "cos has 6 at dimension 1, but rotary_positions is 5");
    BAD("cos", shape[2] = 5, "cos has 5 at dimension 2, but rotary_dim / 2 is 4");
    close_call();
}

/* Some libraries give a tensor without elements strides of 0, NumPy among them. */
static void no_elements(void **state) {
    (void)state;
    static const sample open = {.problem = "num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=8",
                                .sizes = "seq_q=3,seq_kv=4"};
    open_call(&open);
    call.arguments.seq_kv = ATTUNE_NOT_SET;
    static const char *const names[] = {"k", "v"};
    for (int i = 0; i < 2; i++) {
        foreign f = foreign_of(names[i]);
        f.tensor.shape = f.shape;
        f.tensor.strides = f.strides;
        f.shape[2] = 0;
        memset(f.strides, 0, sizeof f.strides);
        assert_ok_for(attune_bind_dlpack(&call.arguments, kernel, names[i], &f.tensor), names[i]);
    }
    assert_int_equal(call.arguments.seq_kv, 0);
    assert_int_equal(call.arguments.k.strides[3], 1);
    assert_int_equal(call.arguments.k.strides[1], 8);
    assert_ok_for(attune_run(sample_context, kernel, &call.arguments), "run");
    assert_true(call.arguments.out.data && *(const float *)call.arguments.out.data == 0);
    close_call();
}

/* Rows of partial results are batch * num_heads * seq_q, of which seq_q may be open. */
static void bad_parts(void **state) {
    (void)state;
    static const sample open = {.problem = "op=merge,num_heads=2,seq_q=dynamic,head_dim_v=8,num_parts=2",
                                .sizes = "seq_q=5"};
    open_call(&open);
    BAD("parts", shape[1] = 11, "parts has 11 at dimension 1, but batch * num_heads * seq_q is 10");
    call.arguments.seq_q = ATTUNE_NOT_SET;
    BAD("parts", shape[1] = 11, "parts has 11 at dimension 1, no multiple of batch * num_heads = 2");
    foreign f = foreign_of("parts");
    f.tensor.shape = f.shape;
    f.tensor.strides = NULL;
    assert_ok_for(attune_bind_dlpack(&call.arguments, kernel, "parts", &f.tensor), "parts");
    assert_int_equal(call.arguments.seq_q, 5);
    close_call();
}

static void arguments_of_an_older_program(void **state) {
    (void)state;
    open_call(&samples[BLOCK]);
    foreign f = foreign_of("x");
    f.tensor.shape = f.shape;
    f.tensor.strides = f.strides;
    call.arguments.struct_size = offsetof(attune_arguments, softmax_scale);
    assert_refused("x", &f.tensor, "compile the program again");
    close_call();
}

static void kernels_of_ir(void **state) {
    (void)state;
    static const char text[] = "kernel @one (o: f32[1] out) {\n  parallel for i in 0..1 {\n    o[i] = 1.0\n  }\n}\n";
    attune_arguments a = {.struct_size = sizeof a};
    attune_kernel *ir = NULL;
    foreign f = {.tensor = {.ndim = 1}};
    assert_ok_for(attune_ir_compile(sample_context, text, &ir), "compile");
    assert_int_equal(attune_bind_dlpack(&a, ir, "x", &f.tensor), ATTUNE_INVALID_ARGUMENT);
    attune_kernel_release(ir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sort_of_problem),
        cmocka_unit_test(permuted_tensors),
        cmocka_unit_test(masks),
        cmocka_unit_test(repeated_elements),
        cmocka_unit_test(no_elements),
        cmocka_unit_test(bad_tensors),
        cmocka_unit_test(bad_tables),
        cmocka_unit_test(bad_angles),
        cmocka_unit_test(bad_parts),
        cmocka_unit_test(arguments_of_an_older_program),
        cmocka_unit_test(kernels_of_ir),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
