/* Schedules, and their fields as a table, made of schedule.def. Text, checks, the tuner's space and random schedules go
 * by it. It depends on attune.h alone, so the command links it, and schedule_text.c, too. */
#ifndef ATTUNE_SCHEDULE_FIELDS_H
#define ATTUNE_SCHEDULE_FIELDS_H

#include <attune.h>
#include <stdbool.h>

typedef enum mha_strategy { MHA_Q_LANES = 0, MHA_D_LANES, MHA_STRATEGY_COUNT } mha_strategy;

/* What the lanes of the values' product run along in q_lanes: query rows, for one column of V after the other (by
 * columns); or columns of V, for one query row after the other (by rows). */
typedef enum mha_value_by { MHA_VALUE_AUTO = 0, MHA_VALUE_BY_COLUMNS, MHA_VALUE_BY_ROWS } mha_value_by;

/* Which of K and V a task of q_lanes copies, tile by tile, in the type of the arithmetic: none, those of another type,
 * or all. Values by rows read V in place, unless products are of pairs of bf16: then each task packs V in pairs
 * (converted); or it is packed once, in the workspace, for all tasks of a KV head. */
typedef enum mha_kv_copy {
    MHA_COPY_AUTO = 0,
    MHA_COPY_NONE,
    MHA_COPY_CONVERTED,
    MHA_COPY_ALL,
    MHA_COPY_ONCE
} mha_kv_copy;

/* What a task of q_lanes prefetches while it computes: nothing; or the next head, which helps batches of short
 * sequences. */
typedef enum mha_task_prefetch { MHA_PREFETCH_AUTO = 0, MHA_PREFETCH_NONE, MHA_PREFETCH_HEAD } mha_task_prefetch;

/* The instructions of a block's products: those on vectors; or on hardware tiles (AMX), for all products whose depth
 * has whole ones. */
typedef enum mha_gemm_by { MHA_GEMM_AUTO = 0, MHA_GEMM_BY_VECTORS, MHA_GEMM_BY_TILES } mha_gemm_by;

/* Columns in a task of a block's products: a column group of the packed weights; or the fewest that are whole heads and
 * whole register tiles, for more tasks. */
typedef enum mha_gemm_groups { MHA_GROUPS_AUTO = 0, MHA_GROUPS_WHOLE, MHA_GROUPS_NARROW } mha_gemm_groups;

/* Rows that fill no register tile of a block's products: the last row is computed several times to fill it; or a
 * smaller register tile computes them, if their number is known and that saves a fiftieth of the rows. */
typedef enum mha_gemm_rest { MHA_REST_AUTO = 0, MHA_REST_FILLED, MHA_REST_OWN } mha_gemm_rest;

/* How a kernel computes, as numbers and choices. Users have it as text.
 *
 * Strategy q_lanes (many query rows): vector lanes run along query rows. Strategy d_lanes (few query rows): lanes run
 * along head_dim, and the keys are cut into tasks of kv_chunk, whose results are merged in order. The query rows of a
 * KV head are those of all heads of its group. Fields of the other strategy are 0. mha_schedule_check says which
 * values are legal. A register tile is what a product has in registers in an iteration of its inner loop. */
typedef struct mha_schedule {
    mha_strategy strategy;
    int32_t lanes; /* elements of a vector */
    /* The scores, Q.K^T. */
    int32_t score_rows;           /* d_lanes: query rows in a register tile */
    int32_t score_row_vectors;    /* q_lanes: vectors of query rows in it */
    int32_t score_keys;           /* keys in it */
    int32_t score_columns;        /* q_lanes: elements of head_dim in an iteration, divides head_dim */
    int32_t score_column_vectors; /* d_lanes: vectors of head_dim in an iteration */
    int32_t score_streams;        /* d_lanes: streams of keys that are read at once, 1 or 4; 0: auto */
    /* The values, P.V. */
    mha_value_by value_by;        /* q_lanes */
    int32_t value_rows;           /* d_lanes: query rows in a register tile */
    int32_t value_row_vectors;    /* q_lanes: vectors of query rows in it, divides score_row_vectors */
    int32_t value_columns;        /* q_lanes: columns of V in it. By rows it has value_row_vectors * value_columns
                                   * accumulators, of query rows by vectors of columns */
    int32_t value_column_vectors; /* d_lanes: vectors of columns of V in an iteration */
    int32_t value_keys;           /* keys, or pairs of keys, in an iteration; d_lanes: in a register tile. 1:
                                   * accumulators stay in registers, and an iteration has a key of each stream (not with
                                   * pairs of bf16, V in panels or i4, scales of its elements, or integer products) */
    int32_t value_streams;        /* d_lanes: streams that they come from, divides value_keys, unless accumulators stay
                                   * in registers; 0: auto */
    /* Tasks, and K and V. */
    int32_t task_row_vectors;        /* q_lanes: vectors of query rows in a task, a multiple of score_row_vectors */
    int32_t kv_tile;                 /* keys between two rescalings, a multiple of score_keys */
    int32_t kv_chunk;                /* d_lanes: keys in a task, a multiple of kv_tile */
    mha_kv_copy kv_copy;             /* q_lanes */
    mha_task_prefetch task_prefetch; /* q_lanes */
    int32_t kv_prefetch;             /* d_lanes: bytes of a stream that are prefetched ahead; -1: none; 0: auto */
    /* A block's projections; all 0 where there is no embed_dim. */
    int32_t gemm_rows;           /* rows in a register tile */
    int32_t gemm_column_vectors; /* vectors of columns in it: gemm_column_vectors * lanes divides 64 */
    int32_t gemm_task_rows;      /* rows in a task, at most; a multiple of gemm_rows */
    int32_t gemm_depth;          /* columns of the left factor after which a register tile is stored; 0: all */
    mha_gemm_by gemm_by;
    int32_t gemm_prefetch; /* iterations by which weights are prefetched ahead; -1: none; 0: auto */
    mha_gemm_groups gemm_groups;
    mha_gemm_rest gemm_rest;
} mha_schedule;

/* d_lanes: a sequence has no more chunks than as many as make so many tasks for all its KV heads, unless integer=all:
 * where kv_chunk keys each would be more chunks, they are longer (mha_most_chunks). */
enum { MHA_CHUNK_TASKS = 256 };
/* q_lanes: from so many keys on a task may have more stripes, if so many tasks are left (mha_task_stripes). */
enum { MHA_LONG_KEYS = 16384, MHA_LONG_TASKS = 32 };

/* By the members' names: their places, counted from `strategy`. */
#define MHA_SCHEDULE_ID(member) ((int)offsetof(mha_schedule, member) / 4)
enum { MHA_SCHEDULE_WORDS = sizeof(mha_schedule) / 4 };

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
    int32_t least;            /* range of a number; AUTO and NONE are legal, too */
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

/* Text such as "strategy=q_lanes,lanes=8,score_keys=6,…". Parsing keeps numbers that are not named. Choices that are
 * not named become auto, since good ones depend on the numbers. Three stay as they are while the numbers do that they
 * have to suit: value_by while lanes stay, score_streams while score_keys and lanes do, value_streams while value_keys
 * and lanes do. Fields of the other strategy become 0. A failure leaves *schedule as it was. Printing is as snprintf.
 */
struct at_error;
attune_status mha_schedule_parse(const char *text, mha_schedule *schedule, struct at_error *err);
size_t mha_schedule_print(const mha_schedule *schedule, char *text, size_t capacity);

/* For a call: attune_compile(context, &problem, mha_schedule_text(&schedule).text, &kernel). */
typedef struct mha_schedule_string {
    char text[ATTUNE_SCHEDULE_BYTES];
} mha_schedule_string;
mha_schedule_string mha_schedule_text(const mha_schedule *schedule);

/* A whole number from low to high, both included, each as likely. */
typedef int64_t mha_random_fn(void *random, int64_t low, int64_t high);
/* Draws the numbers of a part of a schedule: those that must divide one another do. Whether it is legal is to be
 * checked. */
void mha_schedule_draw_numbers(unsigned part, mha_random_fn *between, void *random, mha_schedule *schedule);

#endif
