/* attune bench compare: results of several machines, beside each other. */
#ifndef ATTUNE_TOOLS_BENCH_COMPARE_H
#define ATTUNE_TOOLS_BENCH_COMPARE_H

/* The subcommand; argv[0] is its name. An exit code. */
int bench_compare(int argc, char **argv);

#endif
