/* The schedules of an operator of the user. Nothing is known of them but their order. */
#include "tune/space.h"

#include <stdlib.h>
#include <string.h>

static size_t place_of(const attune_choice *choice, int32_t value) {
    size_t i = 0;
    while (choice->values[i] != value) i++;
    return i;
}

static int by_cost(const void *x, const void *y) {
    const tune_candidate *const a = x, *const b = y;
    if (a->cost < b->cost || a->cost > b->cost) return a->cost < b->cost ? -1 : 1;
    return memcmp(&a->schedule, &b->schedule, sizeof a->schedule);
}

/* The combination with this number, the first choice counting fastest. */
static tune_candidate combination(const at_own *own, uint64_t number) {
    tune_candidate c = {.schedule = ATTUNE_SCHEDULE_INIT};
    for (size_t i = 0; i < own->num_choices; i++) {
        const attune_choice *const choice = &own->choices[i];
        const size_t place = number % choice->num_values, usual = place_of(choice, choice->usual);
        number /= choice->num_values;
        at_own_numbers(&c.schedule)[i] = choice->values[place];
        c.cost += (double)(place > usual ? place - usual : usual - place);
    }
    return c;
}

size_t tune_own_space(const at_own *own, tune_candidate *candidates, size_t capacity) {
    uint64_t total = 1;
    size_t count = 0;
    for (size_t i = 0; i < own->num_choices; i++)
        if (__builtin_mul_overflow(total, own->choices[i].num_values, &total)) total = UINT64_MAX;
    const uint64_t step = total / capacity + (total % capacity != 0);
    for (uint64_t i = 0; count < capacity && i < total; i += step) {
        candidates[count++] = combination(own, i);
        if (i > UINT64_MAX - step) break;
    }
    qsort(candidates, count, sizeof *candidates, by_cost);
    return count;
}

size_t tune_own_neighbours(const at_own *own, const attune_schedule *schedule, tune_candidate *candidates,
                           size_t capacity) {
    size_t count = 0;
    for (size_t i = 0; i < own->num_choices; i++) {
        const attune_choice *const choice = &own->choices[i];
        const size_t place = place_of(choice, at_own_numbers_of(schedule)[i]);
        for (int up = 0; up < 2 && count < capacity; up++) {
            if (up ? place + 1 == choice->num_values : !place) continue;
            candidates[count] = (tune_candidate){.schedule = *schedule};
            at_own_numbers(&candidates[count++].schedule)[i] = choice->values[up ? place + 1 : place - 1];
        }
    }
    return count;
}
