/* attune_mha: blocks that keep their weights, from making one to threads that share it. */
#include "engine/create.h"
#include "ref_block.h"
#include "support/block_model.h"
#include "support/engine/contexts.h"
#include "support/engine/fake_codegen.h"
#include "support/problems.h"
#include "support/temp_dir.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static attune_context *open_context(const char *cache_dir) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = cache_dir;
    options.max_workers = 2;
    return test_context(&options, NULL);
}

/* ---- A call with its tensors ---- */

typedef struct block_call {
    attune_arguments arguments;
    attune_tensor tensors[REF_MAX_TENSORS];
    size_t count;
    float *out;
    size_t out_bytes;
} block_call;

static size_t elements(const attune_tensor *t) {
    size_t count = 1;
    for (int d = 0; d < t->rank; d++) count *= (size_t)t->dims[d];
    return count;
}

/* All tensors f32 and contiguous; packed_weights is left NULL. */
static block_call open_call(const attune_problem *problem) {
    block_call c;
    unsigned seed = 1;
    assert_ok(attune_arguments_init(&c.arguments, problem));
    assert_ok(attune_tensors(problem, &c.arguments, c.tensors, REF_MAX_TENSORS, &c.count));
    for (size_t i = 0; i < c.count; i++) {
        const attune_tensor *t = &c.tensors[i];
        if (!strcmp(t->name, "packed_weights")) continue;
        const size_t count = elements(t);
        float *data = malloc(count * sizeof *data);
        assert_non_null(data);
        for (size_t e = 0; e < count; e++) {
            seed = seed * 1103515245u + 12345u;
            data[e] = (float)(seed >> 16 & 0x7fff) / 16384.0f - 1.0f;
        }
        memcpy((char *)&c.arguments + t->pointer_offset, &data, sizeof data);
        if (strcmp(t->name, "out")) continue;
        c.out = data;
        c.out_bytes = count * sizeof *data;
    }
    return c;
}

static void close_call(block_call *c) {
    for (size_t i = 0; i < c->count; i++) {
        void *data;
        memcpy(&data, (char *)&c->arguments + c->tensors[i].pointer_offset, sizeof data);
        if (strcmp(c->tensors[i].name, "packed_weights")) free(data);
    }
}

static void assert_is_the_truth(const model *m, const block_call *c) {
    const ref_call call = {.problem = &m->canonical,
                           .arguments = &c->arguments,
                           .tensors = c->tensors,
                           .count = c->count,
                           .weights = &m->weights};
    ref_result truth = {0};
    assert_true(ref_compute(&call, &truth));
    for (size_t i = 0; i < c->out_bytes / sizeof(float); i++)
        if (!(fabsl(truth.out[i] - (long double)c->out[i]) <= 1e-4L * (1 + fabsl(truth.out[i]))))
            fail_msg("out[%zu] is %g, not %Lg", i, (double)c->out[i], truth.out[i]);
    ref_result_free(&truth);
}

/* ---- Making and running one ---- */

static const char *const problems[] = {
    "embed_dim=24,num_heads=3,seq_q=5",
    "embed_dim=40,num_heads=6,num_kv_heads=2,head_dim=20,head_dim_v=12,out_dim=50,batch=2,seq_q=7,is_causal=1",
    "embed_dim=24,kv_embed_dim=10,num_heads=3,seq_q=4,seq_kv=9",
};

static void test_runs(void **state) {
    attune_context *context = open_context(*state);
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (int layout = 0; layout < 2; layout++) {
            model m = open_model(problems[i], (attune_weight_layout)layout, SMALL_NUMBERS);
            block_call c = open_call(&m.problem);
            attune_mha *mha, *by_blob;
            assert_ok(attune_mha_create(context, &m.problem, NULL, &m.weights, &mha));
            assert_ok(attune_mha_run(mha, &c.arguments, NULL));
            assert_is_the_truth(&m, &c);

            float *first = malloc(c.out_bytes);
            assert_non_null(first);
            memcpy(first, c.out, c.out_bytes);
            pack_model(&m);
            assert_ok(attune_mha_create_packed(context, &m.problem, NULL, m.blob, m.blob_bytes, &by_blob));
            memset(c.out, 0xff, c.out_bytes);
            assert_ok(attune_mha_run(by_blob, &c.arguments, NULL));
            assert_memory_equal(c.out, first, c.out_bytes);

            memset(c.out, 0xff, c.out_bytes);
            c.arguments.packed_weights = m.blob;
            assert_ok(attune_run(context, attune_mha_kernel(mha), &c.arguments));
            assert_memory_equal(c.out, first, c.out_bytes);
            free(first);
            attune_mha_destroy(mha);
            attune_mha_destroy(by_blob);
            close_call(&c);
            close_model(&m);
        }
    attune_context_destroy(context);
}

/* The weights may go once the block is there; its own blob counts, whatever the arguments say. */
static void test_keeps_its_weights(void **state) {
    attune_context *context = open_context(*state);
    model m = open_model(problems[0], ATTUNE_OUT_IN, SMALL_NUMBERS),
          other = open_model(problems[0], ATTUNE_IN_OUT, RANDOM_BITS);
    block_call c = open_call(&m.problem);
    attune_mha *mha;
    size_t bytes;
    pack_model(&other);
    assert_ok(attune_mha_create(context, &m.problem, NULL, &m.weights, &mha));
    for (int id = 0; id < ATTUNE_QKV_WEIGHT; id++) {
        const attune_weight *w = &m.weights.tensor[id];
        memset((void *)w->data, 0xff, count_of(w) * m.size);
    }
    close_model(&m);
    m = open_model(problems[0], ATTUNE_OUT_IN, SMALL_NUMBERS);
    c.arguments.packed_weights = other.blob;
    assert_ok(attune_mha_run(mha, &c.arguments, NULL));
    assert_ptr_equal(c.arguments.packed_weights, other.blob);
    assert_is_the_truth(&m, &c);
    pack_model(&m);
    const void *packed = attune_mha_packed_weights(mha, &bytes);
    assert_int_equal(bytes, m.blob_bytes);
    assert_memory_equal(packed, m.blob, bytes);
    assert_ptr_equal(attune_mha_packed_weights(mha, NULL), packed);
    attune_mha_destroy(mha);

    /* A blob is not copied. */
    assert_ok(attune_mha_create_packed(context, &m.problem, NULL, m.blob, 0, &mha));
    assert_ptr_equal(attune_mha_packed_weights(mha, &bytes), m.blob);
    assert_int_equal(bytes, m.blob_bytes);
    attune_mha_destroy(mha);
    close_call(&c);
    close_model(&m);
    close_model(&other);
    attune_context_destroy(context);
}

/* A prompt and its next token, each by a kernel of its own, from one blob: the bits of the whole. */
static void test_prefill_and_decode_share_a_blob(void **state) {
    enum { EMBED = 24, TOKENS = 6, HEADS = 3, DIM = 8 };
    static const char prompt[] = "embed_dim=24,num_heads=3,seq_q=5,seq_new=5,seq_kv=5,is_causal=1,reproducible=1";
    static const char step[] = "embed_dim=24,num_heads=3,seq_q=1,seq_new=1,seq_kv=6,is_causal=1,reproducible=1,"
                               "causal_align=bottom_right";
    static const char all[] = "embed_dim=24,num_heads=3,seq_q=6,is_causal=1,reproducible=1";
    attune_context *context = open_context(*state);
    model m = open_model(all, ATTUNE_OUT_IN, SMALL_NUMBERS);
    block_call c = open_call(&m.problem);
    float k[HEADS][TOKENS][DIM], v[HEADS][TOKENS][DIM], out[TOKENS][EMBED];
    const int64_t cache[4] = {HEADS * TOKENS * DIM, TOKENS * DIM, DIM, 1};
    attune_mha *whole;
    pack_model(&m);
    assert_ok(attune_mha_create_packed(context, &m.problem, NULL, m.blob, m.blob_bytes, &whole));
    assert_ok(attune_mha_run(whole, &c.arguments, NULL));
    attune_mha_destroy(whole);
    for (int part = 0; part < 2; part++) {
        attune_arguments a;
        attune_mha *mha;
        const attune_problem problem = problem_parsed(part ? step : prompt);
        assert_ok(attune_mha_create_packed(context, &problem, NULL, m.blob, m.blob_bytes, &mha));
        assert_ok(attune_arguments_init(&a, &problem));
        a.x.data = (const float *)c.arguments.x.data + (part ? 5 * EMBED : 0);
        a.out.data = out[part ? 5 : 0];
        a.k.data = k, a.v.data = v;
        memcpy(a.k.strides, cache, sizeof cache);
        memcpy(a.v.strides, cache, sizeof cache);
        assert_ok(attune_mha_run(mha, &a, NULL));
        attune_mha_destroy(mha);
    }
    assert_memory_equal(out, c.out, sizeof out);
    close_call(&c);
    close_model(&m);
    attune_context_destroy(context);
}

/* Keys of a source are projected into caches, then only queries: from one blob, the bits of both at once. */
static void test_projected_keys_share_the_blob(void **state) {
    enum { EMBED = 24, SOURCE = 9, HEADS = 3, DIM = 8 };
    static const char whole[] = "embed_dim=24,kv_embed_dim=10,num_heads=3,seq_q=5,seq_kv=9,reproducible=1";
    static const char fill[] = "embed_dim=24,kv_embed_dim=10,num_heads=3,seq_q=1,seq_new=9,seq_kv=9,reproducible=1";
    static const char step[] = "embed_dim=24,num_heads=3,seq_q=4,seq_kv=9,kv_projected=1,reproducible=1";
    attune_context *context = open_context(*state);
    model m = open_model(whole, ATTUNE_OUT_IN, SMALL_NUMBERS);
    block_call c = open_call(&m.problem);
    float k[HEADS][SOURCE][DIM], v[HEADS][SOURCE][DIM], out[5][EMBED];
    attune_mha *mha;
    size_t bytes;
    assert_ok(attune_mha_create(context, &m.problem, NULL, &m.weights, &mha));
    assert_ok(attune_mha_run(mha, &c.arguments, NULL));
    pack_model(&m);
    for (int part = 0; part < 2; part++) {
        attune_arguments a;
        attune_mha *shares;
        const attune_problem problem = problem_parsed(part ? step : fill);
        assert_ok(attune_mha_create_packed(context, &problem, NULL, m.blob, part * m.blob_bytes, &shares));
        assert_ptr_equal(attune_mha_packed_weights(shares, &bytes), m.blob);
        assert_int_equal(bytes, m.blob_bytes); /* all of it, so that it can be saved */
        assert_ok(attune_arguments_init(&a, &problem));
        a.x.data = (const float *)c.arguments.x.data + part * EMBED;
        a.x_kv.data = c.arguments.x_kv.data;
        a.out.data = out[part];
        a.k.data = k, a.v.data = v;
        assert_ok(attune_mha_run(shares, &a, NULL));
        attune_mha_destroy(shares);
    }
    assert_memory_equal(out, c.out, sizeof out);
    attune_mha_destroy(mha);
    close_call(&c);
    close_model(&m);
    attune_context_destroy(context);
}

/* ---- Threads ---- */

enum { THREADS = 8, RUNS = 20 };

typedef struct runner {
    attune_context *context;
    const attune_mha *mha;
    const attune_problem *problem;
    const float *expected;
    bool right;
} runner;

static void *run_often(void *r_) {
    runner *r = r_;
    block_call c = open_call(r->problem);
    r->right = true;
    for (int i = 0; i < RUNS; i++) {
        memset(c.out, 0xff, c.out_bytes);
        if (attune_mha_run(r->mha, &c.arguments, NULL) || memcmp(c.out, r->expected, c.out_bytes)) r->right = false;
    }
    close_call(&c);
    return NULL;
}

static void test_threads_share_a_block(void **state) {
    attune_context *context = open_context(*state);
    model m = open_model(problems[1], ATTUNE_OUT_IN, SMALL_NUMBERS);
    block_call c = open_call(&m.problem);
    attune_mha *mha;
    pthread_t threads[THREADS];
    runner runners[THREADS];
    assert_ok(attune_mha_create(context, &m.problem, NULL, &m.weights, &mha));
    assert_ok(attune_mha_run(mha, &c.arguments, NULL));
    for (int t = 0; t < THREADS; t++) {
        runners[t] = (runner){context, mha, &m.problem, c.out, false};
        assert_int_equal(pthread_create(&threads[t], NULL, run_often, &runners[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
        assert_true(runners[t].right);
    }
    attune_mha_destroy(mha);
    close_call(&c);
    close_model(&m);
    attune_context_destroy(context);
}

/* ---- Refusals ---- */

static void test_refusals(void **state) {
    const attune_status bad = ATTUNE_INVALID_ARGUMENT;
    attune_context *context = open_context(*state);
    model m = open_model(problems[0], ATTUNE_OUT_IN, SMALL_NUMBERS);
    model other = open_model(problems[1], ATTUNE_OUT_IN, SMALL_NUMBERS);
    attune_problem plain = ATTUNE_PROBLEM_INIT;
    attune_mha *mha = (attune_mha *)&m;
    pack_model(&m);
    pack_model(&other);
    plain.seq_q = plain.head_dim = 4;
#define REFUSED(call, status, part)                                                                                    \
    do {                                                                                                               \
        mha = (attune_mha *)&m;                                                                                        \
        assert_fails(call, status, part);                                                                              \
        assert_null(mha);                                                                                              \
    } while (0)
    REFUSED(attune_mha_create(context, &plain, NULL, &m.weights, &mha), ATTUNE_INVALID_PROBLEM, "embed_dim is 0");
    REFUSED(attune_mha_create(NULL, &m.problem, NULL, &m.weights, &mha), bad, "attune_mha_create was given NULL");
    REFUSED(attune_mha_create(context, NULL, NULL, &m.weights, &mha), bad, "attune_mha_create was given NULL");
    REFUSED(attune_mha_create(context, &m.problem, NULL, NULL, &mha), bad, "attune_mha_create was given NULL");
    REFUSED(attune_mha_create(context, &m.problem, NULL, &other.weights, &mha), bad, "q_weight is [120, 40] f32");
    mha_schedule schedule = {0};
    REFUSED(attune_mha_create(context, &m.problem, mha_schedule_text(&schedule).text, &m.weights, &mha),
            ATTUNE_INVALID_SCHEDULE, "lanes");
    assert_fails(attune_mha_create(context, &m.problem, NULL, &m.weights, NULL), bad, "was given NULL");

    const size_t bytes = m.blob_bytes;
    REFUSED(attune_mha_create_packed(context, &plain, NULL, m.blob, bytes, &mha), ATTUNE_INVALID_PROBLEM, "embed_dim");
    REFUSED(attune_mha_create_packed(context, &m.problem, NULL, NULL, bytes, &mha), bad, "was given NULL");
    REFUSED(attune_mha_create_packed(context, &m.problem, NULL, m.blob, bytes - 1, &mha), ATTUNE_BAD_FILE, "cut off");
    REFUSED(attune_mha_create_packed(context, &m.problem, NULL, m.blob + 32, bytes, &mha), bad, "aligned to 64");
    REFUSED(attune_mha_create_packed(context, &m.problem, NULL, other.blob, 0, &mha), ATTUNE_BAD_FILE, "of another");
    m.blob[bytes - 1] ^= 1;
    REFUSED(attune_mha_create_packed(context, &m.problem, NULL, m.blob, bytes, &mha), ATTUNE_BAD_FILE, "checksum");
    assert_ok(attune_mha_create_packed(context, &m.problem, NULL, m.blob, 0, &mha)); /* only the header is looked at */
#undef REFUSED

    block_call c = open_call(&m.problem);
    float *before = malloc(c.out_bytes);
    assert_non_null(before);
    memcpy(before, c.out, c.out_bytes);
    assert_fails(attune_mha_run(NULL, &c.arguments, NULL), bad, "attune_mha_run was given NULL");
    assert_fails(attune_mha_run(mha, NULL, NULL), bad, "attune_mha_run was given NULL");
    c.arguments.struct_size--;
    assert_fails(attune_mha_run(mha, &c.arguments, NULL), bad, "struct_size");
    c.arguments.struct_size++;
    m.blob[0] ^= 1; /* afterwards: every run looks at the header */
    assert_fails(attune_mha_run(mha, &c.arguments, NULL), bad, "packed_weights");
    assert_memory_equal(c.out, before, c.out_bytes);
    free(before);
    attune_mha_destroy(mha);
    attune_mha_destroy(NULL);
    attune_mha_destroy(NULL);
    assert_null(attune_mha_kernel(NULL));
    size_t none = 1;
    assert_null(attune_mha_packed_weights(NULL, &none));
    assert_int_equal(none, 0);
    close_call(&c);
    close_model(&m);
    close_model(&other);
    attune_context_destroy(context);
}

/* ---- Memory that is refused ---- */

static long allocations, fail_at, live_blocks;
static bool for_good;

static void *faulty_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    allocations++;
    if (fail_at && (allocations == fail_at || (for_good && allocations > fail_at))) return NULL;
    void *pointer = at_alloc_aligned(NULL, bytes, align);
    live_blocks += pointer != NULL;
    return pointer;
}

static void counting_free(void *user, void *pointer) {
    (void)user;
    live_blocks--;
    free(pointer);
}

static bool make_both(attune_context *context, model *m) {
    attune_mha *mha, *by_blob;
    const attune_status made = attune_mha_create(context, &m->problem, NULL, &m->weights, &mha);
    if (made) {
        assert_int_equal(made, ATTUNE_OUT_OF_MEMORY);
        assert_null(mha);
    }
    const attune_status shared = attune_mha_create_packed(context, &m->problem, NULL, m->blob, 0, &by_blob);
    if (shared) {
        assert_int_equal(shared, ATTUNE_OUT_OF_MEMORY);
        assert_null(by_blob);
    }
    attune_mha_destroy(mha);
    attune_mha_destroy(by_blob);
    return !made && !shared;
}

/* Every allocation in turn, alone and with all after it: no crash, no leak, the right status. */
static void test_memory_refused(void **state) {
    static const attune_allocator allocator = {faulty_alloc, counting_free, NULL};
    static fake_codegen fake;
    const at_context_hooks hooks = {.compile = fake_compile, .compile_user = &fake};
    model m = open_model(problems[0], ATTUNE_OUT_IN, SMALL_NUMBERS);
    (void)state;
    pack_model(&m);
    for (int mode = 0; mode < 2; mode++) {
        int failures = 0;
        for_good = mode == 1;
        for (long n = 1;; n++) {
            attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
            attune_context *context;
            options.allocator = &allocator;
            options.cache_dir = "";
            options.max_workers = 1;
            fail_at = live_blocks = 0;
            assert_ok(at_context_create(&options, &hooks, &context));
            allocations = 0;
            fail_at = n;
            failures += !make_both(context, &m);
            const bool last = allocations < n;
            attune_context_destroy(context);
            assert_int_equal(live_blocks, 0);
            if (last) break;
        }
        assert_true(failures > 3);
    }
    fail_at = 0;
    close_model(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_runs, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(test_keeps_its_weights, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(test_prefill_and_decode_share_a_blob, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(test_projected_keys_share_the_blob, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(test_threads_share_a_block, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test(test_memory_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
