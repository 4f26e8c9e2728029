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

/* 2^96 combinations at most. */
__extension__ typedef unsigned __int128 combination_number;

/* The combination with this number, the first choice counting fastest. */
static tune_candidate combination(const at_own *own, combination_number number) {
    tune_candidate c = {.schedule = {0}};
    for (size_t i = 0; i < own->num_choices; i++) {
        const attune_choice *const choice = &own->choices[i];
        const size_t place = (size_t)(number % choice->num_values), usual = place_of(choice, choice->usual);
        number /= choice->num_values;
        at_own_numbers(&c.schedule)[i] = choice->values[place];
        c.cost += (double)(place > usual ? place - usual : usual - place);
    }
    return c;
}

/* The combination that lies so many values after the usual one in every choice, round and round. */
static combination_number diagonal(const at_own *own, size_t steps) {
    combination_number number = 0;
    for (size_t i = own->num_choices; i--;) {
        const attune_choice *const choice = &own->choices[i];
        number = number * choice->num_values + (place_of(choice, choice->usual) + steps) % choice->num_values;
    }
    return number;
}

static size_t most_values(const at_own *own) {
    size_t most = 1;
    for (size_t i = 0; i < own->num_choices; i++)
        if (own->choices[i].num_values > most) most = own->choices[i].num_values;
    return most;
}

static bool is_among(const combination_number *numbers, size_t count, combination_number number) {
    for (size_t i = 0; i < count; i++)
        if (numbers[i] == number) return true;
    return false;
}

static size_t common_divisor(size_t a, size_t b) { return b ? common_divisor(b, a % b) : a; }

/* A step that visits every combination before it returns to the first, as evenly as the golden section does. */
static combination_number even_step(const at_own *own, combination_number total) {
    combination_number step = total * 618 / 1000 + 1;
    for (size_t i = 0; i < own->num_choices;) {
        const size_t count = own->choices[i].num_values;
        const bool is_coprime = common_divisor(count, (size_t)(step % count)) == 1;
        i = is_coprime ? i + 1 : 0;
        step += !is_coprime;
    }
    return step;
}

/* The diagonals show every value of every choice, as no choice has more values than there is room; the usual one is the
 * first of them. */
size_t tune_own_space(const at_own *own, tune_candidate *candidates, size_t capacity) {
    combination_number total = 1, at = 0;
    size_t count = 0;
    for (size_t i = 0; i < own->num_choices; i++) total *= own->choices[i].num_values;
    const combination_number step = even_step(own, total);
    const size_t num_diagonals = most_values(own) < capacity ? most_values(own) : capacity;
    combination_number diagonals[AT_OWN_VALUES];
    for (; count < num_diagonals; count++) {
        diagonals[count] = diagonal(own, count);
        candidates[count] = combination(own, diagonals[count]);
    }
    for (; count < capacity && count < total; at = (at + step) % total)
        if (!is_among(diagonals, num_diagonals, at)) candidates[count++] = combination(own, at);
    qsort(candidates, count, sizeof *candidates, by_cost);
    return count;
}

size_t tune_own_neighbours(const at_own *own, const mha_schedule *schedule, tune_candidate *candidates,
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
