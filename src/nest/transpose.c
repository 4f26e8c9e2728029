/* Shuffles of fixed shape. Transposing quarters takes two rounds of unpacks:
 *
 *     a0 a1 a2 a3         a0 b0 a1 b1         a0 b0 c0 d0
 *     b0 b1 b2 b3   ->    a2 b2 a3 b3   ->    a2 b2 c2 d2   these two are
 *     c0 c1 c2 c3         c0 d0 c1 d1         a1 b1 c1 d1   swapped at the end
 *     d0 d1 d2 d3         c2 d2 c3 d3         a3 b3 c3 d3
 *
 * A vector of several quarters does this in each of them. */
#include "nest/transpose.h"

void mha_unpack(ir_builder *b, int lanes, int width, const ir_expr **x, const ir_expr **y) {
    uint8_t low[IR_MAX_LANES], high[IR_MAX_LANES];
    const int quarter = mha_quarter(lanes);
    for (int n = 0; n < lanes; n++) {
        const int side = n / width % 2, group = n % quarter / (2 * width);
        low[n] = (uint8_t)(side * lanes + n / quarter * quarter + group * width + n % width);
        high[n] = (uint8_t)(low[n] + quarter / 2);
    }
    const ir_expr *first = *x, *second = *y;
    *x = ir_let(b, "t", ir_shuffle(b, first, second, lanes, low));
    *y = ir_let(b, "t", ir_shuffle(b, first, second, lanes, high));
}

void mha_transpose_quarters(ir_builder *b, int lanes, const ir_expr **rows) {
    const int quarter = mha_quarter(lanes);
    for (int width = 1; width < quarter; width *= 2)
        for (int i = 0; i < quarter; i++)
            if (!(i & width)) mha_unpack(b, lanes, width, &rows[i], &rows[i + width]);
    if (quarter == 4) { /* two unpacks leave the middle rows swapped */
        const ir_expr *swap = rows[1];
        rows[1] = rows[2];
        rows[2] = swap;
    }
}

const ir_expr *mha_concat(ir_builder *b, const ir_expr *const *parts, int num, int part_lanes) {
    if (num == 1) return parts[0];
    uint8_t pick[IR_MAX_LANES];
    for (int l = 0; l < num * part_lanes; l++) pick[l] = (uint8_t)l;
    const ir_expr *low = mha_concat(b, parts, num / 2, part_lanes);
    const ir_expr *high = mha_concat(b, parts + num / 2, num / 2, part_lanes);
    return ir_shuffle(b, low, high, num * part_lanes, pick);
}

const ir_expr *mha_lanes_of(ir_builder *b, const ir_expr *x, int first, int count) {
    uint8_t pick[IR_MAX_LANES];
    for (int l = 0; l < count; l++) pick[l] = (uint8_t)(first + l);
    return ir_shuffle(b, x, x, count, pick);
}

/* One step of summing x and y over lanes: lane l is x[l] + x[l + width] if bit `width` of l is 0, else y[l] + y[l -
 * width]. It takes one shuffle; the other operand is a blend. */
static const ir_expr *fold(ir_builder *b, const ir_expr *x, const ir_expr *y, int lanes, int width) {
    uint8_t here[IR_MAX_LANES], there[IR_MAX_LANES];
    for (int l = 0; l < lanes; l++) {
        const int of_y = l & width ? lanes : 0;
        here[l] = (uint8_t)(of_y + l);
        there[l] = (uint8_t)(of_y + (l ^ width));
    }
    return ir_let(b, "t", ir_add(b, ir_shuffle(b, x, y, lanes, here), ir_shuffle(b, x, y, lanes, there)));
}

static const ir_expr *add_halves(ir_builder *b, const ir_expr *x, int half) {
    return ir_let(b, "t", ir_add(b, mha_lanes_of(b, x, 0, half), mha_lanes_of(b, x, half, half)));
}

const ir_expr *mha_sum_lanes(ir_builder *b, int lanes, int count, const ir_expr **x) {
    for (; lanes > count; lanes /= 2)
        for (int i = 0; i < count; i++) x[i] = add_halves(b, x[i], lanes / 2);
    for (int width = lanes / 2; width; width /= 2)
        for (int i = 0; i < width; i++) x[i] = fold(b, x[i], x[i + width], lanes, width);
    return x[0];
}

/* x plus x with lanes at distance `width` exchanged. */
static const ir_expr *add_across(ir_builder *b, const ir_expr *x, int lanes, int width) {
    uint8_t pick[IR_MAX_LANES];
    for (int l = 0; l < lanes; l++) pick[l] = (uint8_t)(l ^ width);
    return ir_let(b, "t", ir_add(b, x, ir_shuffle(b, x, x, lanes, pick)));
}

const ir_expr *mha_sum_parts(ir_builder *b, int lanes, int part, int count, const ir_expr **x) {
    for (int width = part / 2; width >= count; width /= 2)
        for (int i = 0; i < count; i++) x[i] = add_across(b, x[i], lanes, width);
    for (int width = count / 2; width; width /= 2)
        for (int i = 0; i < width; i++) x[i] = fold(b, x[i], x[i + width], lanes, width);
    return x[0];
}
