/* Reads assembly as text: a label and a later jump to it enclose a loop, and the innermost ones have no other within.
 * Instructions are sorted by their names and operands. */
#include "measure/asm_loops.h"

#include <stdlib.h>
#include <string.h>

const char *asm_class_name(asm_class class) {
    static const char *const names[ASM_CLASSES] = {"multiply", "load",   "store",  "broadcast", "shuffle",
                                                   "convert",  "vector", "scalar", "spill"};
    return names[class];
}

/* ---- Instructions ---- */

static bool begins(const char *text, const char *const *with) {
    for (; *with; with++)
        if (strncmp(text, *with, strlen(*with)) == 0) return true;
    return false;
}

static bool has_vector(const char *operands) {
    /* %xmm0, %ymm0, %zmm0; v0.4s, q0 */
    if (strstr(operands, "mm")) return true;
    for (const char *at = operands; *at; at++)
        if ((*at == 'q' || *at == 'v') && (at == operands || strchr(" ,{[", at[-1])) && at[1] >= '0' && at[1] <= '9')
            return true;
    return false;
}

/* AT&T syntax writes the destination last, AArch64 first, and its stores have names of their own. */
static bool is_store(const char *name, const char *operands) {
    static const char *const stores[] = {"st1", "st2", "str", "stp", "stur", NULL};
    static const char *const moves[] = {"mov", "vmov", "vpmov", "vextract", "vpextr", "pextr", "vcvtps2ph", NULL};
    const size_t length = strlen(operands);
    if (begins(name, stores)) return true;
    const char *const mask = strstr(operands, ") {");
    return begins(name, moves) && length && (operands[length - 1] == ')' || mask);
}

/* v2.s[1] is a lane, [x5] an address. */
static bool touches_memory(const char *operands) {
    return strchr(operands, '(') || strstr(operands, "[x") || strstr(operands, "[sp");
}

static bool is_on_stack(const char *operands) {
    return strstr(operands, "(%rsp") || strstr(operands, "[sp") || strstr(operands, ", sp]");
}

static asm_class class_of(const char *name, const char *operands) {
    static const char *const multiplies[] = {"vfm", "vfnm", "vdp",   "vmulp", "mulp",
                                             "fml", "fmul", "bfdot", "tdp",   NULL};
    static const char *const broadcasts[] = {"vbroadcast", "vpbroadcast", "ld1r", "dup", "vmovddup", NULL};
    static const char *const shuffles[] = {"vperm",   "vshuf",   "vunpck", "vpunpck", "unpck",   "shufp",  "vblend",
                                           "vpblend", "vinsert", "vpshuf", "pshuf",   "vpalign", "valign", "vmovsh",
                                           "vmovsl",  "movlh",   "movhl",  "zip",     "uzp",     "trn",    "ext",
                                           "tbl",     "rev",     "ins",    NULL};
    static const char *const converts[] = {"vcvt",  "cvt",   "vpmovzx", "vpmovsx", "fcvt", "scvtf",
                                           "ushll", "sshll", "shll",    "xtn",     NULL};
    static const char *const hints[] = {"prefetch", "prfm", "lea", NULL};
    if (begins(name, hints) || !has_vector(operands)) return ASM_SCALAR;
    if (is_store(name, operands)) return ASM_STORE; /* even if it converts on the way */
    if (begins(name, multiplies)) return ASM_MULTIPLY;
    if (begins(name, broadcasts)) return ASM_BROADCAST;
    if (begins(name, converts)) return ASM_CONVERT;
    if (begins(name, shuffles)) return ASM_SHUFFLE;
    static const char *const loads[] = {"ld1", "ld2", "ldr", "ldp", "ldur", "vmov", "mov", NULL};
    return begins(name, loads) && touches_memory(operands) ? ASM_LOAD : ASM_VECTOR;
}

/* The number of the register that an instruction writes: the last operand of AT&T syntax, which a mask may follow, or
 * the first one of AArch64. Negative if there is none. */
static long written_register(const char *operands) {
    const char *last = NULL;
    for (const char *at = operands; (at = strchr(at, '%')); at++)
        if (at[1] != 'k') last = at;
    const char *const name = last ? last : operands, *const digits = name + strcspn(name, "0123456789");
    return *digits ? strtol(digits, NULL, 10) : -1;
}

static void note_accumulator(asm_loop *loop, const char *name, const char *operands) {
    static const char *const fused[] = {"vfm", "vfnm", "vdp", "fml", "bfdot", "tdp", NULL};
    const long number = begins(name, fused) ? written_register(operands) : -1;
    if (number < 0 || number >= 64 || (loop->written >> number & 1)) return;
    loop->written |= UINT64_C(1) << number;
    loop->accumulators++;
}

/* The instructions that LLVM makes of a sum of all lanes. Sums of values stay in their lanes. */
static bool is_sum_of_lanes(const char *name) {
    static const char *const sums[] = {"vhadd", "hadd", "faddp", "faddv", "vmovshdup", "vunpckhpd", "unpckhpd", NULL};
    return begins(name, sums);
}

static void count(asm_loop *loop, const char *line) {
    char name[32];
    line += strspn(line, " \t");
    const size_t length = strcspn(line, " \t");
    if (!length || length >= sizeof name || *line == '.' || *line == '#' || *line == '/' || strchr(line, ':')) return;
    memcpy(name, line, length);
    name[length] = '\0';
    const char *const operands = line + length + strspn(line + length, " \t");
    const asm_class class = class_of(name, operands);
    loop->instructions++;
    note_accumulator(loop, name, operands);
    if (is_sum_of_lanes(name)) loop->sums_lanes = true;
    if (class == ASM_SCALAR || !is_on_stack(operands)) loop->count[class]++;
    if (class != ASM_SCALAR && is_on_stack(operands)) {
        loop->count[ASM_SPILL]++;
        if (class != ASM_LOAD && class != ASM_STORE) loop->count[class]++;
    } else if (class != ASM_LOAD && class != ASM_STORE && class != ASM_SCALAR && touches_memory(operands)) {
        loop->count[ASM_LOAD]++;
    }
}

/* ---- Loops ---- */

typedef struct asm_line {
    const char *text;
    const char *function;
    const char *comment; /* after it, or NULL: of a label the name of the block in LLVM's text, "%d.1" */
    long target;         /* of a jump: the line of its label, if that is above; else -1 */
} asm_line;

/* Comments begin with # on x86-64 and with // on AArch64, whose immediates are like #8. What is before one ends there,
 * without the blanks at its end. Returns what follows, or NULL. */
static const char *cut_comment(char *line) {
    char *const hash = strstr(line, "# "), *const slashes = strstr(line, "//");
    char *const comment = hash && (!slashes || hash < slashes) ? hash : slashes;
    if (!comment) return NULL;
    char *end = comment;
    while (end > line && strchr(" \t", end[-1])) end--;
    *end = '\0';
    return comment + 1;
}

static bool is_label(const char *text) {
    const size_t length = strlen(text);
    return length > 1 && text[length - 1] == ':' && !strchr(text, ' ') && !strchr(text, '\t');
}

/* The line of the label that the last word of a line names, searched upwards within the function; -1: none. */
static long label_above(const asm_line *lines, long from) {
    const char *const text = lines[from].text, *word = text;
    for (const char *at = text; *at; at++)
        if (strchr(" \t,", *at)) word = at + 1;
    const size_t length = strlen(word);
    if (word == text || strncmp(word, ".L", 2) != 0) return -1;
    for (long at = from - 1; at >= 0 && lines[at].function == lines[from].function; at--)
        if (is_label(lines[at].text) && strlen(lines[at].text) == length + 1 && !strncmp(lines[at].text, word, length))
            return at;
    return -1;
}

static asm_line *split(char *text, long *num_lines) {
    size_t count = 1;
    for (const char *at = text; *at; at++) count += *at == '\n';
    asm_line *const lines = malloc(count * sizeof *lines);
    if (!lines) return NULL;
    *num_lines = 0;
    const char *function = "";
    for (char *rest = NULL, *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        const char *const comment = cut_comment(line);
        if (is_label(line) && line[0] != '.') function = line;
        lines[*num_lines] = (asm_line){line, function, comment, -1};
        ++*num_lines;
    }
    for (long i = 0; i < *num_lines; i++) lines[i].target = label_above(lines, i);
    return lines;
}

/* Whether LLVM says so of the block that begins here, or says nothing about it. */
static bool begins_loop(const asm_line *lines, long num_lines, long begin) {
    if (!lines[begin].comment) return true;
    for (long i = begin + 1; i < num_lines && !*lines[i].text && lines[i].comment; i++)
        if (strstr(lines[i].comment, "Inner Loop Header")) return true;
    return false;
}

/* Whether another jump back lies between the two lines. */
static bool is_innermost(const asm_line *lines, long begin, long end) {
    for (long i = begin + 1; i < end; i++)
        if (lines[i].target >= begin) return false;
    return true;
}

/* ---- Names ---- */

/* The names of loops in the IR that tell what the innermost one does: its own, and that of a loop around it, which may
 * be any (NULL). The first line that fits counts. */
static const struct {
    const char *own, *around, *name;
} roles[] = {
    {"d", "score_tile", "scores"},  {"d", "turn", "scores"}, /* keys of several streams */
    {"d", "row", "scores"},         {"d", "i", "scores"},           {"d", "key", "scores"},
    {"d", "first_key", "scores"}, /* of the weights */
    {"d", NULL, "queries"},       /* brought in */
    {"row", "turn", "scores"},    /* all columns without a loop */
    {"turn", NULL, "scores"},       {"score_tile", NULL, "scores"}, {"pair", "score_tile", "scores"},
    {"j", "chunk", "softmax"},      {"j", "value_tile", "values"},  {"j", "vector", "values"},
    {"j", "strip", "values"},       {"j", "row_tile", "values"},    {"j", "r", "softmax"},
    {"j", "key", "softmax"},        {"v", NULL, "softmax"},         {"row_tile", NULL, "values"},
    {"value_tile", NULL, "values"}, {"vector", NULL, "values"},     {"column", "i", "values"},
    {"i", NULL, "values"},          {"k", NULL, "products"},        {"at", "part", "merging"},
    {"part", NULL, "merging"},
};

/* "%d.1" is a d: the IR numbers those of one name. */
static bool is_named(const asm_line *label, const char *name) {
    const char *const block = label->comment ? strrchr(label->comment, '%') : NULL;
    const size_t length = strlen(name);
    return block && !strncmp(block + 1, name, length) && strchr(".", block[1 + length]);
}

/* The label .LBB1_3 of "Parent Loop BB1_3 Depth=1", or NULL. */
static const asm_line *find_label(const asm_line *lines, long num_lines, const char *block) {
    const size_t length = strcspn(block, " ");
    for (long i = 0; i < num_lines; i++)
        if (is_label(lines[i].text) && strncmp(lines[i].text, ".L", 2) == 0 && strlen(lines[i].text) == length + 3 &&
            strncmp(lines[i].text + 2, block, length) == 0)
            return &lines[i];
    return NULL;
}

/* Whether the loop that begins with this block, as "BB1_3 Depth=1", has the name: that of its first block, or where
 * LLVM has moved a test to the front, of the next one. */
static bool is_loop_named(const asm_line *lines, long num_lines, const char *block, const char *name) {
    static const char header[] = "in Loop: Header=";
    const asm_line *const label = find_label(lines, num_lines, block);
    if (label && is_named(label, name)) return true;
    for (long i = label ? label - lines + 1 : num_lines; i < num_lines; i++) {
        const char *const at = lines[i].comment ? strstr(lines[i].comment, header) : NULL;
        if (at && !strncmp(at + strlen(header), block, strcspn(block, " ") + 1)) return is_named(&lines[i - 1], name);
    }
    return false;
}

/* Whether a loop of this name is around the one that begins here: LLVM says so in the lines after its label. */
static bool is_within(const asm_line *lines, long num_lines, long begin, const char *name) {
    static const char parent[] = "Parent Loop ";
    for (long i = begin + 1; i < num_lines && !*lines[i].text && lines[i].comment; i++) {
        const char *const at = strstr(lines[i].comment, parent);
        if (at && is_loop_named(lines, num_lines, at + strlen(parent), name)) return true;
    }
    return false;
}

/* Loops around it that have one turn are gone, and so are those around a nest in a function of its own. The remaining
 * loops of softmax mostly round and shift; sums of values multiply. */
static const char *role_of_keys(const asm_loop *loop) {
    return loop->count[ASM_VECTOR] + loop->count[ASM_CONVERT] >= loop->count[ASM_MULTIPLY] ? "softmax" : "values";
}

/* Where the loop over d is unrolled away, one over keys that sums lanes is left of the scores. */
static const char *role_of(const asm_line *lines, long num_lines, long begin, const asm_loop *loop) {
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (is_named(&lines[begin], roles[i].own) &&
            (!roles[i].around || is_within(lines, num_lines, begin, roles[i].around)))
            return is_named(&lines[begin], "i") && loop->sums_lanes ? "scores" : roles[i].name;
    return is_named(&lines[begin], "j") ? role_of_keys(loop) : "";
}

static int by_multiplies(const void *x, const void *y) {
    const asm_loop *a = x, *b = y;
    if (a->count[ASM_MULTIPLY] != b->count[ASM_MULTIPLY])
        return a->count[ASM_MULTIPLY] < b->count[ASM_MULTIPLY] ? 1 : -1;
    return a->instructions < b->instructions ? 1 : a->instructions > b->instructions ? -1 : 0;
}

/* Collects all loops before sorting, because the best may come last. */
static size_t collect(const asm_line *lines, long num_lines, asm_loop *found) {
    size_t n = 0;
    for (long end = 0; end < num_lines; end++) {
        const long begin = lines[end].target;
        if (begin < 0 || !is_innermost(lines, begin, end) || !begins_loop(lines, num_lines, begin)) continue;
        asm_loop *const loop = &found[n++];
        *loop = (asm_loop){0};
        strncpy(loop->function, lines[end].function, sizeof loop->function - 1);
        loop->function[strcspn(loop->function, ":")] = '\0';
        for (long i = begin; i <= end; i++) count(loop, lines[i].text);
        loop->name = role_of(lines, num_lines, begin, loop);
    }
    qsort(found, n, sizeof *found, by_multiplies);
    return n;
}

size_t asm_find_loops(char *text, asm_loop *loops, size_t capacity) {
    long num_lines = 0;
    asm_line *const lines = split(text, &num_lines);
    asm_loop *const found = lines ? malloc((size_t)(num_lines + 1) * sizeof *found) : NULL;
    size_t n = found ? collect(lines, num_lines, found) : 0;
    if (n > capacity) n = capacity;
    if (n) memcpy(loops, found, n * sizeof *loops);
    free(found);
    free(lines);
    return n;
}
