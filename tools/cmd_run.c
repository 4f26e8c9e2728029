/* attune run: attention, or a whole block, on .npy files. */
#include "run/run_command.h"
#include "run/step.h"

static const struct argp_option options[] = {
    {"q", TOOL_KEY_Q, "F.npy", 0, "Queries [batch,] num_heads, seq_q, head_dim", 0},
    {"k", TOOL_KEY_K, "F.npy", 0, "Keys [batch,] num_kv_heads, seq_kv, head_dim", 0},
    {"v", TOOL_KEY_V, "F.npy", 0, "Values [batch,] num_kv_heads, seq_kv, head_dim_v", 0},
    {"layout", TOOL_KEY_LAYOUT, "out_in|in_out", 0, "Dims of a block's weights: [out, in] (default) or [in, out]", 0},
    {0},
};

static error_t finish(const run_options *o, struct argp_state *state) {
    const run_files *const f = &o->files;
    const bool has_qkv = files_find(f->inputs, f->num_inputs, "q") && files_find(f->inputs, f->num_inputs, "k") &&
                         files_find(f->inputs, f->num_inputs, "v");
    if (!has_qkv && !o->problem) argp_error(state, "--q, --k and --v are needed, or a PROBLEM with other inputs");
    return 0;
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    run_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = o; return 0;
    case TOOL_KEY_Q: run_add_input(o, state, "q", argument); return 0;
    case TOOL_KEY_K: run_add_input(o, state, "k", argument); return 0;
    case TOOL_KEY_V: run_add_input(o, state, "v", argument); return 0;
    case TOOL_KEY_LAYOUT: o->files.layout = tool_parse_layout(state, argument); return 0;
    case ARGP_KEY_END: return finish(o, state);
    default: return ARGP_ERR_UNKNOWN;
    }
}

int cmd_run(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "[PROBLEM]",
        "Computes attention, or with embed_dim a whole block, on arrays in .npy files (little-endian). Sizes that "
        "PROBLEM does not name come from the files; with layout=bshd the dims of q, k, v and the result are [batch,] "
        "seq, heads, dim. The inputs and weights of a block are given by --tensor: x, x_kv, q_weight, q_bias, "
        "qkv_weight ... With op=linear, conv, index, blocks or mla it computes a step of that operator, on files or, "
        "if none are given, on random numbers of the dims in --sizes. `attune compile --emit=ir PROBLEM` shows which "
        "tensors a problem has.",
        run_command_children,
        NULL,
        NULL};
    run_options o = {.engine = ATTUNE_ENGINE_JIT};
    tool_parse(&argp, argc, argv, &o);
    const step_operator *const of = step_operator_of(o.problem);
    return of ? step_command(&o, of) : run_command(&o);
}
