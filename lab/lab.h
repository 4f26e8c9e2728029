/* The subcommands of `attune-lab`. argv[0] is "attune-lab NAME". They return an exit code. */
#ifndef ATTUNE_LAB_LAB_H
#define ATTUNE_LAB_LAB_H

int cmd_check(int argc, char **argv);
int cmd_conform(int argc, char **argv);

#endif
