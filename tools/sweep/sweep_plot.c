#include "sweep/sweep_plot.h"

#include "pictures/draw_load.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Owns its members, unlike a chart_line. */
typedef struct plot_line {
    char *label;
    double *x, *y;
    size_t count;
} plot_line;

typedef struct plot {
    const sweep_keys *keys;
    size_t x_key;
    bool x_is_number;
    const char **x_names; /* if x is no number: its values in the order in which they appear */
    size_t num_names;
    plot_line lines[CHART_MAX_LINES];
    size_t num_lines;
} plot;

/* ---- Names ---- */

static draw_format format_of(const char *path, bool *is_known) {
    const size_t length = strlen(path);
    const bool is_svg = length > 4 && strcmp(path + length - 4, ".svg") == 0;
    *is_known = is_svg || (length > 4 && strcmp(path + length - 4, ".png") == 0);
    return is_svg ? DRAW_SVG : DRAW_PNG;
}

bool sweep_plot_is_named_well(const char *path) {
    bool is_known;
    format_of(path, &is_known);
    return is_known;
}

/* ---- Axes ---- */

static bool is_number(const char *text, double *value) {
    char *end;
    if (!text) return false;
    *value = strtod(text, &end);
    return end != text && !*end && fabs(*value) < 1e300;
}

/* Flags are treated as words, because nothing lies between 0 and 1. */
static bool is_flag(double value) { return value == 0 || value == 1; }

static bool is_numeric(const sweep_keys *k, size_t key) {
    double value;
    bool has_flags_only = true;
    for (size_t p = 0; p < k->problems; p++) {
        if (!is_number(sweep_keys_value(k, p, key), &value)) return false;
        has_flags_only &= is_flag(value);
    }
    return !has_flags_only;
}

static bool choose_axis(plot *p) {
    const sweep_keys *const k = p->keys;
    size_t first = SIZE_MAX;
    for (size_t key = 0; key < k->count && !p->x_is_number; key++) {
        if (!k->varies[key]) continue;
        if (first == SIZE_MAX) first = key;
        p->x_is_number = is_numeric(k, key);
        p->x_key = key;
    }
    if (!p->x_is_number) p->x_key = first;
    if (first != SIZE_MAX) return true;
    tool_error("there is nothing to plot against: the sweep has one problem only");
    return false;
}

/* The place of a problem on the x axis. */
static double place_of(plot *p, size_t problem) {
    const char *const value = sweep_keys_value(p->keys, problem, p->x_key), *const name = value ? value : "-";
    double x = 0;
    if (p->x_is_number) {
        is_number(value, &x);
        return x;
    }
    size_t i = 0;
    while (i < p->num_names && strcmp(p->x_names[i], name) != 0) i++;
    if (i == p->num_names) p->x_names[p->num_names++] = name;
    return (double)i;
}

/* ---- Lines ---- */

/* The line of this label, which it takes; NULL after a message. */
static plot_line *line_of(plot *p, char *label) {
    for (size_t l = 0; l < p->num_lines; l++)
        if (strcmp(p->lines[l].label, label) == 0) {
            free(label);
            return &p->lines[l];
        }
    if (p->num_lines == CHART_MAX_LINES) {
        tool_error("a plot has at most %d lines, one for each combination of keys beside %s; this sweep has more",
                   CHART_MAX_LINES, p->keys->names[p->x_key]);
        free(label);
        return NULL;
    }
    plot_line *const line = &p->lines[p->num_lines++];
    const size_t most = p->keys->problems;
    *line = (plot_line){label, malloc(most * sizeof(double)), malloc(most * sizeof(double)), 0};
    if (line->x && line->y) return line;
    tool_error("out of memory");
    return NULL;
}

/* Points are sorted by x; problems may come in any order. */
static bool add_point(plot *p, size_t problem, double y) {
    char *const label = sweep_keys_text(p->keys, problem, true, p->x_key);
    plot_line *const line = label ? line_of(p, label) : NULL;
    if (!line) return false;
    const double x = place_of(p, problem);
    size_t at = line->count++;
    for (; at && line->x[at - 1] > x; at--) {
        line->x[at] = line->x[at - 1];
        line->y[at] = line->y[at - 1];
    }
    line->x[at] = x;
    line->y[at] = y;
    return true;
}

static bool open_plot(plot *p, const sweep_keys *keys) {
    *p = (plot){.keys = keys};
    if (!choose_axis(p)) return false;
    p->x_names = calloc(keys->problems, sizeof *p->x_names);
    if (!p->x_names) tool_error("out of memory");
    return p->x_names != NULL;
}

static void close_plot(plot *p) {
    for (size_t l = 0; l < p->num_lines; l++) {
        free(p->lines[l].label);
        free(p->lines[l].x);
        free(p->lines[l].y);
    }
    free(p->x_names);
}

bool sweep_plot_is_possible(const char *path, const sweep_keys *keys) {
    plot p;
    bool good = open_plot(&p, keys);
    for (size_t i = 0; good && i < keys->problems; i++) good = add_point(&p, i, 0);
    close_plot(&p);
    return good && tool_can_write(path) && chart_load();
}

/* ---- Drawing ---- */

static int ascending(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Whether the median of the places is nearer to the middle of a logarithmic scale than of a linear one. */
static bool is_geometric(const plot *p) {
    double *const all = malloc(p->keys->problems * sizeof *all);
    size_t n = 0;
    for (size_t l = 0; all && l < p->num_lines; l++) {
        memcpy(all + n, p->lines[l].x, p->lines[l].count * sizeof *all);
        n += p->lines[l].count;
    }
    if (all) qsort(all, n, sizeof *all, ascending);
    const double low = n ? all[0] : 1, high = n ? all[n - 1] : 1, middle = n ? tool_median(all, n) : 1;
    free(all);
    return low > 0 && high >= 4 * low &&
           fabs(log(middle / low) / log(high / low) - 0.5) < fabs((middle - low) / (high - low) - 0.5);
}

static double highest(const plot *p) {
    double high = 0;
    for (size_t l = 0; l < p->num_lines; l++)
        for (size_t i = 0; i < p->lines[l].count; i++) high = fmax(high, p->lines[l].y[i]);
    return high;
}

/* A larger share of the roofline is noise. It must not shrink the rest of the picture. */
#define MOST_SHARE 1.2

static char *subtitle_of(const plot *p, const sweep_file *file) {
    const json_t *const header = json_object_get(file->root, "header");
    const long long threads = json_integer_value(json_object_get(header, "threads"));
    char *const same = sweep_keys_text(p->keys, 0, false, SIZE_MAX), *text = NULL;
    size_t bytes;
    FILE *const stream = same ? open_memstream(&text, &bytes) : NULL;
    if (stream)
        fprintf(stream, "%s%s%s, %s, %s, %lld thread%s%s%s", same, *same ? "; " : "",
                json_string_value(json_object_get(header, "cpu_description")),
                json_string_value(json_object_get(header, "machine")),
                json_string_value(json_object_get(header, "isa")), threads, threads == 1 ? "" : "s",
                json_is_true(json_object_get(file->root, "cold_data")) ? ", data out of the caches" : "",
                highest(p) > MOST_SHARE ? "; shares above 120 % are drawn at the upper edge" : "");
    const bool good = stream && fclose(stream) == 0;
    free(same);
    if (good) return text;
    free(text);
    tool_error("out of memory");
    return NULL;
}

static bool draw(const plot *p, const char *path, const char *subtitle) {
    chart_fn *const render = chart_load();
    char message[DRAW_MESSAGE_BYTES > ATTUNE_MESSAGE_BYTES ? DRAW_MESSAGE_BYTES : ATTUNE_MESSAGE_BYTES];
    chart_line lines[CHART_MAX_LINES];
    draw_result picture;
    bool is_known;
    if (!render) return false;
    for (size_t l = 0; l < p->num_lines; l++)
        lines[l] = (chart_line){p->lines[l].label, p->lines[l].count, p->lines[l].x, p->lines[l].y};
    const chart c = {.title = "attune: share of the roofline",
                     .subtitle = subtitle,
                     .x_title = p->keys->names[p->x_key],
                     .y_title = "share of the roofline",
                     .lines = lines,
                     .num_lines = p->num_lines,
                     .x_is_log = p->x_is_number && is_geometric(p),
                     .x_names = p->x_is_number ? NULL : p->x_names,
                     .y_high = fmin(fmax(highest(p), 1), MOST_SHARE),
                     .y_is_share = true};
    bool good = render(&c, format_of(path, &is_known), &picture, message) &&
                tool_write_file(path, picture.data, picture.bytes, NULL, 0, message);
    if (!good) tool_error("%s", message);
    free(picture.data);
    return good;
}

bool sweep_plot(const char *path, const sweep_keys *keys, const manifest *list, const sweep_file *file) {
    plot p;
    bool good = open_plot(&p, keys);
    for (size_t i = 0; good && i < list->count; i++) {
        const json_t *const result = sweep_file_find(file, &list->entries[i].problem);
        if (result) good = add_point(&p, i, json_number_value(json_object_get(result, "fraction_of_roofline")));
    }
    char *const subtitle = good ? subtitle_of(&p, file) : NULL;
    good = subtitle && draw(&p, path, subtitle);
    free(subtitle);
    close_plot(&p);
    return good;
}
