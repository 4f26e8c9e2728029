#include "support/ir/ir_text_helpers.h"
#include "ir/text.h"
#include "support/ir/ir_compare.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void assert_round_trip(const ir_kernel *kernel) {
    at_string text, again;
    at_string_init(&text, NULL);
    at_string_init(&again, NULL);
    ir_print(kernel, &text);
    at_arena arena;
    at_arena_init(&arena, NULL);
    at_error err = {0};
    const ir_kernel *parsed = ir_parse(&arena, text.data, text.length, &err);
    if (!parsed) fail_msg("%s\n%s", err.message, text.data);
    const char *difference = ir_kernel_difference(kernel, parsed);
    if (difference) fail_msg("%s differs after\n%s", difference, text.data);
    ir_print(parsed, &again);
    assert_string_equal(text.data, again.data);
    at_string_free(&text);
    at_string_free(&again);
    at_arena_free(&arena);
}

char *read_whole_text(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("cannot open %s", path);
    char *text = malloc(1 << 20);
    *length = fread(text, 1, (1 << 20) - 1, file);
    text[*length] = '\0';
    fclose(file);
    return text;
}
