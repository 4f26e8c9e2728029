#include "sweep_plot.h"

#include "draw_load.h"
#include "tensors.h"

#include <stdlib.h>
#include <string.h>

typedef struct plot {
    const grid *grid;
    size_t x_axis;
    bool x_is_log;
    double y_high;
    chart_line lines[CHART_MAX_LINES];
    size_t num_lines;
} plot;

/* ---- Axes ---- */

static bool is_number(const char *text, double *value) {
    char *end;
    *value = strtod(text, &end);
    return end != text && !*end && *value > 0;
}

static bool is_numeric(const grid_axis *axis) {
    double value, before = 0;
    for (size_t v = 0; v < axis->count; v++, before = value)
        if (!is_number(axis->values[v], &value) || value <= before) return false;
    return axis->count > 1;
}

static bool choose_axis(plot *p) {
    for (p->x_axis = 0; p->x_axis < p->grid->num_axes; p->x_axis++)
        if (is_numeric(&p->grid->axes[p->x_axis])) return true;
    tool_error("there is nothing to plot against: no key of the grid has several ascending numbers");
    return false;
}

/* Which value of each axis problem `number` has, as grid_problem counts. */
static void choices_of(const grid *g, size_t number, size_t choice[GRID_MAX_AXES]) {
    for (size_t a = g->num_axes; a-- > 0;) {
        choice[a] = number % g->axes[a].count;
        number /= g->axes[a].count;
    }
}

/* The keys that vary, but the x axis. */
static char *label_of(const plot *p, const size_t choice[GRID_MAX_AXES]) {
    size_t length = 1;
    for (size_t a = 0; a < p->grid->num_axes; a++)
        length += strlen(p->grid->axes[a].key) + strlen(p->grid->axes[a].values[choice[a]]) + 3;
    char *const label = malloc(length), *end = label;
    if (!label) return NULL;
    *label = '\0';
    for (size_t a = 0; a < p->grid->num_axes; a++)
        if (a != p->x_axis && p->grid->axes[a].count > 1)
            end +=
                sprintf(end, "%s%s %s", *label ? ", " : "", p->grid->axes[a].key, p->grid->axes[a].values[choice[a]]);
    return label;
}

/* ---- Lines ---- */

static const json_t *result_of(const sweep_file *file, const attune_problem *problem) {
    char *const name = problem_text(problem);
    const json_t *const results = sweep_file_results(file), *found = NULL;
    for (size_t i = 0; name && !found && i < json_array_size(results); i++) {
        const json_t *const r = json_array_get(results, i);
        if (strcmp(json_string_value(json_object_get(r, "problem")), name) == 0) found = r;
    }
    free(name);
    return found;
}

static chart_line *line_of(plot *p, const char *label) {
    for (size_t l = 0; l < p->num_lines; l++)
        if (strcmp(p->lines[l].label, label) == 0) return &p->lines[l];
    if (p->num_lines == CHART_MAX_LINES) {
        tool_error("a plot has at most %d lines; this grid has more", CHART_MAX_LINES);
        return NULL;
    }
    chart_line *const line = &p->lines[p->num_lines];
    const size_t most = p->grid->axes[p->x_axis].count;
    *line = (chart_line){strdup(label), 0, malloc(most * sizeof(double)), malloc(most * sizeof(double))};
    if (line->label && line->x && line->y) {
        p->num_lines++;
        return line;
    }
    free((char *)line->label);
    free((double *)line->x);
    free((double *)line->y);
    tool_error("out of memory");
    return NULL;
}

static bool add_point(plot *p, const manifest *list, size_t number, const sweep_file *file) {
    size_t choice[GRID_MAX_AXES];
    choices_of(p->grid, number, choice);
    const json_t *const result = result_of(file, &list->entries[number].problem);
    char *const label = label_of(p, choice);
    chart_line *const line = label && result ? line_of(p, label) : NULL;
    if (line) {
        const double y = json_number_value(json_object_get(result, "fraction_of_peak"));
        is_number(p->grid->axes[p->x_axis].values[choice[p->x_axis]], (double *)&line->x[line->count]);
        ((double *)line->y)[line->count++] = y;
        if (y > p->y_high) p->y_high = y;
    }
    free(label);
    return line || !result;
}

static void free_lines(plot *p) {
    for (size_t l = 0; l < p->num_lines; l++) {
        free((char *)p->lines[l].label);
        free((double *)p->lines[l].x);
        free((double *)p->lines[l].y);
    }
}

static bool draw(const plot *p, const char *path) {
    chart_fn *const render = chart_load();
    const char *const suffix = strrchr(path, '.'), *const key = p->grid->axes[p->x_axis].key;
    char message[DRAW_MESSAGE_BYTES > ATTUNE_MESSAGE_BYTES ? DRAW_MESSAGE_BYTES : ATTUNE_MESSAGE_BYTES];
    draw_result picture;
    if (!render) return false;
    const chart c = {.title = "Share of the peak",
                     .x_title = key,
                     .y_title = "share of the peak",
                     .lines = p->lines,
                     .num_lines = p->num_lines,
                     .x_is_log = p->x_is_log,
                     .y_high = p->y_high > 1 ? p->y_high : 1,
                     .y_is_share = true};
    bool good = render(&c, suffix && strcmp(suffix, ".svg") == 0 ? DRAW_SVG : DRAW_PNG, &picture, message) &&
                tool_write_file(path, picture.data, picture.bytes, NULL, 0, message);
    if (!good) tool_error("%s", message);
    free(picture.data);
    return good;
}

bool sweep_plot(const char *path, const grid *g, const manifest *list, const sweep_file *file) {
    plot p = {.grid = g};
    if (!choose_axis(&p)) return false;
    const grid_axis *const x = &g->axes[p.x_axis];
    double first = 1, last = 1;
    is_number(x->values[0], &first);
    is_number(x->values[x->count - 1], &last);
    p.x_is_log = last >= 8 * first;
    bool good = true;
    for (size_t i = 0; good && i < list->count; i++) good = add_point(&p, list, i, file);
    if (good && !p.num_lines) {
        tool_error("there is nothing to plot yet");
        good = false;
    }
    good = good && draw(&p, path);
    free_lines(&p);
    return good;
}
