/* attune sweep merge: the files of several sweeps, or of the shards of one, as one. Each result gets the header of the
 * file that it comes from, and results of different machines are never mixed. */
#ifndef ATTUNE_TOOLS_SWEEP_MERGE_H
#define ATTUNE_TOOLS_SWEEP_MERGE_H

/* argv[0] is the name of the command, as for cmd_sweep. An exit code. */
int sweep_merge(int argc, char **argv);

#endif
