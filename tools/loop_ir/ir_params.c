/* Reads the lines before the kernel and hands on the rest with the numbers filled in, so that the library sees plain
 * loop IR. */
#define _GNU_SOURCE
#include "loop_ir/ir_params.h"

#include "common/input.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";

/* ---- Reading lines ---- */

typedef struct line_reader {
    const char *file, *at;
    int number;
} line_reader;

static bool fail_line(const line_reader *r, const char *what) {
    tool_error("%s, line %d: %s; a parameter is written 'param NAME = NUMBER in NUMBER, NUMBER, …', the numbers after "
               "'in' being those that attune tune tries",
               r->file, r->number, what);
    return false;
}

static void skip_blanks(line_reader *r) { r->at += strspn(r->at, " \t\r"); }

static bool accept(line_reader *r, const char *word) {
    const size_t length = strlen(word);
    skip_blanks(r);
    if (strncmp(r->at, word, length) != 0) return false;
    r->at += length;
    return true;
}

/* The word, and not the beginning of a longer one. */
static bool accept_word(line_reader *r, const char *word) {
    const size_t length = strlen(word);
    skip_blanks(r);
    if (strncmp(r->at, word, length) != 0 || strspn(r->at + length, letters)) return false;
    r->at += length;
    return true;
}

static bool read_number(line_reader *r, int32_t *number) {
    char *end;
    skip_blanks(r);
    errno = 0;
    /* strtoll would go on to the next line. */
    if (!strspn(r->at, "+-0123456789")) return fail_line(r, "a number is missing");
    const long long value = strtoll(r->at, &end, 10);
    if (end == r->at) return fail_line(r, "a number is missing");
    if (errno || value < INT32_MIN || value > INT32_MAX) return fail_line(r, "a number is out of range");
    *number = (int32_t)value;
    r->at = end;
    return true;
}

static bool has_value(const ir_param *p, int32_t value) {
    for (size_t i = 0; i < p->num_values; i++)
        if (p->values[i] == value) return true;
    return false;
}

static bool read_name(line_reader *r, const ir_params *params, ir_param *p) {
    skip_blanks(r);
    const size_t length = strspn(r->at, letters);
    if (!length || length >= sizeof p->name || !strcspn(r->at, letters + 53))
        return fail_line(r, "the name is missing");
    memcpy(p->name, r->at, length);
    p->name[length] = 0;
    r->at += length;
    for (size_t i = 0; i < params->count; i++)
        if (strcmp(params->params[i].name, p->name) == 0) return fail_line(r, "the parameter is given twice");
    return true;
}

/* After the word "param". */
static bool read_param(line_reader *r, ir_params *params) {
    ir_param *const p = &params->params[params->count];
    if (params->count == IR_MAX_PARAMS) return fail_line(r, "a file has at most 12 parameters");
    if (!read_name(r, params, p)) return false;
    if (!accept(r, "=")) return fail_line(r, "'=' is missing");
    if (!read_number(r, &p->usual)) return false;
    bool goes_on = accept_word(r, "in");
    while (goes_on) {
        int32_t value;
        if (!read_number(r, &value)) return false;
        if (p->num_values == IR_MAX_VALUES) return fail_line(r, "there are more than 64 values");
        if (has_value(p, value)) return fail_line(r, "a value is given twice");
        p->values[p->num_values++] = value;
        goes_on = accept(r, ",");
    }
    skip_blanks(r);
    if (*r->at && *r->at != '\n' && *r->at != '#') return fail_line(r, "there is text after the last number");
    if (!p->num_values) p->values[p->num_values++] = p->usual;
    if (!has_value(p, p->usual)) return fail_line(r, "the usual number is not one of those after 'in'");
    params->values[params->count++] = p->usual;
    return true;
}

/* Parameters come first; the rest begins with the first line that is neither one nor a comment. They become blank, so
 * that messages about the rest have the file's lines. */
static bool read_params(ir_params *params, const char *file) {
    line_reader r = {.file = file, .at = params->text, .number = 1};
    for (;; r.number++) {
        char *const begin = (char *)r.at;
        const bool is_param = accept_word(&r, "param");
        if (is_param && !read_param(&r, params)) return false;
        if (!is_param && *r.at && !strchr("#\n", *r.at)) return true;
        const size_t length = strcspn(begin, "\n");
        memset(begin, ' ', length);
        r.at = begin + length;
        if (!*r.at++) return true;
    }
}

/* ---- The numbers that are set ---- */

static bool set_numbers(ir_params *params, binding_list *numbers) {
    for (size_t i = 0; i < params->count; i++) {
        ir_param *const p = &params->params[i];
        const binding *const given = bindings_find(numbers, p->name);
        if (!given) continue;
        char *end;
        errno = 0;
        const long long value = strtoll(given->value, &end, 10);
        if (*end || errno || value < INT32_MIN || value > INT32_MAX) {
            tool_error("--set %s=%s: that is no whole number of 32 bits", p->name, given->value);
            return false;
        }
        params->is_set = true;
        params->values[i] = (int32_t)value;
        if (!has_value(p, params->values[i])) p->values[p->num_values++] = params->values[i];
    }
    return bindings_all_used(numbers, "set", "the file has no 'param' of this name");
}

/* "matmul 0123…": a name for people, and a hash of the whole file. */
static void name_problem(ir_params *params, XXH128_hash_t hash) {
    const char *const at = strchr(params->text, '@');
    const int length = at ? (int)strspn(at + 1, letters) : 0;
    snprintf(params->problem, sizeof params->problem, "%.*s %016llx%016llx", length > 60 ? 60 : length,
             at ? at + 1 : "", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
}

bool ir_params_read(ir_params *params, const char *file, binding_list *numbers) {
    enum { MOST_BYTES = 64 << 20 }; /* a hundred times the largest kernel's */
    char message[ATTUNE_MESSAGE_BYTES];
    size_t bytes = 0;
    *params = (ir_params){.text = tool_read_text(file, "kernels in loop IR", MOST_BYTES, &bytes, message)};
    if (!params->text) {
        tool_error("%s", message);
        return false;
    }
    const XXH128_hash_t hash = XXH3_128bits(params->text, bytes);
    const bool is_good = read_params(params, input_name(file)) && set_numbers(params, numbers);
    name_problem(params, hash);
    if (is_good) return true;
    ir_params_free(params);
    return false;
}

void ir_params_free(ir_params *params) { free(params->text); }

/* ---- The kernel ---- */

/* $NAME at `at`: which one; `count` if there is none of this name. */
static size_t find_param(const ir_params *params, const char *at, size_t length) {
    size_t i = 0;
    while (i < params->count && (strncmp(params->params[i].name, at, length) != 0 || params->params[i].name[length]))
        i++;
    return i;
}

/* A name that is none is left for the parser, which says where it is. */
char *ir_params_fill(const ir_params *params, const int32_t *values) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *const out = open_memstream(&text, &bytes);
    if (!out) {
        tool_error("out of memory");
        return NULL;
    }
    for (const char *at = params->text; *at;) {
        const size_t plain = strcspn(at, "$"), length = at[plain] ? strspn(at + plain + 1, letters) : 0;
        const size_t i = find_param(params, at + plain + 1, length);
        fwrite(at, 1, plain, out);
        at += plain;
        if (!*at) break;
        if (length && i < params->count)
            fprintf(out, "%d", (int)values[i]);
        else
            fwrite(at, 1, length + 1, out);
        at += length + 1;
    }
    if (fclose(out) == 0) return text;
    tool_error("out of memory");
    free(text);
    return NULL;
}

static int build(void *user, const attune_build_request *request, attune_ir_writer *writer) {
    char *const text = ir_params_fill(user, request->schedule);
    attune_ir_print(writer, "%s", text ? text : "out of memory");
    free(text);
    return text == NULL;
}

attune_status ir_params_operator(const ir_params *params, attune_context *context, attune_operator **op) {
    attune_choice choices[IR_MAX_PARAMS] = {0};
    attune_operator_options options = ATTUNE_OPERATOR_OPTIONS_INIT;
    for (size_t i = 0; i < params->count; i++) {
        const ir_param *const p = &params->params[i];
        choices[i] = (attune_choice){
            .name = p->name, .values = p->values, .num_values = p->num_values, .usual = params->values[i]};
    }
    options.name = "ir_file";
    options.build = build;
    options.user = (void *)params;
    options.choices = choices;
    options.num_choices = params->count;
    options.version = 1;
    return attune_operator_add(context, &options, op);
}

attune_status ir_params_compile(const ir_params *params, attune_context *context, const char *text,
                                attune_kernel **kernel) {
    attune_operator *op;
    if (!params->count) return attune_ir_compile(context, text, kernel);
    const attune_status status = ir_params_operator(params, context, &op);
    return status ? status
                  : attune_operator_compile(op, params->problem, params->is_set ? params->values : NULL, kernel);
}
