/* Keys that nobody reads, and values with which Darknet trains something else than was meant. */
#include "plugin/core/read/cfg_checks.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>

#include "tests/rig/harness.h"

static char err[1024], notes[1024];
static const char *const own[] = {"mixed_precision", "seed"};

static struct amp_complaints complaints(const struct amp_cfg_file *file)
{
    return (struct amp_complaints){file, notes, sizeof notes, err, sizeof err};
}

static int check_keys(const char *text)
{
    struct amp_cfg_file *file = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    REQUIRE(file != NULL);
    err[0] = notes[0] = '\0';
    struct amp_complaints c = complaints(file);
    int result = amp_cfg_keys_check(&c, own, 2);
    amp_cfg_free(file);
    return result;
}

static void check_misspelt(const char *text, const char *message)
{
    CHECK_INT(check_keys(text), -1);
    CHECK_STR(err, message);
}

static void check_quiet(const char *text)
{
    CHECK_INT(check_keys(text), 0);
    CHECK_STR(err, "");
    CHECK_STR(notes, "");
}

AMP_TEST(kinds)
{
    CHECK_INT(amp_cfg_key_kind("batch"), AMP_CFG_INTEGER);
    CHECK_INT(amp_cfg_key_kind("momentum"), AMP_CFG_NUMBER);
    CHECK_INT(amp_cfg_key_kind("mask"), AMP_CFG_INTEGERS);
    CHECK_INT(amp_cfg_key_kind("anchors"), AMP_CFG_NUMBERS);
    CHECK_INT(amp_cfg_key_kind("activation"), AMP_CFG_WORD);
    CHECK_INT(amp_cfg_key_kind("Batch"), AMP_CFG_UNKNOWN);
}

/* Rows are found by a binary search; a key has one row in a section. */
AMP_TEST(the_table_is_sorted_and_names_each_key_once)
{
    size_t n;
    const struct amp_key_row *rows = amp_key_rows(&n);
    CHECK(n > 200);
    for (size_t i = 0; i < n; i++) {
        const struct amp_key_row *next = &rows[i + 1];
        if (i + 1 < n && strcmp(rows[i].name, next->name) > 0) TEST_FAIL("%s", rows[i].name);
        for (; next < rows + n && !strcmp(next->name, rows[i].name); next++)
            if (next->sections & rows[i].sections) TEST_FAIL("%s", rows[i].name);
        CHECK(rows[i].sections && (rows[i].use != AMP_KEY_REFUSED || rows[i].lost));
        /* A default is in its own range and among its own words. */
        if (rows[i].allowed && rows[i].def) CHECK(amp_key_allows(&rows[i], atof(rows[i].def)));
        if (rows[i].words) CHECK(amp_key_word(&rows[i], rows[i].def) >= 0);
    }
}

AMP_TEST(misspelt_keys_are_errors)
{
    check_misspelt("[net]\nBatch=8\n",
                   "a.cfg:2: Batch=8 in [net]: unknown key; did you mean batch?");
    check_misspelt("[net]\nLearning_Rate=1\n",
                   "a.cfg:2: Learning_Rate=1 in [net]: unknown key; did you mean learning_rate?");
    check_misspelt("[net]\nanglee=7\n",
                   "a.cfg:2: anglee=7 in [net]: unknown key; did you mean angle?");
    check_misspelt("[net]\n[conv]\nbatch_normalise=1\n",
                   "a.cfg:3: batch_normalise=1 in [conv]: unknown key; did you mean "
                   "batch_normalize?");
    check_misspelt("[net]\n[conv]\n[yolo]\nignore_tresh=.5\n",
                   "a.cfg:4: ignore_tresh=.5 in [yolo]: unknown key; did you mean ignore_thresh?");
    check_misspelt("[net]\n[conv]\nAnchors=.5\n[yolo]\nanchor=.5\n",
                   "a.cfg:5: anchor=.5 in [yolo]: unknown key; did you mean anchors?");
    check_misspelt("[net]\nsed=5\n", "a.cfg:2: sed=5 in [net]: unknown key; did you mean seed?");
}

AMP_TEST(keys_of_other_darknets_are_errors_and_all_named)
{
    check_misspelt(
        "[net]\nmosaic=1\n[yolo]\nnew_coords=1\nauthor=me\n[yolo]\nnew_coords=1\n"
        "scale_x_y=2.0\n[max]\nstride_x=2\n",
        "a.cfg:2: mosaic=1 in [net]: this Darknet does not read this key and would train "
        "another network; likewise new_coords (line 4), scale_x_y (line 8), stride_x "
        "(line 10). Remove what is not needed, or use a cfg made for this Darknet");
    CHECK(strstr(notes, "a.cfg:5: author=me") != NULL);
    static const char *const nets[] = {"ema=.999", "nesterov=1", "epochs=10", "flip=0"};
    for (int i = 0; i < 4; i++) {
        char text[64];
        snprintf(text, sizeof text, "[net]\n%s\n", nets[i]);
        CHECK_INT(check_keys(text), -1);
        CHECK(strstr(err, nets[i]) && strstr(err, "a.cfg:2: "));
    }
    CHECK_INT(check_keys("[net]\n[yolo]\niou_loss=ciou\nobjectness_smooth=1\n"), -1);
}

/* The other Darknet's [rnn] has a state of another size, and its activation. */
AMP_TEST(keys_of_a_recurrent_layer)
{
    CHECK_INT(check_keys("[net]\n[rnn]\noutput=4\nhidden=5\n"), -1);
    CHECK(strstr(err, "a.cfg:4: hidden=5 in [rnn]: ") != NULL);
    CHECK_INT(check_keys("[net]\n[rnn]\nhidden=5\n"), -1);
    CHECK_INT(check_keys("[net]\n[rnn]\nlogistic=1\n"), -1);
    CHECK(strstr(err, "a.cfg:3: logistic=1 in [rnn]: ") != NULL);
    check_quiet("[net]\n[rnn]\noutput=4\nhidden=4\nlogistic=0\n");
}

AMP_TEST(values_of_other_darknets_are_errors)
{
    check_misspelt("[net]\n[conv]\nbatch_normalize=2\n[conv]\nstopbackward=800\n",
                   "a.cfg:3: batch_normalize=2 in [conv]: allowed: 0 or 1; this Darknet reads any "
                   "number but 0 as 1 and would train another network; likewise stopbackward (line "
                   "5). Remove what is not needed, or use a cfg made for this Darknet");
    check_quiet("[net]\n[conv]\nbatch_normalize=1\nstopbackward=1\n"
                "[conv]\nbatch_normalize=0\nstopbackward=0\n");
}

/* All keys that Darknet only compares with 0, each where it reads it. */
AMP_TEST(switches_are_0_or_1)
{
    static const char *const switches[][2] = {
        {"net", "adam center notruth random"},
        {"conv", "batch_normalize binary flipped pad xnor"},
        {"conv", "dontload dontloadscales dontsave onlyforward stopbackward truth"},
        {"deconv", "batch_normalize pad"},
        {"conn", "batch_normalize"},
        {"rnn", "batch_normalize shortcut"},
        {"crnn", "batch_normalize shortcut"},
        {"gru", "batch_normalize tanh"},
        {"lstm", "batch_normalize"},
        {"reorg", "flatten reverse"},
        {"crop", "flip noadjust"},
        {"softmax", "noloss"},
        {"yolo", "random"},
        {"region", "background bias_match random rescore softmax sqrt"},
        {"detection", "forced random rescore softmax sqrt"}};
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        char all[200], text[300], begin[200];
        strcpy(all, switches[i][1]);
        for (char *key = strtok(all, " "); key; key = strtok(NULL, " ")) {
            const char *head = strcmp(switches[i][0], "net") ? "[net]\n" : "";
            for (int value = -1; value < 3; value++) {
                snprintf(text, sizeof text, "%s[%s]\n%s=%d\n", head, switches[i][0], key, value);
                snprintf(begin, sizeof begin, "a.cfg:%d: %s=%d in [%s]: allowed: 0 or 1",
                         *head ? 3 : 2, key, value, switches[i][0]);
                bool allowed = value == 0 || value == 1;
                if (check_keys(text) != (allowed ? 0 : -1) || *notes ||
                    strncmp(err, begin, allowed ? 0 : strlen(begin)))
                    TEST_FAIL("%s: %s%s", text, err, notes);
            }
        }
    }
    check_quiet("[net]\n[local]\npad=2\n"); /* pixels */
    check_quiet("[net]\n[reorg]\nextra=9\n[conv]\nnumload=7\npadding=3\n");
}

AMP_TEST(what_other_darknets_would_train_alike_is_none)
{
    check_quiet("[net]\nmosaic=0\nletter_box=0\nflip=1\nresize_step=32\n[yolo]\n"
                "scale_x_y=1.0\niou_loss=mse\ncls_normalizer=1\n[conv]\ndilation=1\n");
}

/* Darknet reads these once for the network; where a layer has a key of that name, it stays. */
AMP_TEST(a_layer_has_no_schedule_of_its_own)
{
    check_misspelt("[net]\n[conv]\npolicy=cosine\n",
                   "a.cfg:3: policy=cosine in [conv]: allowed only in the first section, [net]; a "
                   "layer has none of its own");
    check_misspelt("[net]\nbatch=1\n[yolo]\nmax_batches=9\n",
                   "a.cfg:4: max_batches=9 in [yolo]: allowed only in the first section, [net]; a "
                   "layer has none of its own");
    check_quiet("[net]\npolicy=constant\n[conv]\nlearning_rate=.1\n[upsample]\nscale=1\n");
}

/* Every such value, as AlexeyAB's Darknet and other trainers have it by default. */
AMP_TEST(defaults_of_other_darknets)
{
    check_quiet("[net]\nadversarial_lr=0\nattention=0\nbadlabels_reject_threshold=0\n"
                "badlabels_rejection_percentage=0\nblur=0\ncontrastive=0\ncontrastive_color=0\n"
                "contrastive_jit_flip=0\ncutmix=0\ndynamic_minibatch=0\n"
                "equidistant_point=0\nflip=1\ngaussian_noise=0\nlabel_smooth_eps=0\n"
                "letter_box=0\nmixup=0\nmosaic=0\nmosaic_bound=0\n"
                "num_sigmas_reject_badlabels=0\nresize_step=32\ntrack=0\nunsupervised=0\n"
                "weights_reject_freq=0\naccumulate=1\nema=0\nlabel_smoothing=0\n"
                "nesterov=0\nwarmup=0\nwarmup_epochs=0\n"
                "[conv]\nburnin_update=0\ndont_update=0\ntrain_only_bn=0\nantialiasing=0\n"
                "assisted_excitation=0\ncbn=0\nbin_output=0\ncoordconv=0\ndeform=0\n"
                "dilation=1\ngrad_centr=0\nrotate=0\nstretch=0\nstretch_sway=0\nsway=0\n"
                "frozen=0\n"
                "[crnn]\ndilation=1\ngroups=1\nsize=3\nstride=1\nxnor=0\n"
                "[max]\nantialiasing=0\navg=0\nmaxpool_depth=0\nmaxpool_zero_nonmax=0\n"
                "[dropout]\ndropblock=0\ndropblock_size_abs=0\ndropblock_size_rel=0\n"
                "[shortcut]\nweights_type=none\n"
                "[yolo]\nlabel_smooth_eps=0\ncls_normalizer=1\ndelta_normalizer=1\n"
                "focal_loss=0\niou_loss=mse\niou_normalizer=1\niou_thresh=1\n"
                "iou_thresh_kind=iou\nnew_coords=0\nobj_normalizer=1\nobjectness_smooth=0\n"
                "resize=1\nscale_x_y=1\nuc_normalizer=1\n");
}

AMP_TEST(keys_without_effect_are_told)
{
    CHECK_INT(check_keys("[net]\nworkspace_size_limit_MB=4000\n[max]\nbatch_normalize=1\n[max]\n"
                         "batch_normalize=1\n"),
              0);
    CHECK_STR(err, "");
    CHECK_STR(notes, "a.cfg:2: workspace_size_limit_MB=4000 in [net]: has no effect in "
                     "this section; likewise batch_normalize (line 4)\n");
    CHECK_INT(check_keys("[net]\n[max]\nbatch_normalize=1\n[avgpool]\nbatch_normalize=1\n"), 0);
    CHECK_STR(notes, "a.cfg:3: batch_normalize=1 in [max]: has no effect in this section; likewise "
                     "batch_normalize (line 5)\n");
    /* The first of all is named once too. */
    CHECK_INT(check_keys("[net]\n[max]\nbatch_normalize=1\n[max]\nbatch_normalize=1\n"), 0);
    CHECK_STR(notes, "a.cfg:3: batch_normalize=1 in [max]: has no effect in this section\n");
}

AMP_TEST(so_many_keys_that_not_all_are_named)
{
    size_t size = 1 << 20;
    char *text = malloc(size);
    REQUIRE(text != NULL);
    int used = snprintf(text, size, "[net]\n");
    for (int i = 0; i < 20000; i++)
        used += snprintf(text + used, size - (size_t)used, "strange_word_%d=1\n", i);
    CHECK_INT(check_keys(text), 0);
    CHECK(strstr(notes, " strange_word_23 (line 25) and more\n") != NULL);
    free(text);
}

AMP_TEST(notes_may_be_absent_or_short)
{
    const char *text = "[net]\nauthor=me\n";
    struct amp_cfg_file *file = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    REQUIRE(file != NULL);
    struct amp_complaints c = {.cfg = file, .err = err, .err_size = sizeof err};
    CHECK_INT(amp_cfg_keys_check(&c, own, 2), 0);
    char few[8] = "";
    c.notes = few;
    c.notes_size = sizeof few;
    CHECK_INT(amp_cfg_keys_check(&c, own, 2), 0);
    CHECK_STR(few, "a.cfg:2");
    /* Behind what others noted; what is beyond the end is not touched. */
    char some[16] = "a note\n";
    memset(some + 12, '.', 4);
    c.notes = some;
    c.notes_size = 12;
    CHECK_INT(amp_cfg_keys_check(&c, own, 2), 0);
    CHECK_STR(some, "a note\na.cf");
    CHECK(!memcmp(some + 12, "....", 4));
    amp_cfg_free(file);
}

AMP_TEST(darknets_own_cfgs_have_no_such_key_or_value)
{
    glob_t found;
    REQUIRE(glob(AMP_DARKNET_CFGS, 0, NULL, &found) == 0);
    CHECK_INT(found.gl_pathc, 45);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct amp_cfg_file *file = amp_cfg_read(found.gl_pathv[i], err, sizeof err);
        REQUIRE(file != NULL);
        err[0] = notes[0] = '\0';
        struct amp_complaints c = complaints(file);
        CHECK_INT(amp_cfg_keys_check(&c, own, 2), 0);
        CHECK_INT(amp_cfg_values_check_training(&c), 0);
        /* With the -1, Darknet never leaves the first rate of this one. */
        bool odd = strstr(file->path, "/yolov2-tiny-voc.cfg") != NULL;
        CHECK(odd == (strstr(notes, ": steps=-1,100,20000,30000 in [net]: ") != NULL));
        if (!odd) CHECK_STR(notes, "");
        CHECK_STR(err, "");
        amp_cfg_free(file);
    }
    globfree(&found);
}

static void check_value(const char *text, const char *message)
{
    struct amp_cfg_file *file = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    REQUIRE(file != NULL);
    err[0] = notes[0] = '\0';
    struct amp_complaints c = complaints(file);
    int result = amp_cfg_values_check_training(&c);
    CHECK_INT(result, *message ? -1 : 0);
    CHECK_STR(err, message);
    amp_cfg_free(file);
}

static void check_note(const char *text, const char *note)
{
    check_value(text, "");
    CHECK_STR(notes, note);
}

AMP_TEST(values_that_train_something_else)
{
    check_value("[net]\nbatch=64\nsubdivisions=24\n",
                "a.cfg:3: subdivisions=24 in [net]: must divide batch=64, or be auto; Darknet "
                "would train 48 images in an iteration");
    check_value("[net]\nburn_in=-1\n", "a.cfg:2: burn_in=-1 in [net]: allowed: at least 0");
    check_value("[net]\nlearning_rate=-.1\n",
                "a.cfg:2: learning_rate=-.1 in [net]: allowed: at least 0; the loss would grow");
    check_value("[net]\nmomentum=1\n",
                "a.cfg:2: momentum=1 in [net]: allowed: at least 0 and below 1");
    check_value("[net]\ndecay=-3\n",
                "a.cfg:2: decay=-3 in [net]: allowed: at least 0; the weights would grow");
    check_value("[net]\nmomentum=-.9\n",
                "a.cfg:2: momentum=-.9 in [net]: allowed: at least 0 and below 1");
    check_value("[net]\n[yolo]\nnum=3\nanchors=1,2,3\n",
                "a.cfg:4: anchors= in [yolo]: 3 numbers; needed: 6, two for each of num=3; Darknet "
                "would take 0.5 for those that are missing");
    check_value("[net]\n[region]\nnum=3\nanchors=1,2,3,4,5\n",
                "a.cfg:4: anchors= in [region]: 5 numbers; needed: 6, two for each of num=3; "
                "Darknet would take 0.5 for those that are missing");
    check_value("[net]\n[cost]\ntype=SSE\n",
                "a.cfg:3: type=SSE in [cost]: this Darknet does not know it and would train sse; "
                "allowed: sse, masked, L1, seg, smooth, wgan");
    check_value("[net]\nbatch=64\nsubdivisions=64\nburn_in=0\nlearning_rate=0\nmomentum=0\n"
                "[conv]\nlearning_rate=-1\n[yolo]\nnum=3\nanchors=1,2,3,4,5,6\n[region]\n"
                "[cost]\ntype=L1\ndecay=-1\n",
                "");
}

AMP_TEST(ranges_of_augmentation_and_heads)
{
    static const struct {
        const char *section, *key, *good, *bad, *allowed;
    } ranges[] = {{"[net]", "angle", "0 7 360", "-1 361 5000", "0 to 360, degrees"},
                  {"[net]", "aspect", ".75 1 3", "0 -1", "above 0"},
                  {"[net]", "saturation", ".75 1.5", "0 -1", "above 0"},
                  {"[net]", "exposure", ".75 1.5", "0 -1", "above 0"},
                  {"[net]", "hue", "0 .1 1", "-.1 30", "0 to 1"},
                  {"[net]", "power", "0 4", "-1", "at least 0"},
                  {"[crop]", "angle", "0", "-5", "0 to 360, degrees"},
                  {"[crop]", "saturation", "1", "0", "above 0"},
                  {"[crop]", "exposure", "1", "0", "above 0"},
                  {"[conv]", "padding", "0 3", "-3", "at least 0"},
                  {"[max]", "padding", "0 3", "-1", "at least 0"},
                  {"[yolo]", "ignore_thresh", "0 .5 1", "-.1 1.1 70", "0 to 1"},
                  {"[yolo]", "truth_thresh", "0 1 2", "-1", "at least 0"},
                  {"[yolo]", "jitter", "0 .3", "-.1 1 5", "0 to below 1"},
                  {"[region]", "jitter", "0 .3", "-.1 1 5", "0 to below 1"},
                  {"[detection]", "jitter", "0 .3", "-.1 1 5", "0 to below 1"}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        bool net = !strcmp(ranges[i].section, "[net]");
        char values[40], text[100], message[200];
        for (int bad = 0; bad < 2; bad++) {
            strcpy(values, bad ? ranges[i].bad : ranges[i].good);
            for (char *value = strtok(values, " "); value; value = strtok(NULL, " ")) {
                snprintf(text, sizeof text, "%s%s\n%s=%s\n", net ? "" : "[net]\n",
                         ranges[i].section, ranges[i].key, value);
                snprintf(message, sizeof message, "a.cfg:%d: %s=%s in %s: allowed: %s", net ? 2 : 3,
                         ranges[i].key, value, ranges[i].section, ranges[i].allowed);
                check_value(text, bad ? message : "");
                CHECK_STR(notes, "");
            }
        }
    }
}

AMP_TEST(blanks_for_commas)
{
    check_value("[net]\n[yolo]\nmask = 0 1 2\n",
                "a.cfg:3: mask=0 1 2 in [yolo]: Darknet drops blanks and reads 012; allowed: "
                "commas between numbers");
    check_value("[net]\n[yolo]\nnum=2\nanchors=10,14  23,27\n",
                "a.cfg:4: anchors=10,14  23,27 in [yolo]: Darknet drops blanks and reads "
                "10,1423,27; allowed: commas between numbers");
    check_value("[net]\nwidth=4\t16\n",
                "a.cfg:2: width=4\t16 in [net]: Darknet drops blanks and reads 416; allowed: "
                "one number");
    check_value("[net]\n[yolo]\nnum=2\nanchors = 10,14 ,  23 , 27 # or 9 9\nmap=my map\n", "");
}

AMP_TEST(anchors_are_sizes)
{
    check_value("[net]\n[yolo]\nnum=2\nanchors=1,2, 3,-4\n",
                "a.cfg:4: anchors= in [yolo]: -4; allowed: numbers above 0");
    check_value("[net]\n[region]\nnum=2\nanchors=0,2, 3,4 # of cells\n",
                "a.cfg:4: anchors= in [region]: 0; allowed: numbers above 0");
    check_value("[net]\n[yolo]\nnum=1\nanchors=.1,2 # -1,0\n", "");
}

AMP_TEST(schedules_of_darknet)
{
#define STEPS "[net]\npolicy=steps\n"
    check_value(STEPS "steps=4,9\nscales=.1,-.1\n",
                "a.cfg:4: scales=.1,-.1 in [net]: allowed: factors above 0");
    check_value(STEPS "steps=4\nscales=0\n",
                "a.cfg:4: scales=0 in [net]: allowed: factors above 0");
    check_value(STEPS "steps=9,4\nscales=.1,.1\n",
                "a.cfg:3: steps=9,4 in [net]: allowed: each at or after the one before it; Darknet "
                "would come to 4 only at 9");
    check_value(STEPS "steps=4\nscales=.1,.1\n",
                "a.cfg:4: scales=.1,.1 in [net]: 2 numbers; allowed: 1, one for each of steps=; "
                "Darknet would not read the others");
    check_note(STEPS "steps=-1,4\nscales=.1,10\n",
               "a.cfg:3: steps=-1,4 in [net]: Darknet never comes to a negative step, so "
               "learning_rate stays as it is\n");
    check_note(STEPS "steps=0,4,4\nscales=2.5,.1,.1\n", "");
    check_value("[net]\npolicy=step\nscale=-1\n",
                "a.cfg:3: scale=-1 in [net]: allowed: a factor above 0");
    check_value("[net]\npolicy=exp\ngamma=0\n",
                "a.cfg:3: gamma=0 in [net]: allowed: a factor above 0");
    check_note("[net]\npolicy=step\nscale=.1\n", "");
    check_note("[net]\npolicy=exp\ngamma=.99\n", "");
    check_note("[net]\npolicy=sigmoid\ngamma=-1\nscale=-1\nsteps=9,4\nscales=-1\n", "");
    check_note("[net]\nburn_in=9\nmax_batches=9\n",
               "a.cfg:2: burn_in=9 in [net]: max_batches=9 ends the training before learning_rate "
               "is reached\n");
    check_note("[net]\nburn_in=9\nmax_batches=10\n", "");
    check_note("[net]\nburn_in=9\n", "");
}

static void check_structure(const char *text, const char *message)
{
    struct amp_cfg_file *file = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    REQUIRE(file != NULL);
    err[0] = '\0';
    struct amp_complaints c = complaints(file);
    CHECK_INT(amp_cfg_values_check(&c), *message ? -1 : 0);
    CHECK_STR(err, message);
    amp_cfg_free(file);
}

/* One number, each in its kind of key: Darknet's int has 32 bits, its float less than a double. */
AMP_TEST(numbers_of_the_wrong_kind)
{
#define WHOLE "a whole number of 32 bits"
#define MANY  ", or several with commas between them"
    static const struct {
        const char *key, *good, *bad, *allowed;
    } cases[] = {
        {"max_batches", "0 2147483647 -2147483648", "2147483648 -2147483649 1.5 1e3 4x .", WHOLE},
        {"learning_rate", "0 .5 3.4e38 1.2e-38", "3.5e38 -3.5e38 nan inf 1x ,", "a finite number"},
        {"steps", "4 4,2147483647", "2147483648 4.5 x", WHOLE MANY},
        {"scales", ".1 .1,3e38", "4e38 .1x", "a finite number" MANY},
        {"subdivisions", "1 16", "0 -1 2.5 4x 2147483648", "a divisor of batch, at least 1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int bad = 0; bad < 2; bad++) {
            char values[80], text[200], begin[200];
            strcpy(values, bad ? cases[i].bad : cases[i].good);
            for (char *value = strtok(values, " "); value; value = strtok(NULL, " ")) {
                snprintf(text, sizeof text, "[net]\n%s=%s\n", cases[i].key, value);
                snprintf(begin, sizeof begin, "a.cfg:2: %s=%s in [net]: ", cases[i].key, value);
                struct amp_cfg_file *file =
                    amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
                REQUIRE(file != NULL);
                err[0] = '\0';
                struct amp_complaints c = complaints(file);
                if (amp_cfg_values_check(&c) != -bad)
                    TEST_FAIL("%s=%s: %s", cases[i].key, value, err);
                CHECK(!bad ||
                      (!strncmp(err, begin, strlen(begin)) && strstr(err, cases[i].allowed)));
                amp_cfg_free(file);
            }
        }
    check_structure("[net]\nsteps=4,2.5\n",
                    "a.cfg:2: steps=4,2.5 in [net]: \"2.5\"; allowed: " WHOLE MANY);
    check_structure("[net]\nmixed_precision=1\nsubdivisions=auto\n", "");
}

AMP_TEST(anchors_beyond_the_last_are_told)
{
    check_structure("[net]\n[region]\nnum=3\nanchors=1,2,3,4,5,6,7\n",
                    "a.cfg:4: anchors= in [region]: 7 numbers; allowed: 6, two for each of num=3");
    check_structure("[net]\n[region]\nnum=3\nanchors=1,2,3,4,5,6\n", "");
}

static void check_names_remark(const char *list)
{
    char text[64], begin[64];
    snprintf(text, sizeof text, "[net]\n[yolo]\nnum=2\n%s\n", list);
    snprintf(begin, sizeof begin, "a.cfg:4: %s in [yolo]: ", list);
    struct amp_cfg_file *file = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    REQUIRE(file != NULL);
    struct amp_complaints c = complaints(file);
    CHECK_INT(amp_cfg_values_check(&c), -1);
    CHECK(!strncmp(err, begin, strlen(begin)) && strstr(err, "a remark is not allowed"));
    amp_cfg_free(file);
}

AMP_TEST(odd_values_are_told)
{
    check_note("[net]\nlearning_rate=0\n",
               "a.cfg:2: learning_rate=0 in [net]: the weights will not change\n");
    check_note("[net]\nlearning_rate=.1\n[conv]\nlearning_rate=0\n", "");
    check_note("[net]\nwidth=9\nbatch = 4 # images \n[conv]\nfilters=8#\n",
               "a.cfg:3: batch=4 # images in [net]: Darknet reads 4; put the remark on its own "
               "line\n");
    check_note("[net]\nsteps=1, 2 # of 3\n",
               "a.cfg:2: steps=1, 2 # of 3 in [net]: Darknet reads 1,2; put the remark on its "
               "own line\n");
    check_note("[net]\nauthor=me # and you\n#batch=1 # one\n", "");
    /* Darknet counts commas, and would read one more step with a scale of 0. */
    check_structure("[net]\npolicy=steps\nsteps=2,4 # then, slowly\nscales=.1,.1 # both, tenth\n",
                    "a.cfg:3: steps=2,4 # then, slowly in [net]: Darknet takes a comma of the "
                    "remark for one of the list (a remark is not allowed after a value: put it on "
                    "a line of its own)");
    check_names_remark("anchors=3,3, 9,9 # w,h");
    check_names_remark("mask=0,1 #2,3");
    check_names_remark("mask=0 # a # b,");
    check_structure("[net]\nbatch=4 # images, each\n[yolo]\nnum=2\nanchors=3,3, 9,9 # w and h\n",
                    "");
}

/* Darknet reads as many scales as there are steps. */
AMP_TEST(steps_and_scales)
{
    check_structure("[net]\npolicy=steps\nsteps=1,2,3\nscales=.1,.2\n",
                    "a.cfg:4: scales=.1,.2 in [net]: 2 numbers; allowed: at least 3, one for each "
                    "of steps=");
    check_structure("[net]\npolicy=steps\nsteps=1,2\nscales=.1,.2\n", "");
    check_structure("[net]\npolicy=steps\nsteps=1,2\nscales=.1,.2,.3\n", "");
    check_structure("[net]\npolicy=steps\nsteps=1\n",
                    "a.cfg:2: policy=steps in [net]: needs the keys steps= and scales=");
    check_structure("[net]\npolicy=constant\nsteps=1,2,3\nscales=.1\n", "");
}

/* Blanks are gone when Darknet reads a value; messages have them. */
AMP_TEST(values_are_told_as_written)
{
    check_structure("[net]\nbatch = 4 x # on\n",
                    "a.cfg:2: batch=4 x # on in [net]: \"4 x # on\"; allowed: a whole number of "
                    "32 bits (a remark is not allowed after a value: put it on a line of its "
                    "own)");
    check_structure("[net]\npolicy=steps\nsteps=1, 2, 3\nscales=.1, .2\n",
                    "a.cfg:4: scales=.1, .2 in [net]: 2 numbers; allowed: at least 3, one for each "
                    "of steps=");
    check_structure("[net]\npolicy=step\nstep=0 # off\n",
                    "a.cfg:3: step=0 # off in [net]: allowed: at least 1");
    check_misspelt("[net]\nBatch = 8 # on\t\n",
                   "a.cfg:2: Batch=8 # on in [net]: unknown key; did you mean batch?");
}

AMP_TEST_MAIN
