/* Decides how a run is drawn: which iterations share a point, the axes, and the SVG's text. It must
 * not know training; train.c gives it numbers. The file is replaced as a whole, so a viewer that
 * reloads it never sees half a picture.
 *
 * All lengths are in the SVG's pixels, y downward. */

#define _GNU_SOURCE
#include "chart.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "axis.h"

#include "plugin/core/files/file.h"
#include "plugin/core/read/text.h"

#define MARKER "darknet-amp chart 1"

/* Neighbouring iterations that share one place on the x axis. */
struct point {
    size_t iteration; /* the last iteration; 0: none was seen */
    double low, high; /* the smallest and largest loss */
    double average, scale;
    size_t map_iteration; /* 0: none was measured */
    double map50, map;
};

struct amp_chart {
    char path[PATH_MAX];
    struct amp_chart_setup setup;
    struct point points[AMP_CHART_POINTS];
    bool began;   /* this run has added a loss */
    size_t first; /* of which iteration */
};

/* ---- points ---- */

/* Up to AMP_CHART_POINTS iterations each have a point of their own; longer runs share them
 * evenly. */
static struct point *point_of(struct amp_chart *c, size_t iteration)
{
    size_t total = c->setup.total ? c->setup.total : 1, i = iteration ? iteration - 1 : 0;
    size_t at =
        total <= AMP_CHART_POINTS ? i : (size_t)((double)i * AMP_CHART_POINTS / (double)total);
    return &c->points[at < AMP_CHART_POINTS ? at : AMP_CHART_POINTS - 1];
}

static void add_loss(struct amp_chart *c, size_t iteration, double low, double high, double average,
                     double scale)
{
    struct point *p = point_of(c, iteration);
    /* One inf would make the axis useless; the log has it anyway. */
    if (!isfinite(low + high + average)) return;
    p->low = p->iteration ? fmin(p->low, low) : low;
    p->high = p->iteration ? fmax(p->high, high) : high;
    p->iteration = iteration;
    p->average = average;
    p->scale = scale;
}

/* Forgets points of iterations that an earlier run has seen and this one runs again. */
static void forget_from(struct amp_chart *c, size_t iteration)
{
    for (struct point *p = c->points; p < c->points + AMP_CHART_POINTS; p++) {
        if (p->iteration >= iteration) p->iteration = 0;
        if (p->map_iteration >= iteration) p->map_iteration = 0;
    }
}

void amp_chart_add_loss(struct amp_chart *c, size_t iteration, double loss, double average,
                        double scale)
{
    /* Only the first loss tells where this run begins. */
    if (!c->began) {
        forget_from(c, iteration);
        c->first = iteration;
    }
    c->began = true;
    add_loss(c, iteration, loss, loss, average, scale);
}

void amp_chart_add_map(struct amp_chart *c, size_t iteration, double map50, double map)
{
    struct point *p = point_of(c, iteration);
    if (!isfinite(map50)) return;
    p->map_iteration = iteration;
    p->map50 = map50;
    p->map = map;
}

double amp_chart_seconds_left(const struct amp_chart *c, size_t iteration, double seconds)
{
    size_t total = c->setup.total;
    if (iteration == c->first) return -1;
    return seconds / (double)(iteration - c->first) *
           (double)(total > iteration ? total - iteration : 0);
}

/* ---- the points in the file ---- */

/* 9 digits give the same float back. The points travel in the picture, so there is no second file
 * to lose. */
static void write_points(const struct amp_chart *c, FILE *f)
{
    fprintf(f, "<metadata>" MARKER "\n");
    for (const struct point *p = c->points; p < c->points + AMP_CHART_POINTS; p++) {
        if (p->iteration)
            fprintf(f, "loss %zu %.9g %.9g %.9g %.9g\n", p->iteration, p->low, p->high, p->average,
                    p->scale);
        if (p->map_iteration) fprintf(f, "map %zu %.9g %.9g\n", p->map_iteration, p->map50, p->map);
    }
    fprintf(f, "</metadata>\n");
}

/* The file may hold any number of points: they go through add_loss, and end up where this run has
 * them. */
static void read_point(struct amp_chart *c, const char *line)
{
    size_t iteration;
    double low, high, average, scale, map50, map;
    if (sscanf(line, "loss %zu %lf %lf %lf %lf", &iteration, &low, &high, &average, &scale) == 5)
        add_loss(c, iteration, low, high, average, scale);
    else if (sscanf(line, "map %zu %lf %lf", &iteration, &map50, &map) == 3)
        amp_chart_add_map(c, iteration, map50, map);
}

/* False: the file is not one of our charts. An empty file is fine. */
static bool read_file(struct amp_chart *c, FILE *f, bool resumed)
{
    char line[512];
    bool ours = false, any = false;
    while (!ours && fgets(line, sizeof line, f)) {
        any = true;
        ours = strstr(line, MARKER);
    }
    while (ours && resumed && fgets(line, sizeof line, f) && !strstr(line, "</metadata>"))
        read_point(c, line);
    return ours || !any;
}

/* A file that is not a chart is never overwritten: the name is probably a mistake. */
static int take_up(struct amp_chart *c, bool resumed, char *err, size_t err_size)
{
    FILE *f = fopen(c->path, "r");
    if (!f && errno == ENOENT) return 0;
    bool ours = f && read_file(c, f, resumed);
    if (!f)
        snprintf(err, err_size, "%s: %s", c->path, strerror(errno));
    else if (!ours)
        snprintf(err, err_size, "%s: is there and is no chart; choose another name", c->path);
    if (f) fclose(f);
    return ours ? 0 : -1;
}

struct amp_chart *amp_chart_open(const char *path, const struct amp_chart_setup *setup,
                                 bool resumed, char *err, size_t err_size)
{
    struct amp_chart *c = calloc(1, sizeof *c);
    if (!c) {
        snprintf(err, err_size, "out of memory");
        return NULL;
    }
    c->setup = *setup;
    int length = snprintf(c->path, sizeof c->path, "%s", path);
    if (length >= (int)sizeof c->path)
        snprintf(err, err_size, "%.60s...: the name is too long", path);
    else if (!take_up(c, resumed, err, err_size) &&
             !amp_whole_try(path, err, err_size)) /* told at once */
        return c;
    free(c);
    return NULL;
}

void amp_chart_free(struct amp_chart *c)
{
    free(c);
}

/* ---- axes ---- */

/* The loss scale has a frame of its own below the other. */
enum { SCALE_TOP = 486, SCALE_BOTTOM = 566, HEIGHT = 624 };

/* From 0 to the end of the run, so that the picture shows how much is left. */
static struct amp_axis iterations(const struct amp_chart *c)
{
    return (struct amp_axis){0, c->setup.total ? (double)c->setup.total : 1, LEFT, RIGHT, false};
}

/* The axis shows all averages, and the losses unless some are far out: the first losses of a run
 * are in the thousands and would flatten the rest. Logarithmic if the averages span more than a
 * factor of 10. */
static struct amp_axis losses(const struct amp_chart *c)
{
    double low = INFINITY, high = 0, out = 0;
    for (const struct point *p = c->points; p < c->points + AMP_CHART_POINTS; p++) {
        if (!p->iteration) continue;
        low = fmin(low, fmin(p->low > 0 ? p->low : INFINITY, p->average));
        high = fmax(high, p->average);
        out = fmax(out, p->high);
    }
    if (!(high > 0) || !(low > 0) || !isfinite(low))
        return (struct amp_axis){0, 1, BOTTOM, TOP, false};
    high = fmin(out, 4 * high);
    if (high > 10 * low) return (struct amp_axis){low / 1.1, high * 1.1, BOTTOM, TOP, true};
    return (struct amp_axis){0, high * 1.1, BOTTOM, TOP, false};
}

/* No mAP, no axis for it. */
static void write_map_axis(FILE *f, const struct amp_chart *c)
{
    bool any = false;
    for (const struct point *p = c->points; p < c->points + AMP_CHART_POINTS; p++)
        any = any || p->map_iteration;
    for (int percent = 0; any && percent <= 100; percent += 20)
        fprintf(f, "<text x=\"%d\" y=\"%.1f\" class=\"map\">%d %%</text>\n", RIGHT + 8,
                BOTTOM - (BOTTOM - TOP) * percent / 100. + 4, percent);
}

static void write_iteration_axis(FILE *f, const struct amp_chart *c, int bottom)
{
    struct amp_axis x = iterations(c);
    double step = fmax(amp_nice_step(x.to, 10), 1);
    for (double v = 0; v <= x.to; v += step)
        fprintf(f,
                "<path class=\"grid\" d=\"M%.1f %dV%d\"/><text x=\"%.1f\" y=\"%d\" class=\"mid\">"
                "%.0f</text>\n",
                amp_axis_place(&x, v), TOP, bottom, amp_axis_place(&x, v), bottom + 18, v);
    fprintf(f, "<text x=\"%d\" y=\"%d\" class=\"mid\">iteration</text>\n", (LEFT + RIGHT) / 2,
            bottom + 40);
}

/* A shaded stretch: the learning rate is still rising there, so the losses tell little. */
static void write_burn_in(FILE *f, const struct amp_chart *c, int bottom)
{
    struct amp_axis x = iterations(c);
    if (c->setup.burn_in)
        fprintf(f,
                "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"#f3f1ea\"/>"
                "<text x=\"%d\" y=\"%d\" class=\"small\">burn-in</text>\n",
                LEFT, TOP, amp_axis_place(&x, (double)c->setup.burn_in) - LEFT, bottom - TOP,
                LEFT + 4, TOP + 14);
}

/* Labels of neighbouring marks alternate in height, so that they do not overlap. */
static void write_marks(FILE *f, const struct amp_chart *c, int bottom)
{
    struct amp_axis x = iterations(c);
    for (int i = 0; i < c->setup.n_marks; i++) {
        double at = amp_axis_place(&x, (double)c->setup.mark[i]);
        fprintf(f,
                "<path class=\"mark\" d=\"M%.1f %dV%d\"/><text x=\"%.1f\" y=\"%d\" class=\"small\">"
                "rate x %g</text>\n",
                at, TOP, bottom, at + 4, TOP + 14 + 14 * (i % 2), c->setup.factor[i]);
    }
}

/* ---- curves ---- */

/* One closed path: along the largest losses, and back along the smallest. */
static void write_band(FILE *f, const struct amp_chart *c, const struct amp_axis *x,
                       const struct amp_axis *y)
{
    const struct point *end = c->points + AMP_CHART_POINTS;
    char command = 'M';
    fprintf(f, "<path class=\"band\" d=\"");
    for (const struct point *p = c->points; p < end; p++)
        if (p->iteration) {
            fprintf(f, "%c%.1f %.1f", command, amp_axis_place(x, (double)p->iteration),
                    amp_axis_place(y, p->high));
            command = 'L';
        }
    for (const struct point *p = end - 1; p >= c->points; p--)
        if (p->iteration)
            fprintf(f, "L%.1f %.1f", amp_axis_place(x, (double)p->iteration),
                    amp_axis_place(y, p->low));
    fprintf(f, "%s\"/>\n", command == 'L' ? "Z" : "");
}

static double average_of(const struct point *p)
{
    return p->iteration ? p->average : NAN;
}

static double map50_of(const struct point *p)
{
    return p->map_iteration ? p->map50 : NAN;
}

static double map_of(const struct point *p)
{
    return p->map_iteration ? p->map : NAN;
}

static double scale_of(const struct point *p)
{
    return p->iteration && p->scale > 0 ? p->scale : NAN;
}

/* steps: draws a value as constant until the next one (the loss scale is). */
static void write_curve(FILE *f, const struct amp_chart *c, const struct amp_axis *x,
                        const struct amp_axis *y, double (*value)(const struct point *),
                        const char *class, bool steps)
{
    bool first = true;
    fprintf(f, "<path class=\"%s\" d=\"", class);
    for (const struct point *p = c->points; p < c->points + AMP_CHART_POINTS; p++) {
        double v = value(p);
        bool is_map = value == map50_of || value == map_of;
        if (!isfinite(v)) continue;
        double across = amp_axis_place(x, (double)(is_map ? p->map_iteration : p->iteration));
        double down = amp_axis_place(y, v);
        if (first)
            fprintf(f, "M%.1f %.1f", across, down);
        else if (steps)
            fprintf(f, "H%.1fV%.1f", across, down);
        else
            fprintf(f, "L%.1f %.1f", across, down);
        first = false;
    }
    fprintf(f, "\"/>\n");
}

/* Dots show when mAP was measured; lines between them are only a guide. */
static void write_map_dots(FILE *f, const struct amp_chart *c, const struct amp_axis *x,
                           const struct amp_axis *y)
{
    for (const struct point *p = c->points; p < c->points + AMP_CHART_POINTS; p++)
        if (p->map_iteration)
            fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"#c1272d\"/>\n",
                    amp_axis_place(x, (double)p->map_iteration), amp_axis_place(y, p->map50));
}

static void write_best(FILE *f, const struct amp_chart_state *s, const struct amp_axis *x,
                       const struct amp_axis *y)
{
    if (!isfinite(s->best50)) return;
    double across = amp_axis_place(x, (double)s->best_iteration),
           down = amp_axis_place(y, s->best50);
    /* Near the right edge the text goes to the left of the dot. */
    bool at_end = across > RIGHT - 120;
    fprintf(
        f,
        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"6\" fill=\"none\" stroke=\"#c1272d\" "
        "stroke-width=\"1.6\"/><text x=\"%.1f\" y=\"%.1f\" class=\"map%s\">best %.1f %%</text>\n",
        across, down, across + (at_end ? -10 : 10), down - 8, at_end ? " end" : "",
        100 * s->best50);
}

/* Sets the axis. False: there is no loss scale to draw (FP32, BF16). */
static bool scale_axis(const struct amp_chart *c, struct amp_axis *a)
{
    double low = INFINITY, high = 0;
    for (const struct point *p = c->points; p < c->points + AMP_CHART_POINTS; p++) {
        double v = scale_of(p);
        if (!isfinite(v)) continue;
        low = fmin(low, v);
        high = fmax(high, v);
    }
    *a = (struct amp_axis){low / 2, high * 2, SCALE_BOTTOM, SCALE_TOP, true};
    return high > 0;
}

static void write_scale(FILE *f, const struct amp_chart *c, const struct amp_axis *x,
                        const struct amp_axis *y)
{
    /* The axis has a factor of 2 to spare on each side; labels are powers of two. */
    int low = (int)lround(log2(y->from)) + 1, high = (int)lround(log2(y->to)) - 1;
    int step = (high - low) / 3 + 1;
    fprintf(f, "<rect class=\"frame\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", LEFT,
            SCALE_TOP, RIGHT - LEFT, SCALE_BOTTOM - SCALE_TOP);
    for (int e = low; e <= high; e += step)
        fprintf(f, "<text x=\"%d\" y=\"%.1f\" class=\"end scale\">2^%d</text>\n", LEFT - 8,
                amp_axis_place(y, exp2(e)) + 4, e);
    fprintf(f, "<text x=\"%d\" y=\"%d\" class=\"scale\">loss scale</text>\n", LEFT + 6,
            SCALE_TOP - 6);
    write_curve(f, c, x, y, scale_of, "curve scale-curve", true);
}

/* ---- words ---- */

/* A cfg may have any name: XML's special characters are escaped, bytes beyond ASCII become "?". */
static void write_text(FILE *f, const char *text)
{
    for (; *text; text++) {
        const char *special = *text == '<'   ? "&lt;"
                              : *text == '&' ? "&amp;"
                              : *text == '>' ? "&gt;"
                                             : NULL;
        if (special)
            fputs(special, f);
        else
            fputc((unsigned char)*text < 32 || (unsigned char)*text > 126 ? '?' : *text, f);
    }
}

static void write_loss(FILE *f, double loss, const char *without)
{
    if (isfinite(loss))
        fprintf(f, "%.4g", loss);
    else
        fputs(without, f);
}

/* Numbers of the last iteration, so that the picture alone tells how the run stands. */
static void write_words(FILE *f, const struct amp_chart *c, const struct amp_chart_state *s)
{
    char left[32];
    fprintf(f, "<text x=\"%d\" y=\"34\" class=\"title\">", LEFT);
    write_text(f, c->setup.title);
    fprintf(f, "</text>\n<text x=\"%d\" y=\"34\" class=\"end\">iteration %zu of %zu (%.1f %%)",
            RIGHT, s->iteration, c->setup.total,
            c->setup.total ? 100. * (double)s->iteration / (double)c->setup.total : 0);
    if (s->seconds_left >= 0) /* else nothing is known yet */
        fprintf(f, ", %s left", amp_duration_text(s->seconds_left, left));
    fprintf(f, "</text>\n<text x=\"%d\" y=\"58\" class=\"loss\">loss ", LEFT);
    write_loss(f, s->loss, "lost");
    fputs(", average ", f);
    write_loss(f, s->average, "unknown");
    fprintf(f, "</text><text x=\"%d\" y=\"58\" class=\"end\">learning rate %.4g</text>\n", RIGHT,
            s->rate);
    if (isfinite(s->map50))
        fprintf(f,
                "<text x=\"%d\" y=\"78\" class=\"map\">%s %.2f %%, best %.2f %% at iteration %zu; "
                "thin: "
                "%s</text>\n",
                LEFT, c->setup.figures[0], 100 * s->map50, 100 * s->best50, s->best_iteration,
                c->setup.figures[1]);
}

/* Later shapes cover earlier ones: grid first, curves last. */
static void write_picture(FILE *f, const struct amp_chart *c, const struct amp_chart_state *s)
{
    struct amp_axis x = iterations(c), loss = losses(c), map = {0, 1, BOTTOM, TOP, false}, scale;
    bool has_scale = scale_axis(c, &scale);
    int bottom = has_scale ? SCALE_BOTTOM : BOTTOM, height = HEIGHT - (SCALE_BOTTOM - bottom);
    fprintf(f,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
            "width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n",
            WIDTH, height, WIDTH, height);
    write_points(c, f);
    fputs(amp_picture_style, f);
    fprintf(f, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", WIDTH, height);
    write_words(f, c, s);
    write_burn_in(f, c, bottom);
    write_iteration_axis(f, c, bottom);
    amp_axis_write(f, &loss);
    write_marks(f, c, bottom);
    write_map_axis(f, c);
    fprintf(f, "<rect class=\"frame\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", LEFT, TOP,
            RIGHT - LEFT, BOTTOM - TOP);
    write_band(f, c, &x, &loss);
    write_curve(f, c, &x, &loss, average_of, "curve loss-curve", false);
    write_curve(f, c, &x, &map, map_of, "curve map-curve", false);
    write_curve(f, c, &x, &map, map50_of, "curve map50-curve", false);
    write_map_dots(f, c, &x, &map);
    write_best(f, s, &x, &map);
    if (has_scale) write_scale(f, c, &x, &scale);
    fputs("</svg>\n", f);
}

int amp_chart_write(const struct amp_chart *c, const struct amp_chart_state *s, char *err,
                    size_t err_size)
{
    struct amp_whole_file whole = {.fd = -1};
    if (amp_whole_begin(&whole, c->path, err, err_size)) return -1;
    FILE *f = amp_whole_stream(&whole, err, err_size);
    if (f) write_picture(f, c, s);
    int failed = !f || amp_whole_end_stream(&whole, f, err, err_size) ||
                 amp_whole_place(&whole, err, err_size);
    amp_whole_drop(&whole);
    return failed ? -1 : 0;
}
