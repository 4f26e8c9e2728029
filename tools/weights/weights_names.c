/* A table of conventions, one for each library. A prefix is a block if the names of one convention follow it. */
#include "weights/weights_names.h"

#include "common/tool.h"
#include "weights/weights_textbook.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- The conventions ---- */

enum { MAX_HARMLESS = 4 };

typedef struct convention {
    const char *title;
    attune_weight_layout layout;
    const char *names[ATTUNE_NUM_WEIGHTS];
    const char *harmless[MAX_HARMLESS]; /* lie beside the weights, and the block does not need them */
    const char *norms[WEIGHTS_NORMS];   /* of queries and keys */
} convention;

/* Separate projections, each with a weight and a bias. */
#define SEPARATE(q, k, v, out, weight, bias)                                                                           \
    {q weight, k weight, v weight, out weight, q bias, k bias, v bias, out bias, NULL, NULL}
/* One for all three. */
#define PACKED(qkv, out)                                                                                               \
    {[ATTUNE_OUT_WEIGHT] = out ".weight",                                                                              \
     [ATTUNE_OUT_BIAS] = out ".bias",                                                                                  \
     [ATTUNE_QKV_WEIGHT] = qkv ".weight",                                                                              \
     [ATTUNE_QKV_BIAS] = qkv ".bias"}

static const convention conventions[] = {
    {"attune",
     ATTUNE_OUT_IN,
     {"q_weight", "k_weight", "v_weight", "out_weight", "q_bias", "k_bias", "v_bias", "out_bias", "qkv_weight",
      "qkv_bias"},
     {NULL},
     {"q_norm", "k_norm"}},
    {"torch.nn.MultiheadAttention",
     ATTUNE_OUT_IN,
     {"q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight", NULL, NULL, NULL, "out_proj.bias",
      "in_proj_weight", "in_proj_bias"},
     {NULL},
     {NULL}},
    {"BERT",
     ATTUNE_OUT_IN,
     SEPARATE("self.query", "self.key", "self.value", "output.dense", ".weight", ".bias"),
     {"output.LayerNorm.weight", "output.LayerNorm.bias", "output.LayerNorm.gamma", "output.LayerNorm.beta"},
     {NULL}},
    {"ViT",
     ATTUNE_OUT_IN,
     SEPARATE("attention.query", "attention.key", "attention.value", "output.dense", ".weight", ".bias"),
     {NULL},
     {NULL}},
    {"DistilBERT", ATTUNE_OUT_IN, SEPARATE("q_lin", "k_lin", "v_lin", "out_lin", ".weight", ".bias"), {NULL}, {NULL}},
    {"Llama",
     ATTUNE_OUT_IN,
     SEPARATE("q_proj", "k_proj", "v_proj", "o_proj", ".weight", ".bias"),
     {"rotary_emb.inv_freq"},
     {"q_norm.weight", "k_norm.weight"}},
    {"BART", ATTUNE_OUT_IN, SEPARATE("q_proj", "k_proj", "v_proj", "out_proj", ".weight", ".bias"), {NULL}, {NULL}},
    {"Phi-3", ATTUNE_OUT_IN, PACKED("qkv_proj", "o_proj"), {"rotary_emb.inv_freq"}, {NULL}},
    {"timm", ATTUNE_OUT_IN, PACKED("qkv", "proj"), {NULL}, {NULL}},
    {"T5", ATTUNE_OUT_IN, SEPARATE("q", "k", "v", "o", ".weight", ".bias"), {NULL}, {NULL}},
    /* Its masks are buffers of the module. */
    {"GPT-2", ATTUNE_IN_OUT, PACKED("c_attn", "c_proj"), {"bias", "masked_bias"}, {NULL}},
    {"Keras", ATTUNE_IN_OUT, SEPARATE("query", "key", "value", "attention_output", "/kernel", "/bias"), {NULL}, {NULL}},
    {"Flax", ATTUNE_IN_OUT, SEPARATE("query", "key", "value", "out", "/kernel", "/bias"), {NULL}, {NULL}},
};
enum { NUM_CONVENTIONS = sizeof conventions / sizeof *conventions };

int weights_id(const char *name, size_t length) {
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++) {
        const char *const own = attune_weight_name((attune_weight_id)id);
        if (strlen(own) == length && strncmp(own, name, length) == 0) return id;
    }
    return ATTUNE_NUM_WEIGHTS;
}

/* ---- Prefixes ---- */

/* The length of the text before `end` in `name`, if `end` is a whole part there: "a.q" ends with "q", "aq" does not.
 * -1: it does not end with it. */
static int length_before(const char *name, const char *end) {
    const size_t length = strlen(name), tail = strlen(end);
    if (length < tail) return -1;
    const char *at = name + length - tail;
    if (at > name && at[-1] != '.' && at[-1] != '/') return -1;
    for (const char *wanted = end; *wanted; wanted++, at++)
        if (*at != *wanted && !(*wanted == '/' && *at == '.')) return -1;
    return (int)(length - tail);
}

/* The same by the names of textbooks. */
static int textbook_prefix_length(const char *name) {
    for (const char *at = name; at;) {
        const int id = textbook_id(at, NULL);
        if (id == ATTUNE_Q_WEIGHT || id == ATTUNE_QKV_WEIGHT) return (int)(at - name);
        const char *const end = strpbrk(at, "./");
        at = end ? end + 1 : NULL;
    }
    return -1;
}

/* The length of the prefix of the block, if this tensor projects its queries; -1: it is no such tensor. */
static int prefix_length(const char *name, bool by_textbook) {
    if (by_textbook) return textbook_prefix_length(name);
    for (size_t i = 0; i < NUM_CONVENTIONS; i++) {
        const char *const *const names = conventions[i].names;
        int length = names[ATTUNE_Q_WEIGHT] ? length_before(name, names[ATTUNE_Q_WEIGHT]) : -1;
        if (length < 0 && names[ATTUNE_QKV_WEIGHT]) length = length_before(name, names[ATTUNE_QKV_WEIGHT]);
        if (length >= 0) return length;
    }
    return -1;
}

typedef struct name_list {
    char *text;
    size_t length, count, left_out;
} name_list;

/* 'a', 'b', 'c': as many as the text has room for. */
static void list_name(name_list *list, const char *name, size_t length) {
    enum { RESERVED = 24 }; /* for " and 99999999 more" */
    if (list->left_out || list->length + length + 4 > SOME_NAMES_TEXT - RESERVED || list->count == 5) {
        list->left_out++;
        return;
    }
    list->length += (size_t)snprintf(list->text + list->length, SOME_NAMES_TEXT - list->length, "%s'%.*s'",
                                     list->count ? ", " : "", (int)length, name);
    list->count++;
}

static const char *end_list(name_list *list, const char *nothing) {
    if (!list->count && !list->left_out) snprintf(list->text, SOME_NAMES_TEXT, "%s", nothing);
    if (list->left_out)
        snprintf(list->text + list->length, SOME_NAMES_TEXT - list->length, "%s%zu more", list->count ? " and " : "",
                 list->left_out);
    return list->text;
}

const char *weights_some_names(const weights_source *source, const char *prefix, char text[SOME_NAMES_TEXT]) {
    name_list list = {.text = text};
    for (size_t i = 0; i < source->count; i++)
        if (strncmp(source->names[i], prefix, strlen(prefix)) == 0)
            list_name(&list, source->names[i], strlen(source->names[i]));
    return end_list(&list, "nothing");
}

/* Whether the first `length` characters of a name are the wanted prefix, with or without a separator. */
static bool is_prefix(const char *name, int length, const char *wanted) {
    const size_t asked = strlen(wanted), has = (size_t)length;
    if (strncmp(name, wanted, asked < has ? asked : has) != 0) return false;
    return has == asked || (has == asked + 1 && (name[asked] == '.' || name[asked] == '/'));
}

typedef struct prefix_search {
    bool by_textbook;       /* no convention has a block here */
    bool is_asked;          /* the caller named a prefix, which may be empty */
    const char *wanted;     /* prefixes begin with this */
    const char *name;       /* of the block that it is, or the only one */
    int length;             /* of its prefix */
    size_t count;           /* of blocks whose prefixes begin with `wanted` */
    name_list matches, all; /* their prefixes, and those of all blocks */
} prefix_search;

static void search_prefixes(const weights_source *source, prefix_search *s) {
    const char *last = NULL;
    int last_length = -1;
    for (size_t i = 0; i < source->count; i++) {
        const char *const name = source->names[i];
        const int length = prefix_length(name, s->by_textbook);
        /* Names are sorted, so those of a block are neighbours. */
        if (length < 0 || (length == last_length && strncmp(name, last, (size_t)length) == 0)) continue;
        last = name;
        last_length = length;
        list_name(&s->all, name, (size_t)length);
        const bool is_it = s->is_asked && is_prefix(name, length, s->wanted);
        if (!is_it && ((size_t)length < strlen(s->wanted) || strncmp(name, s->wanted, strlen(s->wanted)) != 0))
            continue;
        list_name(&s->matches, name, (size_t)length);
        if (s->count++ == 0 || is_it) s->name = name, s->length = length;
        if (is_it) {
            s->count = 1;
            return;
        }
    }
}

/* The prefix of the block that was asked for, by all of it or as much as tells it from others; NULL after a message. */
static char *find_prefix(const weights_source *source, const char *asked) {
    char matches[SOME_NAMES_TEXT], all[SOME_NAMES_TEXT];
    const char *const wanted = asked ? asked : "";
    prefix_search s = {.is_asked = asked != NULL, .wanted = wanted, .matches = {.text = matches}, .all = {.text = all}};
    search_prefixes(source, &s);
    if (!s.all.count && !s.all.left_out) {
        s.by_textbook = true;
        search_prefixes(source, &s);
    }
    if (s.count == 1) {
        char *const prefix = strndup(s.name, (size_t)s.length);
        if (!prefix) tool_error("%s: out of memory for a prefix", source->path);
        return prefix;
    }
    if (s.count)
        tool_error("%s: several blocks: --prefix must be one of %s", source->path, end_list(&s.matches, ""));
    else if (s.all.count || s.all.left_out)
        tool_error("%s: no block has the prefix '%s'; there is %s", source->path, wanted, end_list(&s.all, ""));
    else
        tool_error("%s: no weights of a block, by the names of attune, PyTorch, BERT, DistilBERT, ViT, Llama, BART, "
                   "Phi-3, GPT-2, T5, timm, Keras or Flax, or by other usual names (%s); the file has %s; --name "
                   "q_weight=TENSOR chooses one",
                   source->path, textbook_names(), weights_some_names(source, "", all));
    return NULL;
}

/* ---- The convention of a prefix ---- */

static size_t count_names(const weights_source *source, const char *prefix, const convention *one) {
    size_t count = 0, index;
    const char *const *const names = one->names;
    const bool has_queries =
        (names[ATTUNE_Q_WEIGHT] && weights_source_find(source, prefix, names[ATTUNE_Q_WEIGHT], &index)) ||
        (names[ATTUNE_QKV_WEIGHT] && weights_source_find(source, prefix, names[ATTUNE_QKV_WEIGHT], &index));
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS && has_queries; id++)
        count += names[id] && weights_source_find(source, prefix, names[id], &index);
    return count;
}

/* The number of matrices that are neither named by hand nor found by this convention's names: of four, or of two if one
 * matrix holds all three projections. */
static int missing_matrices(const weights_source *source, const weights_match *match, const convention *one) {
    bool has[ATTUNE_NUM_WEIGHTS];
    size_t index;
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++)
        has[id] =
            match->has[id] || (one->names[id] && weights_source_find(source, match->prefix, one->names[id], &index));
    const int projections = !has[ATTUNE_Q_WEIGHT] + !has[ATTUNE_K_WEIGHT] + !has[ATTUNE_V_WEIGHT];
    return (has[ATTUNE_QKV_WEIGHT] ? 0 : projections) + !has[ATTUNE_OUT_WEIGHT];
}

/* Textbooks have many names: the convention becomes that of those which are there. false after a message: two tensors
 * are the same weight. */
static bool make_textbook(const weights_source *source, const weights_match *match, convention *textbook,
                          bool *is_bare) {
    const size_t skipped = strlen(match->prefix);
    *textbook = (convention){.title = "textbooks", .layout = ATTUNE_OUT_IN};
    *is_bare = false;
    for (size_t i = 0; i < source->count; i++) {
        const char *const name = source->names[i];
        bool bare = false;
        if (strncmp(name, match->prefix, skipped) != 0) continue;
        const int id = textbook_id(name + skipped, &bare);
        if (id == ATTUNE_NUM_WEIGHTS || match->has[id]) continue;
        if (textbook->names[id]) {
            const char *const own = attune_weight_name((attune_weight_id)id);
            tool_error("%s: '%s%s' and '%s' are both usual names of %s; --name %s=TENSOR chooses one", source->path,
                       match->prefix, textbook->names[id], name, own, own);
            return false;
        }
        textbook->names[id] = name + skipped;
        *is_bare |= bare;
    }
    return true;
}

/* The convention that names most of the tensors. */
static const convention *best_convention(const weights_source *source, const char *prefix) {
    const convention *best = NULL;
    size_t most = 0;
    for (size_t i = 0; i < NUM_CONVENTIONS; i++) {
        const size_t count = count_names(source, prefix, &conventions[i]);
        if (count <= most) continue;
        most = count;
        best = &conventions[i];
    }
    return best; /* that of the prefix's own queries, at least */
}

static bool is_expected(const weights_source *source, const weights_match *match, const convention *one,
                        const weights_request *request, size_t index) {
    const char *const prefix = match->prefix;
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++) {
        if (match->has[id] && match->index[id] == index) return true;
        /* One that --name put another in the place of. */
        if (one->names[id] && weights_source_is(source, index, prefix, one->names[id])) return true;
    }
    for (int i = 0; i < WEIGHTS_NORMS; i++)
        if (match->has_norm[i] && match->norm_index[i] == index) return true;
    for (size_t i = 0; i < MAX_HARMLESS && one->harmless[i]; i++)
        if (weights_source_is(source, index, prefix, one->harmless[i])) return true;
    for (size_t i = 0; i < request->num_ignored; i++)
        if (strcmp(request->ignored[i], source->names[index]) == 0) return true;
    return false;
}

/* Refuses tensors that the block does not use. They may change the result (bias_k, gates), or be a weight with a
 * misspelt name. */
static bool check_surplus(const weights_source *source, const weights_match *match, const convention *one,
                          const weights_request *request) {
    char text[SOME_NAMES_TEXT];
    name_list strays = {.text = text};
    const char *first = NULL;
    for (size_t i = 0; i < source->count; i++) {
        if (strncmp(source->names[i], match->prefix, strlen(match->prefix)) != 0) continue;
        if (is_expected(source, match, one, request, i)) continue;
        if (!first) first = source->names[i];
        list_name(&strays, source->names[i], strlen(source->names[i]));
    }
    if (!first) return true;
    const bool is_one = strays.count + strays.left_out == 1;
    tool_error("%s: %s %s %s among the weights of the block, but the names of %s have no such weight; --ignore=%s "
               "leaves %s aside",
               source->path, is_one ? "tensor" : "tensors", end_list(&strays, ""), is_one ? "lies" : "lie", one->title,
               first, is_one ? "it" : "the first");
    return false;
}

/* ---- All of it ---- */

static bool match_given(weights_match *match, const weights_source *source, const weights_request *request) {
    char text[SOME_NAMES_TEXT];
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++) {
        if (!request->names[id]) continue;
        match->called[id] = request->names[id];
        match->has[id] = weights_source_find(source, "", request->names[id], &match->index[id]);
        if (match->has[id]) continue;
        tool_error("%s: there is no tensor '%s' (for %s), but %s", source->path, request->names[id],
                   attune_weight_name((attune_weight_id)id), weights_some_names(source, "", text));
        return false;
    }
    for (size_t i = 0; i < request->num_ignored; i++) {
        size_t index;
        if (weights_source_find(source, "", request->ignored[i], &index)) continue;
        tool_error("%s: there is no tensor '%s' to ignore, but %s", source->path, request->ignored[i],
                   weights_some_names(source, "", text));
        return false;
    }
    return true;
}

/* Whether --ignore names this tensor. */
static bool is_ignored(const weights_source *source, const weights_request *request, const char *prefix,
                       const char *name) {
    size_t index;
    for (size_t i = 0; i < request->num_ignored; i++)
        if (weights_source_find(source, "", request->ignored[i], &index) &&
            weights_source_is(source, index, prefix, name))
            return true;
    return false;
}

static bool match_convention(weights_match *match, const weights_source *source, const weights_request *request) {
    match->prefix = find_prefix(source, request->prefix);
    if (!match->prefix) return false;
    convention textbook;
    bool is_bare = false;
    const convention *one = best_convention(source, match->prefix);
    const int missing = one ? missing_matrices(source, match, one) : INT_MAX;
    if (missing) {
        bool has_bare;
        if (!make_textbook(source, match, &textbook, &has_bare)) return false;
        if (missing_matrices(source, match, &textbook) < missing) {
            one = &textbook;
            is_bare = has_bare;
        }
    }
    if (is_bare && !request->has_layout) {
        tool_error("%s: the names of the matrices do not tell their layout: give --layout=in_out if x is multiplied "
                   "from the left (x W), --layout=out_in if they are of linear layers",
                   source->path);
        return false;
    }
    match->convention = one->title;
    match->layout = one->layout;
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++) {
        if (match->has[id] || !one->names[id]) continue;
        match->called[id] = one->names[id];
        match->has[id] = weights_source_find(source, match->prefix, one->names[id], &match->index[id]);
    }
    for (int i = 0; i < WEIGHTS_NORMS; i++)
        match->has_norm[i] = one->norms[i] && !is_ignored(source, request, match->prefix, one->norms[i]) &&
                             weights_source_find(source, match->prefix, one->norms[i], &match->norm_index[i]);
    return check_surplus(source, match, one, request);
}

bool weights_match_find(weights_match *match, const weights_source *source, const weights_request *request) {
    *match = (weights_match){.layout = ATTUNE_OUT_IN};
    bool good = match_given(match, source, request);
    /* A caller who names the projection of the queries needs no convention. */
    const bool is_named = match->has[ATTUNE_Q_WEIGHT] || match->has[ATTUNE_QKV_WEIGHT];
    if (good && (!is_named || request->prefix)) good = match_convention(match, source, request);
    if (good && request->has_layout) match->layout = request->layout;
    if (!good) weights_match_free(match);
    return good;
}

void weights_match_free(weights_match *match) {
    free(match->prefix);
    *match = (weights_match){.prefix = NULL};
}
