/* Descriptions of machines: the table, their text, the class of one given by hand, and what a probe makes of cycles. */
#include "machine/machine.h"
#include "target/description.h"
#include "target/tuning_class.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static at_description parsed(const char *text) {
    at_error err = {0};
    at_description d = *at_description_generic(false);
    if (at_description_parse("machine", text, &d, &err)) fail_msg("%s: %s", text, err.message);
    return d;
}

static const char *name_of(const char *text) {
    static char names[4][AT_CLASS_BYTES];
    static int next;
    const at_description d = parsed(text);
    char *name = names[next++ % 4];
    at_description_name(&d, name);
    return name;
}

/* Each class has a description, that its own text gives again, and no two rows of the table are for one class. */
static void each_class_is_described(void **state) {
    const char *order[AT_MAX_CLASSES];
    (void)state;
    const size_t count = at_class_neighbours("generic", order);
    for (size_t i = 0; i < count; i++) {
        char text[AT_DESCRIPTION_TEXT], again[AT_DESCRIPTION_TEXT];
        const at_description *d = at_description_of(order[i], !at_class_is_of(order[i], false));
        if (!d) fail_msg("%s has no description", order[i]);
        const size_t length = at_description_print(d, text);
        assert_int_equal(length, strlen(text));
        const at_description same = parsed(text);
        assert_memory_equal(&same, d, sizeof same);
        at_description_print(&same, again);
        assert_string_equal(again, text);
    }
    assert_ptr_equal(at_description_of("generic", false), at_description_generic(false));
    assert_ptr_equal(at_description_of("generic", true), at_description_generic(true));
    assert_null(at_description_of("pentium", false));
    assert_non_null(at_description_of("zen4", false));
}

static void text(void **state) {
    char all[AT_DESCRIPTION_TEXT];
    (void)state;
    at_description d = parsed("fma=1.5,l1=48K,l2=1280K,l3=0,latency=4.125,memory_rate=0.5,l3_cores=12");
    assert_true(d.fma == 1.5 && d.l1 == 48 * 1024 && d.l2 == 1280 * 1024 && d.l3 == 0 && d.latency == 4.125);
    assert_true(d.memory_rate == 0.5 && d.l3_cores == 12);
    at_description_print(&d, all);
    assert_string_equal(all, "width=32,fma=1.5,load=2,store=1,shuffle=1,latency=4.125,bf16=2,i8=2,l1=48K,l1_rate=64,"
                             "l2=1280K,l2_rate=32,l3=0,l3_rate=16,l3_cores=12,memory_rate=0.5,stream_rate=6");
    /* One value has one spelling. */
    d = parsed("l2=1048576,l3=65536K,l1=4097,fma=2.000,load=01.50");
    at_description_print(&d, all);
    assert_non_null(strstr(all, ",fma=2,load=1.5,"));
    assert_non_null(strstr(all, ",l1=4097,"));
    assert_non_null(strstr(all, ",l2=1M,"));
    assert_non_null(strstr(all, ",l3=64M,"));
}

static void refuse(const char *given, const char *sentence) {
    at_error err = {0};
    at_description d = *at_description_generic(false);
    assert_int_equal(at_description_parse("ATTUNE_MACHINE", given, &d, &err), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(err.message, sentence);
}

static void what_is_no_description(void **state) {
    char longest[2000];
    at_error err = {0};
    at_description d = *at_description_generic(false);
    (void)state;
    refuse("fmaa=2", "ATTUNE_MACHINE: there is no number \"fmaa\"; did you mean \"fma\"?");
    refuse("fma=9", "ATTUNE_MACHINE: fma is 9; it must be from 0.25 to 8");
    refuse("fma=0", "ATTUNE_MACHINE: fma is 0; it must be from 0.25 to 8");
    refuse("l1=1K", "ATTUNE_MACHINE: l1 is 1K; it must be from 4K to 16M");
    refuse("fma=two", "ATTUNE_MACHINE: fma takes a number with at most three decimals, not \"two\"");
    refuse("fma=-1", "ATTUNE_MACHINE: fma takes a number with at most three decimals, not \"-1\"");
    refuse("fma=2K", "ATTUNE_MACHINE: fma takes a number with at most three decimals, not \"2K\"");
    refuse("fma=1.0000", "ATTUNE_MACHINE: fma takes a number with at most three decimals, not \"1.0000\"");
    refuse("fma=1.", "ATTUNE_MACHINE: fma takes a number with at most three decimals, not \"1.\"");
    refuse("fma=nan", "ATTUNE_MACHINE: fma takes a number with at most three decimals, not \"nan\"");
    refuse("fma=", "ATTUNE_MACHINE: fma takes a number with at most three decimals, not \"\"");
    refuse("l3_cores=1.5", "ATTUNE_MACHINE: l3_cores takes a whole number, not \"1.5\"");
    refuse("l1=32X", "ATTUNE_MACHINE: l1 takes a number of bytes such as 32K or 1M, not \"32X\"");
    refuse("l1=32KK", "ATTUNE_MACHINE: l1 takes a number of bytes such as 32K or 1M, not \"32KK\"");
    refuse("l3=9999999999999G", "ATTUNE_MACHINE: l3 takes a number of bytes such as 32K or 1M, not \"9999999999999G\"");
    refuse("fma=2,fma=2", "ATTUNE_MACHINE: fma is given twice");
    refuse("fma=2,", "ATTUNE_MACHINE: \"\" is not NAME=NUMBER");
    refuse("fma=2,,load=2", "ATTUNE_MACHINE: \"\" is not NAME=NUMBER");
    refuse("=2", "ATTUNE_MACHINE: \"=2\" is not NAME=NUMBER");
    refuse("fma 2", "ATTUNE_MACHINE: \"fma 2\" is not NAME=NUMBER");
    refuse(" fma=2", "ATTUNE_MACHINE: there is no number \" fma\"; did you mean \"fma\"?");
    refuse("width=48", "ATTUNE_MACHINE: width is 48; it must be 16, 32 or 64");
    refuse("l1=64K,l2=32K",
           "ATTUNE_MACHINE: l2 is 32768 bytes and l1 65536; a cache is no smaller than the one before it");
    refuse("l2=2M,l3=1M",
           "ATTUNE_MACHINE: l3 is 1048576 bytes and l2 2097152; a cache is no smaller than the one before it");
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(at_description_parse("machine", longest, &d, &err), ATTUNE_INVALID_ARGUMENT);
    longest[1000] = '=';
    err = (at_error){0};
    assert_int_equal(at_description_parse("machine", longest, &d, &err), ATTUNE_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "there are: width, fma, load, store, shuffle, latency, bf16, i8, l1, l1_rate, "
                                        "l2, l2_rate, l3, l3_rate, l3_cores, memory_rate, stream_rate"));
    memcpy(longest, "fma=", 4);
    memset(longest + 4, '1', sizeof longest - 5);
    err = (at_error){0};
    assert_int_equal(at_description_parse("machine", longest, &d, &err), ATTUNE_INVALID_ARGUMENT);
}

/* A class is the hash of all numbers: the same for the same numbers, another for each other number. */
static void classes(void **state) {
    static const char *const others[] = {"width=64",      "fma=1",        "load=3", "store=2",    "shuffle=2",
                                         "latency=5",     "bf16=1",       "i8=1",   "l1=48K",     "l1_rate=65",
                                         "l2=1M",         "l2_rate=33",   "l3=32M", "l3_rate=17", "l3_cores=8",
                                         "memory_rate=9", "stream_rate=7"};
    enum { COUNT = sizeof others / sizeof *others };
    char names[COUNT + 1][AT_CLASS_BYTES];
    (void)state;
    _Static_assert(COUNT == sizeof(at_description) / sizeof(double), "each number is changed once");
    assert_string_equal(name_of("fma=2"), name_of("load=2,fma=2.0"));
    assert_string_equal(name_of("l2=1M"), name_of("l2=1024K"));
    strcpy(names[COUNT], name_of("fma=2"));
    for (size_t i = 0; i < COUNT; i++) {
        strcpy(names[i], name_of(others[i]));
        assert_int_equal(strlen(names[i]), AT_CLASS_BYTES - 2);
        assert_int_equal(strncmp(names[i], "custom-", 7), 0);
        assert_int_equal(strspn(names[i] + 7, "0123456789abcdef"), 16);
        assert_string_not_equal(names[i], names[COUNT]);
        for (size_t j = 0; j < i; j++) assert_string_not_equal(names[i], names[j]);
        assert_null(at_class_find(names[i]));
    }
    /* It names files of caches, so it is the same in each version and on each machine. */
    assert_string_equal(names[COUNT], "custom-dce759dd0f9a88bb");
}

/* ---- The probe ---- */

/* The cycles of a Zen 4, and of a Zen 5, with noise. */
static at_core_cycles cycles_like_zen4(double noise) {
    return (at_core_cycles){.fma = {0.5 * noise, 0.5, 1.0 * noise},
                            .load = {0.5, 0.5 * noise, 1.0},
                            .store = {1.0, 1.0 * noise, 2.0},
                            .shuffle = {0.5, 0.5 * noise, 1.0},
                            .bf16 = 1.0 * noise,
                            .i8 = 1.0 / noise,
                            .latency = 4.0 * noise};
}

static void cycles_are_rounded(void **state) {
    (void)state;
    const at_core_cycles zen4 = cycles_like_zen4(1);
    const at_description expected = at_core_describe(&zen4, 32 << 10, 1 << 20, 32 << 20);
    char text[AT_DESCRIPTION_TEXT];
    at_description_print(&expected, text);
    assert_string_equal(text, "width=32,fma=2,load=2,store=1,shuffle=2,latency=4,bf16=2,i8=2,l1=32K,l1_rate=64,l2=1M,"
                              "l2_rate=32,l3=32M,l3_rate=16,l3_cores=0,memory_rate=8,stream_rate=6");
    for (double noise = 0.9; noise < 1.11; noise += 0.01) {
        const at_core_cycles noisy = cycles_like_zen4(noise);
        const at_description d = at_core_describe(&noisy, 32 << 10, 1 << 20, 32 << 20);
        assert_memory_equal(&d, &expected, sizeof d);
    }
    const at_core_cycles zen5 = {.fma = {0.5, 0.5, 0.51},
                                 .load = {0.5, 0.5, 0.5},
                                 .store = {0.5, 0.5, 1},
                                 .shuffle = {0.5, 0.5, 0.5},
                                 .bf16 = 0.5,
                                 .i8 = 0.5,
                                 .latency = 4};
    const at_description wide = at_core_describe(&zen5, 48 << 10, 1 << 20, 0);
    assert_true(wide.width == 64 && wide.fma == 2 && wide.store == 1 && wide.bf16 == 2 && wide.l1 == 48 << 10);
    assert_true(wide.l3 == 0 && wide.l1_rate == 128);
    const at_core_cycles narrow = {
        .fma = {0.5, 1}, .load = {0.5, 1}, .store = {1, 2}, .shuffle = {0.5, 1}, .latency = 5};
    const at_description zen1 = at_core_describe(&narrow, 0, 0, 0);
    assert_true(zen1.width == 16 && zen1.fma == 2 && zen1.latency == 5 && zen1.l1 == 32 << 10);
}

/* Whatever was measured, and whatever sizes a virtual machine tells: the description is one that can be read. */
static void any_cycles_give_a_description(void **state) {
    static const double strange[] = {0, 1e-9, 0.01, 0.3, 1, 7, 1e9};
    enum { COUNT = sizeof strange / sizeof *strange };
    (void)state;
    for (int i = 0; i < COUNT * COUNT * COUNT; i++) {
        const double a = strange[i % COUNT], b = strange[i / COUNT % COUNT], c = strange[i / COUNT / COUNT];
        const at_core_cycles cycles = {.fma = {a, b, c},
                                       .load = {c, a, b},
                                       .store = {b, c, a},
                                       .shuffle = {a, c, b},
                                       .bf16 = a,
                                       .i8 = b,
                                       .latency = c};
        const at_description d = at_core_describe(&cycles, (int64_t)(a * 1e5), (int64_t)(b * 1e6), (int64_t)(c * 1e7));
        char text[AT_DESCRIPTION_TEXT];
        at_description_print(&d, text);
        const at_description again = parsed(text);
        assert_memory_equal(&again, &d, sizeof d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_class_is_described), cmocka_unit_test(text),
        cmocka_unit_test(what_is_no_description),  cmocka_unit_test(classes),
        cmocka_unit_test(cycles_are_rounded),      cmocka_unit_test(any_cycles_give_a_description),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
