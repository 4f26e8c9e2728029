/* A server's steps: chunks of prompts and decoding tokens of several requests in one call, on a paged cache that the
 * call itself appends to. bf16, eight query heads on two KV heads, the host's threads (OpenMP), no wait for a compiler.
 *     cc -fopenmp serving.c $(pkg-config --cflags --libs attune) -lm -o serving && ./serving [out.f32] */
#include "serving_data.h" /* the requests, their rows, and a check of the output */
#include <attune/attention.h>
#include <omp.h>
#include <stdlib.h>

enum { PAGE = 16, PAGES = 64, COLUMNS = 20, CHUNK = 64 };
static bf16 k_pages[PAGES][PAGE][KV_HEADS][DIM], v_pages[PAGES][PAGE][KV_HEADS][DIM];
static bf16 q[REQUESTS * CHUNK][HEADS * DIM], out[REQUESTS * CHUNK][HEADS * DIM];
static bf16 k[REQUESTS * CHUNK][KV_HEADS * DIM], v[REQUESTS * CHUNK][KV_HEADS * DIM];

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
    int32_t starts[REQUESTS + 1] = {0}, lens[REQUESTS] = {0}, table[REQUESTS][COLUMNS] = {{0}}, free_page = 0;
    attune_runner threads = ATTUNE_RUNNER_INIT;
    threads.parallel_for = parallel_for, threads.max_workers = (uint32_t)omp_get_max_threads();

    attune_attention_desc desc = ATTUNE_ATTENTION_DESC_INIT;
    desc.num_heads = HEADS, desc.num_kv_heads = KV_HEADS, desc.head_dim = DIM, desc.dtype = ATTUNE_BF16;
    desc.is_causal = 1, desc.kv = ATTUNE_KV_PAGED, desc.page_size = PAGE, desc.appends = 1, desc.deadline_us = 0;
    attune_attention *attention;
    need(attune_attention_create(NULL, &desc, &attention));

    do {
        for (int r = 0, tokens = 0; r < REQUESTS; r++) { /* the next chunk of a prompt, or one token */
            const int left = prompts[r] - lens[r], total = prompts[r] + NEW_TOKENS;
            const int count = left > CHUNK ? CHUNK : left > 0 ? left : lens[r] < total;
            for (int i = 0; i < count; i++, tokens++, lens[r]++) {
                if (lens[r] % PAGE == 0) table[r][lens[r] / PAGE] = free_page++;
                fill(q[tokens], Q, r, lens[r]), fill(k[tokens], K, r, lens[r]), fill(v[tokens], V, r, lens[r]);
            }
            starts[r + 1] = tokens;
        }
        attune_step step = ATTUNE_STEP_INIT;
        step.batch = REQUESTS, step.cu_seqlens_q = starts, step.kv_lens = lens;
        step.q.data = q, step.k.data = k, step.v.data = v, step.out.data = out, step.runner = &threads;
        step.k_cache.data = k_pages, step.v_cache.data = v_pages, step.num_pages = PAGES;
        step.block_table = table[0], step.max_pages = COLUMNS;
        need(attune_attention_run(attention, &step));
        for (int r = 0; r < REQUESTS; r++)
            for (int i = starts[r]; i < starts[r + 1]; i++) keep(out[i], r, lens[r] - (starts[r + 1] - i));
    } while (starts[REQUESTS]);
    attune_attention_destroy(attention);
    return check(argc > 1 ? argv[1] : NULL);
}
