/* Mish and swish against a recording of AlexeyAB's Darknet: activations.bin has 251 inputs x, then
 * mish, mish', swish and swish' of each.
 *
 *     test_recorded_activations FOLDER        FOLDER: where no AMP_RECORDINGS says otherwise
 *
 * Tolerance: the recorded program computes in FP32, and first finds what share of x the result is,
 * from numbers between 1 and 2 that it rounds more than once. That leaves it a few 2^-24 from the
 * share, and the result takes |x| times as much; the derivative as well. Four of them are allowed;
 * the reference in double precision differs by 2.1, the backends by 2.7. */
#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBERS = 251, COLUMNS = 5, SKIPPED = 77 };

static float recorded[COLUMNS][NUMBERS];

/* ---- the recording ---- */

static int read_recording(const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/o3_nets/activations.bin", folder);
    FILE *file = fopen(path, "rb");
    if (!file) {
        printf("SKIPPED: no recording %s (AMP_RECORDINGS names their folder)\n", path);
        return SKIPPED;
    }
    size_t read = fread(recorded, sizeof(float), COLUMNS * NUMBERS, file);
    bool more = fgetc(file) != EOF;
    fclose(file);
    if (read == COLUMNS * NUMBERS && !more) return 0;
    fprintf(stderr, "%s: has not %d numbers\n", path, COLUMNS * NUMBERS);
    return 1;
}

/* ---- one backend ---- */

static int compare(const char *side, int column, const float *found)
{
    static const char *const names[COLUMNS] = {"x", "mish", "mish'", "swish", "swish'"};
    int wrong = 0;
    double worst = 0;
    for (int i = 0; i < NUMBERS; i++) {
        double x = recorded[0][i], off = fabs((double)found[i] - recorded[column][i]);
        double allowed = 4 * (1 + fabs(x)) * 0x1p-24;
        worst = fmax(worst, off / allowed);
        if (off <= allowed) continue;
        fprintf(stderr, "%s: %s(%.9g) is %.9g, recorded %.9g, allowed %.3g\n", side, names[column],
                x, found[i], recorded[column][i], allowed);
        wrong++;
    }
    printf("%s: %s: %d numbers, at most %.2f of the tolerance off\n", side, names[column], NUMBERS,
           worst);
    return wrong;
}

/* The data of a tensor of NUMBERS floats. */
static struct ampk_tensor tensor(const struct ampk_backend *b, struct ampk_context *context)
{
    void *data = b->alloc(context, NUMBERS * sizeof(float));
    if (!data) abort();
    return (struct ampk_tensor){data, AMPK_FP32, AMPK_NHWC, 1, NUMBERS, 1, 1, NUMBERS, 0};
}

static int check_backend(const char *side, const struct ampk_backend *b)
{
    char err[400];
    struct ampk_context *context = b->context_create(1, err, sizeof err);
    if (!context) {
        fprintf(stderr, "%s: %s\n", side, err);
        return 1;
    }
    static const enum ampk_activation both[] = {AMPK_MISH, AMPK_SWISH};
    struct ampk_tensor x = tensor(b, context), one = tensor(b, context), y = tensor(b, context);
    float ones[NUMBERS], found[NUMBERS];
    for (int i = 0; i < NUMBERS; i++)
        ones[i] = 1;
    b->write(context, x.data, recorded[0], sizeof recorded[0]);
    b->write(context, one.data, ones, sizeof ones);
    int wrong = 0;
    for (int k = 0; k < 2; k++) {
        b->activation_forward(context, &x, both[k], &y, NULL);
        b->read(context, found, y.data, sizeof found);
        wrong += compare(side, 1 + 2 * k, found);
        b->activation_backward(context, &x, both[k], &one, &y, false, NULL);
        b->read(context, found, y.data, sizeof found);
        wrong += compare(side, 2 + 2 * k, found);
    }
    b->free(context, x.data);
    b->free(context, one.data);
    b->free(context, y.data);
    b->context_destroy(context);
    return wrong;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    const char *folder = getenv("AMP_RECORDINGS");
    int status = read_recording(folder ? folder : argv[1]);
    if (status) return status;
    int wrong = check_backend("reference", &ampk_reference) + check_backend("CPU", &ampk_cpu);
#ifdef WITH_EMULATION
    wrong += check_backend("CUDA emulated", &ampk_cuda);
#endif
    return wrong > 0;
}
