/* A table of names and functions; what is no name gets the nearest one as advice. */
#include "common/commands.h"

#include "nearest.h"
#include "common/tool.h"

#include <getopt.h>
#include <signal.h>
#include <string.h>

static void print_help(const program *p, FILE *stream) {
    fprintf(stream, "Usage: %s COMMAND [ARGUMENT…]\n%s\n\n", p->name, p->purpose);
    for (size_t i = 0; i < p->num_commands; i++)
        fprintf(stream, "  %-8s %s\n", p->commands[i].name, p->commands[i].summary);
    fprintf(stream,
            "\nA problem is text: num_heads=12,seq_q=512,seq_kv=512,head_dim=64,is_causal=1\n"
            "`%s help COMMAND` explains one command%s.\n"
            "Exit status: 0 ok, 1 failed or mismatched, 2 usage.\n",
            p->name, p->notes);
}

static void refuse_name(const program *p, const char *name) {
    const char *meant = NULL;
    for (size_t i = 0; i < p->num_others; i++)
        if (strcmp(p->others[i][0], name) == 0) meant = p->others[i][1];
    if (meant && strncmp(meant, "is ", 3) == 0) {
        tool_error("'%s' %s", name, meant);
        return;
    }
    at_nearest nearest = at_nearest_to(name, strlen(name));
    for (size_t i = 0; i < p->num_commands; i++) at_nearest_try(&nearest, p->commands[i].name);
    if (!meant) meant = nearest.word;
    if (meant)
        tool_error("unknown command '%s'; did you mean %s? `%s --help` lists them all", name, meant, p->name);
    else
        tool_error("unknown command '%s'; `%s --help` lists them", name, p->name);
}

/* The exit code of a subcommand; TOOL_USAGE after a message if there is none of that name. */
static int run(const program *p, const char *name, int argc, char **argv) {
    for (size_t i = 0; i < p->num_commands; i++) {
        if (strcmp(name, p->commands[i].name) != 0) continue;
        char title[32];
        snprintf(title, sizeof title, "%s %s", p->name, name);
        argv[0] = title;
        return tool_finish(p->commands[i].main(argc, argv));
    }
    refuse_name(p, name);
    return TOOL_USAGE;
}

/* `attune help COMMAND` is `attune COMMAND --help`. */
static int help(const program *p, int argc, char **argv) {
    static char option[] = "--help";
    char *words[] = {argv[0], option, NULL};
    if (argc < 3 || (argc == 3 && strcmp(argv[2], "help") == 0)) {
        print_help(p, stdout);
        return tool_finish(TOOL_OK);
    }
    if (argc == 3) return run(p, argv[2], 2, words);
    tool_error("help explains one command, but '%s' follows '%s'", argv[3], argv[2]);
    return TOOL_USAGE;
}

int program_main(const program *p, int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a failed write like any other, and files get cleaned up */
    argp_err_exit_status = TOOL_USAGE;
    if (argc < 2) {
        print_help(p, stderr);
        return TOOL_USAGE;
    }
    const char *const name = argv[1];
    if (strcmp(name, "help") == 0) return help(p, argc, argv);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-?") == 0) {
        print_help(p, stdout);
        return tool_finish(TOOL_OK);
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("%s %s\n", p->name, attune_version());
        return tool_finish(TOOL_OK);
    }
    return run(p, name, argc - 1, argv + 1);
}

/* ---- Options ----
 *
 * argp calls a parser for each option, and of two values the last one would count. So at the end all options are read
 * again, before anything is done. */

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
