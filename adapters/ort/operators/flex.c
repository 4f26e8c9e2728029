/* Puts the functions of a node into the text of a problem, so that the library's own parser checks them; the inputs
 * after Q, K and V are the tensors that they read. */
#include "flex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The functions of a node ---- */

enum { NUM_TEXTS = 4 };
static const char *const texts[NUM_TEXTS] = {"tensors", "score_mod", "mask_mod", "prob_mod"};

/* Appends ",field=\"text\"" to a problem's text. False after a failure, with a sentence. */
static bool add_text(const node_source *s, int i, char *problem, size_t capacity, char *message) {
    char text[ATTUNE_FUNCTION_BYTES];
    const size_t length = strlen(problem);
    if (!source_has_text(s, texts[i])) return true;
    if (!source_text(s, texts[i], text, sizeof text)) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, "%s has more than %d characters", texts[i], ATTUNE_FUNCTION_BYTES - 1);
        return false;
    }
    if (strchr(text, '"')) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, "%s has a quotation mark", texts[i]);
        return false;
    }
    if (*text) snprintf(problem + length, capacity - length, ",%s=\"%s\"", texts[i], text);
    return true;
}

int flex_count_tensors(const attune_problem *p) {
    int count = 0;
    while (count < ATTUNE_MAX_USER_TENSORS && p->tensors[count].rank) count++;
    return count;
}

static bool check_inputs(const node_source *s, const attune_problem *p, char *message) {
    const int count = flex_count_tensors(p);
    int given = 0;
    while (given < ATTUNE_MAX_USER_TENSORS && source_has_input(s, FLEX_TENSORS + (size_t)given)) given++;
    if (given == count) return true;
    snprintf(message, ATTUNE_MESSAGE_BYTES, "tensors declares %d, and there are %d inputs after Q, K and V", count,
             given);
    return false;
}

/* Functions may be valid for certain sizes only: [batch, heads, queries, keys], -1 for any. These sizes are put into
 * the problem, whose other sizes do not matter. */
static bool keep_sizes(const node_source *s, attune_problem *p, char message[ATTUNE_MESSAGE_BYTES]) {
    enum { SIZES = 4, MOST = 8 };
    int64_t sizes[MOST] = {-1, -1, -1, -1};
    const size_t count = source_wholes(s, "sizes", sizes, MOST);
    if (count && count != SIZES) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, "sizes must be four whole numbers: batch, heads, queries and keys");
        return false;
    }
    p->batch = sizes[0], p->num_heads = sizes[1], p->seq_q = sizes[2], p->seq_kv = sizes[3];
    return true;
}

attune_problem *flex_create(const node_source *s, char message[ATTUNE_MESSAGE_BYTES]) {
    char text[NUM_TEXTS * (ATTUNE_FUNCTION_BYTES + 16) + 64] = "num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=8";
    attune_problem *const p = malloc(sizeof *p);
    bool is_read = p;
    snprintf(message, ATTUNE_MESSAGE_BYTES, "there is no memory");
    if (p) *p = (attune_problem)ATTUNE_PROBLEM_INIT;
    for (int i = 0; i < NUM_TEXTS && is_read; i++) is_read = add_text(s, i, text, sizeof text, message);
    if (is_read && (attune_problem_parse(p, text) || attune_problem_check(p))) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, "%s", attune_last_message());
        is_read = false;
    }
    if (is_read && check_inputs(s, p, message) && keep_sizes(s, p, message)) return p;
    free(p);
    return NULL;
}

void flex_arguments(const attune_problem *functions, const tensor *users, attune_arguments *a) {
    for (int i = 0; i < flex_count_tensors(functions); i++) {
        int64_t stride = 1;
        a->tensors[i].data = users[i].data;
        for (int d = users[i].rank - 1; d >= 0; d--) {
            a->tensors[i].strides[d] = stride;
            stride *= users[i].dims[d];
        }
    }
}
