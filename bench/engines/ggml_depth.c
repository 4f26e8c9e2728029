/* ggml_depth MODEL CACHE DEPTH THREADS fill|decode STATE: tokens per second of llama.cpp behind a cache of DEPTH keys.
 * `fill` computes the keys and writes them to STATE, `decode` reads them from there, whoever has computed them, and
 * prints a line of JSON: the fastest of three times 16 tokens. GGML_BACKEND_PATH says who computes. */
#include "ggml-backend.h"
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TURNS = 3, TOKENS = 16, CHUNK = 512, WORDS = 40000 };

static void fail(const char *what) {
    fprintf(stderr, "ggml_depth: %s\n", what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static enum ggml_type type_of(const char *name) {
    for (int t = 0; t < GGML_TYPE_COUNT; t++)
        if (ggml_type_name((enum ggml_type)t) && !strcmp(ggml_type_name((enum ggml_type)t), name))
            return (enum ggml_type)t;
    fail("ggml has no such type");
    return GGML_TYPE_COUNT;
}

static void decode(struct llama_context *context, int count) {
    static llama_token tokens[CHUNK];
    for (int i = 0; i < count; i++) tokens[i] = rand() % WORDS;
    if (llama_decode(context, llama_batch_get_one(tokens, count))) fail("llama_decode failed");
}

static double fastest(struct llama_context *context) {
    double most = 0;
    decode(context, 1);
    for (int turn = 0; turn < TURNS; turn++) {
        const double began = now();
        for (int i = 0; i < TOKENS; i++) decode(context, 1);
        const double speed = TOKENS / (now() - began);
        if (speed > most) most = speed;
    }
    return most;
}

int main(int argc, char **argv) {
    if (argc != 7) fail("ggml_depth MODEL CACHE DEPTH THREADS fill|decode STATE");
    const int depth = atoi(argv[3]);
    size_t loaded;
    ggml_backend_load_all();
    llama_backend_init();
    struct llama_model *const model = llama_model_load_from_file(argv[1], llama_model_default_params());
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)(depth + TURNS * TOKENS + 1 + 255) / 256 * 256;
    params.n_batch = params.n_ubatch = CHUNK;
    params.n_threads = params.n_threads_batch = atoi(argv[4]);
    params.type_k = params.type_v = type_of(argv[2]);
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_AUTO;
    struct llama_context *const context = model ? llama_init_from_model(model, params) : NULL;
    llama_token *const seen = calloc((size_t)depth + 1, sizeof *seen);
    if (!context || !seen) fail("the model cannot be opened");
    if (!strcmp(argv[5], "fill")) {
        for (int done = 0; done < depth; done += CHUNK) decode(context, depth - done < CHUNK ? depth - done : CHUNK);
        if (!llama_state_save_file(context, argv[6], seen, (size_t)depth)) fail("the state cannot be written");
    } else {
        if (!llama_state_load_file(context, argv[6], seen, (size_t)depth, &loaded)) fail("the state cannot be read");
        printf("{\"cache\": \"%s\", \"depth\": %d, \"tokens_per_second\": %.2f}\n", argv[2], depth, fastest(context));
    }
    free(seen);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
