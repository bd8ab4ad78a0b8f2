/* Changes what the passes of a step see, by LD_PRELOAD before the plugin. PASSES in the environment
 * says how:
 *
 *   keep:FILE     images and labels of the first step go into the file
 *   take:FILE:K   the first step has those of pass K of the file in place of its own
 *   lose:K:STEP   images have no labels, but those of pass K in that step (counted from 1)
 *   inf:K:STEP    a pixel of pass K in that step is inf
 *   large:K:STEP  pixels of pass K in that step are 60,000 times as bright, and later all are */
#include "darknet.h"

#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC visibility push(default)

/* Of this process, as share.c has it. */
static int first_pass(int passes)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *size = getenv("OMPI_COMM_WORLD_SIZE");
    return rank && size ? passes * atoi(rank) / atoi(size) : 0;
}

static void move(FILE *f, float *row, int n, int in)
{
    size_t moved =
        in ? fread(row, sizeof *row, (size_t)n, f) : fwrite(row, sizeof *row, (size_t)n, f);
    if (moved != (size_t)n) exit(9);
}

/* first: in the file. */
static void move_rows(const char *path, data d, int first, int in)
{
    FILE *f = fopen(path, in ? "rb" : "wb");
    size_t row = (size_t)(d.X.cols + d.y.cols) * sizeof(float);
    if (!f || fseek(f, (long)row * first, SEEK_SET)) exit(9);
    for (int i = 0; i < d.X.rows; i++) {
        move(f, d.X.vals[i], d.X.cols, in);
        move(f, d.y.vals[i], d.y.cols, in);
    }
    if (fclose(f)) exit(9);
}

static void change_row(const char *how, matrix x, matrix y, int i, bool in_pass, bool later)
{
    if (!strncmp(how, "lose:", 5) && !in_pass) memset(y.vals[i], 0, (size_t)y.cols * sizeof(float));
    if (!strncmp(how, "inf:", 4) && in_pass) x.vals[i][x.cols / 2] = INFINITY;
    for (int k = 0; !strncmp(how, "large:", 6) && (in_pass || later) && k < x.cols; k++)
        x.vals[i][k] *= 60000;
}

static void change_rows(const char *how, const network *net, data d, int step)
{
    int pass, in_step, first = first_pass(net->subdivisions);
    if (sscanf(how, "%*[a-z]:%d:%d", &pass, &in_step) != 2) return;
    for (int i = 0; i < d.X.rows; i++)
        change_row(how, d.X, d.y, i, step == in_step && first + i / net->batch == pass,
                   step > in_step);
}

float train_network(network *net, data d)
{
    static int step;
    const char *how = getenv("PASSES");
    char path[4096];
    int pass;
    float (*next)(network *, data);
    *(void **)&next = dlsym(RTLD_NEXT, "train_network");
    step++;
    if (how && step == 1 && sscanf(how, "keep:%4095s", path) == 1) move_rows(path, d, 0, 0);
    if (how && step == 1 && sscanf(how, "take:%4095[^:]:%d", path, &pass) == 2)
        move_rows(path, d, pass * net->batch, 1);
    if (how) change_rows(how, net, d, step);
    return next(net, d);
}

#pragma GCC visibility pop
