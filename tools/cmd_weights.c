/* attune weights: attention weights as heat maps. */
#include "pictures/draw_load.h"
#include "common/json_output.h"
#include "pictures/labels.h"
#include "run/run_command.h"
#include "pictures/weight_maps.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* With many keys, few have most of the weight. By default, colours then show the small weights of the others, too. */
typedef enum scale_kind { SCALE_BY_KEYS, SCALE_LINEAR, SCALE_SQRT } scale_kind;
enum { MANY_KEYS = 32 };

typedef struct weights_options {
    maps_request request;
    const char *labels, *labels_kv, *title, *output;
    draw_format format;
    scale_kind scale;
    int cell, width;
    bool json;
} weights_options;

static const struct argp_option options[] = {
    {"output", 'o', "F.png|F.svg", 0, "Write the picture here", 0},
    {"tensor", TOOL_KEY_TENSOR, "NAME=F.npy", 0,
     "Any input: q, k, attn_mask ... Without q and k, what has no file is random", 0},
    {"weights-file", TOOL_KEY_WEIGHTS_FILE, "F.npy", 0,
     "Draw these weights, [[batch,] heads,] queries, keys, instead of a problem's", 0},
    {"sizes", TOOL_KEY_SIZES, "K=N,...", 0, "Run-time sizes that the files do not tell, such as seq_kv=512", 0},
    {"seed", TOOL_KEY_SEED, "S", 0, "Seed of random inputs (default 1)", 0},
    {"batch", TOOL_KEY_BATCH, "N", 0, "Which entry of the batch, counted from 0 (default 0)", 0},
    {"heads", TOOL_KEY_HEADS, "LIST", 0, "Which heads, counted from 0, such as 0,3-5 (default: all)", 0},
    {"average", TOOL_KEY_AVERAGE, NULL, 0, "Draw the mean of the heads", 0},
    {"labels", TOOL_KEY_LABELS, "FILE|TEXT", 0,
     "Names of the tokens, of queries and keys alike: the lines of a file, or words", 0},
    {"labels-kv", TOOL_KEY_LABELS_KV, "FILE|TEXT", 0, "Names of the keys, if they are other tokens", 0},
    {"title", TOOL_KEY_TITLE, "TEXT", 0, "A line above the picture", 0},
    {"scale", TOOL_KEY_SCALE, "linear|sqrt", 0,
     "Colours by the weights (default up to 32 keys) or by their square roots, which show small ones (beyond)", 0},
    {"cell", TOOL_KEY_CELL, "PIXELS", 0, "The side of a cell (default: chosen by their number and the width)", 0},
    {"width", TOOL_KEY_WIDTH, "PIXELS", 0,
     "Cells as large as a picture of this width has room for (default: up to 2400)", 0},
    {"threads", TOOL_KEY_THREADS, "N", 0, "Threads (default: all)", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static void set_output(weights_options *o, struct argp_state *state, const char *path) {
    const char *const dot = strrchr(path, '.');
    if (dot && strcasecmp(dot, ".png") == 0)
        o->format = DRAW_PNG;
    else if (dot && strcasecmp(dot, ".svg") == 0)
        o->format = DRAW_SVG;
    else
        argp_error(state, "the picture's name must end in .png or .svg, not as '%s' does", path);
    o->output = path;
}

static void add_input(weights_options *o, struct argp_state *state, char *argument) {
    run_files *const files = &o->request.files;
    const char *const path = run_cut_name(state, "NAME=F.npy", argument);
    if (!files_add(files->inputs, &files->num_inputs, argument, path))
        argp_error(state, "%s is one file too many", path);
}

static error_t finish(const weights_options *o, struct argp_state *state) {
    const maps_request *const r = &o->request;
    if (!o->output) argp_error(state, "-o is needed: the picture's file, which ends in .png or .svg");
    if (r->file && (r->problem || r->files.num_inputs || r->sizes))
        argp_error(state, "--weights-file is drawn as it is: it takes no problem, --tensor or --sizes");
    if (o->cell && o->width) argp_error(state, "--cell and --width both set the size: one of them is enough");
    if (!r->file && !r->problem && !r->files.num_inputs)
        argp_error(state, "a problem is needed, or --weights-file, or --tensor q=F.npy and k=F.npy");
    return 0;
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    weights_options *const o = state->input;
    maps_request *const r = &o->request;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &r->common; return 0;
    case 'o': set_output(o, state, argument); return 0;
    case TOOL_KEY_TENSOR: add_input(o, state, argument); return 0;
    case TOOL_KEY_WEIGHTS_FILE: r->file = argument; return 0;
    case TOOL_KEY_SIZES: r->sizes = argument; return 0;
    case TOOL_KEY_SEED: r->seed = (uint64_t)tool_parse_integer(state, "seed", argument, 0, INT64_MAX); return 0;
    case TOOL_KEY_BATCH: r->batch = tool_parse_integer(state, "batch", argument, 0, INT64_MAX); return 0;
    case TOOL_KEY_HEADS: r->heads = argument; return 0;
    case TOOL_KEY_AVERAGE: r->averages = true; return 0;
    case TOOL_KEY_LABELS: o->labels = argument; return 0;
    case TOOL_KEY_LABELS_KV: o->labels_kv = argument; return 0;
    case TOOL_KEY_TITLE: o->title = argument; return 0;
    case TOOL_KEY_SCALE:
        o->scale = strcmp(argument, "sqrt") == 0 ? SCALE_SQRT : SCALE_LINEAR;
        if (o->scale == SCALE_LINEAR && strcmp(argument, "linear") != 0)
            argp_error(state, "--scale is 'linear' or 'sqrt', not '%s'", argument);
        return 0;
    case TOOL_KEY_CELL: o->cell = (int)tool_parse_integer(state, "cell", argument, 1, DRAW_MAX_CELL); return 0;
    case TOOL_KEY_WIDTH:
        o->width = (int)tool_parse_integer(state, "width", argument, DRAW_LEAST_WIDTH, DRAW_MOST_WIDTH);
        return 0;
    case TOOL_KEY_THREADS: r->threads = (uint32_t)tool_parse_integer(state, "threads", argument, 1, 1024); return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case ARGP_KEY_ARG:
        if (r->problem) argp_error(state, "one problem only, but '%s' follows '%s'", argument, r->problem);
        r->problem = argument;
        return 0;
    case ARGP_KEY_END: return finish(o, state);
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- Labels ---- */

static bool count_fits(const char *option, const char *text, const labels *l, size_t count, const char *what) {
    if (l->count == count) return true;
    tool_error("%s '%s' has %zu label%s, but there are %zu %s", option, text, l->count, l->count == 1 ? "" : "s", count,
               what);
    return false;
}

/* The labels of the rows that there are, out of those of all queries. */
static bool pick_rows(const weight_maps *m, labels *rows) {
    const char **const picked = malloc(m->rows * sizeof *picked);
    if (!picked) {
        tool_error("out of memory for labels");
        return false;
    }
    for (size_t i = 0; i < m->rows; i++) picked[i] = rows->list[m->row_ids[i]];
    free(rows->list);
    rows->list = picked;
    rows->count = m->rows;
    return true;
}

/* One list names queries and keys where these are as many. Without any, tokens have numbers. */
static bool make_labels(const weights_options *o, const weight_maps *m, labels *rows, labels *columns) {
    const bool is_self = m->num_queries == m->columns;
    if (o->labels) {
        if (!labels_read("--labels", o->labels, rows) ||
            !count_fits("--labels", o->labels, rows, m->num_queries, "queries") || (m->row_ids && !pick_rows(m, rows)))
            return false;
    } else if (!labels_number(m->rows, m->row_ids, rows))
        return false;
    const char *const text = o->labels_kv ? o->labels_kv : is_self ? o->labels : NULL;
    if (!text) return labels_number(m->columns, NULL, columns);
    const char *const option = o->labels_kv ? "--labels-kv" : "--labels";
    return labels_read(option, text, columns) && count_fits(option, text, columns, m->columns, "keys");
}

static bool make_titles(const weight_maps *m, labels *titles) {
    enum { TITLE_BYTES = 40 };
    *titles = (labels){.list = calloc(m->heads, sizeof *titles->list), .storage = malloc(m->heads * TITLE_BYTES)};
    if (!titles->list || !titles->storage) {
        tool_error("out of memory for the titles of %zu heads", m->heads);
        return false;
    }
    for (titles->count = 0; titles->count < m->heads; titles->count++) {
        char *const title = titles->storage + titles->count * TITLE_BYTES;
        if (m->num_averaged)
            snprintf(title, TITLE_BYTES, "mean of %zu head%s", m->num_averaged, m->num_averaged == 1 ? "" : "s");
        else
            snprintf(title, TITLE_BYTES, "head %zu", m->head_numbers[titles->count]);
        titles->list[titles->count] = title;
    }
    return true;
}

/* ---- The picture ---- */

static bool print_json(const weights_options *o, const draw_picture *picture, const draw_result *result) {
    attune_context *const context = tool_open_context(&o->request.common, o->request.threads, NULL);
    if (!context) return false;
    json_t *const body =
        json_pack("{s:o, s:s, s:I, s:I, s:I, s:s, s:b, s:o, s:o, s:i, s:i}", "output", tool_json_text(o->output),
                  "format", o->format == DRAW_SVG ? "svg" : "png", "heads", (json_int_t)picture->heads, "queries",
                  (json_int_t)picture->rows, "keys", (json_int_t)picture->columns, "values", picture->scale_title,
                  "is_sqrt", (int)picture->is_sqrt, "low", json_number(result->low), "high", json_number(result->high),
                  "width", result->width, "height", result->height);
    const bool good = json_print_for(context, o->request.threads, body) == TOOL_OK;
    attune_context_destroy(context);
    return good;
}

static bool write_picture(const weights_options *o, draw_fn *draw, const draw_picture *picture) {
    char message[ATTUNE_MESSAGE_BYTES];
    draw_result result;
    if (!draw(picture, o->format, &result, message)) {
        tool_error("%s", message);
        return false;
    }
    const bool written = tool_write_file(o->output, "", 0, result.data, result.bytes, message);
    free(result.data);
    if (!written) {
        tool_error("%s", message);
        return false;
    }
    if (o->json) return print_json(o, picture, &result);
    printf("%s: %zu head%s, %zu quer%s x %zu key%s, %s from %.3g to %.3g, %d x %d pixels\n", o->output, picture->heads,
           picture->heads == 1 ? "" : "s", picture->rows, picture->rows == 1 ? "y" : "ies", picture->columns,
           picture->columns == 1 ? "" : "s", picture->scale_title, result.low, result.high, result.width,
           result.height);
    if (o->request.file && !picture->starts_at_zero)
        printf("%s has negative values, so they were taken for scores before softmax, and -infinity for hidden keys\n",
               o->request.file);
    return true;
}

static bool draw_maps(const weights_options *o, draw_fn *draw, const weight_maps *m) {
    labels rows = {0}, columns = {0}, titles = {0};
    char *const title = o->title ? labels_clean(o->title) : NULL;
    bool good = title || !o->title;
    if (!good) tool_error("--title is not UTF-8");
    good = good && make_labels(o, m, &rows, &columns) && make_titles(m, &titles);
    if (good) {
        const bool is_many = m->is_weight && m->columns > MANY_KEYS;
        const bool is_sqrt = o->scale == SCALE_BY_KEYS ? is_many : o->scale == SCALE_SQRT;
        const draw_picture picture = {.heads = m->heads,
                                      .rows = m->rows,
                                      .columns = m->columns,
                                      .values = m->values,
                                      .hidden = m->hidden,
                                      .head_titles = titles.list,
                                      .row_labels = rows.list,
                                      .column_labels = columns.list,
                                      .title = title && *title ? title : NULL,
                                      .scale_title = m->what,
                                      .hidden_title = m->is_file ? "hidden, or exactly 0" : "hidden key",
                                      .starts_at_zero = m->is_weight,
                                      .is_sqrt = is_sqrt,
                                      .cell = o->cell,
                                      .width = o->width};
        good = write_picture(o, draw, &picture);
    }
    labels_free(&rows);
    labels_free(&columns);
    labels_free(&titles);
    free(title);
    return good;
}

int cmd_weights(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "[PROBLEM]",
        "Draws attention weights as heat maps, one for each head: the probabilities by which its queries mix the "
        "values, or, with weights=scaled, capped or masked in PROBLEM, scores before softmax. They are computed for "
        "PROBLEM, or read from a file that `attune run` or `mha` wrote with --write weights=F.npy.",
        tool_common_children,
        NULL,
        NULL};
    weights_options o = {.request = {.seed = 1}};
    weight_maps maps;
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    if (!tool_threads_fit(o.request.threads)) return TOOL_FAILED;
    draw_fn *const draw = draw_load();
    if (!draw || !maps_make(&o.request, &maps)) return TOOL_FAILED;
    const bool good = draw_maps(&o, draw, &maps);
    maps_free(&maps);
    return good ? TOOL_OK : TOOL_FAILED;
}
