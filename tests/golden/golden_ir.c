/* Compares all golden IR with the file of hashes, writes the file anew, or prints the IR of one case. */
#include "support/ir/golden_ir.h"

#include <stdlib.h>
#include <string.h>

enum { SHOWN = 5 }; /* of each kind of difference */

static const char *const verdicts[GOLDEN_VERDICTS] = {
    [GOLDEN_SAME] = "the same",
    [GOLDEN_OTHER_TEXT] = "other text, same IR",
    [GOLDEN_OTHER_IR] = "OTHER IR, same text",
    [GOLDEN_OTHER_DRAWN] = "OTHER IR, other problem or schedule",
    [GOLDEN_MISSING] = "not in the file",
};

/* With the command that shows it, in a tree of before, too. */
static void show(const golden_case *c, golden_verdict verdict) {
    printf("%s: %s\n    attune compile '%s' --schedule=%s --target=%s --emit=lowered\n", c->line.name,
           verdicts[verdict], c->problem, c->schedule, c->target);
}

static int compare(check_machine *machine, const char *path) {
    golden_file file;
    size_t counts[GOLDEN_VERDICTS] = {0};
    const size_t all = golden_count();
    bool good = golden_read(path, &file);
    for (size_t i = 0; good && i < all; i++) {
        golden_case c;
        good = golden_make(machine, i, &c);
        const golden_verdict verdict = good ? golden_compare(&file, &c.line) : GOLDEN_SAME;
        if (verdict != GOLDEN_SAME && counts[verdict] < SHOWN) show(&c, verdict);
        counts[verdict]++;
        golden_free(&c);
    }
    for (int v = 0; good && v < GOLDEN_VERDICTS; v++)
        if (counts[v] || v == GOLDEN_SAME) printf("%s%zu %s", v ? ", " : "golden IR: ", counts[v], verdicts[v]);
    if (good && file.count > all - counts[GOLDEN_MISSING])
        printf(", %zu only in the file", file.count - (all - counts[GOLDEN_MISSING]));
    if (good) printf("\n");
    good = good && counts[GOLDEN_SAME] == all && file.count == all;
    golden_close(&file);
    return good ? TOOL_OK : TOOL_FAILED;
}

static int update(check_machine *machine, const char *path) {
    const size_t all = golden_count();
    golden_line *const lines = calloc(all, sizeof *lines);
    bool good = lines != NULL;
    for (size_t i = 0; good && i < all; i++) {
        golden_case c;
        good = golden_make(machine, i, &c);
        lines[i] = c.line;
        golden_free(&c);
    }
    good = good && golden_write(path, lines, all);
    free(lines);
    return good ? TOOL_OK : TOOL_FAILED;
}

static int dump(check_machine *machine, const char *name) {
    const size_t number = golden_find(name);
    golden_case c;
    if (number == golden_count()) {
        tool_error("'%s' is no case: they are named as avx512:17", name);
        return TOOL_USAGE;
    }
    const bool good = golden_make(machine, number, &c);
    if (good) printf("# %s\n# %s\n# %s\n%s", c.line.name, c.problem, c.schedule, (const char *)c.ir);
    golden_free(&c);
    return good ? TOOL_OK : TOOL_FAILED;
}

static int list(check_machine *machine) {
    bool good = true;
    for (size_t i = 0; good && i < golden_count(); i++) {
        golden_case c;
        good = golden_make(machine, i, &c);
        if (good) printf("%s '%s' %s\n", c.line.name, c.problem, c.schedule);
        golden_free(&c);
    }
    return good ? TOOL_OK : TOOL_FAILED;
}

int main(int argc, char **argv) {
    check_machine machine;
    const char *const verb = argc > 1 ? argv[1] : "";
    int code = TOOL_USAGE;
    if (!golden_open(&machine))
        code = TOOL_FAILED;
    else if (argc == 3 && strcmp(verb, "compare") == 0)
        code = compare(&machine, argv[2]);
    else if (argc == 3 && strcmp(verb, "update") == 0)
        code = update(&machine, argv[2]);
    else if (argc == 3 && strcmp(verb, "dump") == 0)
        code = dump(&machine, argv[2]);
    else if (argc == 2 && strcmp(verb, "list") == 0)
        code = list(&machine);
    else
        tool_error("golden_ir compare FILE, update FILE, dump CASE or list");
    check_close(&machine);
    return tool_finish(code);
}
