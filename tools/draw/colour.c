#include "colour.h"

#include <math.h>

/* Viridis by Nathaniel Smith and Stefan van der Walt (matplotlib 1.5, CC0), every 16th of its colours. Straight lines
 * in between stay within 6 of 255 of the original. Its lightness rises evenly, so that equal steps of a value look
 * equal, to colour-blind eyes and on a grey printer too. */
static const colour viridis[] = {0x440154, 0x48186a, 0x472d7b, 0x424086, 0x3b528b, 0x33638d,
                                 0x2c728e, 0x26818e, 0x21908c, 0x1f9f88, 0x28ae80, 0x3ebc74,
                                 0x5dc963, 0x82d34c, 0xabdc32, 0xd5e21a, 0xfde725};
enum { LAST_POINT = sizeof viridis / sizeof *viridis - 1 };

static double channel(colour c, int shift) { return c >> shift & 0xff; }

colour colour_map(double position) {
    const double at = fmin(fmax(position, 0), 1) * LAST_POINT;
    const int point = at < LAST_POINT ? (int)at : LAST_POINT - 1;
    colour mixed = 0;
    for (int shift = 0; shift <= 16; shift += 8) {
        const double from = channel(viridis[point], shift), to = channel(viridis[point + 1], shift);
        mixed |= (colour)lround(from + (to - from) * (at - point)) << shift;
    }
    return mixed;
}

bool colour_is_dark(colour background) {
    /* Rec. 709's weights; the threshold is where both contrasts are alike to the eye. */
    return 0.2126 * channel(background, 16) + 0.7152 * channel(background, 8) + 0.0722 * channel(background, 0) < 140;
}

colour_scale colour_scale_of(const float *values, const unsigned char *hidden, size_t count, bool starts_at_zero,
                             bool is_sqrt) {
    double low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < count; i++) {
        if (hidden[i] || !isfinite(values[i])) continue;
        low = fmin(low, (double)values[i]);
        high = fmax(high, (double)values[i]);
    }
    if (starts_at_zero || low > high) low = 0;
    /* All are equal: some span that is not lost in rounding. */
    if (!(high > low)) high = low + fmax(1, 1e-2 * fabs(low));
    return (colour_scale){low, high, is_sqrt};
}

double colour_position(const colour_scale *scale, double value) {
    const double position = fmin(fmax((value - scale->low) / (scale->high - scale->low), 0), 1);
    return scale->is_sqrt ? sqrt(position) : position;
}

colour colour_of_cell(const colour_scale *scale, float value, bool is_hidden) {
    /* -infinity is how a score says that its key is hidden. */
    if (isnan(value) || (isinf(value) && !is_hidden)) return COLOUR_NAN;
    return is_hidden ? COLOUR_HIDDEN : colour_map(colour_position(scale, (double)value));
}
