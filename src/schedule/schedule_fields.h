/* The fields of mha_schedule as a table, made of schedule.def. Text, checks, the tuner's space and random schedules
 * go by it. It depends on attune.h alone, so the command links it, too. */
#ifndef ATTUNE_SCHEDULE_FIELDS_H
#define ATTUNE_SCHEDULE_FIELDS_H

#include <attune.h>
#include <stdbool.h>

/* By the members' names: MHA_SCHEDULE_ID(kv_tile), counted in words from `strategy`. */
#define MHA_SCHEDULE_ID(member) ((int)(offsetof(mha_schedule, member) - offsetof(mha_schedule, strategy)) / 4)
enum { MHA_SCHEDULE_WORDS = MHA_SCHEDULE_ID(reserved) };

typedef enum mha_schedule_kind {
    MHA_SCHEDULE_NUMBER,
    MHA_SCHEDULE_COUNT,    /* or auto */
    MHA_SCHEDULE_DISTANCE, /* or auto, or none */
    MHA_SCHEDULE_NAMED     /* a word, of which auto is one */
} mha_schedule_kind;

/* What a choice has as a number that is left to attune, and one that says that there is none. */
enum { MHA_SCHEDULE_AUTO = 0, MHA_SCHEDULE_NONE = -1 };

/* Parts of a schedule that it may have. */
enum { MHA_PART_Q_LANES = 1, MHA_PART_D_LANES = 2, MHA_PART_PRODUCTS = 4, MHA_PART_ANY = 7 };

/* How `attune-lab check` draws a number; choices are drawn from their values. */
typedef enum mha_schedule_draw {
    MHA_DRAW_NOTHING,
    MHA_DRAW_TILE,    /* up to 16, mostly less: small tiles show as many mistakes as large ones, and compile faster */
    MHA_DRAW_FEW,     /* up to 4 */
    MHA_DRAW_FACTORS, /* the product of two such, so that it has divisors */
    MHA_DRAW_POWER,   /* 1, 2 or 4 */
    MHA_DRAW_UP_TO    /* up to draw_most, or, in half of the cases, to draw_few if that is not 0 */
} mha_schedule_draw;

typedef struct mha_schedule_field {
    mha_schedule_kind kind;
    const char *name;
    int word;                 /* its place: MHA_SCHEDULE_ID */
    unsigned part;            /* MHA_PART bits */
    int32_t least;            /* of a number; AUTO and NONE are legal beside it */
    const char *const *words; /* of a named choice, by value; NULL ends them */
    bool is_minor;      /* of a number: the tuner tries it in steps, as choices, not in the product of all values */
    int32_t values[16]; /* that the tuner tries, ascending; 0 ends them */
    mha_schedule_draw draw;
    int32_t draw_few, draw_most;
    bool is_often_0;          /* in half of the cases */
    int divides, multiple_of; /* another member that it must divide, or be a multiple of; 0: none */
} mha_schedule_field;

enum {
#define FIELD(kind, member, ...) +1
    MHA_NUM_SCHEDULE_FIELDS = 0
#include "schedule.def"
};
extern const mha_schedule_field mha_schedule_fields[MHA_NUM_SCHEDULE_FIELDS];

/* Whether attune can choose its value: not numbers. */
static inline bool mha_schedule_is_choice(const mha_schedule_field *field) {
    return field->kind != MHA_SCHEDULE_NUMBER;
}

/* The usual values of a part's number, ascending; 0 ends them. */
const int32_t *mha_schedule_values(unsigned part, int word);

static inline int32_t *mha_schedule_at(mha_schedule *s, int word) { return (int32_t *)(void *)&s->strategy + word; }
static inline int32_t mha_schedule_value(const mha_schedule *s, int word) {
    return *mha_schedule_at((mha_schedule *)s, word);
}

/* The parts that a schedule has, as MHA_PART bits: its strategy, and products if one of their numbers is not 0. */
unsigned mha_schedule_parts(const mha_schedule *s);

/* Whether a schedule with these parts has the field. */
static inline bool mha_schedule_has(unsigned parts, const mha_schedule_field *field) { return field->part & parts; }

/* A whole number from low to high, both included, each as likely. */
typedef int64_t mha_random_fn(void *random, int64_t low, int64_t high);
/* Draws the numbers of a part of a schedule: those that must divide one another do. Whether it is legal is to be
 * checked. */
void mha_schedule_draw_numbers(unsigned part, mha_random_fn *between, void *random, mha_schedule *schedule);

#endif
