/* The object linker: links generated objects, refuses others by name, and survives every truncation and random damage.
 * Images: at_image_check. */
#include "support/seed.h"
#include "codegen/compile.h"
#include "codegen/object_link.h"
#include "codegen/object_relocate.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "support/ir/jit_run.h"

#include <elf.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Two phases; the constants make relocations. */
static const char source[] =
    "kernel @linked (x: f32[32] in, o: f32[32] out, s: f32) {\n"
    " alloc h: f32[32] shared\n"
    " parallel for i in 0..4 { alloc t: f32[8] scratch t[0]:x8 = x[i * 8]:x8 * splat.x8(0x1.8p+1)\n"
    "  h[i * 8]:x8 = t[0]:x8 + cast.f32(ramp.x8(3:i32, 5:i32)) }\n"
    " parallel for j in 0..32 { o[j] = h[31 - j] * s + 0.625 } }";

static unsigned char *object;
static size_t object_bytes;
static const at_image_header described = {
    .required = AT_CPU_X86_64, .num_phases = 2, .num_buffers = 2, .num_shared = 1, .num_scalars = 1};
static const uint64_t scratch[2] = {32, 0};

static void compile_source(attune_stage stage, void **data, size_t *bytes) {
    at_error err = {0};
    at_arena arena;
    const at_target *target = at_target_find("x86-64");
    at_arena_init(&arena, NULL);
    const ir_kernel *kernel = ir_parse(&arena, source, strlen(source), &err);
    if (!kernel || ir_verify(kernel, IR_LOWERED, target, &err) || cg_compile(kernel, target, stage, data, bytes, &err))
        fail_msg("%s", err.message);
    at_arena_free(&arena);
}

static attune_status link_copy(const unsigned char *bytes, size_t size, at_error *err) {
    void *image;
    size_t image_bytes;
    *err = (at_error){0};
    const attune_status status = cg_link_object(bytes, size, &described, scratch, NULL, &image, &image_bytes, err);
    if (status == ATTUNE_OK)
        assert_null(at_image_check(image, image_bytes));
    else
        assert_true(err->message[0] != '\0');
    at_free(NULL, image);
    return status;
}

static void expect_refusal(const unsigned char *bytes, size_t size, const char *part) {
    at_error err;
    assert_int_equal(link_copy(bytes, size, &err), ATTUNE_CODEGEN_FAILED);
    if (!strstr(err.message, part)) fail_msg("\"%s\" does not say \"%s\"", err.message, part);
}

/* ---- The object's own structure, for damaging it on purpose ---- */

static Elf64_Shdr *sections(unsigned char *bytes) { return (Elf64_Shdr *)(bytes + ((Elf64_Ehdr *)bytes)->e_shoff); }

static Elf64_Shdr *find_section(unsigned char *bytes, uint32_t type, uint64_t flags) {
    const Elf64_Ehdr *elf = (const Elf64_Ehdr *)bytes;
    for (int s = 0; s < elf->e_shnum; s++) {
        Elf64_Shdr *section = &sections(bytes)[s];
        if (section->sh_type == type && (section->sh_flags & flags) == flags && section->sh_size) return section;
    }
    fail_msg("the object has no section of type %u", type);
    return NULL;
}

static Elf64_Rela *first_rela(unsigned char *bytes) {
    return (Elf64_Rela *)(bytes + find_section(bytes, SHT_RELA, 0)->sh_offset);
}

static unsigned char *object_copy(void) {
    unsigned char *copy = at_alloc_aligned(NULL, object_bytes, 16);
    assert_non_null(copy);
    return memcpy(copy, object, object_bytes);
}

/* ---- Tests ---- */

static void test_links_and_runs(void **state) {
    (void)state;
    void *image;
    size_t bytes;
    float x[32], o[32], *buffers[] = {x, o};
    const float s = 2;
    int64_t scalar = 0;
    at_error err = {0};
    memcpy(&scalar, &s, sizeof s);
    for (int i = 0; i < 32; i++) x[i] = (float)i;
    compile_source(ATTUNE_STAGE_IMAGE, &image, &bytes);
    assert_int_equal(jit_run_image(image, bytes, (void **)buffers, &scalar, 1, &err), ATTUNE_OK);
    for (int i = 0; i < 32; i++) {
        const int j = 31 - i;
        assert_true(o[i] == ((float)j * 3 + (float)(3 + j % 8 * 5)) * s + 0.625f);
    }
    at_free(NULL, image);
}

static void test_image_is_deterministic(void **state) {
    (void)state;
    void *a, *b;
    size_t a_bytes, b_bytes;
    compile_source(ATTUNE_STAGE_IMAGE, &a, &a_bytes);
    compile_source(ATTUNE_STAGE_IMAGE, &b, &b_bytes);
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(a, b, a_bytes);
    at_free(NULL, a);
    at_free(NULL, b);
}

static void test_image_describes_the_kernel(void **state) {
    (void)state;
    void *image;
    size_t bytes;
    at_error err = {0};
    assert_int_equal(cg_link_object(object, object_bytes, &described, scratch, NULL, &image, &bytes, &err), ATTUNE_OK);
    const at_image_header *header = image;
    assert_int_equal(header->num_phases, 2);
    assert_int_equal(header->num_buffers, 2);
    assert_int_equal(header->num_shared, 1);
    assert_int_equal(header->num_scalars, 1);
    assert_int_equal(header->required, AT_CPU_X86_64);
    assert_int_equal(at_image_phases(header)[0].scratch_bytes, 64);
    assert_int_equal(at_image_phases(header)[1].scratch_bytes, 0);
    assert_true(at_image_phases(header)[0].entry != at_image_phases(header)[1].entry);
    at_free(NULL, image);
}

static void test_refusals(void **state) {
    (void)state;
    unsigned char *copy = object_copy();
    expect_refusal(copy, 10, "shorter than its header");
    copy[0] ^= 1;
    expect_refusal(copy, object_bytes, "not ELF");
    copy[0] ^= 1;

    ((Elf64_Ehdr *)copy)->e_machine = EM_AARCH64;
    expect_refusal(copy, object_bytes, "not for x86-64");
    ((Elf64_Ehdr *)copy)->e_machine = EM_X86_64;

    Elf64_Rela *rela = first_rela(copy);
    const Elf64_Rela saved = *rela;
    rela->r_info = ELF64_R_INFO(ELF64_R_SYM(saved.r_info), R_X86_64_64);
    expect_refusal(copy, object_bytes, "relocation of type 1 is not PC-relative");
    rela->r_info = ELF64_R_INFO(9999u, R_X86_64_PC32);
    expect_refusal(copy, object_bytes, "names a symbol that is not there");
    *rela = saved;
    rela->r_offset = UINT64_MAX - 1;
    expect_refusal(copy, object_bytes, "lies outside its section");
    *rela = saved;
    rela->r_addend = INT64_MAX;
    expect_refusal(copy, object_bytes, "does not reach its symbol");
    *rela = saved;

    find_section(copy, SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR)->sh_flags |= SHF_WRITE;
    expect_refusal(copy, object_bytes, ".text");
    at_free(NULL, copy);
}

/* ---- AArch64: its objects here, its code under qemu-user (test_aarch64.sh) ---- */

static void test_aarch64_object(void **state) {
    (void)state;
    at_arena arena;
    at_error err = {0};
    void *data, *image = NULL;
    size_t bytes, image_bytes;
    const at_target *target = at_target_find("aarch64");
    at_image_header header = described;
    header.required = AT_CPU_AARCH64;
    at_arena_init(&arena, NULL);
    const ir_kernel *kernel = ir_parse(&arena, source, strlen(source), &err);
    assert_non_null(kernel);
    assert_int_equal(cg_compile(kernel, target, ATTUNE_STAGE_OBJECT, &data, &bytes, &err), ATTUNE_OK);
    assert_int_equal(((Elf64_Ehdr *)data)->e_machine, EM_AARCH64);
    assert_int_equal(cg_link_object(data, bytes, &header, scratch, NULL, &image, &image_bytes, &err), ATTUNE_OK);
    assert_null(at_image_check(image, image_bytes));
    assert_int_equal(((at_image_header *)image)->required, AT_CPU_AARCH64);
    at_free(NULL, image);

    Elf64_Rela *rela = first_rela(data);
    rela->r_info = ELF64_R_INFO(ELF64_R_SYM(rela->r_info), R_AARCH64_ABS64);
    assert_int_equal(cg_link_object(data, bytes, &header, scratch, NULL, &image, &image_bytes, &err),
                     ATTUNE_CODEGEN_FAILED);
    assert_non_null(strstr(err.message, "relocation of type 257 is not PC-relative"));
    err = (at_error){0};
    assert_int_equal(cg_link_object(data, bytes, &described, scratch, NULL, &image, &image_bytes, &err),
                     ATTUNE_CODEGEN_FAILED);
    assert_non_null(strstr(err.message, "not for x86-64"));
    at_free(NULL, data);
    at_arena_free(&arena);
}

/* Instructions by the manual's encodings; 0 if it must be refused. */
static void test_aarch64_instructions(void **state) {
    (void)state;
    static const struct {
        uint64_t type;
        uint32_t before;
        int64_t at, symbol, addend;
        uint32_t after;
    } cases[] = {
        {R_AARCH64_ADR_PREL_LO21, 0x10000003, 0x100, 0x100, 5, 0x30000023},
        {R_AARCH64_ADR_PREL_LO21, 0x10000000, 0x104, 0x100, 0, 0x10ffffe0},
        {R_AARCH64_ADR_PREL_LO21, 0x10000000, 0, (1 << 20) - 1, 0, 0x707fffe0},
        {R_AARCH64_ADR_PREL_LO21, 0x10000000, 0, 1 << 20, 0, 0},
        {R_AARCH64_ADR_PREL_PG_HI21, 0x90000008, 0x1ffc, 0x3008, 0, 0xd0000008},
        {R_AARCH64_ADR_PREL_PG_HI21, 0x90000000, 0x1000, 0xff8, 0, 0xf0ffffe0},
        {R_AARCH64_ADR_PREL_PG_HI21, 0x90000000, 0, 0, INT64_C(1) << 32, 0},
        {R_AARCH64_ADD_ABS_LO12_NC, 0x91000041, 0, 0x5ff0, 15, 0x913ffc41},
        {R_AARCH64_LDST8_ABS_LO12_NC, 0x39400000, 0, 0x1235, 0, 0x3948d400},
        {R_AARCH64_LDST16_ABS_LO12_NC, 0x79400000, 0, 0x1234, 0, 0x79446800},
        {R_AARCH64_LDST16_ABS_LO12_NC, 0x79400000, 0, 0x1235, 0, 0},
        {R_AARCH64_LDST32_ABS_LO12_NC, 0xbd400000, 0, 0x1234, 0, 0xbd423400},
        {R_AARCH64_LDST64_ABS_LO12_NC, 0xfd400000, 0, 0x1238, 0, 0xfd411c00},
        {R_AARCH64_LDST64_ABS_LO12_NC, 0xfd400000, 0, 0x1234, 0, 0},
        {R_AARCH64_LDST128_ABS_LO12_NC, 0x3dc00000, 0, 0x1230, 0, 0x3dc08c00},
        {R_AARCH64_LDST128_ABS_LO12_NC, 0x3dc00000, 0, 0x1238, 0, 0},
        {R_AARCH64_CALL26, 0x94000000, 0x100, 0x108, 0, 0x94000002},
        {R_AARCH64_JUMP26, 0x14000000, 0x100, 0xfc, 0, 0x17ffffff},
        {R_AARCH64_CALL26, 0x94000000, 0x100, 0x106, 0, 0},
        {R_AARCH64_CALL26, 0x94000000, 0, 1 << 27, 0, 0},
        {R_AARCH64_PREL32, 0, 0x100, 0x40, 4, 0xffffff44},
        {R_AARCH64_PREL32, 0, 0, INT64_C(1) << 31, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const cg_relocation *relocation = cg_relocation_find(EM_AARCH64, cases[i].type);
        uint32_t field = cases[i].before;
        assert_non_null(relocation);
        const bool fits =
            cg_relocation_apply(relocation, (unsigned char *)&field, cases[i].at, cases[i].symbol, cases[i].addend);
        if (fits != (cases[i].after != 0) || (fits && field != cases[i].after))
            fail_msg("case %zu: %#x instead of %#x", i, fits ? field : 0, cases[i].after);
    }
    assert_null(cg_relocation_find(EM_X86_64, R_AARCH64_CALL26));
    assert_null(cg_relocation_find(EM_AARCH64, R_X86_64_PC32));
}

static void test_undefined_symbol_is_named(void **state) {
    (void)state;
    unsigned char *copy = object_copy();
    const Elf64_Rela *rela = first_rela(copy);
    const Elf64_Shdr *table = find_section(copy, SHT_SYMTAB, 0);
    Elf64_Sym *symbols = (Elf64_Sym *)(copy + table->sh_offset);
    const char *names = (const char *)copy + sections(copy)[table->sh_link].sh_offset;
    Elf64_Sym *symbol = &symbols[ELF64_R_SYM(rela->r_info)];
    for (size_t i = 0; i < table->sh_size / sizeof *symbols; i++)
        if (strcmp(names + symbols[i].st_name, "plan") == 0) symbol->st_name = symbols[i].st_name;
    symbol->st_shndx = SHN_UNDEF;
    expect_refusal(copy, object_bytes, "undefined symbol \"plan\"");
    at_free(NULL, copy);
}

static void test_missing_entry_is_named(void **state) {
    (void)state;
    at_image_header more = described;
    const uint64_t none[AT_MAX_PHASES] = {0};
    void *image;
    size_t bytes;
    at_error err = {0};
    more.num_phases = 3;
    assert_int_equal(cg_link_object(object, object_bytes, &more, none, NULL, &image, &bytes, &err),
                     ATTUNE_CODEGEN_FAILED);
    assert_null(image);
    assert_non_null(strstr(err.message, "phase2"));
}

static void test_every_truncation_is_refused(void **state) {
    (void)state;
    at_error err;
    for (size_t size = 0; size < object_bytes; size++) {
        /* A block of exactly this size, so that checkers see a read beyond its end. */
        unsigned char *cut = at_alloc_aligned(NULL, size, 16);
        assert_non_null(cut);
        memcpy(cut, object, size);
        assert_int_not_equal(link_copy(cut, size, &err), ATTUNE_OK);
        at_free(NULL, cut);
    }
}

static void test_damage_is_survived(void **state) {
    (void)state;
    unsigned seed = (unsigned)test_seed();
    unsigned char *copy = object_copy();
    at_error err;
    for (int round = 0; round < 20000; round++) {
        memcpy(copy, object, object_bytes);
        for (int hits = 1 + rand_r(&seed) % 4; hits > 0; hits--) {
            const size_t at = (size_t)rand_r(&seed) % object_bytes;
            copy[at] = (unsigned char)(rand_r(&seed) % 3 ? rand_r(&seed) : 0xff);
        }
        link_copy(copy, object_bytes, &err);
    }
    at_free(NULL, copy);
}

static void test_image_check(void **state) {
    (void)state;
    void *image;
    size_t bytes;
    compile_source(ATTUNE_STAGE_IMAGE, &image, &bytes);
    at_image_header *header = image, saved = *header;
    assert_null(at_image_check(image, bytes));
    for (size_t size = 0; size < bytes; size++) assert_non_null(at_image_check(image, size));
#define REFUSED(field, value)                                                                                          \
    header->field = (value);                                                                                           \
    assert_non_null(at_image_check(image, bytes));                                                                     \
    *header = saved
    REFUSED(magic[0], 'b');
    REFUSED(version, AT_IMAGE_VERSION + 1);
    REFUSED(num_phases, 0);
    REFUSED(num_phases, AT_MAX_PHASES + 1);
    REFUSED(num_shared, AT_MAX_SHARED + 1);
    REFUSED(plan_entry, (uint32_t)header->code_bytes);
    REFUSED(code_offset, header->code_offset + 1);
    REFUSED(code_offset, UINT32_MAX - 63);
    REFUSED(code_bytes, 0);
    REFUSED(code_bytes, UINT64_MAX);
    assert_true(header->unwind_bytes > 0);
    REFUSED(unwind_bytes, (uint32_t)header->code_bytes);
    REFUSED(unwind_bytes, UINT32_MAX - 3);
    REFUSED(unwind_offset, header->unwind_offset + 1);
    REFUSED(unwind_offset, UINT32_MAX - 3);
    REFUSED(unwind_bytes, header->unwind_bytes - 8); /* bundles take the table for all that follows the code */
    REFUSED(unwind_offset, header->unwind_offset - 8);
    REFUSED(plan_entry, header->unwind_offset);
#undef REFUSED
    at_image_phase *phases = (at_image_phase *)(header + 1);
    phases[1].entry = header->unwind_offset;
    assert_non_null(at_image_check(image, bytes));
    at_free(NULL, image);
}

static int compile_object(void **state) {
    (void)state;
    void *data;
    compile_source(ATTUNE_STAGE_OBJECT, &data, &object_bytes);
    object = data;
    return 0;
}

static int free_object(void **state) {
    (void)state;
    at_free(NULL, object);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links_and_runs),
        cmocka_unit_test(test_image_is_deterministic),
        cmocka_unit_test(test_image_describes_the_kernel),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_aarch64_object),
        cmocka_unit_test(test_aarch64_instructions),
        cmocka_unit_test(test_undefined_symbol_is_named),
        cmocka_unit_test(test_missing_entry_is_named),
        cmocka_unit_test(test_every_truncation_is_refused),
        cmocka_unit_test(test_damage_is_survived),
        cmocka_unit_test(test_image_check),
    };
    return cmocka_run_group_tests(tests, compile_object, free_object);
}
