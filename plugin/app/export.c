/* `darknet amp export`: reads the command line and hands over to scripts/export, which writes the
 * ONNX file. It decides where that script is, and must not know what is in it. */

#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "measuring.h"

/* What the script reads of the same words; here they are only checked. */
struct export
{
    const char *cfg, *weights, *onnx, *keep, *names, *image;
    bool half, boxes, raw, nms;
    double thresh, iou;
};

static void read_arguments(int argc, char **argv, struct export *e)
{
    const struct amp_argument options[] = {
        {.name = "half",
         .help = "Weights and activations in FP16, except what the cfg, the weights' sidecar or "
                 "--keep hold in FP32, and what does not fit",
         .target = &e->half},
        {.name = "keep",
         .value = "LAYERS",
         .help = "With --half: layers that stay in FP32, by number (3,7-9)",
         .kind = AMP_ARGUMENT_TEXT,
         .target = &e->keep},
        {.name = "boxes",
         .help = "Of a detector: all boxes as fractions of the input, and their scores by class "
                 "(the default)",
         .target = &e->boxes},
        {.name = "nms",
         .help = "Also which boxes are left by ONNX's NonMaxSuppression",
         .target = &e->nms},
        {.name = "thresh",
         .value = "X",
         .help = "Least score for --nms (default: 0.25)",
         .kind = AMP_ARGUMENT_NUMBER,
         .target = &e->thresh,
         .high = 1},
        {.name = "iou",
         .value = "X",
         .help = "Largest overlap for --nms (default: 0.45)",
         .kind = AMP_ARGUMENT_NUMBER,
         .target = &e->iou,
         .high = 1},
        {.name = "raw",
         .help = "What the heads read, in place of what they give",
         .target = &e->raw},
        {.name = "names",
         .value = "FILE",
         .help = "Names of the classes, one a line, to be written into the file",
         .kind = AMP_ARGUMENT_TEXT,
         .target = &e->names},
        {.name = "image",
         .value = "FILE",
         .help = "Compare with Darknet on this image (default: a random one)",
         .kind = AMP_ARGUMENT_TEXT,
         .target = &e->image},
        {.name = NULL}};
    const struct amp_command_line line = {
        .files = "CFG WEIGHTS OUT.onnx",
        .help = "Writes a trained network as ONNX, and compares what ONNX Runtime makes of it with "
                "Darknet. Needs Python with onnx: pip install onnx onnxruntime.",
        .file = {&e->cfg, &e->weights, &e->onnx},
        .least_files = 3,
        .options = options};
    amp_arguments_read(&line, argc, argv);
}

/* From the program's own place if it is installed, else in the sources that it was built from. */
static int find_script(const char *program, char script[PATH_MAX])
{
    int directory = (int)(strrchr(program, '/') - program);
    snprintf(script, PATH_MAX, "%.*s/../share/darknet-amp/export", directory, program);
    if (!access(script, R_OK)) return 0;
    snprintf(script, PATH_MAX, "%s/export", AMP_SCRIPTS);
    return access(script, R_OK);
}

int amp_command_export(int argc, char **argv)
{
    char program[PATH_MAX] = "", script[PATH_MAX], err[3 * PATH_MAX];
    struct export e = {.thresh = .25, .iou = .45};
    read_arguments(argc, argv, &e);
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 1 ||
        find_script(program, script)) {
        snprintf(err, sizeof err,
                 "the script that writes ONNX is not there: %.*s; install darknet-amp as a whole",
                 PATH_MAX, script);
        amp_complain(err);
        return 1;
    }
    char **words = calloc((size_t)argc + 6, sizeof *words);
    if (!words) return 1;
    char *first[] = {"python3", "-B", script, "--darknet", program};
    memcpy(words, first, sizeof first);
    memcpy(words + sizeof first / sizeof *first, argv + 1, (size_t)(argc - 1) * sizeof *words);
    fflush(NULL);
    execvp(words[0], words);
    snprintf(err, sizeof err, "python3, which writes ONNX, cannot be started: %s", strerror(errno));
    amp_complain(err);
    free(words);
    return 1;
}
