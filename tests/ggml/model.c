/* model MODEL CACHE TEXT LOGITS [save|load STATE]: a language model on llama.cpp, whose next token is the text's.
 * Writes the logits (f32) of 32 tokens that follow a prompt of 700, and all these tokens (i32) to LOGITS.tokens. With
 * `save` it also writes the state after the prompt, with `load` it takes that in place of the prompt, from whatever
 * backend wrote it. GGML_BACKEND_PATH says who computes. CACHE is a type, or `exact`: an f32 cache without flash
 * attention, whose products and sums ggml computes in f32. */
#include "ggml-backend.h"
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 700, NEXT = 32, THREADS = 2 };

static void quiet(enum ggml_log_level level, const char *text, void *user) {
    (void)level, (void)user;
    if (strstr(text, "attune") || level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static void fail(const char *what) {
    fprintf(stderr, "model: %s\n", what);
    exit(1);
}

static enum ggml_type type_of(const char *name) {
    int t = 0;
    while (t < GGML_TYPE_COUNT &&
           (!ggml_type_name((enum ggml_type)t) || strcmp(ggml_type_name((enum ggml_type)t), name)))
        t++;
    return (enum ggml_type)t;
}

static void decode(struct llama_context *context, llama_token *tokens, int count) {
    if (llama_decode(context, llama_batch_get_one(tokens, count))) fail("llama_decode failed");
}

int main(int argc, char **argv) {
    if (argc != 5 && argc != 7) fail("model MODEL CACHE TEXT LOGITS [save|load STATE]");
    llama_log_set(quiet, NULL);
    ggml_backend_load_all();
    llama_backend_init();
    struct llama_model *const model = llama_model_load_from_file(argv[1], llama_model_default_params());
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = 1024, params.n_ubatch = 256, params.n_threads = params.n_threads_batch = THREADS;
    const int is_exact = !strcmp(argv[2], "exact");
    params.type_k = params.type_v = is_exact ? GGML_TYPE_F32 : type_of(argv[2]);
    if (is_exact) params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *const context = model ? llama_init_from_model(model, params) : NULL;
    FILE *const text = fopen(argv[3], "r"), *const logits = fopen(argv[4], "w");
    if (!context || !text || !logits) fail("the model, the text or the file of logits cannot be opened");
    static char words[65536];
    static llama_token tokens[65536];
    const struct llama_vocab *const vocab = llama_model_get_vocab(model);
    const size_t length = fread(words, 1, sizeof words, text);
    const int count = llama_tokenize(vocab, words, (int)length, tokens, 65536, true, false);
    if (count < PROMPT + NEXT) fail("the text is too short");
    char path[4096];
    snprintf(path, sizeof path, "%s.tokens", argv[4]);
    FILE *const all = fopen(path, "w");
    if (!all || fwrite(tokens, sizeof *tokens, PROMPT + NEXT, all) != PROMPT + NEXT || fclose(all))
        fail("the tokens cannot be written");
    llama_token seen[PROMPT];
    size_t num_seen;
    if (argc == 7 && !strcmp(argv[5], "load")) {
        if (!llama_state_load_file(context, argv[6], seen, PROMPT, &num_seen)) fail("the state cannot be loaded");
    } else
        decode(context, tokens, PROMPT);
    if (argc == 7 && !strcmp(argv[5], "save") && !llama_state_save_file(context, argv[6], tokens, PROMPT))
        fail("the state cannot be saved");
    for (int i = 0; i < NEXT; i++) {
        decode(context, tokens + PROMPT + i, 1);
        fwrite(llama_get_logits(context), sizeof(float), (size_t)llama_vocab_n_tokens(vocab), logits);
    }
    fclose(logits);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
