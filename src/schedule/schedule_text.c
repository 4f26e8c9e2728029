/* Schedules as text. */
#include "problem/suggest.h"
#include "problem/fields_text.h"
#include "schedule/schedule.h"
#include "schedule/schedule_fields.h"

#include <string.h>

static const char *const strategy_names[MHA_STRATEGY_COUNT] = {[MHA_Q_LANES] = "q_lanes", [MHA_D_LANES] = "d_lanes"};

/* ---- Reading ---- */

typedef struct reading {
    mha_schedule s;
    bool is_named[MHA_SCHEDULE_WORDS];
} reading;

static attune_status parse_strategy(const mha_pair *pair, mha_strategy *out, at_error *err) {
    for (int i = 0; i < MHA_STRATEGY_COUNT; i++)
        if (mha_value_is(pair, strategy_names[i])) {
            *out = (mha_strategy)i;
            return ATTUNE_OK;
        }
    return at_fail(err, ATTUNE_INVALID_SCHEDULE, "strategy is '%.*s'; it must be q_lanes or d_lanes%s",
                   pair->value_length > 80 ? 80 : pair->value_length, pair->value,
                   mha_suggest_value(pair, strategy_names, MHA_STRATEGY_COUNT).text);
}

/* The names of all fields, each once, after that of the strategy. */
static int all_names(const char *names[MHA_NUM_SCHEDULE_FIELDS + 1]) {
    bool is_there[MHA_SCHEDULE_WORDS] = {false};
    int count = 0;
    names[count++] = "strategy";
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const mha_schedule_field *field = &mha_schedule_fields[i];
        if (!is_there[field->word]) names[count++] = field->name;
        is_there[field->word] = true;
    }
    return count;
}

static attune_status unknown_field(const mha_pair *pair, at_error *err) {
    const char *names[MHA_NUM_SCHEDULE_FIELDS + 1];
    const int count = all_names(names);
    const mha_suggestion suggestion = mha_suggest_name(pair, names, count);
    char list[512] = "";
    mha_writer w = {list, sizeof list, 0};
    if (*suggestion.text)
        mha_write(&w, "%s", suggestion.text);
    else
        for (int i = 0; i < count; i++) mha_write(&w, "%s%s", i ? ", " : "; there are: ", names[i]);
    return at_fail(err, ATTUNE_INVALID_SCHEDULE, "'%.*s' is not a field of a schedule%s",
                   pair->key_length > 40 ? 40 : pair->key_length, pair->key, list);
}

static attune_status parse_word(const mha_schedule_field *field, const mha_pair *pair, int32_t *out, at_error *err) {
    char list[160];
    mha_writer w = {list, sizeof list, 0};
    int count = 0;
    for (; field->words[count]; count++) {
        mha_write(&w, "%s%s", count ? ", " : "", field->words[count]);
        if (!mha_value_is(pair, field->words[count])) continue;
        *out = count;
        return ATTUNE_OK;
    }
    return at_fail(err, ATTUNE_INVALID_SCHEDULE, "%s is '%.*s'; it must be one of %s%s", field->name,
                   pair->value_length > 80 ? 80 : pair->value_length, pair->value, list,
                   mha_suggest_value(pair, field->words, count).text);
}

static attune_status parse_number(const mha_schedule_field *field, const mha_pair *pair, int32_t *out, at_error *err) {
    const bool is_choice = mha_schedule_is_choice(field);
    const bool may_be_none = field->kind == MHA_SCHEDULE_DISTANCE;
    const int32_t least = is_choice ? 1 : field->least;
    int64_t value;
    if ((is_choice && mha_value_is(pair, "auto")) || (may_be_none && mha_value_is(pair, "none"))) {
        *out = mha_value_is(pair, "none") ? MHA_SCHEDULE_NONE : MHA_SCHEDULE_AUTO;
        return ATTUNE_OK;
    }
    const attune_status status = mha_value_int(pair, ATTUNE_INVALID_SCHEDULE, &value, err);
    if (status) return status;
    if (value < least || value > INT32_MAX)
        return at_fail(err, ATTUNE_INVALID_SCHEDULE, "%s is %lld; it must be from %d to %d%s", field->name,
                       (long long)value, (int)least, INT32_MAX,
                       may_be_none ? ", none or auto"
                       : is_choice ? " or auto"
                                   : "");
    *out = (int32_t)value;
    return ATTUNE_OK;
}

static attune_status parse_pair(void *user, const mha_pair *pair, at_error *err) {
    reading *r = user;
    if (mha_key_is(pair, "strategy")) return parse_strategy(pair, &r->s.strategy, err);
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const mha_schedule_field *field = &mha_schedule_fields[i];
        if (!mha_key_is(pair, field->name)) continue;
        int32_t *const out = mha_schedule_at(&r->s, field->word);
        r->is_named[field->word] = true;
        return field->words ? parse_word(field, pair, out, err) : parse_number(field, pair, out, err);
    }
    return unknown_field(pair, err);
}

/* Three choices belong to the numbers next to them: value_by=rows has other numbers of values than value_by=columns. If
 * those numbers are not changed, the choice is not reset either, so text that repeats current values changes nothing.
 */
static bool stays(const reading *r, const mha_schedule *before, int choice) {
    static const int suits[][2] = {{MHA_SCHEDULE_ID(value_by), MHA_SCHEDULE_ID(lanes)},
                                   {MHA_SCHEDULE_ID(score_streams), MHA_SCHEDULE_ID(score_keys)},
                                   {MHA_SCHEDULE_ID(value_streams), MHA_SCHEDULE_ID(value_keys)}};
    if (r->s.lanes != before->lanes) return false;
    for (size_t i = 0; i < sizeof suits / sizeof *suits; i++)
        if (suits[i][0] == choice)
            return mha_schedule_value(&r->s, suits[i][1]) == mha_schedule_value(before, suits[i][1]);
    return false;
}

/* Resets fields that the text does not name: those of the other strategy, and choices that do not stay. */
static void forget_unnamed(reading *r, const mha_schedule *before) {
    const unsigned strategy = mha_schedule_parts(&r->s) & ~(unsigned)MHA_PART_PRODUCTS;
    bool is_kept[MHA_SCHEDULE_WORDS] = {true};
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const mha_schedule_field *field = &mha_schedule_fields[i];
        const bool is_here = mha_schedule_has(strategy | MHA_PART_PRODUCTS, field);
        const bool is_free = mha_schedule_is_choice(field) && !stays(r, before, field->word);
        if (r->is_named[field->word] || (is_here && !is_free)) is_kept[field->word] = true;
    }
    for (int word = 0; word < MHA_SCHEDULE_WORDS; word++)
        if (!is_kept[word]) *mha_schedule_at(&r->s, word) = 0;
}

attune_status mha_schedule_parse(const char *text, mha_schedule *schedule, at_error *err) {
    reading r = {.s = *schedule};
    const attune_status status = mha_for_each_pair(text, ATTUNE_INVALID_SCHEDULE, parse_pair, &r, err);
    if (status) return status;
    forget_unnamed(&r, schedule);
    *schedule = r.s;
    return ATTUNE_OK;
}

/* ---- Writing ---- */

static void write_value(mha_writer *w, const mha_schedule_field *field, int32_t value) {
    int count = 0;
    while (field->words && field->words[count]) count++;
    if (value >= 0 && value < count)
        mha_write(w, "%s", field->words[value]);
    else if (mha_schedule_is_choice(field) && value == MHA_SCHEDULE_AUTO)
        mha_write(w, "auto");
    else if (field->kind == MHA_SCHEDULE_DISTANCE && value == MHA_SCHEDULE_NONE)
        mha_write(w, "none");
    else
        mha_write(w, "%d", (int)value);
}

size_t mha_schedule_print(const mha_schedule *schedule, char *text, size_t capacity) {
    mha_writer w = {text, capacity, 0};
    if (capacity) *text = '\0';
    if ((unsigned)schedule->strategy < MHA_STRATEGY_COUNT) {
        mha_write_key(&w, "strategy");
        mha_write(&w, "%s", strategy_names[schedule->strategy]);
    }
    const unsigned parts = mha_schedule_parts(schedule);
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const mha_schedule_field *field = &mha_schedule_fields[i];
        if (!mha_schedule_has(parts, field)) continue;
        mha_write_key(&w, field->name);
        write_value(&w, field, mha_schedule_value(schedule, field->word));
    }
    return w.length;
}

mha_schedule_string mha_schedule_text(const mha_schedule *schedule) {
    mha_schedule_string string;
    mha_schedule_print(schedule, string.text, sizeof string.text);
    return string;
}
