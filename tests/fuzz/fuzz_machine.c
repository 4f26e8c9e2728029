/* The text of ATTUNE_MACHINE, which is the last line of a probe's file, too: a class, a description, or a sentence.
 * What is accepted means the same when its description is read again. */
#include "machine/machine.h"

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *const text = fuzz_text(data, size), name[AT_CLASS_BYTES];
    at_machine_class machine, again;
    at_error err = {0};
    if (at_machine_choose(text, at_target_find("avx2"), &machine, &err) == ATTUNE_OK) {
        FUZZ_REQUIRE(strlen(machine.name) < sizeof machine.name && !strpbrk(machine.name, "/=, \n"));
        FUZZ_REQUIRE(at_machine_choose(machine.text, at_target_find("avx2"), &again, &err) == ATTUNE_OK);
        FUZZ_REQUIRE(!memcmp(&machine.description, &again.description, sizeof machine.description));
        at_description_name(&machine.description, name);
        FUZZ_REQUIRE(!strcmp(again.name, name) && (at_class_find(machine.name) || !strcmp(machine.name, name)));
    } else {
        FUZZ_REQUIRE(err.status == ATTUNE_INVALID_ARGUMENT && err.message[0]);
    }
    free(text);
    return 0;
}
