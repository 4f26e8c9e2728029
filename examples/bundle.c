/* MiniLM's attention from a bundle: a program without attune, a compiler or a cache. The bundle is made beforehand:
 *
 *     attune bundle -o libmodel.a --header model.h --name model \
 *         "minilm: num_heads=12,seq_q=217,seq_kv=217,head_dim=32"
 *     cc -I. examples/bundle.c libmodel.a -lm -o bundle && ./bundle examples/minilm
 *
 * It reads q, k and v of the first layer for a paragraph of 217 tokens, and compares with what the model computed. */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 12, TOKENS = 217, WIDTH = 32, COUNT = HEADS * TOKENS * WIDTH, NPY_HEADER = 128 };

static float q[COUNT], k[COUNT], v[COUNT], expected[COUNT], out[COUNT];

static void end(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* Reads a .npy file of f32 whose header is as short as NumPy makes it. */
static void read_npy(const char *folder, const char *name, float *to) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.npy", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file) end(path, "cannot be opened");
    if (fseek(file, NPY_HEADER, SEEK_SET) || fread(to, sizeof *to, COUNT, file) != COUNT) end(path, "is too short");
    fclose(file);
}

/* The workspace's size depends on the code that this CPU gets. */
static void give_workspace(model_minilm_args *args) {
    if (model_minilm_workspace(args, 1, &args->workspace_bytes)) end("the workspace", "its size is not known");
    if (posix_memalign(&args->workspace, 64, args->workspace_bytes)) end("the workspace", "out of memory");
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : "examples/minilm";
    if (!model_minilm_target()) end("this CPU", "the bundle has no code for it");
    read_npy(folder, "q", q);
    read_npy(folder, "k", k);
    read_npy(folder, "v", v);
    read_npy(folder, "expected", expected);

    model_minilm_args args = MODEL_MINILM_ARGS;
    args.q = q;
    args.k = k;
    args.v = v;
    args.out = out;
    give_workspace(&args);
    if (model_minilm(&args)) {
        char message[512];
        model_minilm_check(&args, message, sizeof message);
        end("model_minilm", message);
    }
    double worst = 0;
    for (int i = 0; i < COUNT; i++) worst = fmax(worst, fabs((double)out[i] - expected[i]));
    printf("%d heads of %d tokens by %s: largest error %.2g\n", HEADS, TOKENS, model_minilm_target(), worst);
    free(args.workspace);
    return worst < 1e-5 ? 0 : 1;
}
