/* attune mha: a whole block on .npy files, with weights in the files of libraries and models. */
#include "common/input.h"
#include "run/run_command.h"
#include "common/table.h"
#include "weights/weights_file.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_IGNORED = 64 };

typedef struct mha_options {
    run_options run;
    const char *weights, *packed;
    weights_request request;
    const char *ignored[MAX_IGNORED];
    weights_file file; /* with --weights */
    char note[400];
} mha_options;

static const struct argp_option options[] = {
    {"x", TOOL_KEY_X, "F.npy", 0, "Input [batch,] tokens, embed_dim", 0},
    {"x-kv", TOOL_KEY_X_KV, "F.npy", 0, "What keys and values are projected from, if not from x (cross-attention)", 0},
    {"x-v", TOOL_KEY_X_V, "F.npy", 0, "What values are projected from, if not from the same as keys", 0},
    {"weights", TOOL_KEY_WEIGHTS, "DIR|F.safetensors", 0,
     "The weights: a directory of NAME.npy files, or one safetensors file", 0},
    {"prefix", TOOL_KEY_PREFIX, "TEXT", 0,
     "The beginning of the names of the block's weights, if there are several blocks", 0},
    {"layout", TOOL_KEY_LAYOUT, "out_in|in_out", 0, "Order of the weights' dims, instead of what their names suggest",
     0},
    {"name", TOOL_KEY_NAME, "WEIGHT=TENSOR", TOOL_REPEATS,
     "Use this tensor as q_weight, k_bias, qkv_weight ..., whatever the names suggest", 0},
    {"ignore", TOOL_KEY_IGNORE, "TENSOR", TOOL_REPEATS, "Ignore a tensor that lies among the block's weights", 0},
    {"packed", TOOL_KEY_PACKED, "FILE", 0, "Packed weights as --save-packed wrote them, instead of --weights", 0},
    {"save-packed", TOOL_KEY_SAVE_PACKED, "FILE", 0, "Write the packed weights here", 0},
    {0},
};

static void add_name(mha_options *o, struct argp_state *state, char *argument) {
    const char *const full_name = run_cut_name(state, "WEIGHT=TENSOR", argument);
    const int id = weights_id(argument, strlen(argument));
    if (id == ATTUNE_NUM_WEIGHTS)
        argp_error(state,
                   "--name: '%s' is not one of q_weight, k_weight, v_weight, out_weight, q_bias, k_bias, v_bias, "
                   "out_bias, qkv_weight and qkv_bias",
                   argument);
    if (o->request.names[id])
        argp_error(state, "--name: %s has two tensors, '%s' and '%s'; one is wanted", argument, o->request.names[id],
                   full_name);
    o->request.names[id] = full_name;
}

static void add_ignored(mha_options *o, struct argp_state *state, const char *name) {
    if (o->request.num_ignored == MAX_IGNORED) argp_error(state, "--ignore=%s is one too many", name);
    o->request.ignored = o->ignored;
    o->ignored[o->request.num_ignored++] = name;
}

static bool has_request(const weights_request *r) {
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++)
        if (r->names[id]) return true;
    return r->prefix || r->num_ignored || r->has_layout;
}

static error_t finish(const mha_options *o, struct argp_state *state) {
    const run_files *const f = &o->run.files;
    if (!files_find(f->inputs, f->num_inputs, "x")) argp_error(state, "--x is needed");
    if (!o->weights == !o->packed) argp_error(state, "either --weights or --packed is needed");
    if (o->packed && o->run.save_packed)
        argp_error(state, "--save-packed cannot be combined with --packed: the weights are packed already");
    if (o->packed && has_request(&o->request))
        argp_error(state, "--prefix, --layout, --name and --ignore need --weights: packed weights have no names");
    if (files_find(f->inputs, f->num_inputs, "packed_weights"))
        argp_error(state, "packed_weights are given by --packed, not by --tensor");
    return 0;
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    mha_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->run; return 0;
    case TOOL_KEY_X: run_add_input(&o->run, state, "x", argument); return 0;
    case TOOL_KEY_X_KV: run_add_input(&o->run, state, "x_kv", argument); return 0;
    case TOOL_KEY_X_V: run_add_input(&o->run, state, "x_v", argument); return 0;
    case TOOL_KEY_WEIGHTS: o->weights = argument; return 0;
    case TOOL_KEY_PACKED: o->packed = argument; return 0;
    case TOOL_KEY_SAVE_PACKED: o->run.save_packed = argument; return 0;
    case TOOL_KEY_PREFIX: o->request.prefix = argument; return 0;
    case TOOL_KEY_NAME: add_name(o, state, argument); return 0;
    case TOOL_KEY_IGNORE: add_ignored(o, state, argument); return 0;
    case TOOL_KEY_LAYOUT:
        o->request.has_layout = true;
        o->request.layout = tool_parse_layout(state, argument);
        return 0;
    case ARGP_KEY_END: return finish(o, state);
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- Weights ---- */

static bool take_sizes(void *user, attune_problem *problem) {
    const mha_options *const o = user;
    if (o->weights) return weights_file_sizes(&o->file, problem);
    if (problem->num_heads) return true;
    tool_error("the problem does not name num_heads, and packed weights do not tell it");
    return false;
}

static bool load_packed(const mha_options *o, const tensors *t, tensor *packed, size_t bytes) {
    char message[ATTUNE_MESSAGE_BYTES];
    size_t found = 0;
    char *const blob = tool_read_file(o->packed, "packed weights of this problem", bytes, &found, message);
    if (!blob) {
        tool_error("%s", message);
        return false;
    }
    const bool fits = attune_packed_weights_check(&t->problem, blob, found) == ATTUNE_OK;
    if (!fits)
        tool_library_error(o->packed);
    else
        memcpy(packed->data, blob, bytes);
    free(blob);
    return fits;
}

static bool has_input(void *user, const char *name) {
    const mha_options *const o = user;
    return o->weights && weights_file_has(&o->file, name);
}

static bool load_input(void *user, tensor *input) { return weights_file_load(&((mha_options *)user)->file, input); }

static void describe(mha_options *o, double us, size_t bytes) {
    char time[TABLE_NUMBER_BYTES], size[TABLE_NUMBER_BYTES];
    const weights_match *const match = &o->file.match;
    table_time(us, time);
    table_bytes(bytes, size);
    if (o->packed)
        snprintf(o->note, sizeof o->note, "%.200s, packed before, %s, checked in %s", o->packed, size, time);
    else if (match->convention)
        snprintf(o->note, sizeof o->note, "%.150s%s%.100s, named as by %s; packed to %s in %s", o->weights,
                 *match->prefix ? ", " : "", match->prefix, match->convention, size, time);
    else
        snprintf(o->note, sizeof o->note, "%.200s, named one by one; packed to %s in %s", o->weights, size, time);
    o->run.weights = o->note;
}

static bool pack(void *user, tensors *t) {
    mha_options *const o = user;
    char message[ATTUNE_MESSAGE_BYTES];
    tensor *const packed = tensors_find(t, "packed_weights");
    const size_t bytes = packed->count * ref_dtype_bytes(packed->info.dtype);
    const double start = tool_now_us();
    if (!(o->weights ? weights_file_pack(&o->file, t) : load_packed(o, t, packed, bytes))) return false;
    describe(o, tool_now_us() - start, bytes);
    if (!o->run.save_packed || tool_write_file(o->run.save_packed, NULL, 0, packed->data, bytes, message)) return true;
    tool_error("%s", message);
    return false;
}

/* ---- The command ---- */

int cmd_mha(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "[PROBLEM]",
        "Computes a whole multi-head-attention block, projections included, on arrays in .npy files. Sizes that "
        "PROBLEM does not name come from the files and from the shapes of the weights: often num_heads=N is enough. "
        "The weights are recognised by the names that attune, torch.nn.MultiheadAttention, BERT, ViT, DistilBERT, "
        "Llama, BART, Phi-3, GPT-2, T5, timm, Keras and Flax give them.",
        run_command_children,
        NULL,
        NULL};
    mha_options *const o = calloc(1, sizeof *o);
    if (!o) {
        tool_error("out of memory");
        return TOOL_FAILED;
    }
    const files_weights weights = {take_sizes, pack, has_input, load_input, o};
    o->run.engine = ATTUNE_ENGINE_JIT;
    o->run.files.weights = &weights;
    tool_parse(&argp, argc, argv, o);
    const bool opened = !o->weights || weights_file_open(&o->file, o->weights, &o->request);
    const int code = opened ? run_command(&o->run) : TOOL_FAILED;
    weights_file_close(&o->file);
    free(o);
    return code;
}
