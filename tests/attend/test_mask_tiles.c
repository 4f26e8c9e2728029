/* What mask_mod hides is skipped: the bits are those of the same mask as a tensor, and of keys that no row sees nothing
 * is read, whatever they hold. */
#include "support/tensor_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { HEADS = 2, QUERIES = 90, KEYS = 150, COLUMNS = 24 };

#define SIZES "num_heads=2,seq_q=90,seq_kv=150,head_dim=24"

static void *memory_of(const tensors *t, const char *name) {
    const tensor *found = tensors_find(t, name);
    assert_non_null(found);
    return found->data;
}

/* Documents of 40 tokens, which begin within a stripe of queries; the keys have one that no query is of, and a few of
 * the first document at their end. */
static int document_of_query(int q) { return (q + 3) / 40; }
static int document_of_key(int kv) { return kv >= 140 ? 0 : kv / 40 == 3 ? 9 : kv / 40; }

static bool is_of_one_document(int q, int kv) { return document_of_query(q) == document_of_key(kv); }

static void fill_documents(const tensors *t) {
    int32_t *of_queries = memory_of(t, "dq"), *of_keys = memory_of(t, "dk");
    for (int q = 0; q < QUERIES; q++) of_queries[q] = document_of_query(q);
    for (int kv = 0; kv < KEYS; kv++) of_keys[kv] = document_of_key(kv);
}

/* Blocks, of which each row of blocks shows some, and nobody the last but one: of whole stripes by register tiles,
 * which are asked once; and of others. */
enum { BLOCK_ROWS = 23, BLOCK_COLUMNS = 38, HIDDEN_BLOCK = 36 };

static bool is_shown(int row, int column) { return column != HIDDEN_BLOCK && (row * 7 + column * 5) % 11 < 4; }

static bool is_in_blocks(int q, int kv) { return is_shown(q / 8, kv / 4); }
static bool is_in_short_blocks(int q, int kv) { return is_shown(q / 4, kv / 6); }

static void fill_blocks(const tensors *t) {
    uint8_t *blocks = memory_of(t, "blocks");
    for (int i = 0; i < BLOCK_ROWS * BLOCK_COLUMNS; i++) blocks[i] = is_shown(i / BLOCK_COLUMNS, i % BLOCK_COLUMNS);
}

typedef struct mask_case {
    const char *function;
    bool (*sees)(int q, int kv);
    void (*fill)(const tensors *t);
} mask_case;

static const mask_case documents = {"tensors=\"dq:i32[q], dk:i32[kv]\",mask_mod=\"dq[q] == dk[kv]\"",
                                    is_of_one_document, fill_documents};
static const mask_case blocks = {"tensors=\"blocks:bool[23, 38]\",mask_mod=\"blocks[q // 8, kv // 4]\"", is_in_blocks,
                                 fill_blocks};
static const mask_case short_blocks = {"tensors=\"blocks:bool[23, 38]\",mask_mod=\"blocks[q // 4, kv // 6]\"",
                                       is_in_short_blocks, fill_blocks};

static void fill_mask(const mask_case *m, const tensors *t) {
    unsigned char *mask = memory_of(t, "attn_mask");
    for (int q = 0; q < QUERIES; q++)
        for (int kv = 0; kv < KEYS; kv++) mask[q * KEYS + kv] = m->sees(q, kv);
}

static bool is_seen(const mask_case *m, int kv) {
    bool is = false;
    for (int q = 0; q < QUERIES; q++) is |= m->sees(q, kv);
    return is;
}

/* Keys that no query sees are NaN. */
static void spoil(const mask_case *m, const tensors *t) {
    float *const rows[2] = {tensors_floats(t, "k"), tensors_floats(t, "v")};
    for (int i = 0; i < 2 * HEADS * KEYS * COLUMNS; i++)
        if (!is_seen(m, i / COLUMNS % KEYS)) rows[i / (HEADS * KEYS * COLUMNS)][i % (HEADS * KEYS * COLUMNS)] = NAN;
}

/* Tiles of 16 keys, or one of all, and stripes of 8 rows, one or two of them in a task. */
static mha_schedule schedule_with(mha_value_by value_by, int task_row_vectors, int kv_tile) {
    mha_schedule s = {.lanes = 4, .score_keys = 4, .value_keys = 4, .kv_tile = kv_tile};
    s.score_row_vectors = s.value_row_vectors = 2;
    s.task_row_vectors = task_row_vectors;
    s.score_columns = 2;
    s.value_columns = 3;
    s.value_by = value_by;
    return s;
}

static void compare(attune_context *context, const mask_case *m, const char *options, const mha_schedule *schedule) {
    char problem[512];
    tensors by_function, by_tensor;
    snprintf(problem, sizeof problem, SIZES "%s,%s", options, m->function);
    tensors_open_call(&by_function, problem, "", INPUT_ORDINARY, 7);
    snprintf(problem, sizeof problem, SIZES "%s,attn_mask_dims=qk", options);
    tensors_open_call(&by_tensor, problem, "", INPUT_ORDINARY, 7);
    m->fill(&by_function);
    fill_mask(m, &by_tensor);
    spoil(m, &by_function);
    spoil(m, &by_tensor);
    tensors_run_chosen(context, &by_function, schedule);
    tensors_run_chosen(context, &by_tensor, schedule);
    tensors_assert_same(&by_function, &by_tensor, options);
    tensors_free(&by_function);
    tensors_free(&by_tensor);
}

static void compare_schedules(const mask_case *m) {
    static const char *const options[] = {",has_lse=1", ",is_causal=1,causal_offset=9,has_lse=1",
                                          ",window_left=30,global_tokens=5"};
    attune_context *context = tensors_context(NULL, 2);
    for (int i = 0; i < 12; i++) {
        const int task = i % 2 ? 2 : 4, kv_tile = i / 2 % 2 ? 16 : 152;
        const mha_schedule by_columns = schedule_with(MHA_VALUE_BY_COLUMNS, task, kv_tile),
                           by_rows = schedule_with(MHA_VALUE_BY_ROWS, task, kv_tile);
        compare(context, m, options[i / 4], &by_columns);
        compare(context, m, options[i / 4], &by_rows);
    }
    attune_context_destroy(context);
}

static void bits_of_documents(void **state) {
    (void)state;
    compare_schedules(&documents);
}

static void bits_of_blocks(void **state) {
    (void)state;
    compare_schedules(&blocks);
    compare_schedules(&short_blocks);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_of_documents), cmocka_unit_test(bits_of_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
