/* A server's steps: chunks of prompts and decoding tokens of several requests in one call, on a paged cache that the
 * call itself appends to. bf16, eight query heads on two KV heads, the threads of the host (OpenMP), and no step that
 * waits for a compiler.
 *     cc -fopenmp serving.c $(pkg-config --cflags --libs attune) -lm -o serving && ./serving [out.f32]
 * It prints the largest difference from the formula in double. With a file it also writes all outputs there, as f32
 * [request, token, head, column]; serving.py compares them with NumPy's. */
#include <attune/attention.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 8, KV_HEADS = 2, DIM = 64, PAGE = 16, PAGES = 64, COLUMNS = 20, CHUNK = 64 };
enum { REQUESTS = 4, NEW_TOKENS = 12, MOST_TOKENS = REQUESTS * CHUNK };
static const int prompts[REQUESTS] = {150, 7, 300, 64}; /* their lengths */

typedef uint16_t bf16;
typedef enum { Q, K, V } tensor;

/* ---- The model: data in place of projections ---- */

static float to_float(bf16 x) {
    const uint32_t bits = (uint32_t)x << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* Multiples of 1/128 from -1 to 1: bf16 holds them exactly. */
static float value(tensor t, int request, int token, int head, int column) {
    uint32_t x = (((uint32_t)t * 4 + (uint32_t)request) * 512 + (uint32_t)token) * 8 + (uint32_t)head;
    x = (x * 64 + (uint32_t)column) * 2654435761u;
    return (float)(int)((x ^ x >> 16) % 257u) / 128 - 1;
}

static void fill(bf16 *to, tensor t, int request, int token) { /* [head, column] */
    for (int i = 0; i < (t == Q ? HEADS : KV_HEADS) * DIM; i++) {
        const float x = value(t, request, token, i / DIM, i % DIM);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        to[i] = (bf16)(bits >> 16);
    }
}

static float outputs[REQUESTS][300 + NEW_TOKENS][HEADS][DIM];

static double difference(int request, int token, int head) {
    double sum = 0, expected[DIM] = {0}, largest = 0;
    for (int j = 0; j <= token; j++) {
        double dot = 0;
        for (int d = 0; d < DIM; d++) dot += value(Q, request, token, head, d) * value(K, request, j, head / 4, d);
        const double p = exp(dot / sqrt(DIM));
        sum += p;
        for (int d = 0; d < DIM; d++) expected[d] += p * value(V, request, j, head / 4, d);
    }
    for (int d = 0; d < DIM; d++) largest = fmax(largest, fabs(expected[d] / sum - outputs[request][token][head][d]));
    return largest;
}

/* ---- The server ---- */

static void need(attune_status status) {
    if (status) fprintf(stderr, "%s\n", attune_last_message()), exit(1);
}

static void parallel_for(void *user, attune_range_fn *run, void *argument, int64_t n) {
    (void)user;
#pragma omp parallel
    {
        const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        run(argument, n * thread / threads, n * (thread + 1) / threads, (uint32_t)thread);
    }
}

int main(int argc, char **argv) {
    static bf16 k_pages[PAGES][PAGE][KV_HEADS][DIM], v_pages[PAGES][PAGE][KV_HEADS][DIM];
    static bf16 q[MOST_TOKENS][HEADS * DIM], k[MOST_TOKENS][KV_HEADS * DIM], v[MOST_TOKENS][KV_HEADS * DIM];
    static bf16 out[MOST_TOKENS][HEADS * DIM];
    int32_t starts[REQUESTS + 1], lens[REQUESTS] = {0}, table[REQUESTS][COLUMNS] = {{0}}, free_page = 0;

    attune_runner threads = ATTUNE_RUNNER_INIT;
    threads.parallel_for = parallel_for;
    threads.max_workers = (uint32_t)omp_get_max_threads();
    attune_attention_desc desc = ATTUNE_ATTENTION_DESC_INIT;
    desc.num_heads = HEADS, desc.num_kv_heads = KV_HEADS, desc.head_dim = DIM, desc.dtype = ATTUNE_BF16;
    desc.is_causal = 1, desc.kv = ATTUNE_KV_PAGED, desc.page_size = PAGE, desc.appends = 1;
    desc.deadline_us = 0;
    attune_attention *attention;
    need(attune_attention_create(NULL, &desc, &attention));

    for (int tokens = 1, steps = 0; tokens; steps++) {
        tokens = 0;
        for (int r = 0; r < REQUESTS; r++) { /* the next chunk of a prompt, or one token */
            const int left = prompts[r] - lens[r], total = prompts[r] + NEW_TOKENS;
            const int count = left > CHUNK ? CHUNK : left > 0 ? left : lens[r] < total;
            starts[r] = tokens;
            for (int i = 0; i < count; i++, tokens++, lens[r]++) {
                if (lens[r] % PAGE == 0) table[r][lens[r] / PAGE] = free_page++;
                fill(q[tokens], Q, r, lens[r]), fill(k[tokens], K, r, lens[r]), fill(v[tokens], V, r, lens[r]);
            }
        }
        starts[REQUESTS] = tokens;
        attune_step step = ATTUNE_STEP_INIT;
        step.batch = REQUESTS;
        step.q.data = q, step.k.data = k, step.v.data = v, step.out.data = out;
        step.k_cache.data = k_pages, step.v_cache.data = v_pages, step.num_pages = PAGES;
        step.cu_seqlens_q = starts, step.kv_lens = lens, step.block_table = table[0], step.max_pages = COLUMNS;
        step.runner = &threads;
        need(attune_attention_run(attention, &step));
        for (int r = 0; r < REQUESTS; r++)
            for (int i = starts[r]; i < starts[r + 1]; i++)
                for (int j = 0; j < HEADS * DIM; j++)
                    outputs[r][lens[r] - starts[r + 1] + i][j / DIM][j % DIM] = to_float(out[i][j]);
        if (!tokens) printf("%d steps, ", steps);
    }
    attune_attention_destroy(attention);

    double largest = 0;
    for (int r = 0; r < REQUESTS; r++)
        for (int token = 0; token < prompts[r] + NEW_TOKENS; token++)
            for (int head = 0; head < HEADS; head++) largest = fmax(largest, difference(r, token, head));
    printf("largest difference from the formula: %.1e\n", largest);
    FILE *const file = argc > 1 ? fopen(argv[1], "wb") : NULL;
    if (argc > 1 && (!file || fwrite(outputs, sizeof outputs, 1, file) != 1 || fclose(file))) return perror(argv[1]), 1;
    return largest > 4e-3; /* bf16 keeps 8 bits */
}
