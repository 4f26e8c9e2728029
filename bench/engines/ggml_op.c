/* ggml_op THREADS SECONDS [FIRST [LAST]]: FLASH_ATTN_EXT by ggml's CPU backend, by attune (GGML_BACKEND_PATH), and by
 * the CPU backend again, in turns, as a line of JSON for each case (or those with these numbers): the least
 * microseconds of each, and the normalised square of the difference of their results. Rows are at the end of the keys,
 * and keys are padded to 256, as llama.cpp's are. */
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct bench_case {
    int heads, kv_heads, dim, rows, keys;
    int window;    /* 0: none. With is_whole, half of it on each side; with sequences < 0 in a ring, whose newest key is
                    * in its middle */
    int sequences; /* of one cache: first their prompts, then their tokens in turns; 0: one */
    const char *type;
    int chosen;               /* so many keys of each row, anywhere; 0: all */
    bool has_alibi, is_whole; /* rows attend to keys after them, too */
    int dim_v;                /* V is the first columns of K; 0: it is a tensor of its own */
} bench_case;

static const bench_case usual[] = {
    {32, 8, 128, 1, 512, 0, 0, "f16"},
    {32, 8, 128, 1, 512, 0, 0, "q8_0"},
    {32, 8, 128, 1, 4096, 0, 0, "f16"},
    {32, 8, 128, 1, 4096, 0, 0, "q8_0"},
    {32, 8, 128, 1, 4096, 0, 0, "q4_0"},
    {32, 8, 128, 1, 4096, 0, 0, "q5_0"},
    {32, 8, 128, 512, 512, 0, 0, "f16"},
    {32, 8, 128, 512, 512, 0, 0, "q8_0"},
    {32, 8, 128, 512, 4096, 0, 0, "f16"},
    {32, 8, 128, 512, 4096, 0, 0, "q8_0"},
    {32, 8, 128, 512, 4096, 1024, 0, "f16"},
    {9, 3, 64, 1, 8192, 0, 0, "f16"},
    {32, 8, 128, 4, 4096, 0, 4, "f16"},
    {32, 8, 128, 16, 4096, 0, 16, "f16"},
    {32, 8, 128, 4, 4096, 0, 4, "q8_0"},
    {64, 8, 64, 512, 768, 128, -1, "f16"},
    {64, 8, 64, 1, 768, 500, -1, "f16"},
    {32, 16, 128, 512, 1536, 1024, -1, "f16"},
    {32, 8, 128, 259, 4096, 0, 4, "f16"},
    {32, 8, 128, 512, 4096, 0, 1, "f16"},
    {9, 3, 64, 4, 4096, 0, 4, "f16"},
    {9, 3, 64, 512, 512, 0, 0, "f16"},
    {12, 12, 64, 1, 4096, 0, 0, "f16"},
    {12, 12, 64, 512, 512, 0, 0, "f16", .is_whole = true, .has_alibi = true},
    {32, 8, 128, 1, 16384, 0, 0, "f16", .chosen = 2048},
    {32, 8, 128, 4, 16384, 0, 0, "q8_0", .chosen = 2048},
    {32, 8, 128, 4, 16384, 0, 0, "f16", .chosen = 2048, .has_alibi = true},
    {12, 12, 64, 512, 512, 128, 0, "f16", .is_whole = true},  /* ModernBERT */
    {3, 1, 256, 1024, 1024, 512, 0, "f16", .is_whole = true}, /* EmbeddingGemma */
    {16, 1, 576, 1, 4096, 0, 0, "f16", .dim_v = 512},         /* DeepSeek V2 Lite */
    {16, 1, 576, 1, 4096, 0, 0, "q8_0", .dim_v = 512},
    {16, 1, 576, 512, 4096, 0, 0, "f16", .dim_v = 512},
    {8, 1, 512, 1, 4096, 0, 0, "f16"}, /* full layers of Gemma 4 */
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static enum ggml_type type_of(const char *name) {
    for (int t = 0; t < GGML_TYPE_COUNT; t++)
        if (ggml_type_name((enum ggml_type)t) && !strcmp(ggml_type_name((enum ggml_type)t), name))
            return (enum ggml_type)t;
    fprintf(stderr, "ggml_op: ggml has no type %s\n", name);
    exit(2);
}

static float draw(void) { return (float)rand() / (float)RAND_MAX * 2 - 1; }

static void fill(struct ggml_tensor *t) {
    const int64_t n = ggml_nelements(t);
    float *const numbers = malloc((size_t)n * sizeof *numbers);
    for (int64_t i = 0; i < n; i++) numbers[i] = draw();
    if (t->type == GGML_TYPE_F32)
        ggml_backend_tensor_set(t, numbers, 0, ggml_nbytes(t));
    else
        ggml_quantize_chunk(t->type, numbers, t->data, 0, n / t->ne[0], t->ne[0], NULL);
    free(numbers);
}

/* The sequence of a row: the last rows are a token of each, those before them the prompt of the first one. */
static int64_t sequence_of(const bench_case *c, int64_t row) {
    const int64_t left = c->rows - row;
    return left < c->sequences ? c->sequences - left : 0;
}

static bool is_visible(const bench_case *c, int64_t row, int64_t key) {
    if (c->chosen &&
        (uint64_t)(key * 2654435761 + row * 40503) % (1u << 20) * (uint64_t)c->keys >> 20 >= (uint64_t)c->chosen)
        return false;
    const int64_t old = c->keys - c->rows, prompts = old * 3 / 4;
    if (c->is_whole) return !c->window || llabs(old + row - key) <= c->window / 2;
    if (c->sequences < 0) {
        const int64_t newest = c->keys / 2 - c->rows + row; /* modulo keys */
        return ((newest - key) % c->keys + c->keys) % c->keys < c->window;
    }
    if (!c->sequences) return key <= old + row && (!c->window || key > old + row - c->window);
    if (key >= old) return key <= old + row && sequence_of(c, key - old) == sequence_of(c, row);
    return (key < prompts ? key * c->sequences / prompts : key % c->sequences) == sequence_of(c, row);
}

static void fill_mask(struct ggml_tensor *t, const bench_case *c) {
    ggml_fp16_t *const m = t->data;
    const ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY);
    for (int64_t row = 0; row < t->ne[1]; row++)
        for (int64_t key = 0; key < t->ne[0]; key++) {
            const float bias = c->has_alibi ? -fabsf((float)(c->keys - c->rows + row - key)) : 0;
            m[row * t->ne[0] + key] = is_visible(c, row, key) && key < c->keys ? ggml_fp32_to_fp16(bias) : hidden;
        }
}

typedef struct bench_graph {
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    struct ggml_tensor *out;
    ggml_backend_buffer_t buffer;
} bench_graph;

static bench_graph make(const bench_case *c) {
    const int64_t padded = (c->keys + 255) / 256 * 256;
    bench_graph g = {.ctx = ggml_init((struct ggml_init_params){16 << 20, NULL, true})};
    struct ggml_context *const x = g.ctx;
    /* As llama.cpp has them: [dim, heads, tokens], seen as [dim, tokens, heads]. */
    struct ggml_tensor *const q = ggml_new_tensor_3d(x, GGML_TYPE_F32, c->dim, c->heads, c->rows);
    struct ggml_tensor *const k = ggml_new_tensor_3d(x, type_of(c->type), c->dim, c->kv_heads, padded);
    struct ggml_tensor *const v = c->dim_v ? ggml_view_3d(x, k, c->dim_v, c->kv_heads, padded, k->nb[1], k->nb[2], 0)
                                           : ggml_new_tensor_3d(x, type_of(c->type), c->dim, c->kv_heads, padded);
    struct ggml_tensor *const mask = ggml_new_tensor_2d(x, GGML_TYPE_F16, padded, (c->rows + 63) / 64 * 64);
    g.out =
        ggml_flash_attn_ext(x, ggml_permute(x, q, 0, 2, 1, 3), ggml_permute(x, k, 0, 2, 1, 3),
                            ggml_permute(x, v, 0, 2, 1, 3), mask, 1 / sqrtf((float)c->dim), c->has_alibi ? 8 : 0, 0);
    g.graph = ggml_new_graph(x);
    ggml_build_forward_expand(g.graph, g.out);
    g.buffer = ggml_backend_alloc_ctx_tensors_from_buft(x, ggml_backend_cpu_buffer_type());
    fill(q), fill(k);
    if (!c->dim_v) fill(v);
    fill_mask(mask, c);
    return g;
}

/* The mean squared difference, relative to the mean square. */
static double difference(const float *a, const float *b, int64_t n) {
    double sum = 0, square = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)(a[i] - b[i]) * (double)(a[i] - b[i]), square += (double)b[i] * (double)b[i];
    return sum / square;
}

static void run(const bench_case *c, ggml_backend_t const backends[3], int threads, double seconds) {
    const bench_graph g = make(c);
    const int64_t n = ggml_nelements(g.out);
    float *const first = malloc((size_t)n * sizeof *first);
    double least[3] = {INFINITY, INFINITY, INFINITY}, error = 0;
    const double end = now() + seconds * 1e6;
    for (int turn = 0; turn < 3 || now() < end; turn++) /* the first one warms up */
        for (int i = 0; i < 3; i++) {
            const double began = now();
            ggml_backend_graph_compute(backends[i], g.graph);
            const double took = now() - began;
            if (turn && took < least[i]) least[i] = took;
            if (!i) memcpy(first, g.out->data, (size_t)n * sizeof *first);
            if (i == 1) error = difference(first, g.out->data, n);
        }
    printf("{\"heads\": %d, \"kv_heads\": %d, \"dim\": %d, \"rows\": %d, \"keys\": %d, \"window\": %d, \"sequences\": "
           "%d, \"chosen\": %d, \"alibi\": %d, \"whole\": %d, \"type\": \"%s\", \"threads\": %d, \"ggml_us\": %.0f, "
           "\"attune_us\": %.0f, "
           "\"ratio\": %.2f, \"ggml_to_itself\": %.2f, \"difference\": %.1e}\n",
           c->heads, c->kv_heads, c->dim, c->rows, c->keys, c->window, c->sequences, c->chosen, c->has_alibi,
           c->is_whole, c->type, threads, least[0], least[1], least[0] / least[1], least[0] / least[2], error);
    fflush(stdout);
    free(first);
    ggml_backend_buffer_free(g.buffer);
    ggml_free(g.ctx);
}

static void set_threads(ggml_backend_t backend, int threads) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    ggml_backend_set_n_threads_t set =
        (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    if (set) set(backend, threads);
}

int main(int argc, char **argv) {
    const int threads = argc > 1 ? atoi(argv[1]) : 1;
    const double seconds = argc > 2 ? atof(argv[2]) : 1;
    ggml_backend_load_all();
    ggml_backend_t cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL);
    ggml_backend_t attune = ggml_backend_init_by_name("attune", NULL);
    ggml_backend_t again = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL);
    if (!cpu || !attune || !again) {
        fprintf(stderr, "ggml_op: there is no device attune: GGML_BACKEND_PATH names libggml-attune.so\n");
        return 1;
    }
    set_threads(cpu, threads);
    set_threads(attune, threads);
    set_threads(again, threads);
    ggml_backend_t const backends[] = {cpu, attune, again};
    const int count = sizeof usual / sizeof *usual;
    const int first = argc > 3 ? atoi(argv[3]) : 0, last = argc > 4 ? atoi(argv[4]) : count - 1;
    for (int i = first; i <= last && i < count; i++) run(&usual[i], backends, threads, seconds);
    ggml_backend_free(again);
    ggml_backend_free(attune);
    ggml_backend_free(cpu);
    return 0;
}
