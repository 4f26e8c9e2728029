/* Each key is an axis with its values. The problems are all combinations, counted like the digits of a number, of
 * which the last axis is the lowest. */
#include "sweep/grid.h"

#include "common/tool.h"
#include "problem_fields.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool fail(char message[GRID_MESSAGE], const char *what, const char *item) {
    snprintf(message, GRID_MESSAGE, what, item);
    return false;
}

static bool out_of_memory(char message[GRID_MESSAGE]) { return fail(message, "%s", "out of memory"); }

/* ---- Values ---- */

static bool add_value(grid_axis *axis, const char *value, char message[GRID_MESSAGE]) {
    if (__builtin_add_overflow(axis->count, 1, &axis->count)) axis->count = SIZE_MAX;
    if (axis->count > GRID_MAX_VALUES) return true;
    if (!(axis->stored & (axis->stored - 1))) { /* 0 or a power of two: double the room */
        char **const more = realloc(axis->values, (axis->stored ? 2 * axis->stored : 1) * sizeof *more);
        if (!more) return out_of_memory(message);
        axis->values = more;
    }
    axis->values[axis->stored] = strdup(value);
    return axis->values[axis->stored++] ? true : out_of_memory(message);
}

typedef struct range {
    long long low, high, step;
    bool multiplies;
} range;

static bool read_number(const char **text, long long *value) {
    char *end;
    errno = 0;
    *value = strtoll(*text, &end, 10);
    if (end == *text || errno) return false;
    *text = end;
    return true;
}

static bool read_range(const char *item, range *r, char message[GRID_MESSAGE]) {
    const char *at = item;
    *r = (range){.step = 1};
    bool good = read_number(&at, &r->low) && *at++ == ':' && read_number(&at, &r->high);
    if (good && *at == ':') {
        at++;
        r->multiplies = *at == '*';
        if (*at == '*' || *at == '+') at++;
        good = read_number(&at, &r->step);
    }
    if (!good || *at)
        return fail(message, "'%.60s' is no range: it must be LOW:HIGH, LOW:HIGH:+STEP or LOW:HIGH:*FACTOR", item);
    if (r->low > r->high) return fail(message, "the range '%.60s' ends before it begins", item);
    if (r->step < (r->multiplies ? 2 : 1) || (r->multiplies && r->low < 1))
        return fail(message,
                    "the range '%.60s' never ends: a step must be at least 1, a factor at least 2, and a range with a "
                    "factor must begin at 1 or more",
                    item);
    return true;
}

/* Number of steps of a range that adds. */
static size_t steps_of(const range *r) { return ((size_t)r->high - (size_t)r->low) / (size_t)r->step; }

static bool add_range(grid_axis *axis, const char *item, char message[GRID_MESSAGE]) {
    range r;
    if (!read_range(item, &r, message)) return false;
    if (!r.multiplies && steps_of(&r) >= GRID_MAX_VALUES) {
        if (__builtin_add_overflow(axis->count, steps_of(&r), &axis->count) ||
            __builtin_add_overflow(axis->count, 1, &axis->count))
            axis->count = SIZE_MAX;
        return true;
    }
    for (long long value = r.low; value <= r.high;) {
        char text[24];
        snprintf(text, sizeof text, "%lld", value);
        if (!add_value(axis, text, message)) return false;
        if (r.multiplies ? __builtin_mul_overflow(value, r.step, &value)
                         : __builtin_add_overflow(value, r.step, &value))
            break;
    }
    return true;
}

/* Strides and shapes are numbers with colons between them. */
static bool has_colons(const char *key) {
    const mha_field *field = mha_field_named(key);
    return field && (field->kind == MHA_FIELD_DIMS || field->kind == MHA_FIELD_STRIDES);
}

static bool add_item(grid_axis *axis, const char *item, char message[GRID_MESSAGE]) {
    if (!*item) return fail(message, "%s has an empty value", axis->key);
    if (*item == '"') return add_value(axis, item, message); /* a function, or tensors */
    if (strchr(item, '|'))
        return fail(message, "'%.60s' names a schedule, but a sweep measures only the schedules that attune chooses",
                    item);
    return strchr(item, ':') && !has_colons(axis->key) ? add_range(axis, item, message)
                                                       : add_value(axis, item, message);
}

/* ---- The whole ---- */

static bool begin_axis(grid *g, const char *key, char message[GRID_MESSAGE]) {
    if (!*key) return fail(message, "%s", "a value has no key before its '='");
    for (size_t a = 0; a < g->num_axes; a++)
        if (strcmp(g->axes[a].key, key) == 0) return fail(message, "%s is given twice", key);
    if (g->num_axes == GRID_MAX_AXES) return fail(message, "%s is one key too many", key);
    grid_axis *const axis = &g->axes[g->num_axes];
    *axis = (grid_axis){.key = strdup(key)};
    if (!axis->key) return out_of_memory(message);
    g->num_axes++;
    return true;
}

static bool take(grid *g, char *item, char message[GRID_MESSAGE]) {
    char *value = strchr(item, '=');
    if (value) {
        *value++ = '\0';
        if (!begin_axis(g, tool_trimmed(item), message)) return false;
    } else if (!g->num_axes) {
        return fail(message, "'%.60s' is not KEY=VALUE, and there is no list before it to continue", item);
    }
    return add_item(&g->axes[g->num_axes - 1], tool_trimmed(value ? value : item), message);
}

bool grid_parse(const char *text, grid *g, char message[GRID_MESSAGE]) {
    *g = (grid){0};
    char *const copy = strdup(text);
    if (!copy) return out_of_memory(message);
    bool good = true;
    for (char *item = copy, *end; item && good; item = end) {
        end = strchr(item, ',');
        if (end) *end++ = '\0';
        good = take(g, item, message);
    }
    free(copy);
    return good;
}

void grid_free(grid *g) {
    for (size_t a = 0; a < g->num_axes; a++) {
        for (size_t v = 0; v < g->axes[a].stored; v++) free(g->axes[a].values[v]);
        free(g->axes[a].values);
        free(g->axes[a].key);
    }
    *g = (grid){0};
}

size_t grid_count(const grid *g) {
    size_t count = 1;
    for (size_t a = 0; a < g->num_axes; a++)
        if (__builtin_mul_overflow(count, g->axes[a].count, &count)) return SIZE_MAX;
    return count;
}

char *grid_problem(const grid *g, size_t number) {
    size_t length = 1, choice[GRID_MAX_AXES];
    for (size_t a = g->num_axes; a-- > 0;) {
        choice[a] = number % g->axes[a].count;
        number /= g->axes[a].count;
        length += strlen(g->axes[a].key) + strlen(g->axes[a].values[choice[a]]) + 2;
    }
    char *const text = malloc(length), *end = text;
    if (!text) return NULL;
    *text = '\0';
    for (size_t a = 0; a < g->num_axes; a++)
        end += sprintf(end, "%s%s=%s", a ? "," : "", g->axes[a].key, g->axes[a].values[choice[a]]);
    return text;
}
