/* The arguments of a bundle's kernel: of attune_arguments what its problem leaves open. */
#include "bundle/bundle.h"

#include <stdio.h>
#include <string.h>

/* Sizes as people call them; those with an offset are members of attune_arguments. */
static const struct {
    const char *name;
    size_t offset;
} sizes[MHA_NUM_SIZES] = {
    [MHA_ONE] = {"1", 0},
    [MHA_BATCH] = {"batch", offsetof(attune_arguments, batch)},
    [MHA_KV_HEADS] = {"num_kv_heads", offsetof(attune_arguments, num_kv_heads)},
    [MHA_HEADS] = {"num_heads", offsetof(attune_arguments, num_heads)},
    [MHA_ENTRIES] = {"batch + 1", 0},
    [MHA_Q_ENTRIES] = {"batch + 1", 0},
    [MHA_Q_BATCH] = {"1", 0},
    [MHA_SEQ_Q] = {"seq_q", offsetof(attune_arguments, seq_q)},
    [MHA_SEQ_KV] = {"seq_kv", offsetof(attune_arguments, seq_kv)},
    [MHA_SEQ_NEW] = {"seq_new", offsetof(attune_arguments, seq_new)},
    [MHA_TOTAL_Q] = {"total_q", offsetof(attune_arguments, total_q)},
    [MHA_TOTAL_KV] = {"total_kv", offsetof(attune_arguments, total_kv)},
    [MHA_NUM_PAGES] = {"num_pages", offsetof(attune_arguments, num_pages)},
    [MHA_MAX_PAGES] = {"max_pages", offsetof(attune_arguments, max_pages)},
    [MHA_MASK_KV] = {"mask_seq_kv", offsetof(attune_arguments, mask_seq_kv)},
    [MHA_BIAS_KV] = {"bias_seq_kv", offsetof(attune_arguments, bias_seq_kv)},
    [MHA_ROTARY_POSITIONS] = {"rotary_positions", offsetof(attune_arguments, rotary_positions)},
    [MHA_NUM_ROWS] = {"num_rows", offsetof(attune_arguments, num_rows)},
    [MHA_NUM_IDS] = {"num_ids", offsetof(attune_arguments, num_ids)},
    [MHA_PART_ROWS] = {"batch * num_heads * seq_q", 0},
};

typedef struct list {
    const at_signature *signature;
    at_bundle_member *members;
    size_t count;
    uint32_t end; /* of the arguments so far, in bytes: members follow each other without gaps */
} list;

static at_bundle_member *add(list *l, size_t offset, size_t bytes) {
    at_bundle_member *member = &l->members[l->count++];
    *member = (at_bundle_member){.field = {(uint16_t)l->end, (uint16_t)offset, (uint16_t)bytes, 0}};
    l->end += (uint32_t)bytes;
    return member;
}

/* ---- Tensors ---- */

static const char *c_type(const mha_tensor *t) {
    if (t->id == MHA_PACKED_WEIGHTS) return "void";
    switch (t->dtype) {
    case ATTUNE_F64: return "double";
    case ATTUNE_F16:
    case ATTUNE_BF16: return "uint16_t";
    case ATTUNE_BOOL:
    case ATTUNE_F8: return "uint8_t";
    case ATTUNE_I32: return "int32_t";
    case ATTUNE_I8: return "int8_t";
    default: return "float";
    }
}

/* "[batch, num_heads, 128, 64]" */
static void print_shape(const at_signature *s, const mha_tensor *t, char *text, size_t capacity) {
    size_t n = 0;
    for (int d = 0; d < t->rank; d++) {
        const int64_t known = s->compiled.of[t->dims[d]];
        const char *const before = d ? ", " : "[";
        if (mha_is_broadcast(&s->problem, t, d))
            n += (size_t)snprintf(text + n, capacity - n, "%s1", before);
        else if (known >= 0 || !sizes[t->dims[d]].name)
            n += (size_t)snprintf(text + n, capacity - n, "%s%lld", before, (long long)known);
        else
            n += (size_t)snprintf(text + n, capacity - n, "%s%s", before, sizes[t->dims[d]].name);
    }
    snprintf(text + n, capacity - n, "]");
}

/* The tensors of functions have names of the user's, which no other tensor has. One that C cannot have, or the struct
 * has for a number, ends with "_tensor" here, and so does one that ends so anyway: names that differ stay different. */
enum { NAME_BYTES = 48 };

static bool ends_with(const char *name, const char *end) {
    const size_t length = strlen(name), of_end = strlen(end);
    return length >= of_end && strcmp(name + length - of_end, end) == 0;
}

static bool is_taken(const char *name) {
    static const char *const others[] = {"softmax_scale", "workspace", "workspace_bytes", "rotary_batch_stride",
                                         "block_table_stride"};
    bool taken = ends_with(name, "_strides") || ends_with(name, "_tensor") || at_bundle_is_reserved(name);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) taken = taken || !strcmp(name, others[i]);
    for (int i = 0; i < MHA_NUM_SIZES; i++) taken = taken || (sizes[i].name && !strcmp(name, sizes[i].name));
    return taken;
}

static bool put_name(const mha_tensor *t, char name[NAME_BYTES]) {
    const bool is_renamed = t->id >= MHA_USER_TENSORS && is_taken(t->name);
    snprintf(name, NAME_BYTES, "%s%s", t->name, is_renamed ? "_tensor" : "");
    return is_renamed;
}

static void add_tensor(list *l, const mha_tensor *t) {
    char name[NAME_BYTES];
    at_bundle_member *member = add(l, t->pointer, sizeof(void *));
    const char *const qualifier = t->access & IR_OUT ? "" : "const ";
    if (put_name(t, name)) member->renamed = t->name;
    snprintf(member->declaration, sizeof member->declaration, "%s%s *%s", qualifier, c_type(t), name);
    strcpy(member->initial, "0");
    print_shape(l->signature, t, member->shape, sizeof member->shape);
    if (t->dtype == ATTUNE_F16) member->comment = "f16";
    if (t->dtype == ATTUNE_BF16) member->comment = "bf16";
    if (t->dtype == ATTUNE_F8) member->comment = "f8";
    if (t->dtype == ATTUNE_BOOL) member->comment = "bool";
    if (t->id == MHA_PACKED_WEIGHTS) member->comment = "from attune_pack_weights, aligned to 64 bytes";
}

static void add_strides(list *l, const mha_tensor *t) {
    const int64_t *strides = mha_strides_in(&l->signature->initial.arguments, t);
    at_bundle_member *member = add(l, t->pointer + offsetof(attune_view, strides), (size_t)t->rank * sizeof *strides);
    char name[NAME_BYTES];
    put_name(t, name);
    snprintf(member->declaration, sizeof member->declaration, "int64_t %s_strides[%d]", name, t->rank);
    size_t n = 0;
    for (int d = 0; d < t->rank; d++)
        n += (size_t)snprintf(member->initial + n, sizeof member->initial - n, "%s%lld", d ? ", " : "{ ",
                              (long long)strides[d]);
    snprintf(member->initial + n, sizeof member->initial - n, " }");
}

/* ---- Numbers ---- */

static void add_number(list *l, const char *name, size_t offset) {
    int64_t value;
    memcpy(&value, (const char *)&l->signature->initial.arguments + offset, sizeof value);
    at_bundle_member *member = add(l, offset, sizeof value);
    snprintf(member->declaration, sizeof member->declaration, "int64_t %s", name);
    snprintf(member->initial, sizeof member->initial, "%lld", (long long)value);
    if (value == ATTUNE_NOT_SET) member->comment = "to be set";
}

static void add_sizes(list *l) {
    const at_signature *s = l->signature;
    add_number(l, "batch", offsetof(attune_arguments, batch));
    if (!mha_is_block(&s->problem)) {
        add_number(l, "num_heads", offsetof(attune_arguments, num_heads));
        if (mha_has_keys(&s->problem)) add_number(l, "num_kv_heads", offsetof(attune_arguments, num_kv_heads));
    }
    for (int size = MHA_SEQ_Q; size < MHA_NUM_SIZES; size++)
        if (s->parameters.has[size] && sizes[size].offset) add_number(l, sizes[size].name, sizes[size].offset);
    if (s->place[MHA_COS] >= 0) add_number(l, "rotary_batch_stride", offsetof(attune_arguments, rotary_batch_stride));
    if (s->place[MHA_BLOCK_TABLE] >= 0)
        add_number(l, "block_table_stride", offsetof(attune_arguments, block_table_stride));
}

/* A cumulative table tells the longest length, so a call need not. */
static void explain_lengths(list *l) {
    const at_signature *s = l->signature;
    for (size_t i = 0; i < l->count; i++) {
        const bool is_q = l->members[i].field.to == sizes[MHA_SEQ_Q].offset;
        const bool is_kv = l->members[i].field.to == sizes[MHA_SEQ_KV].offset;
        const bool paged_lens = s->problem.page_size && s->place[MHA_KV_LENS] >= 0;
        if ((is_q && s->place[MHA_CU_SEQLENS_Q] >= 0) || (is_kv && (s->place[MHA_CU_SEQLENS_KV] >= 0 || paged_lens)))
            l->members[i].comment = "at least the longest, or -1";
    }
}

size_t at_bundle_members(const at_bundle_part *part, at_bundle_member members[AT_BUNDLE_MOST_MEMBERS]) {
    const at_signature *s = &part->signature;
    list l = {.signature = s, .members = members};
    for (size_t i = 0; i < s->count; i++) add_tensor(&l, &s->tensors[i]);
    add_sizes(&l);
    explain_lengths(&l);
    for (size_t i = 0; i < s->count; i++)
        if (s->tensors[i].has_strides) add_strides(&l, &s->tensors[i]);
    if (s->problem.has_softmax_scale) {
        at_bundle_member *scale = add(&l, offsetof(attune_arguments, softmax_scale), sizeof(double));
        strcpy(scale->declaration, "double softmax_scale");
        strcpy(scale->initial, "__builtin_nan(\"\")");
        scale->comment = "NaN: 1 / sqrt(head_dim)";
    }
    at_bundle_member *workspace = add(&l, offsetof(attune_arguments, workspace), sizeof(void *));
    strcpy(workspace->declaration, "void *workspace");
    strcpy(workspace->initial, "0");
    workspace->comment = "aligned to 64 bytes";
    at_bundle_member *bytes = add(&l, offsetof(attune_arguments, workspace_bytes), sizeof(size_t));
    strcpy(bytes->declaration, "size_t workspace_bytes");
    strcpy(bytes->initial, "0");
    return l.count;
}

void at_bundle_signature(at_bundle_part *part, const attune_problem *canonical) {
    at_signature *s = &part->signature;
    at_signature_init(s, canonical);
    for (size_t i = 0; i < s->count; i++) {
        const mha_tensor *t = &s->tensors[i];
        if (!t->has_strides || t->id >= MHA_USER_TENSORS) continue; /* a problem has none of users' tensors */
        memcpy(mha_strides_in(&s->initial.arguments, t), (const char *)part->given + t->problem_strides,
               (size_t)t->rank * sizeof(int64_t));
    }
    at_layout_settle(s, &s->initial);
}
