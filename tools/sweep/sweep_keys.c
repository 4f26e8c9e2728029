/* Splits each problem into keys and values once, and says of each key whether all problems agree. */
#include "sweep/sweep_keys.h"

#include <stdlib.h>
#include <string.h>

/* ---- Keys ---- */

static size_t find_key(const sweep_keys *k, const char *name, size_t length) {
    size_t key = 0;
    while (key < k->count && (strncmp(k->names[key], name, length) != 0 || k->names[key][length])) key++;
    return key;
}

static bool add_key(sweep_keys *k, const char *name, size_t length) {
    if (find_key(k, name, length) < k->count) return true;
    char **const more = realloc(k->names, (k->count + 1) * sizeof *more);
    if (more) k->names = more;
    return more && (k->names[k->count] = strndup(name, length)) && ++k->count;
}

/* The name before the '=' of an item, without the white space around it. */
static const char *name_of(const char *item, size_t *length) {
    item += strspn(item, " \t");
    *length = strcspn(item, " \t=,");
    return item;
}

static bool find_keys(sweep_keys *k, const manifest *list) {
    bool good = true;
    for (size_t p = 0; good && p < list->count; p++)
        for (const char *item = list->kernels[p].text; good && item; item = strchr(item, ',')) {
            size_t length;
            item += *item == ',';
            const char *const name = name_of(item, &length);
            good = add_key(k, name, length);
        }
    return good;
}

/* ---- Values ---- */

static bool find_values(sweep_keys *k, size_t problem, const char *text) {
    char *const copy = k->texts[problem] = strdup(text), *rest = NULL;
    if (!copy) return false;
    for (char *item = strtok_r(copy, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
        size_t length;
        const char *const name = name_of(item, &length);
        char *value = strchr(item, '=');
        if (!value) continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, " \t")] = '\0';
        k->values[problem * k->count + find_key(k, name, length)] = value;
    }
    return true;
}

static bool is_same(const char *a, const char *b) { return a && b ? strcmp(a, b) == 0 : a == b; }

bool sweep_keys_open(sweep_keys *k, const manifest *list) {
    *k = (sweep_keys){.problems = list->count};
    bool good = find_keys(k, list);
    const size_t cells = k->problems * k->count;
    k->values = calloc(cells ? cells : 1, sizeof *k->values);
    k->varies = calloc(k->count ? k->count : 1, sizeof *k->varies);
    k->texts = calloc(k->problems ? k->problems : 1, sizeof *k->texts);
    good = good && k->values && k->varies && k->texts;
    for (size_t p = 0; good && p < k->problems; p++) good = find_values(k, p, list->kernels[p].text);
    for (size_t i = 0; good && i < cells; i++)
        if (!is_same(k->values[i], k->values[i % k->count])) k->varies[i % k->count] = true;
    if (!good) tool_error("out of memory");
    return good;
}

void sweep_keys_close(sweep_keys *k) {
    for (size_t key = 0; key < k->count; key++) free(k->names[key]);
    for (size_t p = 0; k->texts && p < k->problems; p++) free(k->texts[p]);
    free(k->names);
    free(k->values);
    free(k->varies);
    free(k->texts);
    *k = (sweep_keys){0};
}

const char *sweep_keys_value(const sweep_keys *k, size_t problem, size_t key) {
    return k->values[problem * k->count + key];
}

char *sweep_keys_text(const sweep_keys *k, size_t problem, bool varies, size_t except) {
    char *text = NULL;
    size_t bytes;
    FILE *const file = open_memstream(&text, &bytes);
    const char *between = "";
    for (size_t key = 0; file && key < k->count; key++) {
        const char *const value = sweep_keys_value(k, problem, key);
        if (k->varies[key] != varies || key == except || !value) continue;
        fprintf(file, "%s%s=%s", between, k->names[key], value);
        between = ", ";
    }
    if (file && fclose(file) == 0) return text;
    free(text);
    tool_error("out of memory");
    return NULL;
}
