/* schedule.def as an array, and random numbers of a schedule that fit one another. */
#include "schedule_fields.h"

#include <stddef.h>

#define WORDS(name, ...) static const char *const name##_words[] = {__VA_ARGS__, NULL};
#include "schedule.def"

enum { Q_LANES = MHA_PART_Q_LANES, D_LANES = MHA_PART_D_LANES, PRODUCTS = MHA_PART_PRODUCTS, ANY = MHA_PART_ANY };

#define ID(member)           MHA_SCHEDULE_ID(member)
#define TILE                 MHA_DRAW_TILE
#define FEW                  MHA_DRAW_FEW
#define FACTORS              MHA_DRAW_FACTORS
#define POWER                MHA_DRAW_POWER
#define UP_TO(most)          MHA_DRAW_UP_TO, .draw_most = (most)
#define OFTEN_FEW(few, most) MHA_DRAW_UP_TO, .draw_few = (few), .draw_most = (most)
#define FIELD(kind_, member_, part_, ...)                                                                              \
    {.kind = MHA_SCHEDULE_##kind_, .name = #member_, .word = ID(member_), .part = (part_), __VA_ARGS__},
const mha_schedule_field mha_schedule_fields[MHA_NUM_SCHEDULE_FIELDS] = {
#include "schedule.def"
};

const int32_t *mha_schedule_values(unsigned part, int word) {
    const mha_schedule_field *field = mha_schedule_fields;
    while (field->part != part || field->word != word) field++;
    return field->values;
}

unsigned mha_schedule_parts(const mha_schedule *s) {
    unsigned parts = s->strategy == MHA_D_LANES ? MHA_PART_D_LANES : MHA_PART_Q_LANES;
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const mha_schedule_field *field = &mha_schedule_fields[i];
        if (field->part == MHA_PART_PRODUCTS && mha_schedule_value(s, field->word)) parts |= MHA_PART_PRODUCTS;
    }
    return parts;
}

/* ---- Drawing ---- */

static bool is_heads(mha_random_fn *between, void *random) { return between(random, 0, 99) < 50; }

static int32_t pick(mha_random_fn *between, void *random, const int8_t *values, int count) {
    return values[between(random, 0, count - 1)];
}

static int32_t draw_number(mha_random_fn *between, void *random, const mha_schedule_field *field) {
    static const int8_t tiles[] = {1, 1, 2, 3, 4, 5, 6, 8, 16}, few[] = {1, 1, 1, 2, 2, 3, 4};
    switch (field->draw) {
    case MHA_DRAW_TILE: return pick(between, random, tiles, sizeof tiles);
    case MHA_DRAW_FEW: return pick(between, random, few, sizeof few);
    case MHA_DRAW_FACTORS: return pick(between, random, few, sizeof few) * pick(between, random, few, sizeof few);
    case MHA_DRAW_POWER: return 1 << between(random, 0, 2);
    default: break;
    }
    const bool is_few = field->draw_few && is_heads(between, random);
    return (int32_t)between(random, 1, is_few ? field->draw_few : field->draw_most);
}

/* What it must divide, or be a multiple of, is an earlier number. */
static int32_t fitting(const mha_schedule *s, const mha_schedule_field *field, int32_t x) {
    if (field->multiple_of) x *= mha_schedule_value(s, field->multiple_of);
    while (field->divides && mha_schedule_value(s, field->divides) % x) x--;
    return x;
}

void mha_schedule_draw_numbers(unsigned part, mha_random_fn *between, void *random, mha_schedule *s) {
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const mha_schedule_field *field = &mha_schedule_fields[i];
        if (field->part != part || !field->draw) continue;
        if (field->is_often_0 && is_heads(between, random)) continue;
        *mha_schedule_at(s, field->word) = fitting(s, field, draw_number(between, random, field));
    }
}
