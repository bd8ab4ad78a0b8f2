/* The result of `amp lr-find` as text, as JSON and as a picture. It must not decide which rate is
 * suggested (rate_sweep.c). */
#include "rate_sweep.h"

#include <math.h>
#include <string.h>

#include "axis.h"

#include "plugin/core/read/json.h"

static const struct amp_sweep_point *best_of(const struct amp_sweep *s)
{
    return &s->points[s->best];
}

static const struct amp_sweep_point *last_of(const struct amp_sweep *s)
{
    return &s->points[s->n - 1];
}

/* ---- text ---- */

static void print_end(const struct amp_sweep *s, FILE *f)
{
    if (s->diverged)
        fprintf(f, "; beyond %.2g it grew too large, and the sweep ended\n", last_of(s)->rate);
    else
        fprintf(f, "; it never grew to %g times that\n", AMP_SWEEP_ENOUGH);
}

static void print_line(const struct amp_rate_result *r, double rate, FILE *f)
{
    if (r->cfg_line)
        fprintf(f, "\nIn line %d of %s, in place of %g:\n\n", r->cfg_line, r->cfg, r->cfg_rate);
    else
        fprintf(f, "\nUnder [net] of %s:\n\n", r->cfg);
    fprintf(f, "    learning_rate=%g\n", rate);
    if (r->least > rate)
        fprintf(f, "\nlearning_rate_min=%g is above that: lower it, too.\n", r->least);
}

void amp_rate_print(const struct amp_rate_result *r, FILE *f)
{
    const struct amp_sweep *s = r->sweep;
    double rate = amp_sweep_suggestion(s);
    fprintf(f, "\namp lr-find: %s, %s, %d iterations of %d images\n", r->cfg,
            r->weights ? r->weights : "random weights", s->n, r->images);
    fprintf(f, "smoothed loss: %.4g at rate %.2g, smallest %.4g at %.2g", s->points[0].smoothed,
            s->points[0].rate, best_of(s)->smoothed, best_of(s)->rate);
    print_end(s, f);
    if (rate > 0)
        print_line(r, rate, f);
    else
        fputs(
            "\nThe loss did not fall at any rate, so none is suggested. `darknet amp check` looks "
            "for a cause.\n",
            f);
}

/* ---- JSON ---- */

void amp_rate_print_json(const struct amp_rate_result *r, FILE *f)
{
    const struct amp_sweep *s = r->sweep;
    double rate = amp_sweep_suggestion(s);
    struct amp_json j = {.out = f, .digits = AMP_JSON_FLOAT};
    amp_json_begin(&j, NULL, '{');
    amp_json_string(&j, "data", r->data);
    amp_json_string(&j, "cfg", r->cfg);
    amp_json_string(&j, "weights", r->weights);
    amp_json_put(&j, "images_per_iteration", "%d", r->images);
    amp_json_bool(&j, "diverged", s->diverged);
    amp_json_number(&j, "best_rate", best_of(s)->rate);
    amp_json_number(&j, "suggested_rate", rate > 0 ? rate : NAN);
    amp_json_number(&j, "line", r->cfg_line ? r->cfg_line : NAN);
    amp_json_line(&j, 1);
    amp_json_begin(&j, "points", '[');
    for (const struct amp_sweep_point *p = s->points; p < s->points + s->n; p++) {
        amp_json_line(&j, 2);
        amp_json_begin(&j, NULL, '{');
        amp_json_number(&j, "rate", p->rate);
        amp_json_number(&j, "loss", p->loss);
        amp_json_number(&j, "smoothed", p->smoothed);
        amp_json_end(&j, '}');
    }
    amp_json_end(&j, ']');
    amp_json_end(&j, '}');
    fputc('\n', f);
}

/* ---- the picture ---- */

enum { HEIGHT = 510 };

/* All smoothed losses up to the end of the sweep; single losses may lie outside. */
static struct amp_axis loss_axis(const struct amp_sweep *s)
{
    double low = best_of(s)->smoothed, high = low;
    for (int i = 0; i < s->n; i++)
        high = fmax(high, s->points[i].smoothed);
    if (low > 0 && high > 10 * low)
        return (struct amp_axis){low / 1.3, high * 1.1, BOTTOM, TOP, true};
    return (struct amp_axis){0, high > 0 ? high * 1.1 : 1, BOTTOM, TOP, false};
}

static void write_rate_axis(FILE *f, const struct amp_axis *x)
{
    for (int e = (int)lround(log10(x->from)); e <= (int)lround(log10(x->to)); e++) {
        double at = amp_axis_place(x, pow(10, e));
        fprintf(f,
                "<path class=\"grid\" d=\"M%.1f %dV%d\"/><text x=\"%.1f\" y=\"%d\" class=\"mid\">"
                "%g</text>\n",
                at, TOP, BOTTOM, at, BOTTOM + 18, pow(10, e));
    }
    fprintf(f, "<text x=\"%d\" y=\"%d\" class=\"mid\">learning rate</text>\n", (LEFT + RIGHT) / 2,
            BOTTOM + 40);
}

static void write_losses(FILE *f, const struct amp_sweep *s, const struct amp_axis *x,
                         const struct amp_axis *y)
{
    for (int i = 0; i < s->n; i++)
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2\" class=\"band\"/>\n",
                amp_axis_place(x, s->points[i].rate), amp_axis_place(y, s->points[i].loss));
    fputs("<path class=\"curve loss-curve\" d=\"", f);
    for (int i = 0; i < s->n; i++)
        fprintf(f, "%c%.1f %.1f", i ? 'L' : 'M', amp_axis_place(x, s->points[i].rate),
                amp_axis_place(y, s->points[i].smoothed));
    fputs("\"/>\n", f);
}

static void write_mark(FILE *f, const struct amp_axis *x, double rate, const char *what, int line)
{
    double at = amp_axis_place(x, rate);
    fprintf(f,
            "<path class=\"mark\" d=\"M%.1f %dV%d\"/><text x=\"%.1f\" y=\"%d\" class=\"small\">%s "
            "%.2g</text>\n",
            at, TOP, BOTTOM, at + 4, TOP + 14 * line, what, rate);
}

/* The cfg's name comes from outside, so it is not written: an SVG would need it escaped. */
void amp_rate_draw(const struct amp_rate_result *r, FILE *f)
{
    const struct amp_sweep *s = r->sweep;
    struct amp_axis x = {AMP_SWEEP_LOWEST, AMP_SWEEP_HIGHEST, LEFT, RIGHT, true}, y = loss_axis(s);
    double rate = amp_sweep_suggestion(s);
    fprintf(f,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
            "width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    fputs("<metadata>" AMP_RATE_PICTURE "</metadata>\n", f);
    fputs(amp_picture_style, f);
    fprintf(f, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", WIDTH, HEIGHT);
    fprintf(
        f,
        "<text x=\"%d\" y=\"34\" class=\"title\">loss over learning rate</text>"
        "<text x=\"%d\" y=\"60\">%d iterations of %d images; dots: losses, line: smoothed</text>\n",
        LEFT, LEFT, s->n, r->images);
    write_rate_axis(f, &x);
    amp_axis_write(f, &y);
    fprintf(f, "<rect class=\"frame\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", LEFT, TOP,
            RIGHT - LEFT, BOTTOM - TOP);
    write_losses(f, s, &x, &y);
    write_mark(f, &x, best_of(s)->rate, "smallest", 1);
    if (rate > 0) write_mark(f, &x, rate, "suggested", 2);
    fputs("</svg>\n", f);
}
