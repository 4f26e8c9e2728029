/* Weights from files: the same weights under every convention's names, from both kinds of source, give the same packed
 * blob; sizes come from their shapes; a message names every refused weight. Messages go to stderr: test_mha_cli.sh
 * checks them. */
#include "common/npy.h"
#include "support/problems.h"
#include "support/temp_dir.h"
#include "weights/weights_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* No two sizes are equal, so that no mix-up can hide. */
enum { EMBED = 24, HEADS = 4, DIM = 5, OUT = 14, COLUMNS = HEADS * DIM };

/* All as [out, in]; qkv is q, k and v one after the other. */
static struct model {
    float qkv[3 * COLUMNS * EMBED], qkv_bias[3 * COLUMNS], out[OUT * COLUMNS], out_bias[OUT];
} model;

static void make_model(void) {
    float *const all = (float *)&model;
    tool_random random = {7};
    for (size_t i = 0; i < sizeof model / sizeof *all; i++) all[i] = tool_random_normal(&random);
}

/* ---- Writing files ---- */

typedef struct entry {
    char name[80];
    size_t rank;
    int64_t dims[3];
    float *data;
} entry;

typedef struct bundle {
    entry list[16];
    size_t count;
} bundle;

static void add(bundle *b, const char *prefix, const char *name, size_t rank, const int64_t *dims, const float *data) {
    entry *const one = &b->list[b->count++];
    size_t count = 1;
    snprintf(one->name, sizeof one->name, "%s%s", prefix, name);
    one->rank = rank;
    memcpy(one->dims, dims, rank * sizeof *dims);
    for (size_t d = 0; d < rank; d++) count *= (size_t)dims[d];
    one->data = malloc(count * sizeof *data);
    assert_non_null(one->data);
    memcpy(one->data, data, count * sizeof *data);
}

static void free_bundle(bundle *b) {
    for (size_t i = 0; i < b->count; i++) free(b->list[i].data);
    b->count = 0;
}

/* A matrix [outputs, inputs] in a layout; `split` cuts the side of the heads in two, as Keras does. */
static void add_matrix(bundle *b, const char *prefix, const char *name, int64_t outputs, int64_t inputs,
                       const float *data, attune_weight_layout layout, bool split, bool heads_in) {
    float *const turned = malloc((size_t)(outputs * inputs) * sizeof *turned);
    int64_t dims[3] = {outputs, inputs};
    assert_non_null(turned);
    for (int64_t o = 0; o < outputs; o++)
        for (int64_t i = 0; i < inputs; i++)
            turned[layout == ATTUNE_OUT_IN ? o * inputs + i : i * outputs + o] = data[o * inputs + i];
    if (layout == ATTUNE_IN_OUT) dims[0] = inputs, dims[1] = outputs;
    if (split && heads_in) dims[2] = dims[1], dims[0] = HEADS, dims[1] = DIM;
    if (split && !heads_in) dims[1] = HEADS, dims[2] = DIM;
    add(b, prefix, name, split ? 3 : 2, dims, turned);
    free(turned);
}

static void write_arrays(const bundle *b, const char *folder) {
    char path[400], message[ATTUNE_MESSAGE_BYTES];
    for (size_t i = 0; i < b->count; i++) {
        char name[80];
        snprintf(name, sizeof name, "%s", b->list[i].name);
        for (char *c = name; *c; c++)
            if (*c == '/') *c = '.'; /* no file has a name with a / */
        snprintf(path, sizeof path, "%s/%s.npy", folder, name);
        if (!npy_write(path, NPY_F4, b->list[i].rank, b->list[i].dims, b->list[i].data, message))
            fail_msg("%s", message);
    }
}

/* `shift` makes the header longer by so many spaces: tensors then lie where they are not aligned. */
static void write_safetensors(const bundle *b, const char *path, int shift) {
    char header[4096];
    size_t length = 0, offset = 0;
    header[length++] = '{';
    for (size_t i = 0; i < b->count; i++) {
        const entry *const one = &b->list[i];
        char shape[80] = "";
        size_t bytes = sizeof(float);
        for (size_t d = 0; d < one->rank; d++) {
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%lld", d ? "," : "",
                     (long long)one->dims[d]);
            bytes *= (size_t)one->dims[d];
        }
        length += (size_t)snprintf(header + length, sizeof header - length,
                                   "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                                   i ? "," : "", one->name, shape, offset, offset + bytes);
        offset += bytes;
    }
    header[length++] = '}';
    while (length % 8 != (size_t)shift) header[length++] = ' ';
    FILE *const file = fopen(path, "wb");
    assert_non_null(file);
    for (int i = 0; i < 8; i++) fputc((int)(length >> (8 * i) & 0xff), file);
    fwrite(header, 1, length, file);
    for (size_t i = 0; i < b->count; i++) {
        size_t count = 1;
        for (size_t d = 0; d < b->list[i].rank; d++) count *= (size_t)b->list[i].dims[d];
        fwrite(b->list[i].data, sizeof(float), count, file);
    }
    assert_int_equal(fclose(file), 0);
}

/* ---- Packing them ---- */

static attune_problem make_problem(void) {
    attune_problem p = ATTUNE_PROBLEM_INIT;
    p.embed_dim = EMBED;
    p.seq_q = 3;
    p.num_heads = HEADS;
    p.head_dim = DIM;
    p.out_dim = OUT;
    return p;
}

/* The blob that the library makes of the model itself. */
static void pack_model(const attune_problem *p, bool with_biases, tensors *t) {
    assert_true(tensors_create(t, p));
    attune_weight *const w = t->weights.tensor;
    for (int i = 0; i < 3; i++) {
        w[ATTUNE_Q_WEIGHT + i].data = model.qkv + i * COLUMNS * EMBED;
        w[ATTUNE_Q_BIAS + i].data = with_biases ? model.qkv_bias + i * COLUMNS : NULL;
    }
    w[ATTUNE_OUT_WEIGHT].data = model.out;
    w[ATTUNE_OUT_BIAS].data = with_biases ? model.out_bias : NULL;
    assert_true(tensors_pack(t));
}

/* Loads the source with all sizes open, and compares the packed result. */
static void assert_packs(const char *path, const weights_request *request, const tensors *expected, const char *title) {
    attune_problem p = ATTUNE_PROBLEM_INIT;
    weights_file file;
    tensors t;
    p.embed_dim = EMBED;
    p.seq_q = 3;
    p.num_heads = HEADS;
    assert_true(weights_file_open(&file, path, request));
    assert_string_equal(file.match.convention ? file.match.convention : "none", title);
    assert_true(weights_file_sizes(&file, &p));
    if (p.head_dim != DIM || p.num_kv_heads != HEADS || p.out_dim != OUT || (p.head_dim_v && p.head_dim_v != DIM))
        fail_msg("%s: head_dim %d, num_kv_heads %d, out_dim %d, head_dim_v %d", title, (int)p.head_dim,
                 (int)p.num_kv_heads, (int)p.out_dim, (int)p.head_dim_v);
    assert_true(tensors_create(&t, &p));
    assert_true(weights_file_pack(&file, &t));
    const tensor *const got = tensors_find(&t, "packed_weights"), *const want =
                                                                      tensors_find(expected, "packed_weights");
    assert_int_equal(got->count, want->count);
    if (memcmp(got->data, want->data, got->count * sizeof(float)) != 0) fail_msg("%s: another blob", title);
    /* The reference reads the weights themselves: they must be plain matrices, and aligned. */
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++) {
        const attune_weight *const w = &t.weights.tensor[id];
        assert_true(!w->data || (w->rank <= 2 && (uintptr_t)w->data % sizeof(float) == 0));
    }
    tensors_free(&t);
    weights_file_close(&file);
}

/* From a file, a file with unaligned tensors, and a directory. */
static void assert_all_pack(const bundle *b, const weights_request *request, const tensors *expected,
                            const char *title) {
    char folder[TEMP_DIR_CHARS], path[400];
    temp_dir_make(folder);
    snprintf(path, sizeof path, "%s/a.safetensors", folder);
    write_safetensors(b, path, 0);
    assert_packs(path, request, expected, title);
    write_safetensors(b, path, 3);
    assert_packs(path, request, expected, title);
    assert_int_equal(unlink(path), 0);
    write_arrays(b, folder);
    assert_packs(folder, request, expected, title);
    temp_dir_remove(folder);
}

/* ---- The conventions ---- */

typedef struct names {
    const char *title;
    attune_weight_layout layout;
    bool split;
    const char *weights[4], *biases[4]; /* q, k, v, out; packed: qkv in place of q */
    const char *harmless;
} names;

static const names separate[] = {
    {"attune",
     ATTUNE_OUT_IN,
     false,
     {"q_weight", "k_weight", "v_weight", "out_weight"},
     {"q_bias", "k_bias", "v_bias", "out_bias"},
     NULL},
    {"BERT",
     ATTUNE_OUT_IN,
     false,
     {"self.query.weight", "self.key.weight", "self.value.weight", "output.dense.weight"},
     {"self.query.bias", "self.key.bias", "self.value.bias", "output.dense.bias"},
     "output.LayerNorm.weight"},
    {"ViT",
     ATTUNE_OUT_IN,
     false,
     {"attention.query.weight", "attention.key.weight", "attention.value.weight", "output.dense.weight"},
     {"attention.query.bias", "attention.key.bias", "attention.value.bias", "output.dense.bias"},
     NULL},
    {"DistilBERT",
     ATTUNE_OUT_IN,
     false,
     {"q_lin.weight", "k_lin.weight", "v_lin.weight", "out_lin.weight"},
     {"q_lin.bias", "k_lin.bias", "v_lin.bias", "out_lin.bias"},
     NULL},
    {"Llama",
     ATTUNE_OUT_IN,
     false,
     {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"},
     {"q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"},
     "rotary_emb.inv_freq"},
    {"BART",
     ATTUNE_OUT_IN,
     false,
     {"q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight"},
     {"q_proj.bias", "k_proj.bias", "v_proj.bias", "out_proj.bias"},
     NULL},
    {"T5", ATTUNE_OUT_IN, false, {"q.weight", "k.weight", "v.weight", "o.weight"}, {NULL}, NULL},
    {"Keras",
     ATTUNE_IN_OUT,
     true,
     {"query/kernel", "key/kernel", "value/kernel", "attention_output/kernel"},
     {"query/bias", "key/bias", "value/bias", "attention_output/bias"},
     NULL},
    {"Flax",
     ATTUNE_IN_OUT,
     true,
     {"query/kernel", "key/kernel", "value/kernel", "out/kernel"},
     {"query/bias", "key/bias", "value/bias", "out/bias"},
     NULL},
};
static const names packed[] = {
    {"attune",
     ATTUNE_OUT_IN,
     false,
     {"qkv_weight", NULL, NULL, "out_weight"},
     {"qkv_bias", NULL, NULL, "out_bias"},
     NULL},
    {"torch.nn.MultiheadAttention",
     ATTUNE_OUT_IN,
     false,
     {"in_proj_weight", NULL, NULL, "out_proj.weight"},
     {"in_proj_bias", NULL, NULL, "out_proj.bias"},
     NULL},
    {"Phi-3", ATTUNE_OUT_IN, false, {"qkv_proj.weight", NULL, NULL, "o_proj.weight"}, {NULL}, NULL},
    {"timm",
     ATTUNE_OUT_IN,
     false,
     {"qkv.weight", NULL, NULL, "proj.weight"},
     {"qkv.bias", NULL, NULL, "proj.bias"},
     NULL},
    {"GPT-2",
     ATTUNE_IN_OUT,
     false,
     {"c_attn.weight", NULL, NULL, "c_proj.weight"},
     {"c_attn.bias", NULL, NULL, "c_proj.bias"},
     "bias"},
};

static void add_names(bundle *b, const char *prefix, const names *n, bool is_packed) {
    const int parts = is_packed ? 3 : 1;
    for (int i = 0; i < 4; i++) {
        const int64_t rows = i == 3 ? OUT : parts * COLUMNS, inputs = i == 3 ? COLUMNS : EMBED;
        const int64_t bias_dims[2] = {n->split && i < 3 ? HEADS : rows, DIM};
        const float *const bias = i == 3 ? model.out_bias : model.qkv_bias + i * COLUMNS;
        if (!n->weights[i]) continue;
        add_matrix(b, prefix, n->weights[i], rows, inputs, i == 3 ? model.out : model.qkv + i * COLUMNS * EMBED,
                   n->layout, n->split, i == 3);
        if (n->biases[i]) add(b, prefix, n->biases[i], n->split && i < 3 ? 2 : 1, bias_dims, bias);
    }
    if (n->harmless) add(b, prefix, n->harmless, 1, (const int64_t[1]){3}, model.out);
}

static void assert_convention(const names *n, bool is_packed) {
    static const char *const prefixes[] = {"", "layers.7.", "a/b/"};
    const attune_problem p = make_problem();
    tensors expected;
    pack_model(&p, n->biases[0] != NULL, &expected);
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        bundle b = {.count = 0};
        add_names(&b, prefixes[i], n, is_packed);
        if (*prefixes[i]) add(&b, "", "norm.weight", 1, (const int64_t[1]){2}, model.out);
        assert_all_pack(&b, &(weights_request){.prefix = NULL}, &expected, n->title);
        free_bundle(&b);
    }
    tensors_free(&expected);
}

static void test_every_convention(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof separate / sizeof *separate; i++) assert_convention(&separate[i], false);
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++) assert_convention(&packed[i], true);
}

/* torch.nn.MultiheadAttention with kdim or vdim: separate weights, one bias. */
static void test_torch_with_separate_weights(void **state) {
    (void)state;
    const attune_problem p = make_problem();
    bundle b = {.count = 0};
    tensors expected;
    const char *const weights[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};
    for (int i = 0; i < 3; i++)
        add_matrix(&b, "mha.", weights[i], COLUMNS, EMBED, model.qkv + i * COLUMNS * EMBED, ATTUNE_OUT_IN, false,
                   false);
    add(&b, "mha.", "in_proj_bias", 1, (const int64_t[1]){3 * COLUMNS}, model.qkv_bias);
    add_matrix(&b, "mha.", "out_proj.weight", OUT, COLUMNS, model.out, ATTUNE_OUT_IN, false, true);
    add(&b, "mha.", "out_proj.bias", 1, (const int64_t[1]){OUT}, model.out_bias);
    pack_model(&p, true, &expected);
    assert_all_pack(&b, &(weights_request){.prefix = NULL}, &expected, "torch.nn.MultiheadAttention");
    tensors_free(&expected);
    free_bundle(&b);
}

/* Keys and values that are given: the rest of the model's weights are left aside, one matrix for all three is cut. */
static void test_queries_alone(void **state) {
    (void)state;
    static const struct {
        const names *names;
        bool is_packed;
    } cases[] = {{&separate[0], false}, {&separate[7], false}, {&packed[0], true}, {&packed[1], true}};
    attune_problem p = make_problem();
    p.kv_projected = 1;
    p.seq_kv = 6;
    tensors expected, t;
    assert_true(tensors_create(&expected, &p));
    expected.weights.tensor[ATTUNE_Q_WEIGHT].data = model.qkv;
    expected.weights.tensor[ATTUNE_Q_BIAS].data = model.qkv_bias;
    expected.weights.tensor[ATTUNE_OUT_WEIGHT].data = model.out;
    expected.weights.tensor[ATTUNE_OUT_BIAS].data = model.out_bias;
    assert_true(tensors_pack(&expected));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[TEMP_DIR_CHARS];
        bundle b = {.count = 0};
        weights_file file;
        temp_dir_make(folder);
        add_names(&b, "", cases[i].names, cases[i].is_packed);
        write_arrays(&b, folder);
        free_bundle(&b);
        assert_true(weights_file_open(&file, folder, &(weights_request){.prefix = NULL}));
        assert_true(tensors_create(&t, &p));
        assert_true(weights_file_pack(&file, &t));
        const tensor *const got = tensors_find(&t, "packed_weights"), *const want =
                                                                          tensors_find(&expected, "packed_weights");
        assert_int_equal(got->count, want->count);
        if (memcmp(got->data, want->data, got->count * sizeof(float)) != 0) fail_msg("case %zu: another blob", i);
        tensors_free(&t);
        weights_file_close(&file);
        temp_dir_remove(folder);
    }
    tensors_free(&expected);
}

/* ---- Choosing ---- */

static void test_names_layout_and_ignoring(void **state) {
    (void)state;
    const attune_problem p = make_problem();
    bundle b = {.count = 0};
    tensors expected;
    const char *ignored[] = {"strange"};
    pack_model(&p, false, &expected);
    add_matrix(&b, "", "everything", 3 * COLUMNS, EMBED, model.qkv, ATTUNE_IN_OUT, false, false);
    add_matrix(&b, "", "last", OUT, COLUMNS, model.out, ATTUNE_IN_OUT, false, true);
    const weights_request by_name = {.names = {[ATTUNE_QKV_WEIGHT] = "everything", [ATTUNE_OUT_WEIGHT] = "last"},
                                     .has_layout = true,
                                     .layout = ATTUNE_IN_OUT};
    assert_all_pack(&b, &by_name, &expected, "none");
    free_bundle(&b);
    add_matrix(&b, "", "qkv_weight", 3 * COLUMNS, EMBED, model.qkv, ATTUNE_IN_OUT, false, false);
    add_matrix(&b, "", "wo", OUT, COLUMNS, model.out, ATTUNE_IN_OUT, false, true);
    add(&b, "", "strange", 1, (const int64_t[1]){3}, model.out);
    const weights_request mixed = {.names = {[ATTUNE_OUT_WEIGHT] = "wo"},
                                   .ignored = ignored,
                                   .num_ignored = 1,
                                   .has_layout = true,
                                   .layout = ATTUNE_IN_OUT};
    assert_all_pack(&b, &mixed, &expected, "attune");
    free_bundle(&b);
    tensors_free(&expected);
}

static void test_prefixes(void **state) {
    (void)state;
    static const struct {
        const char *asked, *found; /* found NULL: refused */
    } cases[] = {
        {NULL, NULL},
        {"layer.1.attn.", "layer.1.attn."},
        {"layer.1.attn", "layer.1.attn."},
        {"layer.1.", "layer.1.attn."},
        {"layer.1", NULL /* layer.10 too */},
        {"layer.10", "layer.10.attn."},
        {"", ""},
        {"layer.2", NULL},
        {"layer.1.attn.q_proj", NULL},
    };
    char folder[TEMP_DIR_CHARS], path[400];
    bundle b = {.count = 0};
    temp_dir_make(folder);
    snprintf(path, sizeof path, "%s/a.safetensors", folder);
    static const char *const blocks[] = {"", "layer.1.attn.", "layer.10.attn."};
    for (size_t i = 0; i < 3; i++)
        add_matrix(&b, blocks[i], "q_proj.weight", COLUMNS, EMBED, model.qkv, ATTUNE_OUT_IN, false, false);
    write_safetensors(&b, path, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *ignored[] = {"layer.1.attn.q_proj.weight", "layer.10.attn.q_proj.weight"};
        const weights_request request = {.prefix = cases[i].asked, .ignored = ignored, .num_ignored = 2};
        weights_file file;
        const bool opened = weights_file_open(&file, path, &request);
        if (opened != (cases[i].found != NULL)) fail_msg("case %zu: %d", i, opened);
        if (!opened) continue;
        assert_string_equal(file.match.prefix, cases[i].found);
        weights_file_close(&file);
    }
    free_bundle(&b);
    temp_dir_remove(folder);
}

/* ---- Sizes ---- */

typedef struct size_case {
    const char *text;                            /* given sizes */
    int64_t q, k, v, packed_outputs, out_inputs; /* sides of the matrices; 0: not there */
    const char *expected;                        /* the problem; NULL: refused */
} size_case;

static void assert_sizes(const size_case *c) {
    weights_file file = {.source = {.path = "here", .count = 1, .names = (char *[]){"w"}}};
    attune_problem p = ATTUNE_PROBLEM_INIT;
    const int64_t outputs[] = {c->q, c->k, c->v};
    p.num_heads = 0;
    assert_int_equal(attune_problem_parse(&p, c->text), ATTUNE_OK);
    for (int i = 0; i < 3; i++)
        if (outputs[i]) file.weights.tensor[i] = (attune_weight){.data = "", .rank = 2, .dims = {outputs[i], EMBED}};
    if (c->packed_outputs)
        file.weights.tensor[ATTUNE_QKV_WEIGHT] =
            (attune_weight){.data = "", .rank = 2, .dims = {c->packed_outputs, EMBED}};
    if (c->out_inputs)
        file.weights.tensor[ATTUNE_OUT_WEIGHT] = (attune_weight){.data = "", .rank = 2, .dims = {OUT, c->out_inputs}};
    const bool good = weights_file_sizes(&file, &p);
    if (good != (c->expected != NULL)) fail_msg("%s: %d", c->text, good);
    if (!good) return;
    const attune_problem expected = problem_parsed(c->expected);
    if (p.num_heads != expected.num_heads || p.num_kv_heads != expected.num_kv_heads ||
        p.head_dim != expected.head_dim || p.head_dim_v != expected.head_dim_v || p.out_dim != expected.out_dim)
        fail_msg("%s: num_heads %d, num_kv_heads %d, head_dim %d, head_dim_v %d, out_dim %d", c->text, (int)p.num_heads,
                 (int)p.num_kv_heads, (int)p.head_dim, (int)p.head_dim_v, (int)p.out_dim);
}

static void test_sizes(void **state) {
    (void)state;
    static const size_case cases[] = {
        {"num_heads=4", 20, 20, 20, 0, 20, "num_heads=4,num_kv_heads=4,head_dim=5,head_dim_v=5,out_dim=14"},
        {"num_heads=4", 20, 10, 10, 0, 20, "num_heads=4,num_kv_heads=2,head_dim=5,head_dim_v=5,out_dim=14"},
        {"num_heads=4", 20, 10, 14, 0, 28, "num_heads=4,num_kv_heads=2,head_dim=5,head_dim_v=7,out_dim=14"},
        {"num_heads=4,kv_projected=1", 20, 0, 0, 0, 28, "num_heads=4,head_dim=5,head_dim_v=7,out_dim=14"},
        {"num_heads=4,no_out_projection=1", 20, 20, 20, 0, 0, "num_heads=4,num_kv_heads=4,head_dim=5,head_dim_v=5"},
        {"num_heads=4", 0, 0, 0, 60, 20, "num_heads=4,num_kv_heads=4,head_dim=5,out_dim=14"},
        {"num_heads=4", 0, 0, 0, 40, 20, "num_heads=4,num_kv_heads=2,head_dim=5,out_dim=14"},
        {"num_heads=4,num_kv_heads=1", 0, 0, 0, 30, 20, "num_heads=4,num_kv_heads=1,head_dim=5,out_dim=14"},
        {"num_heads=4", 0, 0, 0, 60, 0, "num_heads=4,num_kv_heads=4,head_dim=5"},
        {"num_heads=4,head_dim=5,head_dim_v=7", 0, 0, 0, 60, 28, "num_heads=4,head_dim=5,head_dim_v=7,out_dim=14"},
        /* A given size stays, right or wrong: packing compares it. */
        {"num_heads=4,head_dim=3,out_dim=9", 20, 20, 20, 0, 20, "num_heads=4,head_dim=3,head_dim_v=5,out_dim=9"},
        {"num_heads=-4", 0, 0, 0, 60, 0, "num_heads=-4"},
        {"num_heads=9223372036854775807", 0, 0, 0, 60, 0, "num_heads=9223372036854775807"},
        {"num_heads=2,num_kv_heads=-1", 0, 0, 0, 60, 0, "num_heads=2,num_kv_heads=-1"},
        {"num_heads=3", 20, 20, 20, 0, 20, NULL},
        {"num_heads=4", 20, 12, 12, 0, 20, NULL},
        {"num_heads=4", 20, 10, 11, 0, 20, NULL},
        {"num_heads=4,kv_projected=1", 20, 0, 0, 0, 27, NULL},
        {"seq_q=3", 20, 20, 20, 0, 20, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) assert_sizes(&cases[i]);
}

static int set_up(void **state) {
    (void)state;
    make_model();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_convention), cmocka_unit_test(test_torch_with_separate_weights),
        cmocka_unit_test(test_queries_alone),    cmocka_unit_test(test_names_layout_and_ignoring),
        cmocka_unit_test(test_prefixes),         cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
