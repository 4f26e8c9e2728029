/* Steps of attention for engines whose results are known: every layout and kind of cache, and sequences of different
 * lengths. Rows that nobody has written are NaN. */
#ifndef ATTUNE_TESTS_ATTENTION_STEPS_H
#define ATTUNE_TESTS_ATTENTION_STEPS_H

#include <attune/attention.h>
#include <attune/expert/kernel.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Three sequences: a chunk of a prompt, a decoding query, and a prompt from its start. Odd sizes. */
enum { BATCH = 3, HEADS = 6, KV_HEADS = 2, DIM = 16, DIM_V = 24, PAGE = 4, MOST = 24, COLUMNS = MOST / PAGE };
typedef struct lengths {
    int q[BATCH], kv[BATCH];
} lengths;
extern const lengths mixed, equal, ends;

typedef enum what { Q, K, V } what;

typedef struct form {
    attune_layout layout;
    attune_kv kv;
    int appends;
    int is_strided; /* with strides of its own: one element between two rows */
} form;

typedef struct tensors {
    form form;
    lengths n;
    float *q, *k, *v, *k_cache, *v_cache, *out, *lse;
    int32_t starts_q[BATCH + 1], starts_kv[BATCH + 1], lens[BATCH], table[BATCH][COLUMNS];
} tensors;

extern const form forms[];
enum { NUM_FORMS = 17 };

/* Sequences of different lengths where a form can have them. */
const lengths *lengths_of(const form *f);

/* An element, by its place in a sequence. */
float element(what t, int b, int token, int head, int column);

/* A row of the result by the definition, in double. window: keys before a query that it attends to; -1: all. */
void row_of(const lengths *n, int b, int i, int h, bool is_causal, int window, double out[DIM_V]);

/* Where a query, or a key that is no cache's, has its row; and a key of a cache. */
size_t place(const tensors *t, const int32_t *starts, int b, int token, int tokens, int head, int heads, int columns);
size_t cached(const tensors *t, int b, int j, int head, int columns);

tensors tensors_of(form f, const lengths *n);
void free_tensors(tensors *t);
attune_step step_of(tensors *t);
attune_attention_desc desc_of(const form *f);
attune_attention *attention_of(const attune_attention_desc *d);

/* Fails unless all rows of out are those of row_of. */
void check_rows(const tensors *t, bool is_causal, int window);

#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        if (call) fail_msg("%s", attune_last_message());                                                               \
    } while (0)
#define assert_fails(call, want, part)                                                                                 \
    do {                                                                                                               \
        assert_int_equal(call, want);                                                                                  \
        if (!strstr(attune_last_message(), part)) fail_msg("%s", attune_last_message());                               \
    } while (0)

#endif
