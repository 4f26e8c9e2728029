/* Names in a bundle. A kernel's name becomes that of C functions and macros, so it must be an identifier and must not
 * clash. The names of targets choose the codes that the bundle has. */
#include "bundle/bundle.h"

#include "base/plain_text.h"

#include <elf.h>
#include <stdio.h>
#include <string.h>

/* ---- Names ---- */

static bool is_identifier(const char *name) {
    static const char letters[] = "_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    if (!*name || !strchr(letters, *name)) return false;
    for (; *name; name++)
        if (!strchr(letters, *name) && !(*name >= '0' && *name <= '9')) return false;
    return true;
}

static attune_status check_name(const char *what, const char *name, at_error *err) {
    if (!name || !is_identifier(name))
        return at_fail(
            err, ATTUNE_INVALID_ARGUMENT,
            "the name of %s is \"%.60s\"; it must be a C identifier: letters, digits and _, and no digit first", what,
            name ? name : "");
    if (strlen(name) >= AT_BUNDLE_NAME_BYTES)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the name of %s, \"%.60s...\", is longer than %d letters", what,
                       name, AT_BUNDLE_NAME_BYTES - 1);
    return ATTUNE_OK;
}

/* What names that begin with a kernel's may end with, in the header. */
static const char *const taken[] = {"_check", "_workspace", "_target", "_begin", "_phases",
                                    "_tasks", "_execute",   "_args",   "_call"};
/* What names of the bundle itself end with. */
static const char *const own[] = {"use", "bundle", "status"};

/* Macros have the name of a kernel in capitals. */
static bool differ_in_case_alone(const char *a, const char *b) {
    size_t i = 0;
    while (a[i] && at_upper(a[i]) == at_upper(b[i])) i++;
    return !a[i] && !b[i] && strcmp(a, b) != 0;
}

/* Whether `name` is `other` with one of those after it. */
static bool clashes(const char *name, const char *other) {
    const size_t length = strlen(other);
    if (strncmp(name, other, length) != 0) return false;
    if (!name[length]) return true;
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (!strcmp(name + length, taken[i])) return true;
    return false;
}

static attune_status check_pair(const char *name, const char *other, at_error *err) {
    const char *sentence = NULL;
    if (differ_in_case_alone(name, other))
        sentence = "the kernels \"%s\" and \"%s\" differ in capitals alone, and would share a macro";
    else if (!strcmp(name, other))
        sentence = "two kernels are called \"%s\"";
    else if (clashes(name, other))
        sentence = "the kernels \"%s\" and \"%s\" would share a name";
    return sentence ? at_fail(err, ATTUNE_INVALID_ARGUMENT, sentence, name, other) : ATTUNE_OK;
}

attune_status at_bundle_check_names(const at_bundle_plan *plan, at_error *err) {
    attune_status status = check_name("the bundle", plan->name, err);
    for (size_t k = 0; k < plan->num_parts && !status; k++) {
        const char *const name = plan->parts[k].name;
        status = check_name("a kernel", name, err);
        for (size_t i = 0; i < sizeof own / sizeof *own && !status; i++)
            if (clashes(name, own[i]))
                status = at_fail(err, ATTUNE_INVALID_ARGUMENT, "no kernel can be called \"%s\": the bundle has %s_%s",
                                 name, plan->name, own[i]);
        for (size_t other = 0; other < plan->num_parts && !status; other++)
            if (other != k) status = check_pair(name, plan->parts[other].name, err);
    }
    return status;
}

/* ---- Words that C and C++ have ---- */

/* Keywords, types of the struct, and macros of its headers or of compilers: gcc defines linux and unix. */
static const char words[] =
    " NULL alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t "
    "char8_t class co_await co_return co_yield compl concept const const_cast consteval constexpr "
    "constinit continue decltype default delete do double dynamic_cast else enum explicit export extern "
    "false float for friend goto i386 if inline int int32_t int64_t int8_t linux long mutable namespace "
    "new noexcept not not_eq nullptr offsetof operator or or_eq private protected public register "
    "reinterpret_cast requires restrict return short signed size_t sizeof static static_assert "
    "static_cast struct switch template this thread_local throw true try typedef typeid typename typeof "
    "typeof_unqual uint16_t uint32_t uint64_t uint8_t union unix unsigned using virtual void volatile "
    "wchar_t while xor xor_eq ";

/* What names of other macros of stdint.h begin with. */
static const char *const beginnings[] = {"INT", "UINT", "PTRDIFF_", "SIG_ATOMIC_", "SIZE_", "WCHAR_", "WINT_"};

bool at_bundle_is_reserved(const char *name) {
    char spaced[AT_BUNDLE_NAME_BYTES + 2];
    snprintf(spaced, sizeof spaced, " %s ", name);
    bool found = strstr(words, spaced) != NULL;
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        found = found || !strncmp(name, beginnings[i], strlen(beginnings[i]));
    return found;
}

/* ---- Targets ---- */

static bool is_arm(const at_target *target) { return target->required & AT_CPU_AARCH64; }

static attune_status parse_aim(at_bundle_aim *aim, const char *text, at_error *err) {
    char name[48];
    snprintf(name, sizeof name, "%s", text);
    char *machine = strchr(name, ':');
    if (machine) *machine++ = '\0';
    const attune_status status = at_target_named(name, &aim->target, err);
    if (status) return status;
    if (!machine) machine = (char *)at_class_generic;
    if (!at_class_find(machine) || !at_class_is_of(machine, is_arm(aim->target)))
        return at_class_refuse("tuning class", machine, is_arm(aim->target), err);
    snprintf(aim->machine, sizeof aim->machine, "%s", machine);
    const bool is_generic = !strcmp(machine, at_class_generic);
    snprintf(aim->name, sizeof aim->name, "%s%s%s", name, is_generic ? "" : ":", is_generic ? "" : machine);
    snprintf(aim->suffix, sizeof aim->suffix, ".%s%s%s", name, is_generic ? "" : ".", is_generic ? "" : machine);
    return ATTUNE_OK;
}

/* Best first, as the run time looks for them; classes of one target stay in the order in which they were named. */
static void insert(at_bundle_plan *plan, const at_bundle_aim *aim) {
    size_t place = plan->num_aims++;
    for (; place > 0 && plan->aims[place - 1].target > aim->target; place--) plan->aims[place] = plan->aims[place - 1];
    plan->aims[place] = *aim;
}

static attune_status add_aim(at_bundle_plan *plan, const char *text, at_error *err) {
    at_bundle_aim aim = {0};
    const attune_status status = parse_aim(&aim, text, err);
    if (status) return status;
    if (plan->num_aims == AT_BUNDLE_MOST_CODES)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "a bundle has at most %d targets", AT_BUNDLE_MOST_CODES);
    for (size_t i = 0; i < plan->num_aims; i++) {
        if (!strcmp(plan->aims[i].name, aim.name))
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the target %s is named twice", aim.name);
        if (is_arm(plan->aims[i].target) != is_arm(aim.target))
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "%s and %s are targets of two architectures: each needs a bundle of its own",
                           plan->aims[i].name, aim.name);
    }
    insert(plan, &aim);
    plan->machine = is_arm(aim.target) ? EM_AARCH64 : EM_X86_64;
    return ATTUNE_OK;
}

attune_status at_bundle_parse_targets(at_bundle_plan *plan, const char *text, at_error *err) {
    attune_status status = ATTUNE_OK;
    while (!status) {
        char word[48];
        const size_t length = strcspn(text, ",");
        if (length >= sizeof word)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "\"%.60s\" is no list of targets, such as avx512,avx2", text);
        memcpy(word, text, length);
        word[length] = '\0';
        status = add_aim(plan, word, err);
        if (!text[length]) break;
        text += length + 1;
    }
    return status;
}
