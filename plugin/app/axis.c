/* Decides how values become places in a picture and which of them are labelled. It must not know
 * what is drawn (chart.c, rate_report.c). */
#include "axis.h"

#include <math.h>

double amp_axis_place(const struct amp_axis *a, double value)
{
    double from = a->log ? log(a->from) : a->from, to = a->log ? log(a->to) : a->to;
    double share = ((a->log ? log(fmax(value, a->from)) : value) - from) / (to - from);
    return a->at_from + fmin(fmax(share, 0), 1) * (a->at_to - a->at_from);
}

double amp_nice_step(double range, int parts)
{
    double rough = range / parts, power = pow(10, floor(log10(rough))), digit = rough / power;
    return power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
}

/* Baselines are 4 below the line, which centres digits of 13 pixels on it. */
static void write_grid_line(FILE *f, double y, const char *label)
{
    fprintf(f,
            "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" class=\"end loss\">"
            "%s</text>\n",
            LEFT, y, RIGHT, LEFT - 8, y + 4, label);
}

void amp_axis_write(FILE *f, const struct amp_axis *a)
{
    static const double digits[] = {1, 2, 5};
    char label[32];
    double step = amp_nice_step(a->to - a->from, 6);
    /* A linear axis always begins at 0. */
    for (double v = 0; !a->log && v <= a->to; v += step) {
        snprintf(label, sizeof label, "%g", v);
        write_grid_line(f, amp_axis_place(a, v), label);
    }
    /* Over more than three decades 2 and 5 would crowd, so only powers of ten are labelled. */
    int decades = a->log ? (int)ceil(log10(a->to / a->from)) : 0;
    for (int e = a->log ? (int)floor(log10(a->from)) : 1; a->log && pow(10, e) <= a->to; e++)
        for (int k = 0; k < (decades > 3 ? 1 : 3); k++) {
            double v = digits[k] * pow(10, e);
            if (v < a->from || v > a->to) continue;
            snprintf(label, sizeof label, "%g", v);
            write_grid_line(f, amp_axis_place(a, v), label);
        }
}

/* Inside the file, so that it looks the same everywhere it is opened. */
const char amp_picture_style[] =
    "<style>text{font:13px sans-serif;fill:#444}.title{font-size:18px;font-weight:bold;fill:#111}"
    ".small{font-size:11px;fill:#888}.end{text-anchor:end}.mid{text-anchor:middle}"
    ".loss{fill:#1f5f95}.map{fill:#c1272d}.scale{fill:#2b7a3d}"
    ".grid{stroke:#e8e8e8}.mark{stroke:#b59a3c;stroke-dasharray:5 4}"
    ".band{fill:#1f77b4;stroke:#1f77b4;opacity:.18}.frame{fill:none;stroke:#999}.curve{fill:none;"
    "stroke-linejoin:round}"
    ".loss-curve{stroke:#1f5f95;stroke-width:1.8}.map50-curve{stroke:#c1272d;stroke-width:1.8}"
    ".map-curve{stroke:#c1272d;stroke-width:1;opacity:.7}"
    ".scale-curve{stroke:#2b7a3d;stroke-width:1.5}</style>\n";
