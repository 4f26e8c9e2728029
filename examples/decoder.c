/* A decoder's masked self-attention: a whole sequence at once, as in training, then token by token with a cache of keys
 * and values, as in generation. Two kernels share one copy of the weights and, being reproducible, give the same bits.
 *     cc decoder.c $(pkg-config --cflags --libs attune) -o decoder */
#include <attune.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 40, EMBED = 64, HEADS = 8, KV_HEADS = 2, DIM = EMBED / HEADS };

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) != ATTUNE_OK) {                                                                                     \
            fprintf(stderr, "%s\n", attune_last_message());                                                            \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static float q_weight[EMBED][EMBED], k_weight[KV_HEADS * DIM][EMBED], v_weight[KV_HEADS * DIM][EMBED];
static float out_weight[EMBED][EMBED];
static float x[TOKENS][EMBED], whole[TOKENS][EMBED], steps[TOKENS][EMBED];
static float k_cache[KV_HEADS][TOKENS][DIM], v_cache[KV_HEADS][TOKENS][DIM];

static void fill(float *data, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof *data; i++) data[i] = (float)rand() / (float)RAND_MAX - 0.5f;
}

int main(void) {
    fill(q_weight[0], sizeof q_weight);
    fill(k_weight[0], sizeof k_weight);
    fill(v_weight[0], sizeof v_weight);
    fill(out_weight[0], sizeof out_weight);
    fill(x[0], sizeof x);

    attune_context *context = NULL;
    TRY(attune_context_create(NULL, &context));
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    problem.embed_dim = EMBED;
    problem.num_heads = HEADS;
    problem.num_kv_heads = KV_HEADS;
    problem.seq_q = TOKENS;
    problem.is_causal = 1; /* no token sees a later one */
    problem.reproducible = 1;

    attune_mha_weights weights;
    TRY(attune_mha_weights_init(&weights, &problem, ATTUNE_OUT_IN));
    weights.tensor[ATTUNE_Q_WEIGHT].data = q_weight;
    weights.tensor[ATTUNE_K_WEIGHT].data = k_weight;
    weights.tensor[ATTUNE_V_WEIGHT].data = v_weight;
    weights.tensor[ATTUNE_OUT_WEIGHT].data = out_weight;
    attune_mha *mha = NULL, *step = NULL;
    TRY(attune_mha_create(context, &problem, NULL, &weights, &mha));
    attune_arguments arguments;
    TRY(attune_arguments_init(&arguments, &problem));
    arguments.x.data = x;
    arguments.out.data = whole;
    TRY(attune_mha_run(mha, &arguments, NULL));

    /* One new token: its key and value become the last ones of the caches, whose length is known at run time only. */
    problem.seq_q = problem.seq_new = 1;
    problem.seq_kv = ATTUNE_DYNAMIC;
    problem.max_seq_kv = TOKENS;
    problem.causal_align = ATTUNE_BOTTOM_RIGHT; /* the last query stands at the last key */
    TRY(attune_mha_create_packed(context, &problem, NULL, attune_mha_packed_weights(mha, NULL), 0, &step));
    const int64_t cache[4] = {0, TOKENS * DIM, DIM, 1};
    TRY(attune_arguments_init(&arguments, &problem));
    memcpy(arguments.k.strides, cache, sizeof cache);
    memcpy(arguments.v.strides, cache, sizeof cache);
    arguments.k.data = k_cache;
    arguments.v.data = v_cache;
    for (int t = 0; t < TOKENS; t++) {
        arguments.seq_kv = t + 1;
        arguments.x.data = x[t];
        arguments.out.data = steps[t];
        TRY(attune_mha_run(step, &arguments, NULL));
    }

    const int same = !memcmp(whole, steps, sizeof whole);
    printf("%d tokens at once and one by one: %s\n", TOKENS, same ? "the same bits" : "different bits");
    attune_mha_destroy(step); /* before the block that owns its weights */
    attune_mha_destroy(mha);
    attune_context_destroy(context);
    return !same;
}
