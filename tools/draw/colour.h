/* The colours of cells. */
#ifndef ATTUNE_TOOLS_COLOUR_H
#define ATTUNE_TOOLS_COLOUR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 0xRRGGBB. */
typedef uint32_t colour;

/* None of these, nor anything near it, is in the colour map. */
enum { COLOUR_HIDDEN = 0xeceef0, COLOUR_STRIPE = 0xb4bac2, COLOUR_NAN = 0xf0185a };

/* The colour map viridis at `position` in [0, 1]; beyond, its ends. */
colour colour_map(double position);

/* Whether text on it is better white than black. */
bool colour_is_dark(colour background);

/* The numbers that the map spans. */
typedef struct colour_scale {
    double low, high; /* low < high */
    bool is_sqrt;
} colour_scale;

/* From the finite values that are not hidden. */
colour_scale colour_scale_of(const float *values, const unsigned char *hidden, size_t count, bool starts_at_zero,
                             bool is_sqrt);

/* Where in [0, 1] a value lies. */
double colour_position(const colour_scale *scale, double value);

/* A value that is not finite has a colour of its own, hidden or not. */
colour colour_of_cell(const colour_scale *scale, float value, bool is_hidden);

#endif
