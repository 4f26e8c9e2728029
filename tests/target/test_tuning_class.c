/* The tuning class of a CPU: by the identity of real CPUs, by name, by nearness, by measures. */
#include "target/target.h"
#include "target/tuning_class.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define AMD_CPU(f, m)   {.vendor = "AuthenticAMD", .family = f, .model = m}
#define INTEL_CPU(f, m) {.vendor = "GenuineIntel", .family = f, .model = m}
#define ARM_CPU(i, p)   {.is_arm = true, .family = i, .model = p}

static void real_cpus(void **state) {
    static const struct {
        at_cpu_identity cpu;
        const char *class_name;
    } cases[] = {
        {AMD_CPU(23, 0x01), "zen1"},    /* Ryzen 7 1700, EPYC 7601 */
        {AMD_CPU(23, 0x18), "zen1"},    /* Ryzen 5 3500U: Zen+ */
        {AMD_CPU(23, 0x31), "zen2"},    /* EPYC 7742 */
        {AMD_CPU(23, 0x71), "zen2"},    /* Ryzen 9 3950X */
        {AMD_CPU(23, 0xa0), "zen2"},    /* Ryzen 3 7320U */
        {AMD_CPU(25, 0x01), "zen3"},    /* EPYC 7763 */
        {AMD_CPU(25, 0x21), "zen3"},    /* Ryzen 9 5950X */
        {AMD_CPU(25, 0x44), "zen3"},    /* Ryzen 7 6800U: Zen 3+ */
        {AMD_CPU(25, 0x50), "zen3"},    /* Ryzen 7 5700G */
        {AMD_CPU(25, 0x11), "zen4"},    /* EPYC 9654 */
        {AMD_CPU(25, 0x18), "zen4"},    /* Threadripper 7980X */
        {AMD_CPU(25, 0x61), "zen4"},    /* Ryzen 9 7950X */
        {AMD_CPU(25, 0x74), "zen4"},    /* Ryzen 7 7840U */
        {AMD_CPU(25, 0xa0), "zen4"},    /* EPYC 9754: Zen 4c */
        {AMD_CPU(25, 0x90), "generic"}, /* between the known ranges */
        {AMD_CPU(26, 0x02), "zen5"},    /* EPYC 9755 */
        {AMD_CPU(26, 0x11), "zen5"},    /* EPYC 9965: Zen 5c */
        {AMD_CPU(26, 0x24), "zen5"},    /* Ryzen AI 9 HX 370 */
        {AMD_CPU(26, 0x44), "zen5"},    /* Ryzen 9 9950X */
        {AMD_CPU(26, 0x70), "zen5"},    /* Ryzen AI Max+ 395 */
        {AMD_CPU(26, 0x78), "zen5"},
        {AMD_CPU(26, 0xd7), "zen5"},
        {AMD_CPU(26, 0x30), "generic"},
        {AMD_CPU(26, 0x50), "generic"}, /* Zen 6 */
        {AMD_CPU(26, 0x5f), "generic"},
        {AMD_CPU(26, 0x90), "generic"},
        {AMD_CPU(26, 0xc0), "generic"},
        {AMD_CPU(27, 0x01), "generic"}, /* a later one */
        {AMD_CPU(21, 0x60), "generic"}, /* Excavator */
        {{.vendor = "HygonGenuine", .family = 24, .model = 0}, "zen1"},
        {INTEL_CPU(6, 0x3f), "haswell"},        /* Xeon E5-2680 v3 */
        {INTEL_CPU(6, 0x4f), "broadwell"},      /* Xeon E5-2686 v4 */
        {INTEL_CPU(6, 0x5e), "skylake"},        /* Core i7-6700K */
        {INTEL_CPU(6, 0x9e), "skylake"},        /* Core i9-9900K */
        {INTEL_CPU(6, 0x55), "skylake-x"},      /* Xeon Platinum 8175M, 8275CL */
        {INTEL_CPU(6, 0x7e), "icelake-client"}, /* Core i7-1065G7 */
        {INTEL_CPU(6, 0x8c), "tigerlake"},      /* Core i7-1165G7 */
        {INTEL_CPU(6, 0x6a), "icelake-server"}, /* Xeon Platinum 8375C */
        {INTEL_CPU(6, 0x8f), "sapphire-rapids"},
        {INTEL_CPU(6, 0xcf), "sapphire-rapids"}, /* Emerald Rapids */
        {INTEL_CPU(6, 0xad), "granite-rapids"},
        {INTEL_CPU(6, 0x97), "alderlake"}, /* Core i9-12900K */
        {INTEL_CPU(6, 0xb7), "alderlake"}, /* Core i9-13900K: Raptor Lake */
        {INTEL_CPU(6, 0xc6), "arrowlake"}, /* Core Ultra 9 285K */
        {INTEL_CPU(6, 0xaf), "sierra-forest"},
        {INTEL_CPU(6, 0x2d), "generic"}, /* Sandy Bridge: no FMA */
        {INTEL_CPU(6, 0xff), "generic"},
        {INTEL_CPU(19, 0x01), "generic"},      /* a later one */
        {ARM_CPU(0x41, 0xd08), "cortex-a72"},  /* Raspberry Pi 4, Graviton 1 */
        {ARM_CPU(0x41, 0xd0b), "cortex-a76"},  /* Raspberry Pi 5 */
        {ARM_CPU(0x41, 0xd0c), "neoverse-n1"}, /* Graviton 2, Altra */
        {ARM_CPU(0x41, 0xd40), "neoverse-v1"}, /* Graviton 3 */
        {ARM_CPU(0x41, 0xd49), "neoverse-n2"},
        {ARM_CPU(0x6d, 0xd49), "neoverse-n2"}, /* Cobalt 100 */
        {ARM_CPU(0x41, 0xd4f), "neoverse-v2"}, /* Graviton 4, Grace */
        {ARM_CPU(0xc0, 0xac3), "ampere1"},
        {ARM_CPU(0x61, 0x022), "apple-m1"},
        {ARM_CPU(0x61, 0x033), "apple-m2"},
        {ARM_CPU(0x46, 0x001), "a64fx"},
        {ARM_CPU(0x41, 0xfff), "generic"},
        {ARM_CPU(0, 0), "generic"}, /* no MIDR, as under qemu-user */
        {{.vendor = "SomebodyElse", .family = 25, .model = 1}, "generic"},
        {{0}, "generic"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(at_class_of(&cases[i].cpu), cases[i].class_name))
            fail_msg("%s family %u, model 0x%x is %s, not %s", cases[i].cpu.vendor, cases[i].cpu.family,
                     cases[i].cpu.model, at_class_of(&cases[i].cpu), cases[i].class_name);
}

static void all_models_have_some_class(void **state) {
    (void)state;
    for (uint32_t family = 0; family < 256; family++)
        for (uint32_t model = 0; model < 256; model++) {
            const at_cpu_identity cpus[] = {AMD_CPU(family, model), INTEL_CPU(family, model), ARM_CPU(family, model)};
            for (int i = 0; i < 3; i++) {
                const char *name = at_class_of(&cpus[i]);
                assert_ptr_equal(at_class_find(name), name);
                assert_true(at_class_is_of(name, cpus[i].is_arm));
            }
        }
}

/* Names are parts of files' names. */
static void names(void **state) {
    (void)state;
    const char *order[AT_MAX_CLASSES];
    const size_t count = at_class_neighbours("generic", order);
    assert_true(count > 30);
    for (size_t i = 0; i < count; i++) {
        assert_true(strlen(order[i]) < AT_CLASS_BYTES);
        assert_int_equal(strspn(order[i], "abcdefghijklmnopqrstuvwxyz0123456789-"), strlen(order[i]));
        assert_ptr_equal(at_class_find(order[i]), order[i]);
        for (size_t j = 0; j < i; j++) assert_string_not_equal(order[i], order[j]);
    }
    assert_ptr_equal(at_class_find("generic"), at_class_generic);
    assert_null(at_class_find("zen"));
    assert_null(at_class_find(""));
    assert_false(at_class_is_of("zen4", true));
    assert_true(at_class_is_of("generic", true));
}

static void assert_ends_in_generic(const char *message) {
    static const char end[] = ", and generic, which may be used on any CPU";
    assert_true(strlen(message) > sizeof end);
    assert_string_equal(message + strlen(message) - (sizeof end - 1), end);
}

static void an_unknown_name_is_refused(void **state) {
    (void)state;
    at_error err = {0};
    char longest[200] = "";
    assert_int_equal(at_class_refuse("machine", "pentium", false, &err), ATTUNE_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "unknown machine \"pentium\"; there are: zen1, zen2, zen3, zen4, zen5, "));
    assert_ends_in_generic(err.message);
    assert_null(strstr(err.message, "apple"));
    err = (at_error){0};
    at_class_refuse("machine", "zen44", false, &err);
    assert_non_null(strstr(err.message, "unknown machine \"zen44\" (did you mean \"zen4\"?); there are: zen1, "));
    memset(longest, 'x', sizeof longest - 1);
    for (int is_arm = 0; is_arm < 2; is_arm++) {
        err = (at_error){0};
        at_class_refuse("ATTUNE_MACHINE", longest, is_arm, &err);
        assert_ends_in_generic(err.message);
    }
}

static void assert_order(const char *name, const char *const expected[], size_t count) {
    const char *order[AT_MAX_CLASSES];
    assert_true(at_class_neighbours(name, order) >= count);
    for (size_t i = 0; i < count; i++) assert_string_equal(order[i], expected[i]);
}

static void nearness(void **state) {
    (void)state;
    const char *order[AT_MAX_CLASSES];
    assert_order("zen4", (const char *const[]){"zen5", "zen3", "zen2", "zen1", "generic", "haswell"}, 6);
    assert_order("zen5", (const char *const[]){"zen4", "zen3", "zen2", "zen1", "generic"}, 5);
    assert_order("icelake-server", (const char *const[]){"sapphire-rapids", "skylake-x", "granite-rapids", "generic"},
                 4);
    assert_order("neoverse-v1", (const char *const[]){"neoverse-v2", "neoverse-v3", "generic", "cortex-a53"}, 4);
    const size_t count = at_class_neighbours("zen4", order);
    for (size_t i = 0; i < count; i++) assert_true(at_class_is_of(order[i], false));
    /* One that this version does not know may still be asked for. */
    assert_string_equal((at_class_neighbours("zen9", order), order[0]), "generic");
}

static void rounding(void **state) {
    static const at_cpu_identity later_amd = AMD_CPU(27, 1), later_intel = INTEL_CPU(19, 1), nobody = {0},
                                 arm = ARM_CPU(1, 1);
    (void)state;
    const at_core_measures like_zen4 = {8.1, 3.95, 0.76}, like_zen5 = {7.9, 8.2, 0.52}, like_none = {6.5, 4, 0.75};
    assert_string_equal(at_class_round(&later_amd, &like_zen4), "zen4");
    assert_string_equal(at_class_round(&nobody, &like_zen4), "zen4");
    assert_string_equal(at_class_round(&later_intel, &like_zen4), "generic");
    assert_string_equal(at_class_round(&later_amd, &like_zen5), "zen5");
    assert_string_equal(at_class_round(&later_intel, &like_zen5), "granite-rapids");
    assert_string_equal(at_class_round(&later_amd, &like_none), "generic");
    assert_string_equal(at_class_round(&arm, &like_zen4), "generic");
    /* 512 bits that were not measured are no 512 bits. */
    assert_string_equal(at_class_round(&later_amd, &(at_core_measures){8, 0, 0.75}), "zen3");
    assert_string_equal(at_class_round(&later_amd, &(at_core_measures){0}), "generic");
}

static void this_cpu(void **state) {
    (void)state;
    const at_cpu_identity *here = at_cpu_identity_here();
    char model[32];
    snprintf(model, sizeof model, here->is_arm ? "part 0x%03x, " : "model %u, ", here->model);
    assert_int_equal(strncmp(at_cpu_description(), at_cpu_name(), strlen(at_cpu_name())), 0);
    assert_non_null(strstr(at_cpu_description(), model));
    assert_true(here->is_arm || strlen(here->vendor) == 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_cpus), cmocka_unit_test(all_models_have_some_class),
        cmocka_unit_test(names),     cmocka_unit_test(an_unknown_name_is_refused),
        cmocka_unit_test(nearness),  cmocka_unit_test(rounding),
        cmocka_unit_test(this_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
