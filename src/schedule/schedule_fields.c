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

unsigned mha_schedule_parts(const attune_schedule *s) {
    unsigned parts = s->strategy == ATTUNE_D_LANES ? MHA_PART_D_LANES : MHA_PART_Q_LANES;
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const mha_schedule_field *field = &mha_schedule_fields[i];
        if (field->part == MHA_PART_PRODUCTS && mha_schedule_value(s, field->word)) parts |= MHA_PART_PRODUCTS;
    }
    return parts;
}
