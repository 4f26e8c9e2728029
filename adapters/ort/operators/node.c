/* A table of operators, one of their attributes, and one of attributes that later versions have: a node is read by its
 * rows, and refused with a sentence where a row says so. */
#include "node.h"

#include "conv.h"
#include "flex.h"
#include "fpenv.h"
#include "linear.h"
#include "ort/model/note.h"
#include "plain_text.h"
#include "projected.h"
#include "ort/model/source.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The operators ---- */

static const node_rule rules[NODE_KIND_COUNT] = {
    [NODE_ATTENTION] = {"", "Attention", 23, 25, 7, 3, 4},
    [NODE_MULTI_HEAD] = {"com.microsoft", "MultiHeadAttention", 1, 1, 10, 1, 4},
    [NODE_GROUP_QUERY] = {"com.microsoft", "GroupQueryAttention", 1, 1, 17, 1, 4},
    [NODE_PROJECTED] = {"com.microsoft", "Attention", 1, 1, 7, 2, 2},
    [NODE_LINEAR] = {"", "LinearAttention", 27, 27, LINEAR_NUM_INPUTS, 3, 2},
    [NODE_MS_LINEAR] = {"com.microsoft", "LinearAttention", 1, 1, LINEAR_NUM_INPUTS, 3, 2},
    [NODE_CONV] = {"", "CausalConvWithState", 27, 27, CONV_NUM_INPUTS, 2, 2},
    [NODE_MS_CONV] = {"com.microsoft", "CausalConvWithState", 1, 1, CONV_NUM_INPUTS, 2, 2},
    [NODE_BLOCK] = {.domain = "", .type = "block"},
    [NODE_FLEX] = {"attune", "FlexAttention", 1, 1, FLEX_NUM_INPUTS, FLEX_TENSORS, 1},
};

const node_rule *node_rule_of(node_op op) { return &rules[op]; }

node_op node_op_of(const char *domain, const char *type) {
    node_op op = 0;
    /* ONNX's domain has two names. */
    if (!strcmp(domain, "ai.onnx")) domain = "";
    while (op < NODE_OP_COUNT && (strcmp(rules[op].domain, domain) || strcmp(rules[op].type, type))) op++;
    return op;
}

/* ---- Attributes ---- */

typedef struct attribute_rule {
    const char *name;
    bool is_real;
    size_t offset;
    const char *const *words; /* that a text may be, up to a NULL: the member gets which one. NULL: it is a number */
} attribute_rule;

#define WHOLE(name, member)       {name, false, offsetof(node_attributes, member), NULL}
#define REAL(name, member)        {name, true, offsetof(node_attributes, member), NULL}
#define WORD(name, member, words) {name, false, offsetof(node_attributes, member), words}
#define OF_LINEAR                                                                                                      \
    {WHOLE("q_num_heads", num_heads), WHOLE("kv_num_heads", kv_num_heads), REAL("scale", scale),                       \
     WORD("update_rule", update_rule, linear_rules)}
enum { MAX_ATTRIBUTES = 16 };
static const attribute_rule attributes[NODE_KIND_COUNT][MAX_ATTRIBUTES] = {
    [NODE_ATTENTION] = {WHOLE("is_causal", is_causal), WHOLE("q_num_heads", num_heads),
                        WHOLE("kv_num_heads", kv_num_heads), WHOLE("qk_matmul_output_mode", weights_mode),
                        REAL("scale", scale), REAL("softcap", soft_cap), WHOLE("softmax_precision", precision),
                        WHOLE("left_window_size", window_left), WHOLE("right_window_size", window_right)},
    [NODE_MULTI_HEAD] = {WHOLE("num_heads", num_heads), REAL("mask_filter_value", mask_filter_value),
                         REAL("scale", scale), WHOLE("unidirectional", is_causal)},
    [NODE_GROUP_QUERY] = {WHOLE("num_heads", num_heads), WHOLE("kv_num_heads", kv_num_heads), REAL("scale", scale),
                          REAL("softcap", soft_cap), WHOLE("local_window_size", window_left),
                          WHOLE("do_rotary", do_rotary), WHOLE("rotary_interleaved", rotary_interleaved),
                          WHOLE("smooth_softmax", smooth_softmax), WHOLE("qk_output", weights_mode),
                          WHOLE("causal", is_causal), WHOLE("kv_cache_bit_width", cache_bits),
                          REAL("qk_norm_epsilon", norm_eps), REAL("q_norm_epsilon", q_norm_eps),
                          REAL("k_norm_epsilon", k_norm_eps)},
    [NODE_PROJECTED] = {WHOLE("num_heads", num_heads), REAL("mask_filter_value", mask_filter_value),
                        REAL("scale", scale), WHOLE("unidirectional", is_causal), WHOLE("do_rotary", do_rotary)},
    [NODE_LINEAR] = OF_LINEAR,
    [NODE_MS_LINEAR] = OF_LINEAR,
    [NODE_CONV] = {WORD("activation", activation, conv_activations)},
    [NODE_MS_CONV] = {WORD("activation", activation, conv_activations), WHOLE("dilation", dilation),
                      WHOLE("channels_last", channels_last)},
    [NODE_FLEX] = {REAL("scale", scale), WHOLE("softmax_precision", precision)}, /* and texts: flex.c */
};

/* Attributes that must have the value without effect, most of them from later versions. ONNX Runtime fills in those
 * that a model omits. Some only matter with an input that is rejected, and qkv_hidden_sizes is read with the weights.
 */
typedef struct later_rule {
    node_op op;
    const char *name, *text; /* text NULL: a whole number */
    int64_t whole;
    bool is_any;
} later_rule;

static const later_rule later[] = {{NODE_GROUP_QUERY, "sliding_window_cache", NULL, 0, false},
                                   {NODE_GROUP_QUERY, "k_quant_type", NULL, 0, true},
                                   {NODE_GROUP_QUERY, "v_quant_type", NULL, 0, true},
                                   {NODE_PROJECTED, "rotary_embedding_dim", NULL, 0, true},
                                   {NODE_PROJECTED, "past_present_share_buffer", NULL, 0, true},
                                   {NODE_PROJECTED, "qkv_hidden_sizes", NULL, 0, true},
                                   {NODE_LINEAR, "chunk_size", NULL, 0, true}, /* a hint that changes no result */
                                   {NODE_MS_LINEAR, "chunk_size", NULL, 0, true},
                                   {NODE_MS_LINEAR, "state_window", NULL, 0, false},
                                   {NODE_MS_CONV, "ndim", NULL, 1, false},
                                   {NODE_MS_CONV, "state_window", NULL, 0, false},
                                   {NODE_MS_CONV, "state_update_capacity", NULL, 0, false},
                                   {NODE_MS_CONV, "state_channels_last", NULL, -1, false},
                                   {NODE_MS_CONV, "state_length", NULL, 0, false},
                                   {NODE_MS_CONV, "input_channel_offset", NULL, 0, false},
                                   {NODE_MS_CONV, "input_channels", NULL, 0, false}};
enum { NUM_LATER = sizeof later / sizeof *later };

static const attribute_rule *find_rule(node_op op, const char *name) {
    for (size_t i = 0; i < MAX_ATTRIBUTES && attributes[op][i].name; i++)
        if (!strcmp(attributes[op][i].name, name)) return &attributes[op][i];
    return NULL;
}

__attribute__((format(printf, 2, 3))) static bool refuse(char *message, const char *format, ...) {
    va_list list;
    va_start(list, format);
    at_vprint(message, ATTUNE_MESSAGE_BYTES, format, list);
    va_end(list);
    return false;
}

static bool is_later(node_op op, const char *name) {
    for (size_t i = 0; i < NUM_LATER; i++)
        if (later[i].op == op && !strcmp(later[i].name, name)) return true;
    return false;
}

static bool check_later(const node_source *s, const later_rule *rule, char *message) {
    int64_t whole = rule->whole;
    char text[16] = "";
    if (rule->is_any) return true;
    if (rule->text && !source_text(s, rule->name, text, sizeof text))
        return !source_has_text(s, rule->name) ||
               refuse(message, "%s is a long text; attune computes it with %s only", rule->name, rule->text);
    if (rule->text)
        return !strcmp(text, rule->text) ||
               refuse(message, "%s is %s; attune computes it with %s only", rule->name, text, rule->text);
    source_whole(s, rule->name, &whole);
    return whole == rule->whole || refuse(message, "%s is %lld; attune computes it with %lld only", rule->name,
                                          (long long)whole, (long long)rule->whole);
}

/* In a note, a word is a number. */
static bool read_word(const node_source *s, const attribute_rule *rule, int64_t *which, char *message) {
    char text[16];
    int64_t count = 0, found = -1;
    for (; rule->words[count]; count++) {
    }
    if (!source_text(s, rule->name, text, sizeof text)) {
        if (source_has_text(s, rule->name))
            return refuse(message, "%s is a long text, which attune does not know", rule->name);
        source_whole(s, rule->name, which);
        return (*which >= 0 && *which < count) || refuse(message, "%s is word %lld", rule->name, (long long)*which);
    }
    for (int64_t i = 0; i < count; i++)
        if (!strcmp(text, rule->words[i])) found = i;
    *which = found;
    return found >= 0 || refuse(message, "%s is %s, which attune does not know", rule->name, text);
}

static bool read_attributes(const node_source *s, node_op op, node_attributes *a, char *message) {
    const char *name;
    for (size_t i = 0; (name = source_attribute(s, i)); i++)
        if (!find_rule(op, name) && !is_later(op, name))
            return refuse(message, "it has the attribute %s, which attune does not know", name);
    for (size_t i = 0; i < NUM_LATER; i++)
        if (later[i].op == op && !check_later(s, &later[i], message)) return false;
    for (size_t i = 0; i < MAX_ATTRIBUTES && attributes[op][i].name; i++) {
        void *const member = (char *)a + attributes[op][i].offset;
        if (attributes[op][i].words && !read_word(s, &attributes[op][i], member, message)) return false;
        if (attributes[op][i].words) continue;
        if (attributes[op][i].is_real)
            source_real(s, attributes[op][i].name, member);
        else
            source_whole(s, attributes[op][i].name, member);
    }
    return true;
}

/* The operators that require a number of heads, and for which a scale of 0 means the default. */
static bool needs_heads(node_op op) { return op != NODE_ATTENTION && op != NODE_FLEX && !node_is_conv(op); }

static bool check_heads(node_op op, const node_attributes *a, char *message) {
    if (a->num_heads < needs_heads(op) || a->num_heads > INT32_MAX)
        return refuse(message, "its number of heads is %lld", (long long)a->num_heads);
    if (a->kv_num_heads < (op == NODE_GROUP_QUERY || node_is_linear(op)) || a->kv_num_heads > INT32_MAX)
        return refuse(message, "kv_num_heads is %lld", (long long)a->kv_num_heads);
    if (op == NODE_MS_LINEAR && a->kv_num_heads % a->num_heads == 0) return true;
    if (a->num_heads && a->kv_num_heads && a->num_heads % a->kv_num_heads)
        return refuse(message, "its number of heads, %lld, is no multiple of kv_num_heads, %lld",
                      (long long)a->num_heads, (long long)a->kv_num_heads);
    return true;
}

static bool check_numbers(node_op op, node_attributes *a, char *message) {
    AT_DEFAULT_FPENV;
    if (a->is_causal < 0 || a->is_causal > 1)
        return refuse(message, "%s is %lld; it must be 0 or 1",
                      op == NODE_ATTENTION     ? "is_causal"
                      : op == NODE_GROUP_QUERY ? "causal"
                                               : "unidirectional",
                      (long long)a->is_causal);
    if (!isnan(a->scale) && !(fabsf(a->scale) <= 1e38f)) return refuse(message, "scale is %g", (double)a->scale);
    if (needs_heads(op) && a->scale == 0) a->scale = NAN;
    if (!(a->soft_cap >= 0) || isinf(a->soft_cap)) return refuse(message, "softcap is %g", (double)a->soft_cap);
    if (a->window_left < -1 || a->window_right < -1 || (op == NODE_GROUP_QUERY && a->window_left == 0))
        return refuse(message, "its window is %lld, %lld", (long long)a->window_left, (long long)a->window_right);
    /* No sequence is so long, so a larger window is unlimited. GroupQueryAttention's window includes the query's own
     * key. */
    if (a->window_left >= INT32_MAX) a->window_left = -1;
    if (a->window_right >= INT32_MAX) a->window_right = -1;
    if (op == NODE_GROUP_QUERY && a->window_left > 0) a->window_left--;
    if (a->precision && a->precision != ORT_FLOAT && a->precision != ORT_FLOAT16 && a->precision != ORT_DOUBLE &&
        a->precision != ORT_BFLOAT16)
        return refuse(message, "softmax_precision is %lld", (long long)a->precision);
    return true;
}

/* ---- Inputs and outputs ---- */

/* attune hides padding completely, which is equivalent if the value added to its scores makes their probabilities 0. */
static bool check_filter(const node_source *s, size_t mask, const node_attributes *a, char *message) {
    AT_DEFAULT_FPENV;
    return !source_has_input(s, mask) || a->mask_filter_value <= -1000 ||
           refuse(message, "mask_filter_value is %g; with a %s attune computes -1000 or less",
                  (double)a->mask_filter_value, mask == 3 ? "mask_index" : "key_padding_mask");
}

static bool check_attention(const node_source *s, node_spec *spec, char *message) {
    const node_attributes *const a = &spec->attributes;
    const int mask_type = source_input_type(s, 3);
    if (spec->wants_weights && (a->weights_mode < 0 || a->weights_mode > 3))
        return refuse(message, "qk_matmul_output_mode is %lld", (long long)a->weights_mode);
    if (mask_type != ORT_UNDEFINED && mask_type != ORT_BOOL && !common_is_float(adapter_dtype(mask_type)))
        return refuse(message, "attn_mask has the type %d; it must be bool or of a float type", mask_type);
    return true;
}

/* Rejects shapes that a call would reject, if the model has them. */
static bool check_mask_shape(const node_source *s, size_t index, const char *name, char *message) {
    graph_shape x, mask;
    if (!source_shape(s, index, &mask)) return true;
    if (mask.rank > 3) return refuse(message, "%s has %d dims, which attune does not support", name, mask.rank);
    if (mask.rank > 1 || mask.dims[0] < 0 || !source_shape(s, 0, &x) || x.dims[0] < 0 || mask.dims[0] == x.dims[0])
        return true;
    return refuse(message, "%s is of shape [%lld] for a batch of %lld, which attune does not support", name,
                  (long long)mask.dims[0], (long long)x.dims[0]);
}

static bool check_multi_head_shapes(const node_source *s, const node_spec *spec, char *message) {
    static const char packed[] = "queries, keys and values that are packed into one input are not supported";
    graph_shape q, k, bias;
    if (!source_has_input(s, 1) || !source_has_input(s, 2)) return refuse(message, "%s", packed);
    if (!source_shape(s, 0, &q) || !source_shape(s, 1, &k)) return true;
    if (q.rank == 5 || k.rank == 5) return refuse(message, "%s", packed);
    const int64_t rows = q.rank == 3 ? q.dims[1] : -1, keys = k.rank >= 3 ? k.dims[k.rank - 2] : -1;
    if (spec->attributes.is_causal && rows > 1 && keys > rows)
        return refuse(message,
                      "unidirectional is 1 with %lld queries and %lld new keys; more keys than queries need one query",
                      (long long)rows, (long long)keys);
    return !source_shape(s, 3, &bias) || bias.type == ORT_FLOAT || refuse(message, "bias is supported for float only");
}

static bool check_multi_head(const node_source *s, node_spec *spec, char *message) {
    if (spec->wants_weights) return refuse(message, "it has the output qk, which attune does not compute");
    if (source_has_input(s, 8) || source_has_input(s, 9))
        return refuse(message, "it has past_sequence_length or cache_indirection, which attune does not support");
    return check_filter(s, 4, &spec->attributes, message) && check_multi_head_shapes(s, spec, message) &&
           check_mask_shape(s, 4, "key_padding_mask", message);
}

/* NONE if the node has no such string. */
static bool read_quantisation(const node_source *s, const char *name, char text[16], char *message) {
    if (source_text(s, name, text, 16)) return true;
    strcpy(text, "NONE");
    return !source_has_text(s, name) || refuse(message, "%s is a long text, which attune does not know", name);
}

/* A quantised cache has one scale, or one for each column of a head; the number of scales tells which. An EPContext
 * node has no strings. */
static bool check_quantised(const node_source *s, const node_attributes *a, char *message) {
    char k[16], v[16];
    const bool has_scales = source_has_input(s, 12) || source_has_input(s, 13);
    if (a->cache_bits && a->cache_bits != 8 && a->cache_bits != 4)
        return refuse(message, "kv_cache_bit_width is %lld; it must be 8 or 4", (long long)a->cache_bits);
    if (!read_quantisation(s, "k_quant_type", k, message) || !read_quantisation(s, "v_quant_type", v, message))
        return false;
    if (strcmp(k, v)) return refuse(message, "k_quant_type is %s and v_quant_type %s; they must be the same", k, v);
    if (strcmp(k, "NONE") && strcmp(k, "PER_TENSOR") && strcmp(k, "PER_CHANNEL"))
        return refuse(message, "k_quant_type is %s, which attune does not know", k);
    if (a->cache_bits && !(source_has_input(s, 12) && source_has_input(s, 13)))
        return refuse(message, "kv_cache_bit_width is %lld, but k_scale or v_scale is not there",
                      (long long)a->cache_bits);
    if (!a->cache_bits && (has_scales || strcmp(k, "NONE")))
        return refuse(message, "it has quantised caches without kv_cache_bit_width, which attune does not support");
    return true;
}

static bool check_norms(const node_source *s, node_attributes *a, char *message) {
    AT_DEFAULT_FPENV;
    if (isnan(a->q_norm_eps)) a->q_norm_eps = a->norm_eps;
    if (isnan(a->k_norm_eps)) a->k_norm_eps = a->norm_eps;
    if (source_has_input(s, 14) != source_has_input(s, 15))
        return refuse(message, "q_norm_weight and k_norm_weight must both be there, or neither");
    if (!source_has_input(s, 14)) return true;
    for (int i = 0; i < 2; i++) {
        const float eps = i ? a->k_norm_eps : a->q_norm_eps;
        if (!(eps >= 1e-12f && eps <= 1))
            return refuse(message, "the epsilon of %s is %g; attune computes 1e-12 to 1", i ? "keys" : "queries",
                          (double)eps);
    }
    return a->cache_bits || a->q_norm_eps == a->k_norm_eps ||
           refuse(message, "q_norm_epsilon is %g and k_norm_epsilon %g; attune computes norms of one epsilon",
                  (double)a->q_norm_eps, (double)a->k_norm_eps);
}

static bool check_group_query(const node_source *s, node_spec *spec, char *message) {
    node_attributes *const a = &spec->attributes;
    if (spec->wants_weights || a->weights_mode)
        return refuse(message, "it has the output output_qk, which attune does not compute");
    if (source_has_input(s, 16)) return refuse(message, "it has query_seqlens, which attune does not support");
    if (!a->is_causal && a->window_left >= 0)
        return refuse(message, "causal is 0 and local_window_size %lld; a window needs causal=1",
                      (long long)a->window_left + 1);
    if (a->do_rotary && !(source_has_input(s, 7) && source_has_input(s, 8)))
        return refuse(message, "do_rotary is 1, but cos_cache or sin_cache is not there");
    return check_quantised(s, a, message) && check_norms(s, a, message);
}

static bool check_projected(const node_source *s, node_spec *spec, char *message) {
    int64_t sizes[3];
    if (source_has_input(s, PROJECTED_PAST) || source_has_output(s, 1))
        return refuse(message, "it has past or present, which attune does not support");
    if (spec->attributes.do_rotary) return refuse(message, "do_rotary is 1, which attune does not support");
    return check_filter(s, PROJECTED_MASK, &spec->attributes, message) &&
           check_mask_shape(s, PROJECTED_MASK, "mask_index", message) &&
           projected_sizes(s, spec->attributes.num_heads, sizes, message);
}

static bool check_linear(const node_source *s, node_spec *spec, char *message) {
    return linear_check(s, spec->attributes.update_rule, message);
}

static bool check_conv(const node_source *s, node_spec *spec, char *message) {
    return conv_check(s, spec->attributes.dilation, spec->attributes.channels_last, message);
}

static bool check_tensors(const node_source *s, node_spec *spec, char *message) {
    static bool (*const check[NODE_OP_COUNT])(const node_source *, node_spec *, char *) = {
        check_attention, check_multi_head, check_group_query, check_projected,
        check_linear,    check_linear,     check_conv,        check_conv};
    if (spec->op == NODE_FLEX) return true; /* flex_create looks at them */
    spec->wants_weights = source_has_output(s, 3);
    return check[spec->op](s, spec, message);
}

/* ---- In the note of an EPContext node ---- */

uint32_t node_own_types(node_op op) {
    static const uint32_t own[NODE_KIND_COUNT] = {
        [NODE_ATTENTION] = 1u << 3 | 1u << 6,
        [NODE_MULTI_HEAD] = 1u << 4 | 1u << 8 | 1u << 9,
        [NODE_PROJECTED] = 1u << 3 | 1u << 6,
        [NODE_GROUP_QUERY] = 1u << 3 | 1u << 4 | 1u << 5 | 1u << 6 | 1u << 9 | 1u << 12 | 1u << 13,
        [NODE_LINEAR] = 1u << LINEAR_PAST,
        [NODE_MS_LINEAR] = 1u << LINEAR_PAST,
        [NODE_FLEX] = ~0u << FLEX_TENSORS,
    };
    return own[op];
}

uint32_t node_carried(node_op op) {
    return op == NODE_GROUP_QUERY ? 1u << 3 | 1u << 4 : node_is_linear(op) ? 1u << LINEAR_PAST : 0;
}

/* As in the model, so that they are read and checked again like a model's. */
void node_save(const node_source *s, node_op op, note *n) {
    int64_t sizes[3];
    for (size_t i = 0; i < MAX_ATTRIBUTES && attributes[op][i].name; i++) {
        const attribute_rule *const rule = &attributes[op][i];
        int64_t whole = 0;
        float real;
        char message[ATTUNE_MESSAGE_BYTES];
        if (rule->words && read_word(s, rule, &whole, message))
            note_put(n, rule->name, &whole, 1);
        else if (rule->is_real && source_real(s, rule->name, &real))
            note_put_real(n, rule->name, real);
        else if (!rule->is_real && source_whole(s, rule->name, &whole))
            note_put(n, rule->name, &whole, 1);
    }
    if (op == NODE_PROJECTED && source_wholes(s, "qkv_hidden_sizes", sizes, 3) == 3)
        note_put(n, "qkv_hidden_sizes", sizes, 3);
}

void node_save_attributes(const node_attributes *a, note *n) {
    for (size_t i = 0; i < MAX_ATTRIBUTES && attributes[NODE_ATTENTION][i].name; i++) {
        const attribute_rule *const rule = &attributes[NODE_ATTENTION][i];
        const void *const member = (const char *)a + rule->offset;
        if (rule->is_real)
            note_put_real(n, rule->name, *(const float *)member);
        else
            note_put(n, rule->name, member, 1);
    }
}

bool node_recall_attributes(const note *n, node_attributes *a, char message[ATTUNE_MESSAGE_BYTES]) {
    *a = node_default_attributes();
    for (size_t i = 0; i < MAX_ATTRIBUTES && attributes[NODE_ATTENTION][i].name; i++) {
        const attribute_rule *const rule = &attributes[NODE_ATTENTION][i];
        void *const member = (char *)a + rule->offset;
        if (!(rule->is_real ? note_get_real(n, rule->name, member) : note_get(n, rule->name, member, 1) == 1))
            return refuse(message, "its note lacks %s", rule->name);
    }
    return check_heads(NODE_ATTENTION, a, message) && check_numbers(NODE_ATTENTION, a, message);
}

node_attributes node_default_attributes(void) {
    return (node_attributes){.scale = NAN,
                             .window_left = -1,
                             .window_right = -1,
                             .mask_filter_value = -10000,
                             .smooth_softmax = -1,
                             .update_rule = ATTUNE_GATED_DELTA,
                             .dilation = 1,
                             .norm_eps = 1e-6f,
                             .q_norm_eps = NAN,
                             .k_norm_eps = NAN};
}

bool node_describe(const node_source *source, node_op op, node_spec *spec, char message[ATTUNE_MESSAGE_BYTES]) {
    *spec = (node_spec){.op = op, .attributes = node_default_attributes()};
    spec->attributes.is_causal = op == NODE_GROUP_QUERY;
    return read_attributes(source, op, &spec->attributes, message) && check_heads(op, &spec->attributes, message) &&
           check_numbers(op, &spec->attributes, message) && check_tensors(source, spec, message);
}
