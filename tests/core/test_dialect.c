/* What a net is by the fork's rules. What decides for them, and what they note and refuse:
 * ../input/verdicts/fork.txt. */
#include "planned.h"

static char notes[8192];

#define MIXED "[net]\nmixed_precision=1\n"
#define SMALL MIXED "width=64\nheight=32\nchannels=3\n"

/* 0 or -1 of the options, then of the description; notes and err hold what was said. */
static int read_text(const char *text)
{
    notes[0] = err[0] = '\0';
    cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    if (!cfg || amp_options_read(cfg, &options, notes, sizeof notes, err, sizeof err)) return -1;
    net = amp_net_describe(cfg, 0, 0, true, err, sizeof err);
    return net ? 0 : -1;
}

#define FORK     MIXED "amp_dialect=fork\nwidth=64\nheight=32\nchannels=3\n"
#define HEAD     "[conv]\nfilters=14\nsize=1\nactivation=linear\n[yolo]\nmask=0,1\nclasses=2\nnum=2\n"
#define ANCHORED HEAD "anchors=1,2,3,4\n"

AMP_TEST(files_from_windows)
{
    CHECK_INT(read_text("# made\r\n[net]\r\nmixed_precision=1\r\nwidth=32 \r\nheight=32\r\n"
                        "channels=3\r\n\r\n[conv]\r\n[route]\r\nlayers=-1\r\ngroups=1\r\n"
                        "[convolutional]\r\nfilters=7\r\n[yolo]\r\nclasses=2\r\nnew_coords=1"),
              0);
    CHECK_STR(err, "");
    CHECK_STR(cfg->sections[0].entries[1].written, "32");
    CHECK_STR(cfg->dialect_reason, "line 16: new_coords=1");
    forget();
}

/* ---- what the net is ---- */

AMP_TEST(parts_of_channels)
{
    CHECK_INT(read_text(SMALL "[conv]\nfilters=12\n[conv]\nfilters=20\n[route]\nlayers=-1,-2\n"
                              "groups=4\ngroup_id=3\n[conv]\nfilters=2\n"),
              0);
    const struct amp_layer_desc *l = &net->layers[2];
    CHECK_INT(l->groups, 4);
    CHECK_INT(l->group_id, 3);
    CHECK_INT(l->out_c, 5 + 3);
    CHECK_INT(l->outputs, 8 * 64 * 32);
    CHECK_INT(net->layers[3].n_weights, 8 * 2);
    forget();
}

/* A route of a part has an output of its own: nobody writes into it, and it is no alias. */
AMP_TEST(a_part_is_planned_as_a_copy)
{
    plan_text(SMALL "batch=2\n[conv]\nfilters=16\nsize=1\nbatch_normalize=1\nactivation=leaky\n"
                    "[route]\nlayers=-1\ngroups=2\ngroup_id=1\n"
                    "[conv]\nfilters=14\nsize=1\nactivation=linear\n"
                    "[yolo]\nmask=0,1\nnum=2\nclasses=2\nanchors=1,2,3,4\n",
              true);
    CHECK_INT(net->dialect, AMP_DIALECT_FORK);
    CHECK_INT(plan->layers[0].route, -1);
    CHECK_INT(net->layers[1].out_c, 8);
    char text[8192] = "";
    FILE *f = fmemopen(text, sizeof text, "w");
    REQUIRE(f != NULL);
    amp_plan_print(plan, net, f);
    fclose(f);
    CHECK(!strncmp(text, "rules: fork (line 14: groups=2)\nmixed precision plan: ", 54));
    forget();
}

AMP_TEST(numbers_of_a_head)
{
    const char *const keys = "iou_loss=ciou\niou_normalizer=.07\nobj_normalizer=.4\n"
                             "cls_normalizer=.5\nmax_delta=2\niou_thresh=.2\n"
                             "iou_thresh_kind=giou\nscale_x_y=1.05\nnew_coords=1\n"
                             "label_smooth_eps=.1\nfocal_loss=1\nobjectness_smooth=1\n"
                             "counters_per_class=10,40\nnms_kind=diounms\nbeta_nms=.7\n"
                             "jitter=.1\nresize=1.5\nrandom=1.2\nmax=150\n";
    char text[2048];
    snprintf(text, sizeof text, FORK ANCHORED "%s", keys);
    CHECK_INT(read_text(text), 0);
    const struct amp_layer_desc *l = &net->layers[1];
    const struct amp_yolo_desc *y = &l->loss.yolo;
    CHECK_INT(y->box_loss, AMP_BOX_CIOU);
    CHECK_INT(y->iou_thresh_kind, AMP_BOX_GIOU);
    CHECK_INT(y->nms_kind, AMP_BOX_NMS_DIOU);
    CHECK(y->iou_normalizer == .07f && y->obj_normalizer == .4f && y->cls_normalizer == .5f);
    CHECK(y->max_delta == 2 && y->iou_thresh == .2f);
    CHECK(y->scale_x_y == 1.05f && y->new_coords && y->label_smooth_eps == .1f);
    CHECK(y->focal_loss && y->objectness_smooth && y->beta_nms == .7f);
    CHECK(y->jitter == .1f && y->resize == 1.5f && y->random == 1.2f);
    REQUIRE(y->class_multipliers != NULL);
    CHECK(y->class_multipliers[0] == 2 && y->class_multipliers[1] == 1); /* 4, but max_delta */
    CHECK(l->truths == 150 && l->max_boxes == 150 && l->random == 1);
    forget();
    /* Without keys, by the fork's rules and by stock's. */
    CHECK_INT(read_text(FORK ANCHORED), 0);
    y = &net->layers[1].loss.yolo;
    CHECK(y->box_loss == AMP_BOX_MSE && y->iou_normalizer == .75f && y->obj_normalizer == 1);
    CHECK(y->max_delta == 0 && y->iou_thresh == 1 && y->scale_x_y == 1 && !y->new_coords);
    CHECK(y->nms_kind == AMP_BOX_NMS_DEFAULT && y->beta_nms == .6f && y->jitter == .2f);
    CHECK(net->layers[1].truths == 200 && !y->class_multipliers);
    forget();
    CHECK_INT(read_text(SMALL ANCHORED), 0);
    y = &net->layers[1].loss.yolo;
    CHECK(y->box_loss == AMP_BOX_MSE && y->iou_normalizer == 1 && net->layers[1].truths == 90);
    forget();
    /* The last head has room for all; a word that the fork does not know is iou. */
    CHECK_INT(read_text(FORK ANCHORED "max=7\niou_loss=eiou\n" ANCHORED "max=50\n"), 0);
    CHECK(net->layers[1].truths == 50 && net->layers[3].truths == 50);
    CHECK_INT(net->layers[1].loss.yolo.box_loss, AMP_BOX_IOU);
    forget();
}

AMP_TEST(defaults_of_layers_and_net)
{
    CHECK_INT(read_text(FORK "adam=1\nbatch=32\nsubdivisions=64\nmosaic=1\n[conv]\nfilters=4\n"
                             "stopbackward=800\n[dropout]\n[conv]\nfilters=8\n[shortcut]\n"
                             "from=-2\nalpha=3\n"),
              0);
    CHECK(net->layers[1].probability == .2f);
    CHECK(net->layers[3].alpha == 1 && net->layers[3].out_c == 8);
    CHECK(net->batch == 1 && net->subdivisions == 64 && net->mosaic && net->flip);
    CHECK(net->layers[0].stop_until == 800 && !net->layers[0].stopbackward);
    CHECK(amp_net_stop(net, 799) && net->layers[0].stopbackward && !amp_net_stop(net, 0));
    CHECK(amp_net_stop(net, 800) && !net->layers[0].stopbackward);
    CHECK(options.rules.eps == 1e-6);
    forget();
    /* As everywhere, but for the default of eps. */
    CHECK_INT(read_text(FORK "adam=1\nB1=.8\nB2=.9\neps=.5\npolicy=sgdr\nmax_batches=300\n"
                             "sgdr_cycle=100\nlearning_rate_min=.0001\n" ANCHORED),
              0);
    CHECK(options.rules.b1 == .8 && options.rules.b2 == .9);
    CHECK(options.rules.eps == .5);
    CHECK_INT(options.schedule.policy, AMP_POLICY_SGDR);
    CHECK(options.schedule.cycle == 100 && options.schedule.mult == 2);
    CHECK_STR(notes, "");
    forget();
    CHECK_INT(read_text(SMALL "adam=1\n[conv]\n[dropout]\n"), 0);
    CHECK(net->layers[1].probability == .5f && options.rules.eps == 1e-7);
    CHECK(net->flip && !net->mosaic && net->drawn_step == 32);
    forget();
    /* stopbackward=1: what is before it rests. */
    CHECK_INT(read_text(FORK "[conv]\n[conv]\nstopbackward=1\n[conv]\n"), 0);
    CHECK(net->layers[0].freeze && !net->layers[1].freeze && !net->layers[2].freeze);
    forget();
}

/* A.12: side = round(factor * side / step + 1) * step. */
AMP_TEST(drawn_sizes)
{
    CHECK_INT(read_text(MIXED "amp_dialect=fork\nwidth=416\nheight=320\nchannels=3\n" ANCHORED
                              "random=1\n"),
              0);
    CHECK(net->drawn_most[0] == 608 && net->drawn_most[1] == 480);
    CHECK(net->drawn_least[0] == 320 && net->drawn_least[1] == 256);
    int w = 0, h = 0, n = 0;
    while (amp_net_next_size(net, &w, &h)) {
        CHECK(w % 32 == 0 && h % 32 == 0 && h >= 256 && h <= 480);
        n++;
    }
    CHECK_INT(n, 10);
    CHECK(w == 608 && h == 480);
    forget();
    CHECK_INT(read_text(FORK ANCHORED "random=1e30\n"), 0);
    CHECK(net->drawn_most[0] == AMP_MAX_INTEGER && net->drawn_least[0] == 32);
    forget();
    CHECK_INT(read_text(SMALL ANCHORED "random=1\n"), 0);
    for (n = w = h = 0; amp_net_next_size(net, &w, &h); n++)
        CHECK(w == 320 + 32 * n && h == w);
    CHECK_INT(n, 10);
    forget();
    CHECK_INT(read_text(SMALL ANCHORED), 0);
    w = h = 0;
    CHECK(!amp_net_next_size(net, &w, &h));
    forget();
}

/* ---- what people have published ---- */

enum { MOST_SECTIONS = 256, LONGEST = 1 << 16 };

/* Text of one of the file's cfgs: "c FAMILY 0-3 7 9-12". */
static void write_cfg(char *text, char *const *sections, int n, char *list, const char *keys)
{
    *text = '\0';
    for (char *range = strtok(list, " \n"); range; range = strtok(NULL, " \n")) {
        int first = atoi(range), last = strchr(range, '-') ? atoi(strchr(range, '-') + 1) : first;
        REQUIRE(first >= 0 && last < n);
        for (int i = first; i <= last; i++) {
            strcat(text, sections[i]);
            if (!strncmp(sections[i], "[net", 4)) strcat(text, keys);
        }
    }
}

/* Floats of a weights file, counted from the text alone. */
static long long count_weights(const struct amp_cfg_file *file)
{
    static int channels[512];
    long long sum = 0;
    for (int i = 0; i < file->n_sections - 1; i++) {
        const struct amp_cfg_section *s = amp_cfg_layer(file, i);
        int before = i ? channels[i - 1] : amp_cfg_int(file->sections, "channels", 0);
        channels[i] = before;
        if (!strcmp(s->name, "[convolutional]")) {
            long long k = amp_cfg_int(s, "filters", 1), size = amp_cfg_int(s, "size", 1);
            channels[i] = (int)k;
            sum += k * (before / amp_cfg_int(s, "groups", 1)) * size * size;
            sum += k * (amp_cfg_int(s, "batch_normalize", 0) ? 4 : 1);
        } else if (!strcmp(s->name, "[route]")) {
            channels[i] = 0;
            for (const char *p = amp_cfg_string(s, "layers", ""); p; p = amp_list_next(p))
                channels[i] +=
                    channels[atoi(p) < 0 ? i + atoi(p) : atoi(p)] / amp_cfg_int(s, "groups", 1);
        }
    }
    return sum;
}

static void check_published(const char *text, const char *family, int line)
{
    cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    if (!cfg || amp_options_read(cfg, &options, NULL, 0, err, sizeof err) ||
        !(net = amp_net_describe(cfg, 0, 0, true, err, sizeof err))) {
        TEST_FAIL("line %d: %s: %s", line, family, err);
        return;
    }
    amp_options_settle_dtype(&options, false, false);
    plan = amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, true, err, sizeof err);
    if (!plan) TEST_FAIL("line %d: %s: %s", line, family, err);
    size_t weights = 0;
    for (int i = 0; i < net->n; i++)
        weights += amp_layer_parameters(&net->layers[i]) + amp_layer_statistics(&net->layers[i]);
    CHECK_INT(weights, count_weights(cfg));
}

/* None is refused for a reason that the fork ignores. */
AMP_TEST(published_cfgs_are_planned)
{
    static char *sections[MOST_SECTIONS], text[LONGEST];
    char *line = NULL;
    size_t size = 0;
    int n = 0, n_cfgs = 0, number = 0;
    FILE *f = fopen(AMP_PUBLISHED_CFGS, "r");
    REQUIRE(f != NULL);
    while (getline(&line, &size, f) >= 0) {
        number++;
        for (char *bar = line; *line == 's' && (bar = strchr(bar, '|'));)
            *bar = '\n';
        if (*line == 's' && n < MOST_SECTIONS) sections[n++] = strdup(line + 2);
        if (*line != 'c') continue;
        char family[32], again[512], *list = strchr(line + 2, ' ');
        snprintf(family, sizeof family, "%.*s", (int)(list - line - 2), line + 2);
        snprintf(again, sizeof again, "%s", list);
        write_cfg(text, sections, n, list, "mixed_precision=1\namp_dialect=fork\n");
        check_published(text, family, number);
        CHECK(cfg && cfg->dialect == AMP_DIALECT_FORK);
        forget();
        n_cfgs++;
        if (strncmp(family, "yolov4", 6)) continue;
        /* What they say decides by itself. */
        write_cfg(text, sections, n, again, "mixed_precision=1\n");
        check_published(text, family, number);
        CHECK(cfg && cfg->dialect == AMP_DIALECT_FORK);
        forget();
    }
    CHECK_INT(n_cfgs, 47);
    fclose(f);
    free(line);
    while (n > 0)
        free(sections[--n]);
}

AMP_TEST_MAIN
