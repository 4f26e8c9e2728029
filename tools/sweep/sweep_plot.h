/* A sweep's results as a line chart: share of the roofline against one key of the problems, a line for each combination
 * of the others that vary. */
#ifndef ATTUNE_TOOLS_SWEEP_PLOT_H
#define ATTUNE_TOOLS_SWEEP_PLOT_H

#include "sweep/sweep_file.h"
#include "sweep/sweep_keys.h"

/* Whether it ends in .png or .svg. */
bool sweep_plot_is_named_well(const char *path);

/* Whether these problems can be drawn, and the plug-in is there that draws; false after a message. */
bool sweep_plot_is_possible(const char *path, const sweep_keys *keys);

/* Draws the problems of the list that have results, against the first key that varies and is always a positive number,
 * or else the first that varies. false after a message. */
bool sweep_plot(const char *path, const sweep_keys *keys, const manifest *list, const sweep_file *file);

#endif
