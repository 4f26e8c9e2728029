/* An encoder's self-attention: sentences of different lengths, padded to one. The weights are named and laid out as
 * those of torch.nn.MultiheadAttention.
 *     cc encoder.c $(pkg-config --cflags --libs attune) -o encoder */
#include <attune.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SENTENCES = 2, TOKENS = 16, EMBED = 64, HEADS = 4 };

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) != ATTUNE_OK) {                                                                                     \
            fprintf(stderr, "%s\n", attune_last_message());                                                            \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static float in_proj_weight[3 * EMBED][EMBED], in_proj_bias[3 * EMBED];
static float out_proj_weight[EMBED][EMBED], out_proj_bias[EMBED];
static float x[SENTENCES][TOKENS][EMBED], out[SENTENCES][TOKENS][EMBED], again[SENTENCES][TOKENS][EMBED];
static const int32_t lengths[SENTENCES] = {9, 16};

static void fill(float *data, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof *data; i++) data[i] = (float)rand() / (float)RAND_MAX - 0.5f;
}

int main(void) {
    fill(in_proj_weight[0], sizeof in_proj_weight);
    fill(in_proj_bias, sizeof in_proj_bias);
    fill(out_proj_weight[0], sizeof out_proj_weight);
    fill(out_proj_bias, sizeof out_proj_bias);
    fill(x[0][0], sizeof x);

    attune_context *context = NULL;
    TRY(attune_context_create(NULL, &context));
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    problem.embed_dim = EMBED;
    problem.num_heads = HEADS;
    problem.batch = SENTENCES;
    problem.seq_q = TOKENS;
    problem.has_kv_lens = 1; /* keys beyond a sentence's length are hidden */

    attune_mha_weights weights;
    TRY(attune_mha_weights_init(&weights, &problem, ATTUNE_OUT_IN));
    weights.tensor[ATTUNE_QKV_WEIGHT].data = in_proj_weight;
    weights.tensor[ATTUNE_QKV_BIAS].data = in_proj_bias;
    weights.tensor[ATTUNE_OUT_WEIGHT].data = out_proj_weight;
    weights.tensor[ATTUNE_OUT_BIAS].data = out_proj_bias;
    attune_mha *mha = NULL;
    TRY(attune_mha_create(context, &problem, NULL, &weights, &mha));

    attune_arguments arguments;
    TRY(attune_arguments_init(&arguments, &problem));
    arguments.x.data = x;
    arguments.out.data = out;
    arguments.kv_lens = lengths;
    TRY(attune_mha_run(mha, &arguments, NULL));

    /* Whatever stands in the padding, NaN even, no token of a sentence sees it. */
    for (int s = 0; s < SENTENCES; s++)
        for (int t = lengths[s]; t < TOKENS; t++)
            for (int e = 0; e < EMBED; e++) x[s][t][e] = NAN;
    arguments.out.data = again;
    TRY(attune_mha_run(mha, &arguments, NULL));
    int same = 1;
    for (int s = 0; s < SENTENCES; s++) same &= !memcmp(out[s], again[s], (size_t)lengths[s] * sizeof out[s][0]);
    printf("sentences of %d and %d tokens, padded to %d with numbers and with NaN: %s\n", lengths[0], lengths[1],
           TOKENS, same ? "the same bits" : "different bits");
    attune_mha_destroy(mha);
    attune_context_destroy(context);
    return !same;
}
