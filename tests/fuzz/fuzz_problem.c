/* The problem text: whatever parses and can be compiled prints to a text that means the same. */
#include "problem/mha.h"
#include "schedule/schedule.h"

#include "fuzz.h"

#include <string.h>

static void check_round_trip(const attune_problem *problem) {
    static char first[8192], second[8192];
    attune_problem canonical, again = ATTUNE_PROBLEM_INIT, recanonical;
    at_error err = {0};
    if (mha_canonicalize(problem, &canonical, &err) != ATTUNE_OK) {
        FUZZ_REQUIRE(err.status != ATTUNE_OK && err.message[0] != '\0');
        return;
    }
    FUZZ_REQUIRE(mha_problem_flops(&canonical) >= 0);
    FUZZ_REQUIRE(mha_problem_print(&canonical, first, sizeof first) < sizeof first);
    FUZZ_REQUIRE(mha_problem_parse(first, &again, &err) == ATTUNE_OK);
    FUZZ_REQUIRE(mha_canonicalize(&again, &recanonical, &err) == ATTUNE_OK);
    FUZZ_REQUIRE(memcmp(&canonical, &recanonical, sizeof canonical) == 0);
    mha_problem_print(&recanonical, second, sizeof second);
    FUZZ_REQUIRE(strcmp(first, second) == 0);

    uint8_t key[MHA_KEY_BYTES], rekey[MHA_KEY_BYTES];
    const size_t length = mha_key(&canonical, key);
    FUZZ_REQUIRE(length <= sizeof key && mha_key(&recanonical, rekey) == length && memcmp(key, rekey, length) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = fuzz_text(data, size);
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    const attune_problem before = problem;
    at_error err = {0};
    if (mha_problem_parse(text, &problem, &err) == ATTUNE_OK)
        check_round_trip(&problem);
    else
        FUZZ_REQUIRE(err.message[0] != '\0' && memcmp(&before, &problem, sizeof before) == 0);

    mha_schedule schedule = {0};
    at_error schedule_err = {0};
    if (mha_schedule_parse(text, &schedule, &schedule_err) != ATTUNE_OK) FUZZ_REQUIRE(schedule_err.message[0] != '\0');
    free(text);
    return 0;
}
