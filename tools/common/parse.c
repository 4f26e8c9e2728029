/* argp calls a parser for each option, and of two values the last one would count. So at the end all options are read
 * again, before anything is done. */
#include "common/tool.h"

#include <getopt.h>
#include <string.h>

/* Those of a command and of its children, as getopt_long takes them. */
enum { MOST_OPTIONS = 48 };
typedef struct all_options {
    const struct argp_option *list[MOST_OPTIONS];
    struct option names[MOST_OPTIONS + 1];
    char letters[2 * MOST_OPTIONS + 1];
    size_t count;
} all_options;

static void list_options(const struct argp *argp, all_options *all) {
    for (const struct argp_option *o = argp->options; o && o->name && all->count < MOST_OPTIONS; o++) {
        all->names[all->count] = (struct option){o->name, o->arg ? required_argument : no_argument, NULL, o->key};
        all->list[all->count++] = o;
        char *const letter = all->letters + strlen(all->letters);
        if (o->key >= TOOL_KEY_ISA) continue;
        letter[0] = (char)o->key;
        if (o->arg) letter[1] = ':';
    }
    for (const struct argp_child *child = argp->children; child && child->argp; child++) list_options(child->argp, all);
}

static void refuse_second_values(const struct argp *argp, struct argp_state *state) {
    all_options all = {.count = 0};
    const char *values[MOST_OPTIONS] = {NULL};
    list_options(argp, &all);
    opterr = optind = 0;
    for (int key; (key = getopt_long(state->argc, state->argv, all.letters, all.names, NULL)) != -1;)
        for (size_t i = 0; i < all.count; i++) {
            if (key != all.list[i]->key || !optarg) continue;
            if (values[i] && !(all.list[i]->flags & TOOL_REPEATS))
                argp_error(state, "--%s has two values, '%s' and '%s'; one is wanted", all.list[i]->name, values[i],
                           optarg);
            values[i] = optarg;
        }
}

typedef struct parsing {
    const struct argp *argp;
    void *input;
} parsing;

static error_t parse_and_check(int key, char *argument, struct argp_state *state) {
    const parsing *const p = state->input;
    if (key == ARGP_KEY_END) refuse_second_values(p->argp, state);
    state->input = p->input; /* argp sets it anew for each key */
    return p->argp->parser(key, argument, state);
}

void tool_parse(const struct argp *argp, int argc, char **argv, void *input) {
    parsing p = {argp, input};
    struct argp checked = *argp;
    checked.parser = parse_and_check;
    argp_parse(&checked, argc, argv, 0, NULL, &p);
}
