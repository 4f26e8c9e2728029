/* A sweep's results as a line chart: share of the peak against one key of the grid, a line for each combination of the
 * others. */
#ifndef ATTUNE_TOOLS_SWEEP_PLOT_H
#define ATTUNE_TOOLS_SWEEP_PLOT_H

#include "grid.h"
#include "manifest.h"
#include "sweep_file.h"

/* The key is the first one with several whole numbers. `list` has the grid's problems in order. PNG, or SVG by the
 * file's name. false after a message. */
bool sweep_plot(const char *path, const grid *g, const manifest *list, const sweep_file *file);

#endif
