/* A decoder's attention with a key/value cache by the expert tier: a prompt in one call, then token by token. One
 * kernel serves every length, appends the new keys and values to the cache, and gives the bits of the whole sequence at
 * once. An engine does the same with attune/attention.h (serving.c).
 *     cc decode.c $(pkg-config --cflags --libs attune) -o decode */
#include <attune.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 8, KV_HEADS = 2, DIM = 64, PROMPT = 20, TOKENS = 50, CAPACITY = 128 };

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) != ATTUNE_OK) {                                                                                     \
            fprintf(stderr, "%s\n", attune_last_message());                                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* What a decoder's projections would give, for all tokens: [head, token, column]. */
static float q[HEADS][TOKENS][DIM], k[KV_HEADS][TOKENS][DIM], v[KV_HEADS][TOKENS][DIM];
static float k_cache[KV_HEADS][CAPACITY][DIM], v_cache[KV_HEADS][CAPACITY][DIM];
static float whole[HEADS][TOKENS][DIM], steps[HEADS][TOKENS][DIM];

static void fill(float *data, size_t count) {
    for (size_t i = 0; i < count; i++) data[i] = (float)rand() / (float)RAND_MAX - 0.5f;
}

/* Attention of tokens first … first+count-1 to themselves and all before them. */
static void attend(attune_context *context, const attune_problem *problem, const attune_kernel *kernel, int first,
                   int count, float out[HEADS][TOKENS][DIM]) {
    const int64_t all_tokens[4] = {0, TOKENS * DIM, DIM, 1}, cache[4] = {0, CAPACITY * DIM, DIM, 1};
    attune_arguments a = {0};
    TRY(attune_arguments_init(&a, problem));
    a.seq_q = a.seq_new = count;
    a.seq_kv = first + count;
    a.q.data = q[0][first], a.k_new.data = k[0][first], a.v_new.data = v[0][first], a.out.data = out[0][first];
    a.k.data = k_cache, a.v.data = v_cache;
    memcpy(a.q.strides, all_tokens, sizeof all_tokens);
    memcpy(a.out.strides, all_tokens, sizeof all_tokens);
    memcpy(a.k_new.strides, all_tokens, sizeof all_tokens);
    memcpy(a.v_new.strides, all_tokens, sizeof all_tokens);
    memcpy(a.k.strides, cache, sizeof cache);
    memcpy(a.v.strides, cache, sizeof cache);
    TRY(attune_run(context, kernel, &a));
}

int main(void) {
    fill(q[0][0], sizeof q / sizeof(float));
    fill(k[0][0], sizeof k / sizeof(float));
    fill(v[0][0], sizeof v / sizeof(float));

    attune_context *context = NULL;
    attune_kernel *kernel = NULL;
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    problem.num_heads = HEADS;
    problem.num_kv_heads = KV_HEADS;
    problem.head_dim = DIM;
    problem.seq_q = problem.seq_kv = problem.seq_new = ATTUNE_DYNAMIC;
    problem.max_seq_kv = CAPACITY;
    problem.is_causal = 1;
    problem.causal_align = ATTUNE_BOTTOM_RIGHT; /* the last query stands at the last key */
    problem.reproducible = 1;
    TRY(attune_context_create(NULL, &context));
    TRY(attune_compile(context, &problem, NULL, &kernel));

    attend(context, &problem, kernel, 0, TOKENS, whole);
    memset(k_cache, 0, sizeof k_cache);
    memset(v_cache, 0, sizeof v_cache);
    attend(context, &problem, kernel, 0, PROMPT, steps);
    for (int token = PROMPT; token < TOKENS; token++) attend(context, &problem, kernel, token, 1, steps);

    const int same = !memcmp(whole, steps, sizeof whole);
    printf("%d tokens at once and one by one: %s\n", TOKENS, same ? "the same bits" : "different bits");
    attune_kernel_release(kernel);
    attune_context_destroy(context);
    return !same;
}
