/* Cross-attention: a decoder's tokens attend to an encoder's output. Its keys and values are projected once, together
 * with the first token, into caches; every later token projects its query only. All kernels share one copy of the
 * weights.
 *     cc cross.c $(pkg-config --cflags --libs attune) -o cross */
#include <attune.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SOURCE = 30, TOKENS = 12, EMBED = 64, SOURCE_EMBED = 48, HEADS = 4, DIM = EMBED / HEADS };

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) != ATTUNE_OK) {                                                                                     \
            fprintf(stderr, "%s\n", attune_last_message());                                                            \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

/* As Keras and JAX lay them out: [inputs, heads, columns of a head]. */
static float q_weight[EMBED][HEADS][DIM], k_weight[SOURCE_EMBED][HEADS][DIM], v_weight[SOURCE_EMBED][HEADS][DIM];
static float out_weight[HEADS][DIM][EMBED];
static float x[TOKENS][EMBED], source[SOURCE][SOURCE_EMBED], whole[TOKENS][EMBED], steps[TOKENS][EMBED];
static float k_cache[HEADS][SOURCE][DIM], v_cache[HEADS][SOURCE][DIM];

static void fill(float *data, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof *data; i++) data[i] = (float)rand() / (float)RAND_MAX - 0.5f;
}

int main(void) {
    fill(q_weight[0][0], sizeof q_weight);
    fill(k_weight[0][0], sizeof k_weight);
    fill(v_weight[0][0], sizeof v_weight);
    fill(out_weight[0][0], sizeof out_weight);
    fill(x[0], sizeof x);
    fill(source[0], sizeof source);

    attune_context *context = NULL;
    TRY(attune_context_create(NULL, &context));
    attune_problem at_once = ATTUNE_PROBLEM_INIT;
    at_once.embed_dim = EMBED;
    at_once.kv_embed_dim = SOURCE_EMBED;
    at_once.is_cross = 1;
    at_once.num_heads = HEADS;
    at_once.seq_q = TOKENS;
    at_once.seq_kv = SOURCE;
    at_once.reproducible = 1; /* so that the ways below give the same bits */
    attune_problem first = at_once, later = at_once;
    first.seq_q = 1;
    first.seq_new = SOURCE; /* all keys are new: they are written to k and v */
    later.seq_q = 1;
    later.kv_projected = 1; /* and are taken from there */

    attune_mha_weights weights;
    TRY(attune_mha_weights_init(&weights, &at_once, ATTUNE_IN_OUT));
    weights.tensor[ATTUNE_Q_WEIGHT].data = q_weight;
    weights.tensor[ATTUNE_K_WEIGHT].data = k_weight;
    weights.tensor[ATTUNE_V_WEIGHT].data = v_weight;
    weights.tensor[ATTUNE_OUT_WEIGHT].data = out_weight;
    attune_mha *all = NULL, *project = NULL, *step = NULL;
    TRY(attune_mha_create(context, &at_once, NULL, &weights, &all));
    TRY(attune_mha_create_packed(context, &first, NULL, attune_mha_packed_weights(all, NULL), 0, &project));
    TRY(attune_mha_create_packed(context, &later, NULL, attune_mha_packed_weights(all, NULL), 0, &step));

    attune_arguments arguments;
    TRY(attune_arguments_init(&arguments, &at_once));
    arguments.x.data = x;
    arguments.x_kv.data = source;
    arguments.out.data = whole;
    TRY(attune_mha_run(all, &arguments, NULL));

    for (int t = 0; t < TOKENS; t++) {
        TRY(attune_arguments_init(&arguments, t ? &later : &first));
        arguments.x.data = x[t];
        arguments.out.data = steps[t];
        arguments.k.data = k_cache;
        arguments.v.data = v_cache;
        if (t == 0) arguments.x_kv.data = source;
        TRY(attune_mha_run(t ? step : project, &arguments, NULL));
    }

    const int same = !memcmp(whole, steps, sizeof whole);
    printf("%d tokens that see %d, at once and one by one: %s\n", TOKENS, SOURCE,
           same ? "the same bits" : "different bits");
    attune_mha_destroy(step);
    attune_mha_destroy(project);
    attune_mha_destroy(all); /* after those that borrow its weights */
    attune_context_destroy(context);
    return !same;
}
