/* Random values of fields that depend on no other: numbers and flags with a `draw` in the list of fields. */
#include "check/check_draft.h"
#include "problem_fields.h"

#include <string.h>

static bool is_drawn(const draft *d, const mha_field *field) {
    const int percent = field->draw.percent;
    return draft_chance(d, percent == MHA_AS_FEATURE ? d->rate : percent);
}

static double draw_number(const draft *d, const mha_draw *draw, int usual) {
    if (draw->usual != 0 && usual && draft_chance(d, usual)) return draw->usual;
    return draw->step * (double)draft_between(d, (int64_t)(draw->from / draw->step), (int64_t)(draw->to / draw->step));
}

void draft_numbers(draft *d, int usual) {
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        const mha_field *field = &mha_fields[i];
        if (field->kind != MHA_FIELD_NUMBER || !field->draw.percent || !is_drawn(d, field)) continue;
        const double number = draw_number(d, &field->draw, usual);
        const int is_open = field->open && draft_chance(d, 50);
        if (is_open) memcpy((char *)d->p + field->open, &is_open, sizeof is_open);
        memcpy(is_open ? &d->sizes->softmax_scale : mha_field_at(d->p, field), &number, sizeof number);
    }
}

void draft_flags(draft *d) {
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        const mha_field *field = &mha_fields[i];
        if (field->kind != MHA_FIELD_FLAG || !field->draw.percent) continue;
        if (d->block == BLOCK_LOW_RANK && field->is_order) continue;
        const int flag = is_drawn(d, field);
        if (mha_field_counts(d->p, field)) memcpy(mha_field_at(d->p, field), &flag, sizeof flag);
    }
}
