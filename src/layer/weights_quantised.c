/* Quantises weights to 8 or 4 bits, with an f16 scale for each group of inputs. attune/expert/mha.h has the arithmetic
 * of a group, problem/weights_layout.h the place of each value. */
#include "layer/weight_source.h"

#include <math.h>
#include <string.h>

enum {
    LARGEST_I8 = 127,
    LEAST_I4 = -8,
    LARGEST_I4 = 7,
    MOST_INPUTS = 128, /* of a group */
};
#define LARGEST_F16 65504.0F

/* ---- Numbers ---- */

static float bf16_at(const unsigned char *at) {
    uint16_t half;
    memcpy(&half, at, sizeof half);
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float f16_at(const unsigned char *at) {
    enum { FRACTION = 10, ONES = 31, BIAS = 15 };
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    const int exponent = bits >> FRACTION & ONES, fraction = bits & ((1 << FRACTION) - 1);
    const float sign = bits >> 15 ? -1 : 1;
    if (exponent == ONES) return fraction ? NAN : sign * INFINITY;
    const int significand = exponent ? fraction + (1 << FRACTION) : fraction;
    return sign * ldexpf((float)significand, (exponent ? exponent : 1) - BIAS - FRACTION);
}

static float number_at(attune_dtype dtype, const unsigned char *at) {
    float x;
    double wide;
    switch (dtype) {
    case ATTUNE_BF16: return bf16_at(at);
    case ATTUNE_F16: return f16_at(at);
    case ATTUNE_F64: memcpy(&wide, at, sizeof wide); return (float)wide;
    default: memcpy(&x, at, sizeof x); return x;
    }
}

/* The nearest finite f16. */
static uint16_t f16_of(float x) {
    enum { DIGITS = 11, LEAST_EXPONENT = -24, FRACTION = 10 };
    int exponent;
    if (x == 0) return 0;
    frexpf(x, &exponent);
    int last = exponent - DIGITS;
    if (last < LEAST_EXPONENT) last = LEAST_EXPONENT;
    /* The leading one of the significand adds 1 to the exponent, and so does a carry of the rounding. */
    const int significand = (int)rintf(ldexpf(fabsf(x), -last)), sign = x < 0 ? 0x8000 : 0;
    return (uint16_t)(sign + ((last - LEAST_EXPONENT) << FRACTION) + significand);
}

/* ---- A group ---- */

typedef struct group {
    float weight[MOST_INPUTS];
    int8_t code[MOST_INPUTS];
    uint16_t scale;
} group;

/* With int8, the scale maps the largest weight to 127 or -127; with int4 to -8, as there is one more negative value. */
static float scale_of(const float *weight, int64_t count, bool is_i4) {
    float largest = 0;
    for (int64_t k = 0; k < count; k++)
        if (fabsf(weight[k]) > fabsf(largest)) largest = weight[k];
    return is_i4 ? largest / LEAST_I4 : fabsf(largest) / LARGEST_I8;
}

static void make_codes(group *g, int64_t count, bool is_i4) {
    const float least = is_i4 ? LEAST_I4 : -LARGEST_I8, most = is_i4 ? LARGEST_I4 : LARGEST_I8;
    g->scale = f16_of(scale_of(g->weight, count, is_i4));
    unsigned char bytes[sizeof g->scale];
    memcpy(bytes, &g->scale, sizeof bytes);
    const float scale = f16_at(bytes);
    memset(g->code, 0, sizeof g->code);
    for (int64_t k = 0; scale != 0 && k < count; k++)
        g->code[k] = (int8_t)fmaxf(least, fminf(most, rintf(g->weight[k] / scale)));
}

/* ---- The weights of a column ---- */

static const unsigned char *weight_at(const mha_packed_source *source, int64_t output, int64_t input) {
    return source->weight + (size_t)output * source->between_outputs + (size_t)input * source->between_inputs;
}

/* Column i of a block of int4 is in the lower half of byte i, column i + 16 in the upper half, as quantised value + 8.
 */
static void take_codes(group *g, const unsigned char *block, bool is_i4) {
    enum { HALF = MHA_BLOCK / 2, HALF_BITS = 4, LOWER = 15 };
    memcpy(&g->scale, block, sizeof g->scale);
    block += sizeof g->scale;
    if (!is_i4) memcpy(g->code, block, MHA_BLOCK);
    for (int i = 0; is_i4 && i < HALF; i++) {
        g->code[i] = (int8_t)((block[i] & LOWER) + LEAST_I4);
        g->code[i + HALF] = (int8_t)((block[i] >> HALF_BITS) + LEAST_I4);
    }
}

static const unsigned char *block_at(const mha_packed_source *source, int64_t output, int64_t input) {
    return source->weight + (size_t)output * source->between_outputs + (size_t)(input / MHA_BLOCK) * source->block;
}

static void find_group(const mha_packed_section *s, const mha_packed_source *source, int64_t output, int64_t first,
                       bool is_i4, group *g) {
    const int64_t rest = s->depth - first, count = rest < s->group ? rest : s->group;
    if (source->block) {
        take_codes(g, block_at(source, output, first), is_i4);
        return;
    }
    for (int64_t k = 0; k < count; k++) g->weight[k] = number_at(source->dtype, weight_at(source, output, first + k));
    make_codes(g, count, is_i4);
}

static void put(uint32_t *row, int shift, uint32_t bits) { *row |= bits << shift; }

/* `to`: the column's word in the bias row of its panel. */
static void pack_column(const mha_packed_section *s, const mha_packed_source *source, int64_t output, uint32_t *to) {
    enum { HALF = 16, BYTE = 8, NIBBLE = 4 };
    const bool is_i4 = s->inputs == 2 * NIBBLE;
    uint32_t *const scales = to + MHA_PANEL, *const values = scales + s->scale_rows * MHA_PANEL;
    group g;
    for (int64_t first = 0, n = 0; first < s->depth; first += s->group, n++) {
        find_group(s, source, output, first, is_i4, &g);
        put(scales + n / 2 * MHA_PANEL, (int)(n % 2) * HALF, g.scale);
        for (int64_t k = 0; k < s->group; k++) {
            uint32_t *const row = values + (first + k) / s->inputs * MHA_PANEL;
            const int at = (int)(k % 4) * BYTE;
            if (is_i4)
                put(row, at + (int)(k / 4 % 2) * NIBBLE, (uint32_t)g.code[k] & 15);
            else
                put(row, at, (uint8_t)g.code[k]);
        }
    }
    if (!source->bias) return;
    const float bias =
        number_at(source->bias_dtype, source->bias + (size_t)output * mha_weight_bytes(source->bias_dtype));
    memcpy(to, &bias, sizeof bias);
}

void mha_pack_quantised(const mha_packed_section *s, const mha_packed_source *source, void *to) {
    memset(to, 0, (size_t)(s->num_groups * s->panels * mha_packed_panel(s)) * sizeof(uint32_t));
    for (int64_t output = 0; output < s->columns; output++) {
        const int64_t column = output % s->group_columns;
        const int64_t panel = output / s->group_columns * s->panels + column / MHA_PANEL;
        pack_column(s, source, output, (uint32_t *)to + panel * mha_packed_panel(s) + column % MHA_PANEL);
    }
}

/* ---- Weights that cannot be quantised ---- */

static attune_status check_scales(const mha_packed_section *s, const mha_packed_source *source, at_error *err) {
    for (int64_t output = 0; output < s->columns; output++)
        for (int64_t input = 0; input < s->depth; input += MHA_BLOCK) {
            const float scale = f16_at(block_at(source, output, input));
            if (isfinite(scale)) continue;
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s has the scale %g at output %lld and inputs %lld to %lld",
                           source->name, (double)scale, (long long)(source->first_output + output), (long long)input,
                           (long long)input + MHA_BLOCK - 1);
        }
    return ATTUNE_OK;
}

attune_status mha_check_codable(const mha_packed_section *s, const mha_packed_source *source, at_error *err) {
    if (source->block) return check_scales(s, source, err);
    const bool is_i4 = s->inputs == 8;
    const float most = LARGEST_F16 * (is_i4 ? -LEAST_I4 : LARGEST_I8);
    for (int64_t output = 0; output < s->columns; output++)
        for (int64_t input = 0; input < s->depth; input++) {
            const float x = number_at(source->dtype, weight_at(source, output, input));
            if (fabsf(x) <= most) continue;
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "%s has %g at output %lld and input %lld; %s with scales of f16 holds numbers of "
                           "at most %g",
                           source->name, (double)x, (long long)(source->first_output + output), (long long)input,
                           is_i4 ? "i4" : "i8", (double)most);
        }
    return ATTUNE_OK;
}
