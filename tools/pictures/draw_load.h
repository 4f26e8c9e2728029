/* The plug-in that draws pictures, loaded when one is asked for. */
#ifndef ATTUNE_TOOLS_DRAW_LOAD_H
#define ATTUNE_TOOLS_DRAW_LOAD_H

#include "draw/chart.h"

/* NULL after a message. It stays loaded. */
draw_fn *draw_load(void);
chart_fn *chart_load(void);

#endif
