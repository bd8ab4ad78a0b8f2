/* Says what the times of loading mean for training, as text and as JSON. It must not measure
 * anything (loading.c, profile.c). */
#include "loading.h"

#include <math.h>

#include "plugin/core/read/text.h"

static const char *const stage_names[AMP_LOAD_STAGES] = {"read", "decode", "place", "labels",
                                                         "darknet"};
static const char *const stage_words[AMP_LOAD_STAGES] = {
    "read the file", "decode", "place and distort", "labels", "left to Darknet"};
static const char *const kind_names[AMP_LOAD_KINDS] = {"JPEG (CMYK or damaged)", "PNG", "BMP",
                                                       "other"};

/* ---- what follows from the times ---- */

double amp_loading_ours(const struct amp_loading *l)
{
    double seconds = 0;
    for (int i = 0; i < AMP_LOAD_STAGES; i++)
        seconds += l->stages[i];
    return seconds;
}

double amp_loading_cores(const struct amp_loading *l, double seconds)
{
    return seconds * l->step_images / l->step;
}

/* A number of cores as text. */
static const char *in_cores(double cores, char text[24])
{
    if (cores < .05)
        snprintf(text, 24, "less than 0.1");
    else
        snprintf(text, 24, "%.*f", cores < 9.95 ? 1 : 0, cores);
    return text;
}

/* By the cfg's way. */
static double cores_needed(const struct amp_loading *l)
{
    bool fast = l->loader == AMP_LOADER_FAST;
    return amp_loading_cores(l, fast ? amp_loading_ours(l) : l->darknet);
}

/* More threads than cores load no faster. */
static int cores_that_load(const struct amp_loading *l)
{
    return l->threads < l->cores ? l->threads : l->cores;
}

bool amp_loading_keeps_up(const struct amp_loading *l)
{
    return cores_needed(l) <= cores_that_load(l);
}

static int count_left(const struct amp_loading *l)
{
    int n = 0;
    for (int i = 0; i < AMP_LOAD_KINDS; i++)
        n += l->left[i];
    return n;
}

/* What helps most, when training waits. */
static void print_advice(const struct amp_loading *l, FILE *f)
{
    char cores[24];
    if (l->loader == AMP_LOADER_DARKNET)
        fprintf(f, "amp_loader=fast instead of darknet takes %s",
                in_cores(amp_loading_cores(l, amp_loading_ours(l)), cores));
    else if (cores_that_load(l) < l->cores && l->threads_given)
        fprintf(f, "raise amp_loader_threads=%d, there are %d cores", l->threads, l->cores);
    else if (2 * count_left(l) > l->images)
        fputs("convert the images to JPEG, or use more cores", f);
    else
        fputs("shrink the image files (scripts/shrink), or use more cores", f);
}

static void print_verdict(const struct amp_loading *l, FILE *f)
{
    double needed = cores_needed(l);
    int have = cores_that_load(l);
    char cores[24];
    if (!amp_loading_keeps_up(l)) {
        fprintf(f, "Training will wait for images: they take %s cores, and %d load%s: ",
                in_cores(needed, cores), have, have == 1 ? "s" : "");
        print_advice(l, f);
        return;
    }
    fprintf(f, "Loading keeps up: it takes %s of the %d core%s that load", in_cores(needed, cores),
            have, have == 1 ? "" : "s");
    /* Training on the CPU uses the same ones. */
    if (!l->machine->device[0])
        fprintf(f, ", which train too: it adds about %.0f %% to a step", 100 * needed / l->cores);
}

/* ---- text ---- */

static void print_rates(const struct amp_loading *l, FILE *f)
{
    double ours = amp_loading_ours(l);
    fprintf(f, "%-20s %9s %12s %7s\n", "one core", "images/s", "ms an image", "share");
    fprintf(f, "%-20s %9.1f %12.2f\n", "Darknet", 1 / l->darknet, 1e3 * l->darknet);
    fprintf(f, "%-20s %9.1f %12.2f %7s %.1fx\n", "darknet-amp", 1 / ours, 1e3 * ours, "",
            l->darknet / ours);
    for (int i = 0; i < AMP_LOAD_STAGES; i++)
        if (i != AMP_LOAD_DARKNET || count_left(l))
            fprintf(f, "  %-28s %12.2f %6.0f%%\n", stage_words[i], 1e3 * l->stages[i],
                    100 * l->stages[i] / ours);
    fprintf(f,
            "all %d cores (computed: one core times %d): Darknet %.0f images/s, darknet-amp %.0f\n",
            l->cores, l->cores, l->cores / l->darknet, l->cores / ours);
}

static void print_left(const struct amp_loading *l, FILE *f)
{
    int n = count_left(l);
    const char *between = ": ";
    fprintf(f, "left to Darknet: %d of %d images", n, l->images);
    for (int i = 0; i < AMP_LOAD_KINDS; i++) {
        if (!l->left[i]) continue;
        fprintf(f, "%s%d %s", between, l->left[i], kind_names[i]);
        between = ", ";
    }
    fputc('\n', f);
}

static void print_step(const struct amp_loading *l, FILE *f)
{
    char cores[24], darknets[24];
    const struct amp_machine *m = l->machine;
    fprintf(f, "a training step: %d images in %.4g s, %.1f images/s (%s, ", l->step_images, l->step,
            l->step_images / l->step, l->precision);
    if (m->device[0])
        fputs(m->device, f);
    else
        fprintf(f, "CPU, %d thread%s", m->threads, m->threads > 1 ? "s" : "");
    fprintf(f, "; fastest of %d passes)\n", l->passes);
    fprintf(f, "loading its images takes %s cores, by Darknet's way %s\n",
            in_cores(amp_loading_cores(l, amp_loading_ours(l)), cores),
            in_cores(amp_loading_cores(l, l->darknet), darknets));
}

void amp_loading_print(const struct amp_loading *l, FILE *f)
{
    fprintf(f, "\nloading: %s: %d of %d images, to %dx%d%s\n", l->data, l->images, l->listed,
            l->width, l->height,
            l->random_size ? ", the cfg's size (random=1: training draws others)" : "");
    fprintf(f, "time on a core, median of %d rounds of each image\n\n", AMP_LOAD_ROUNDS);
    print_rates(l, f);
    print_left(l, f);
    print_step(l, f);
    fputc('\n', f);
    print_verdict(l, f);
    fputs(".\n", f);
}

/* ---- JSON ---- */

static void field(FILE *f, const char *name, double value)
{
    fprintf(f, "\"%s\": ", name);
    amp_json_number(f, value, 9);
}

static void text_field(FILE *f, const char *name, const char *value)
{
    fprintf(f, "\"%s\": ", name);
    if (value && *value)
        amp_json_string(f, value);
    else
        fputs("null", f);
}

/* {"darknet": x, "amp": y} */
static void pair(FILE *f, const char *name, double darknet, double amp)
{
    fprintf(f, "\"%s\": {", name);
    field(f, "darknet", darknet);
    fputs(", ", f);
    field(f, "amp", amp);
    fputs("}", f);
}

static void print_stages_json(const struct amp_loading *l, FILE *f)
{
    fputs("\"stages\": [", f);
    for (int i = 0; i < AMP_LOAD_STAGES; i++) {
        fprintf(f, "%s\n  {\"stage\": \"%s\", ", i ? "," : "", stage_names[i]);
        field(f, "milliseconds", 1e3 * l->stages[i]);
        fputs(", ", f);
        field(f, "share", l->stages[i] / amp_loading_ours(l));
        fputs("}", f);
    }
    fputs("],\n \"left_to_darknet\": [", f);
    const char *between = "";
    for (int i = 0; i < AMP_LOAD_KINDS; i++) {
        if (!l->left[i]) continue;
        fprintf(f, "%s{\"kind\": \"%s\", \"images\": %d}", between, kind_names[i], l->left[i]);
        between = ", ";
    }
    fputs("]", f);
}

static void print_step_json(const struct amp_loading *l, FILE *f)
{
    const struct amp_machine *m = l->machine;
    fprintf(f, "\"step\": {\"backend\": \"%s\", ", m->backend);
    text_field(f, "device", m->device);
    fprintf(f, ", \"threads\": %d, \"precision\": \"%s\", \"images\": %d, \"passes\": %d, ",
            m->threads, l->precision, l->step_images, l->passes);
    field(f, "seconds", l->step);
    fputs("}", f);
}

void amp_loading_print_json(const struct amp_loading *l, FILE *f)
{
    double ours = amp_loading_ours(l);
    fputs("{", f);
    text_field(f, "data", l->data);
    fprintf(f,
            ", \"width\": %d, \"height\": %d, \"random\": %s,\n \"listed\": %d, \"images\": %d, ",
            l->width, l->height, l->random_size ? "true" : "false", l->listed, l->images);
    fprintf(f, "\"rounds\": %d,\n ", AMP_LOAD_ROUNDS);
    pair(f, "images_per_second", 1 / l->darknet, 1 / ours);
    fputs(", ", f);
    pair(f, "images_per_second_all_cores", l->cores / l->darknet, l->cores / ours);
    fputs(",\n ", f);
    print_stages_json(l, f);
    fputs(",\n ", f);
    print_step_json(l, f);
    fputs(",\n ", f);
    pair(f, "cores_needed", amp_loading_cores(l, l->darknet), amp_loading_cores(l, ours));
    fprintf(f, ",\n \"loader\": \"%s\", \"loader_threads\": %d, \"cores\": %d, \"keeps_up\": %s}",
            l->loader == AMP_LOADER_FAST ? "fast" : "darknet", l->threads, l->cores,
            amp_loading_keeps_up(l) ? "true" : "false");
}
