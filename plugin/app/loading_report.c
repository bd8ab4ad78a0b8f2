/* Says what the times of loading mean for training, as text and as JSON. It must not measure
 * anything (loading.c, profile.c). */
#include "loading.h"

#include <math.h>

static const char *const stage_names[AMP_LOAD_PARTS] = {"read", "decode", "place", "labels",
                                                        "darknet"};
static const char *const stage_words[AMP_LOAD_PARTS] = {
    "read the file", "decode", "place and distort", "labels", "left to Darknet"};
static const char *const kind_names[AMP_LOAD_KINDS] = {"JPEG (CMYK or damaged)", "PNG", "BMP",
                                                       "other"};

/* ---- what follows from the times ---- */

double amp_loading_ours(const struct amp_loading *l)
{
    double seconds = 0;
    for (int i = 0; i < AMP_LOAD_PARTS; i++)
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

static void print_way(const char *way, double seconds, FILE *f)
{
    fprintf(f, "%-20s %9.1f %12.2f", way, 1 / seconds, 1e3 * seconds);
}

static void print_rates(const struct amp_loading *l, FILE *f)
{
    double ours = amp_loading_ours(l);
    fprintf(f, "%-20s %9s %12s %7s\n", "one core", "images/s", "ms an image", "share");
    if (l->by_fork) {
        print_way("by AlexeyAB's rules", ours, f);
    } else {
        print_way("Darknet", l->darknet, f);
        fputc('\n', f);
        print_way("darknet-amp", ours, f);
        fprintf(f, " %7s %.1fx", "", l->darknet / ours);
    }
    fputc('\n', f);
    for (int i = 0; i < AMP_LOAD_PARTS; i++)
        if (i != AMP_LOAD_DARKNET || count_left(l))
            fprintf(f, "  %-28s %12.2f %6.0f%%\n", stage_words[i], 1e3 * l->stages[i],
                    100 * l->stages[i] / ours);
    fprintf(f, "a batch of %d images on %d thread%s, by the clock: %.1f images/s%s\n",
            l->step_images, l->threads, l->threads > 1 ? "s" : "", l->step_images / l->batch,
            l->cache ? ", all loaded before (amp_image_cache), as after the first epoch if it "
                       "holds the set"
                     : "");
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
    fprintf(f, "loading its images takes %s cores",
            in_cores(amp_loading_cores(l, amp_loading_ours(l)), cores));
    if (!l->by_fork)
        fprintf(f, ", by Darknet's way %s", in_cores(amp_loading_cores(l, l->darknet), darknets));
    fputc('\n', f);
}

void amp_loading_print(const struct amp_loading *l, FILE *f)
{
    fprintf(f, "\nloading: %s: %d of %d images, to %dx%d%s", l->data, l->images, l->listed,
            l->width, l->height,
            l->random_size ? ", the cfg's size (random=1: training draws others)" : "");
    if (l->mixing) fprintf(f, ", half of them made of several (%s)", l->mixing);
    fputc('\n', f);
    fprintf(f, "time on a core, median of %d rounds of each image\n\n", AMP_LOAD_ROUNDS);
    print_rates(l, f);
    print_left(l, f);
    print_step(l, f);
    fputc('\n', f);
    print_verdict(l, f);
    fputs(".\n", f);
}

/* ---- JSON ---- */

static void write_pair(struct amp_json *j, const char *key, double darknet, double amp)
{
    amp_json_begin(j, key, '{');
    amp_json_number(j, "darknet", darknet);
    amp_json_number(j, "amp", amp);
    amp_json_end(j, '}');
}

static void write_stages(const struct amp_loading *l, struct amp_json *j)
{
    amp_json_line(j, 1);
    amp_json_begin(j, "stages", '[');
    for (int i = 0; i < AMP_LOAD_PARTS; i++) {
        amp_json_line(j, 2);
        amp_json_begin(j, NULL, '{');
        amp_json_string(j, "stage", stage_names[i]);
        amp_json_number(j, "milliseconds", 1e3 * l->stages[i]);
        amp_json_number(j, "share", l->stages[i] / amp_loading_ours(l));
        amp_json_end(j, '}');
    }
    amp_json_end(j, ']');
}

static void write_left(const struct amp_loading *l, struct amp_json *j)
{
    amp_json_line(j, 1);
    amp_json_begin(j, "left_to_darknet", '[');
    for (int i = 0; i < AMP_LOAD_KINDS; i++) {
        if (!l->left[i]) continue;
        amp_json_begin(j, NULL, '{');
        amp_json_string(j, "kind", kind_names[i]);
        amp_json_put(j, "images", "%d", l->left[i]);
        amp_json_end(j, '}');
    }
    amp_json_end(j, ']');
}

static void write_step(const struct amp_loading *l, struct amp_json *j)
{
    const struct amp_machine *m = l->machine;
    amp_json_line(j, 1);
    amp_json_begin(j, "step", '{');
    amp_json_string(j, "backend", m->backend);
    amp_json_string(j, "device", m->device[0] ? m->device : NULL);
    amp_json_put(j, "threads", "%d", m->threads);
    amp_json_string(j, "precision", l->precision);
    amp_json_put(j, "images", "%d", l->step_images);
    amp_json_put(j, "passes", "%d", l->passes);
    amp_json_number(j, "seconds", l->step);
    amp_json_end(j, '}');
}

static void write_images(const struct amp_loading *l, struct amp_json *j)
{
    amp_json_string(j, "data", l->data);
    amp_json_put(j, "width", "%d", l->width);
    amp_json_put(j, "height", "%d", l->height);
    amp_json_bool(j, "random", l->random_size);
    amp_json_line(j, 1);
    amp_json_put(j, "listed", "%d", l->listed);
    amp_json_put(j, "images", "%d", l->images);
    amp_json_put(j, "rounds", "%d", AMP_LOAD_ROUNDS);
}

void amp_loading_write_json(const struct amp_loading *l, struct amp_json *j, const char *key)
{
    double ours = amp_loading_ours(l);
    amp_json_begin(j, key, '{');
    write_images(l, j);
    amp_json_line(j, 1);
    write_pair(j, "images_per_second", 1 / l->darknet, 1 / ours);
    amp_json_number(j, "images_per_second_batch", l->step_images / l->batch);
    write_stages(l, j);
    write_left(l, j);
    write_step(l, j);
    amp_json_line(j, 1);
    write_pair(j, "cores_needed", amp_loading_cores(l, l->darknet), amp_loading_cores(l, ours));
    amp_json_line(j, 1);
    amp_json_string(j, "loader",
                    l->by_fork                     ? "fork"
                    : l->loader == AMP_LOADER_FAST ? "fast"
                                                   : "darknet");
    amp_json_put(j, "loader_threads", "%d", l->threads);
    amp_json_put(j, "cores", "%d", l->cores);
    amp_json_bool(j, "keeps_up", amp_loading_keeps_up(l));
    amp_json_end(j, '}');
}
