/* Golden IR: the lowered IR of a fixed set of problems, schedules and targets, and a file with its hashes. The set is
 * made by the drawing of `attune-lab check --random`, with seeds of its own, and by problems as models have them.
 * Nothing depends on this machine: a context for a target lowers IR on any CPU, and the environment is not read. */
#ifndef ATTUNE_TESTS_GOLDEN_IR_H
#define ATTUNE_TESTS_GOLDEN_IR_H

#include "check/check_case.h"

#include <stddef.h>

enum { GOLDEN_NAME = 32 };

/* A line of the file. */
typedef struct golden_line {
    char name[GOLDEN_NAME];     /* the target and a number, "avx512:17" */
    uint32_t problem, schedule; /* hashes of the texts */
    uint64_t ir;                /* golden_hash of the lowered IR */
} golden_line;

typedef struct golden_file {
    golden_line *lines;
    size_t count;
} golden_file;

typedef struct golden_case {
    golden_line line;
    const char *target;
    char *problem, *schedule; /* texts */
    attune_context *context;  /* owner of `ir` */
    void *ir;                 /* text */
} golden_case;

typedef enum golden_verdict {
    GOLDEN_SAME,
    GOLDEN_OTHER_TEXT,  /* the same IR from other text: a field has come, or goes by another name */
    GOLDEN_OTHER_IR,    /* other IR from the same text: the builders, or a pass, have changed */
    GOLDEN_OTHER_DRAWN, /* other IR from other text: another problem or schedule was drawn */
    GOLDEN_MISSING,     /* not in the file */
    GOLDEN_VERDICTS
} golden_verdict;

/* Contexts for all targets, and an environment without attune's variables. false after a message. check_close frees
 * the contexts. */
bool golden_open(check_machine *machine);

/* How many cases there are, of all targets. */
size_t golden_count(void);

/* The number of the case of this name; golden_count() if there is none. */
size_t golden_find(const char *name);

/* Hash of the text of a kernel, whatever its variables are called: by the order of their definitions. */
uint64_t golden_hash(const char *ir);

/* Makes case `number`. false after a message. */
bool golden_make(check_machine *machine, size_t number, golden_case *c);
void golden_free(golden_case *c);

/* false after a message; golden_close frees it. */
bool golden_read(const char *path, golden_file *file);
void golden_close(golden_file *file);
bool golden_write(const char *path, const golden_line *lines, size_t count);

golden_verdict golden_compare(const golden_file *file, const golden_line *line);

#endif
