/* Packed weights of a block: where each weight lies, and every form in which callers have them. Weights are random
 * bits, NaNs among them: nothing here may look at their values. */
#include "support/block_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Where weights lie: the formulas of pack.h, element by element ---- */

/* Of input k and output c of a group; k = -1: the bias. */
static int64_t place_of(const model *m, const mha_pack_section *s, int64_t group, int64_t c, int64_t k) {
    const bool is_paired = m->canonical.w_dtype == ATTUNE_BF16;
    const int64_t rows = is_paired ? (s->depth + 1) / 2 + 1 : s->depth + 1;
    const int64_t panel = s->offset + (group * s->panels + c / 16) * rows * (is_paired ? 32 : 16);
    if (!is_paired) return panel + (k + 1) * 16 + c % 16;
    return k < 0 ? panel + 2 * (c % 16) + 1 : panel + (k / 2 + 1) * 32 + 2 * (c % 16) + k % 2;
}

static void expect_section(const model *m, int projection, unsigned char *blob) {
    const mha_pack_section *s = &m->layout.section[projection];
    const attune_weight *matrix = &m->weights.tensor[projection],
                        *bias = &m->weights.tensor[ATTUNE_Q_BIAS + projection];
    for (int64_t o = 0; o < s->columns; o++)
        for (int64_t k = -1; k < s->depth; k++) {
            const int64_t at = place_of(m, s, o / s->group_columns, o % s->group_columns, k);
            const int64_t from = m->weights.layout == ATTUNE_OUT_IN ? o * s->depth + k : k * s->columns + o;
            const unsigned char *source = k >= 0       ? (const unsigned char *)matrix->data + (size_t)from * m->size
                                          : bias->data ? (const unsigned char *)bias->data + (size_t)o * m->size
                                                       : NULL;
            if (source) memcpy(blob + (size_t)at * m->size, source, m->size);
        }
}

/* Everything that is no weight is 0. */
static void assert_packed_as_documented(const model *m) {
    unsigned char *expected = calloc(1, m->blob_bytes);
    assert_non_null(expected);
    memcpy(expected, m->blob, MHA_PACK_HEADER);
    for (int i = 0; i < MHA_NUM_PROJECTIONS; i++)
        if (m->layout.section[i].exists) expect_section(m, i, expected);
    assert_memory_equal(m->blob, expected, m->blob_bytes);
    free(expected);
}

/* The promises of pack.h about every layout. */
static void assert_layout_is_sound(const model *m) {
    const attune_problem *p = &m->canonical;
    static const mha_projection order[] = {MHA_PROJECT_OUT, MHA_PROJECT_Q, MHA_PROJECT_K, MHA_PROJECT_V};
    int64_t end = MHA_PACK_HEADER / (int64_t)m->size;
    for (int n = 0; n < MHA_NUM_PROJECTIONS; n++) {
        const mha_projection i = order[n];
        const mha_pack_section *s = &m->layout.section[i];
        if (!s->exists) continue;
        const int64_t dim = i == MHA_PROJECT_V ? p->head_dim_v : p->head_dim;
        assert_int_equal(s->offset, end);
        assert_true(s->group_columns <= s->panels * MHA_PANEL && s->panels % (MHA_PANEL_TILE / MHA_PANEL) == 0);
        assert_true(s->panels * MHA_PANEL < s->group_columns + MHA_PANEL_TILE);
        assert_true((s->num_groups - 1) * s->group_columns < s->columns);
        assert_true(s->num_groups * s->group_columns >= s->columns);
        assert_int_equal(s->group_columns, i == MHA_PROJECT_OUT ? s->group_columns : s->heads * dim);
        const int64_t heads = i == MHA_PROJECT_Q ? p->num_heads : p->num_kv_heads;
        assert_true(i == MHA_PROJECT_OUT ? s->heads == 0 : s->heads >= 1 && s->heads <= heads);
        assert_int_equal(s->inputs, p->w_dtype == ATTUNE_BF16 ? 2 : 1);
        assert_int_equal(s->rows, (s->depth + s->inputs - 1) / s->inputs + 1);
        end += s->num_groups * s->panels * s->rows * s->inputs * MHA_PANEL;
    }
    assert_int_equal(m->layout.elements, end);
    assert_int_equal(m->blob_bytes % 64, 0);
}

static const char *const problems[] = {
    "embed_dim=30,num_heads=3,seq_q=4",
    "embed_dim=128,num_heads=2,seq_q=4",
    "embed_dim=96,num_heads=6,num_kv_heads=2,head_dim=20,head_dim_v=12,out_dim=50,seq_q=4",
    "embed_dim=48,num_heads=5,head_dim=48,seq_q=4", /* every head as wide as the model */
    "embed_dim=40,kv_embed_dim=24,num_heads=4,seq_q=4,seq_kv=5",
    "embed_dim=40,kv_embed_dim=24,v_embed_dim=33,num_heads=4,seq_q=4,seq_kv=5",
    "embed_dim=40,num_heads=4,seq_q=4,seq_kv=5,kv_projected=1",
    "embed_dim=40,num_heads=4,num_kv_heads=1,seq_q=4,v_in_k=1,head_dim_v=6",
    "embed_dim=40,num_heads=4,seq_q=4,no_out_projection=1",
    "embed_dim=17,num_heads=2,head_dim=300,seq_q=4,out_dim=1",  /* heads too wide to share a group */
    "embed_dim=19,num_heads=7,head_dim=90,seq_q=4,out_dim=700", /* a last group of one head */
    "embed_dim=1,num_heads=1,seq_q=1",
};

static void test_every_weight_has_its_place(void **state) {
    static const char *const dtypes[] = {"f32", "f16", "bf16", "f64"};
    (void)state;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (size_t d = 0; d < 4; d++)
            for (int layout = 0; layout < 2; layout++) {
                char text[200];
                snprintf(text, sizeof text, "%s,w_dtype=%s", problems[i], dtypes[d]);
                model m = open_model(text, (attune_weight_layout)layout, RANDOM_BITS);
                pack_model(&m);
                assert_layout_is_sound(&m);
                assert_packed_as_documented(&m);
                close_model(&m);
            }
}

static void test_absent_biases_are_zero(void **state) {
    (void)state;
    model m = open_model(problems[2], ATTUNE_OUT_IN, RANDOM_BITS);
    for (int id = ATTUNE_Q_BIAS; id <= ATTUNE_OUT_BIAS; id += 2) {
        free((void *)m.weights.tensor[id].data);
        m.weights.tensor[id].data = NULL;
    }
    pack_model(&m);
    assert_packed_as_documented(&m);
    close_model(&m);
}

/* The sizes that the speed of common models hangs on: pinned, so that a change is meant. */
static void test_groups(void **state) {
    static const struct {
        const char *problem;
        int64_t q_heads, k_heads, q_groups, v_heads, out_columns;
    } cases[] = {
        {"embed_dim=768,num_heads=12,seq_q=4", 4, 4, 3, 4, 256},
        {"embed_dim=1024,num_heads=16,seq_q=4", 4, 4, 4, 4, 256},
        {"embed_dim=1600,num_heads=25,seq_q=4", 5, 5, 5, 5, 320},
        {"embed_dim=384,num_heads=12,seq_q=4", 6, 6, 2, 6, 192},
        {"embed_dim=768,num_heads=8,seq_q=4", 2, 2, 4, 2, 256},
        {"embed_dim=4096,num_heads=32,num_kv_heads=8,seq_q=4", 2, 2, 16, 2, 256},
        {"embed_dim=512,num_heads=8,num_kv_heads=1,seq_q=4", 1, 1, 8, 1, 256},
        /* One KV head of its own would leave each query head 48 columns of padding. */
        {"embed_dim=640,num_heads=8,num_kv_heads=1,seq_q=4", 4, 1, 2, 1, 320},
        {"embed_dim=19,num_heads=7,head_dim=90,seq_q=4", 2, 2, 4, 2, 19},
        {"embed_dim=768,num_heads=12,head_dim=768,seq_q=4", 1, 1, 12, 1, 256},
        {"embed_dim=448,num_heads=7,head_dim_v=48,seq_q=4", 7, 7, 1, 4, 448},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const model m = plan_model(cases[i].problem);
        const mha_pack_section *s = m.layout.section;
        assert_layout_is_sound(&m);
        assert_int_equal(s[MHA_PROJECT_Q].heads, cases[i].q_heads);
        assert_int_equal(s[MHA_PROJECT_K].heads, cases[i].k_heads);
        assert_int_equal(s[MHA_PROJECT_Q].num_groups, cases[i].q_groups);
        assert_int_equal(s[MHA_PROJECT_V].heads, cases[i].v_heads);
        assert_int_equal(s[MHA_PROJECT_OUT].group_columns, cases[i].out_columns);
    }
}

/* ---- The forms in which weights come ---- */

static unsigned char *packed_bytes(model *m, const attune_mha_weights *weights) {
    unsigned char *blob = aligned_alloc(64, m->blob_bytes);
    assert_non_null(blob);
    assert_ok(attune_pack_weights(&m->problem, weights, blob, m->blob_bytes));
    return blob;
}

static void assert_packs_the_same(model *m, const attune_mha_weights *weights) {
    unsigned char *blob = packed_bytes(m, weights);
    assert_memory_equal(blob, m->blob, m->blob_bytes);
    free(blob);
}

/* The same matrices in the other layout. */
static void test_layouts_agree(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        model m = open_model(problems[i], ATTUNE_OUT_IN, RANDOM_BITS);
        attune_mha_weights turned;
        assert_ok(attune_mha_weights_init(&m.problem, ATTUNE_IN_OUT, &turned));
        for (int id = 0; id < ATTUNE_QKV_WEIGHT; id++) turned.tensor[id].data = m.weights.tensor[id].data;
        for (int id = 0; id < ATTUNE_Q_BIAS; id++) {
            const attune_weight *w = &m.weights.tensor[id];
            if (!w->rank) continue;
            assert_int_equal(turned.tensor[id].dims[0], w->dims[1]);
            assert_int_equal(turned.tensor[id].dims[1], w->dims[0]);
            unsigned char *data = malloc(count_of(w) * m.size);
            assert_non_null(data);
            for (int64_t o = 0; o < w->dims[0]; o++)
                for (int64_t k = 0; k < w->dims[1]; k++)
                    memcpy(data + (size_t)(k * w->dims[0] + o) * m.size,
                           (const unsigned char *)w->data + (size_t)(o * w->dims[1] + k) * m.size, m.size);
            turned.tensor[id].data = data;
        }
        pack_model(&m);
        assert_packs_the_same(&m, &turned);
        for (int id = 0; id < ATTUNE_Q_BIAS; id++) free((void *)turned.tensor[id].data);
        close_model(&m);
    }
}

/* Outputs of q, then of k, then of v, whatever the layout. */
static unsigned char *join(const model *m, int first, int64_t rows_each) {
    const attune_weight *t = &m->weights.tensor[first];
    size_t bytes[3], total = 0, at = 0;
    for (int i = 0; i < 3; i++) total += bytes[i] = count_of(&t[i]) * m->size;
    unsigned char *data = malloc(total);
    assert_non_null(data);
    for (int64_t row = 0; row < rows_each; row++)
        for (int i = 0; i < 3; i++) {
            const size_t n = bytes[i] / (size_t)rows_each;
            memcpy(data + at, (const unsigned char *)t[i].data + (size_t)row * n, n);
            at += n;
        }
    return data;
}

static void test_packed_qkv(void **state) {
    static const char *const texts[] = {
        "embed_dim=30,num_heads=3,seq_q=4",
        "embed_dim=96,num_heads=6,num_kv_heads=2,head_dim=20,head_dim_v=12,out_dim=50,seq_q=4,w_dtype=bf16",
        "embed_dim=40,cross=1,num_heads=4,seq_q=4,seq_kv=5,w_dtype=f64"};
    (void)state;
    for (size_t i = 0; i < 3; i++)
        for (int layout = 0; layout < 2; layout++) {
            model m = open_model(texts[i], (attune_weight_layout)layout, RANDOM_BITS);
            attune_mha_weights w = m.weights;
            pack_model(&m);
            w.tensor[ATTUNE_QKV_WEIGHT].data =
                join(&m, ATTUNE_Q_WEIGHT, layout == ATTUNE_IN_OUT ? m.canonical.embed_dim : 1);
            for (int id = 0; id < 3; id++) w.tensor[id].data = NULL;
            assert_packs_the_same(&m, &w);
            w.tensor[ATTUNE_QKV_BIAS].data = join(&m, ATTUNE_Q_BIAS, 1);
            for (int id = ATTUNE_Q_BIAS; id < ATTUNE_OUT_BIAS; id++) w.tensor[id].data = NULL;
            assert_packs_the_same(&m, &w);
            free((void *)w.tensor[ATTUNE_QKV_WEIGHT].data);
            free((void *)w.tensor[ATTUNE_QKV_BIAS].data);
            close_model(&m);
        }
}

/* As torch.nn.MultiheadAttention with kdim: separate matrices, one bias. */
static void test_packed_bias_of_separate_weights(void **state) {
    (void)state;
    model m = open_model("embed_dim=40,kv_embed_dim=24,v_embed_dim=33,num_heads=4,seq_q=4,seq_kv=5", ATTUNE_OUT_IN,
                         RANDOM_BITS);
    attune_mha_weights w = m.weights;
    pack_model(&m);
    assert_int_equal(w.tensor[ATTUNE_QKV_WEIGHT].rank, 0);
    assert_int_equal(w.tensor[ATTUNE_QKV_BIAS].dims[0], 120);
    w.tensor[ATTUNE_QKV_BIAS].data = join(&m, ATTUNE_Q_BIAS, 1);
    for (int id = ATTUNE_Q_BIAS; id < ATTUNE_OUT_BIAS; id++) w.tensor[id].data = NULL;
    assert_packs_the_same(&m, &w);
    free((void *)w.tensor[ATTUNE_QKV_BIAS].data);
    close_model(&m);
}

static void set_dims(attune_weight *w, int rank, int64_t a, int64_t b, int64_t c, int64_t d) {
    w->rank = rank;
    w->dims[0] = a, w->dims[1] = b, w->dims[2] = c, w->dims[3] = d;
}

/* As keras.layers.MultiHeadAttention and flax.linen.MultiHeadDotProductAttention have them. */
static void test_split_dims(void **state) {
    (void)state;
    model m = open_model("embed_dim=36,num_heads=6,num_kv_heads=2,head_dim=10,head_dim_v=4,out_dim=9,seq_q=4",
                         ATTUNE_IN_OUT, RANDOM_BITS);
    attune_mha_weights w = m.weights;
    pack_model(&m);
    set_dims(&w.tensor[ATTUNE_Q_WEIGHT], 3, 36, 6, 10, 0);
    set_dims(&w.tensor[ATTUNE_K_WEIGHT], 3, 36, 2, 10, 0);
    set_dims(&w.tensor[ATTUNE_V_WEIGHT], 4, 6, 6, 2, 4);
    set_dims(&w.tensor[ATTUNE_OUT_WEIGHT], 3, 6, 4, 9, 0);
    set_dims(&w.tensor[ATTUNE_Q_BIAS], 2, 6, 10, 0, 0);
    set_dims(&w.tensor[ATTUNE_V_BIAS], 3, 1, 2, 4, 0);
    set_dims(&w.tensor[ATTUNE_OUT_BIAS], 2, 1, 9, 0, 0);
    assert_packs_the_same(&m, &w);
    set_dims(&w.tensor[ATTUNE_Q_WEIGHT], 3, 6, 60, 6, 0); /* the same number of elements */
    assert_fails(attune_pack_weights(&m.problem, &w, m.blob, m.blob_bytes), ATTUNE_INVALID_ARGUMENT,
                 "q_weight is [6, 60, 6] f32; expected [36, 60] f32");
    close_model(&m);

    model one = open_model("embed_dim=6,num_heads=1,out_dim=1,seq_q=4", ATTUNE_OUT_IN, RANDOM_BITS);
    attune_mha_weights v = one.weights;
    pack_model(&one);
    set_dims(&v.tensor[ATTUNE_OUT_WEIGHT], 3, 1, 1, 6, 0); /* dims of 1 on either side of the cut */
    set_dims(&v.tensor[ATTUNE_Q_WEIGHT], 4, 1, 6, 1, 6);
    assert_packs_the_same(&one, &v);
    close_model(&one);
}

static void test_weights_anywhere_in_memory(void **state) {
    (void)state;
    for (int layout = 0; layout < 2; layout++) {
        model m = open_model("embed_dim=40,num_heads=4,seq_q=4", (attune_weight_layout)layout, RANDOM_BITS);
        attune_mha_weights w = m.weights;
        unsigned char *odd[ATTUNE_QKV_WEIGHT];
        pack_model(&m);
        for (int id = 0; id < ATTUNE_QKV_WEIGHT; id++) {
            const size_t bytes = count_of(&w.tensor[id]) * m.size;
            odd[id] = malloc(bytes + 1);
            assert_non_null(odd[id]);
            w.tensor[id].data = memcpy(odd[id] + 1, w.tensor[id].data, bytes);
        }
        assert_packs_the_same(&m, &w);
        for (int id = 0; id < ATTUNE_QKV_WEIGHT; id++) free(odd[id]);
        close_model(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_weight_has_its_place),
        cmocka_unit_test(test_absent_biases_are_zero),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_layouts_agree),
        cmocka_unit_test(test_packed_qkv),
        cmocka_unit_test(test_packed_bias_of_separate_weights),
        cmocka_unit_test(test_split_dims),
        cmocka_unit_test(test_weights_anywhere_in_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
