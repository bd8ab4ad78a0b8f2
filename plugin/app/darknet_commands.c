/* Decides which of Darknet's own commands a command line is, by a table that restates the run_*
 * functions of Darknet's examples. It must not know which words are files (darknet_line.c), nor
 * what is in them (darknet_checks.c). Words that are no command are refused here: Darknet does
 * nothing then, with status 0. */

#define _GNU_SOURCE
#include "darknet_commands.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amp.h"
#include "amp_observe.h"
#include "measuring.h"
#include "results.h"
#include "valid.h"
#include "watch.h"
#include "plugin/core/read/text.h"
#include "plugin/spread/launcher.h"

int darknet_main(int argc, char **argv);

/* ---- the table ---- */

/* Letters behind a = say what Darknet reads there: darknet_line.c. */
#define DETECTOR  "prefix= thresh=U hier=U c=N s=N avg=P gpus=L out= clear fullscreen w=N h=N fps=N"
#define YOLO      "prefix= thresh=U c=N s=N avg=P"
#define CLASSIFY  "gpus=L c=N t=N clear"
#define SEGMENT   "gpus=L c=N clear display"
#define CHARACTER "file= seed= len=N temp=G srand=I clear tokenized tokens="
#define GO        "gpus=L clear multi anon iters=N resign=I cpuct=F temp=G time=F"
#define LSD       "clear display b=N file="
#define NIGHTMARE                                                                                  \
    "range=P norm=N rounds=N iters=N octaves=P zoom=G rate=F thresh=F rotate=F momentum=F "        \
    "lambda=F prefix= "                                                                            \
    "reconstruct smooth=N"
/* Words of ours: */
#define SAVES " backup=" /* where Darknet has a fixed folder */
#define WATCH " topk topk_every=P patience=P chart= quiet"
#define HALF  " half"

#define CIFAR      "data/cifar/cifar-10-batches-bin/"
#define CIFAR_TEST CIFAR "test_batch.bin"
#define CIFAR_TRAIN                                                                                \
    CIFAR "data_batch_1.bin " CIFAR "data_batch_2.bin " CIFAR "data_batch_3.bin " CIFAR            \
          "data_batch_4.bin " CIFAR "data_batch_5.bin"
#define CIFAR_HINT "they are of CIFAR-10's binary version"

#define DETECTOR_HINT "`darknet detector map DATA CFG WEIGHTS` takes the valid= list of DATA"

enum { /* for short lines */
       NAMES = AMP_NAMES,
       OUTPUTS = AMP_OUTPUTS,
       LABELS = AMP_LABELS,
       VALID = AMP_VALID,
       TEST = AMP_TEST,
       RESULTS = AMP_RESULTS,
       NO_DEFAULT = AMP_NO_DEFAULT,
       TRAINS = AMP_TRAINS,
       GPU_ONLY = AMP_GPU_ONLY,
       READS_TEXT = AMP_READS_TEXT,
       ONE_IMAGE = AMP_ONE_IMAGE,
       FLIPS = AMP_FLIPS,
       PARTS = AMP_PARTS,
       STOCK = AMP_STOCK
};

/* `detector train` and `map` are ours and only listed. `regressor test` takes its files as the
 * other tests do without DATA, whatever Darknet's usage says. */
/* clang-format off */
static const struct amp_darknet_command table[] = {
    {{"detector", "test"}, "DATA CFG [WEIGHTS] [IMAGE]", DETECTOR HALF, .takes = NAMES},
    {{"detector", "valid"}, "DATA CFG [WEIGHTS]", DETECTOR HALF, .takes = NAMES | VALID | RESULTS},
    {{"detector", "valid2"}, "DATA CFG [WEIGHTS]", DETECTOR,
     .takes = NAMES | VALID | RESULTS | FLIPS},
    {{"detector", "recall"}, "DATA CFG [WEIGHTS]", DETECTOR, .needs = "data/coco_val_5k.list",
     .hint = DETECTOR_HINT},
    {{"detector", "demo"}, "DATA CFG [WEIGHTS] [VIDEO]", DETECTOR HALF, .takes = NAMES},
    {{"detector", "train"}, "DATA CFG [WEIGHTS]", .options = DETECTOR},
    {{"detector", "map"}, "DATA CFG WEIGHTS", .options = DETECTOR},
    {{"detect", NULL}, "CFG [WEIGHTS] [IMAGE]", "thresh=U out= fullscreen", .takes = NAMES,
     .data = "cfg/coco.data", .hint = "`darknet detector test DATA CFG WEIGHTS` takes another"},
    {{"classifier", "train"}, "DATA CFG [WEIGHTS]", CLASSIFY WATCH, .takes = TRAINS},
    {{"classifier", "predict"}, "DATA CFG [WEIGHTS] [IMAGE]", CLASSIFY, .takes = OUTPUTS},
    {{"classifier", "try"}, "DATA CFG WEIGHTS IMAGE LAYER", CLASSIFY, .takes = OUTPUTS},
    {{"classifier", "fout"}, "DATA CFG WEIGHTS LIST", .options = CLASSIFY},
    {{"classifier", "demo"}, "DATA CFG [WEIGHTS] [VIDEO]", CLASSIFY,
     .takes = OUTPUTS | NO_DEFAULT},
    {{"classifier", "gun"}, "DATA CFG [WEIGHTS] [VIDEO]", CLASSIFY,
     .takes = OUTPUTS | NO_DEFAULT, .outputs = 19698},
    {{"classifier", "threat"}, "DATA CFG [WEIGHTS] [VIDEO]", CLASSIFY,
     .takes = OUTPUTS | NO_DEFAULT},
    {{"classifier", "test"}, "DATA CFG [WEIGHTS]", CLASSIFY, .takes = TEST},
    {{"classifier", "csv"}, "DATA CFG [WEIGHTS]", CLASSIFY, .takes = TEST | ONE_IMAGE},
    {{"classifier", "label"}, "DATA CFG [WEIGHTS]", CLASSIFY, .takes = OUTPUTS | TEST},
    {{"classifier", "valid"}, "DATA CFG [WEIGHTS]", CLASSIFY, .takes = LABELS | VALID},
    {{"classifier", "validmulti"}, "DATA CFG [WEIGHTS]", CLASSIFY, .takes = LABELS | VALID},
    {{"classifier", "valid10"}, "DATA CFG [WEIGHTS]", CLASSIFY, .takes = LABELS | VALID},
    {{"classifier", "validfull"}, "DATA CFG [WEIGHTS]", CLASSIFY, .takes = LABELS | VALID},
    {{"classifier", "validcrop"}, "DATA CFG [WEIGHTS]", CLASSIFY, .takes = LABELS | VALID,
     .least_images = 1000},
    {{"classify", NULL}, "CFG [WEIGHTS] [IMAGE]", "", .takes = OUTPUTS,
     .data = "cfg/imagenet1k.data",
     .hint = "`darknet classifier predict DATA CFG WEIGHTS` takes another"},
    {{"regressor", "train"}, "DATA CFG [WEIGHTS]", SEGMENT, .takes = TRAINS},
    {{"regressor", "test"}, "CFG [WEIGHTS] [IMAGE]", .options = SEGMENT},
    {{"regressor", "demo"}, "DATA CFG [WEIGHTS] [VIDEO]", SEGMENT, .takes = OUTPUTS | NO_DEFAULT},
    {{"segmenter", "train"}, "DATA CFG [WEIGHTS]", SEGMENT, .takes = TRAINS},
    {{"segmenter", "test"}, "DATA CFG [WEIGHTS] [IMAGE]", .options = SEGMENT},
    {{"segmenter", "demo"}, "DATA CFG [WEIGHTS] [VIDEO]", .options = SEGMENT},
    {{"isegmenter", "train"}, "DATA CFG [WEIGHTS]", SEGMENT, .takes = TRAINS},
    {{"isegmenter", "test"}, "DATA CFG [WEIGHTS] [IMAGE]", .options = SEGMENT},
    {{"isegmenter", "demo"}, "DATA CFG [WEIGHTS] [VIDEO]", .options = SEGMENT},
    {{"yolo", "train"}, "CFG [WEIGHTS]", YOLO SAVES, .takes = TRAINS},
    {{"yolo", "test"}, "CFG [WEIGHTS] [IMAGE]", YOLO, .classes = 20},
    {{"yolo", "valid"}, "CFG [WEIGHTS]", YOLO, .classes = 20,
     .needs = "results/ /home/pjreddie/data/voc/2007_test.txt", .hint = DETECTOR_HINT},
    {{"yolo", "recall"}, "CFG [WEIGHTS]", YOLO, .classes = 20,
     .needs = "results/ data/voc.2007.test", .hint = DETECTOR_HINT},
    {{"yolo", "demo"}, "CFG [WEIGHTS] [VIDEO]", YOLO, .classes = 20},
    {{"coco", "train"}, "CFG [WEIGHTS]", YOLO SAVES, .takes = TRAINS},
    {{"coco", "test"}, "CFG [WEIGHTS] [IMAGE]", YOLO, .classes = 80},
    {{"coco", "valid"}, "CFG [WEIGHTS]", YOLO, .classes = 80,
     .needs = "results/ data/coco_val_5k.list", .hint = DETECTOR_HINT},
    {{"coco", "recall"}, "CFG [WEIGHTS]", YOLO, .classes = 80,
     .needs = "results/ /home/pjreddie/data/voc/test/2007_test.txt", .hint = DETECTOR_HINT},
    {{"coco", "demo"}, "CFG [WEIGHTS] [VIDEO]", YOLO, .classes = 80},
    {{"rnn", "train"}, "CFG [WEIGHTS]", CHARACTER SAVES, .takes = TRAINS},
    {{"rnn", "valid"}, "CFG [WEIGHTS]", CHARACTER, .takes = READS_TEXT | ONE_IMAGE},
    {{"rnn", "validtactic"}, "CFG [WEIGHTS]", CHARACTER, .takes = READS_TEXT | ONE_IMAGE},
    {{"rnn", "vec"}, "CFG [WEIGHTS]", CHARACTER, .takes = READS_TEXT | ONE_IMAGE},
    {{"rnn", "generate"}, "CFG [WEIGHTS]", CHARACTER, .takes = ONE_IMAGE},
    {{"rnn", "generatetactic"}, "CFG [WEIGHTS]", CHARACTER, .takes = READS_TEXT | ONE_IMAGE},
    {{"tag", "train"}, "CFG [WEIGHTS]", "clear" SAVES, .takes = TRAINS},
    {{"tag", "test"}, "CFG [WEIGHTS] [IMAGE]", "clear", .needs = "data/tags.txt",
     .hint = "it has one tag a line"},
    {{"super", "train"}, "CFG [WEIGHTS]", "clear" SAVES, .takes = TRAINS},
    {{"super", "test"}, "CFG [WEIGHTS] [IMAGE]", .options = "clear"},
    {{"cifar", "train"}, "CFG [WEIGHTS]", SAVES, .takes = TRAINS,
     .needs = "data/cifar/labels.txt " CIFAR_TRAIN, .hint = CIFAR_HINT},
    {{"cifar", "distill"}, "CFG [WEIGHTS]", SAVES, .takes = TRAINS,
     .needs = "data/cifar/labels.txt results/ensemble.csv " CIFAR_TRAIN, .hint = CIFAR_HINT},
    {{"cifar", "extract"}, "ANY", "",
     .needs = CIFAR_TRAIN " " CIFAR_TEST " data/cifar/train/ data/cifar/test/",
     .hint = CIFAR_HINT},
    {{"cifar", "test"}, "CFG [WEIGHTS]", "", .needs = CIFAR_TEST, .hint = CIFAR_HINT},
    {{"cifar", "multi"}, "CFG [WEIGHTS]", "", .needs = CIFAR_TEST, .hint = CIFAR_HINT},
    {{"cifar", "csv"}, "CFG [WEIGHTS]", "", .needs = CIFAR_TEST, .hint = CIFAR_HINT},
    {{"cifar", "csvtrain"}, "CFG [WEIGHTS]", "", .needs = CIFAR_TRAIN, .hint = CIFAR_HINT},
    {{"cifar", "eval"}, "ANY", "", .needs = CIFAR_TEST " results/combined.csv",
     .hint = CIFAR_HINT},
    {{"go", "train"}, "CFG WEIGHTS MOVES", GO SAVES, .takes = TRAINS},
    {{"go", "valid"}, "CFG WEIGHTS MOVES", .options = GO},
    {{"go", "self"}, "CFG WEIGHTS [CFG] [WEIGHTS]", GO, .needs = "gnugo",
     .hint = "GNU Go, which counts the points"},
    {{"go", "test"}, "CFG [WEIGHTS]", .options = GO},
    {{"go", "engine"}, "CFG [WEIGHTS]", .options = GO},
    {{"lsd", "traingan"}, "CFG WEIGHTS CFG [WEIGHTS]", LSD SAVES, .takes = GPU_ONLY},
    {{"lsd", "trainprog"}, "CFG WEIGHTS CFG [WEIGHTS]", LSD SAVES, .takes = GPU_ONLY},
    {{"lsd", "traincolor"}, "CFG WEIGHTS CFG [WEIGHTS]", LSD SAVES, .takes = GPU_ONLY,
     .needs = "/home/pjreddie/data/imagenet/imagenet1k.train.list"},
    {{"lsd", "gan"}, "CFG [WEIGHTS]", .options = LSD},
    {{"lsd", "inter"}, "CFG [WEIGHTS]", .options = LSD},
    {{"lsd", "test"}, "CFG [WEIGHTS] [IMAGE]", .options = LSD},
    {{"lsd", "color"}, "CFG [WEIGHTS] [IMAGE]", .options = LSD},
    {{"nightmare", NULL}, "CFG WEIGHTS IMAGE LAYER", NIGHTMARE, .takes = STOCK},
    {{"art", NULL}, "CFG [WEIGHTS]", "c=N", .outputs = 435},
    {{"average", NULL}, "CFG OUT WEIGHTS [WEIGHTS...]", .options = ""},
    {{"rgbgr", NULL}, "CFG WEIGHTS OUT", .options = ""},
    {{"reset", NULL}, "CFG WEIGHTS OUT", .options = ""},
    {{"denormalize", NULL}, "CFG WEIGHTS OUT", "", .takes = STOCK},
    {{"normalize", NULL}, "CFG WEIGHTS OUT", "", .takes = STOCK},
    {{"rescale", NULL}, "CFG WEIGHTS OUT", .options = ""},
    {{"oneoff", NULL}, "CFG WEIGHTS OUT", .options = ""},
    {{"oneoff2", NULL}, "CFG WEIGHTS OUT LAYERS", "", .takes = PARTS},
    {{"partial", NULL}, "CFG WEIGHTS OUT LAYERS", "", .takes = PARTS},
    {{"statistics", NULL}, "CFG WEIGHTS", .options = ""},
    {{"print", NULL}, "CFG WEIGHTS LAYER", .options = ""},
    {{"visualize", NULL}, "CFG [WEIGHTS]", .options = ""},
    {{"ops", NULL}, "CFG", .options = ""},
    {{"speed", NULL}, "CFG [TIMES]", .options = ""},
    {{"mkimg", NULL}, "CFG WEIGHTS HEIGHT WIDTH NUMBER PREFIX", .options = ""},
    {{"3d", NULL}, "IMAGE IMAGE [OUT]", .options = ""},
    {{"test", NULL}, "IMAGE", .options = ""},
    {{"imtest", NULL}, "IMAGE", .options = ""},
};
/* clang-format on */
enum { ROWS = sizeof table / sizeof *table };

/* ---- which command ---- */

static const struct amp_darknet_command *find(const char *first, const char *second)
{
    for (int i = 0; i < ROWS; i++) {
        const struct amp_darknet_command *c = &table[i];
        if (!strcmp(first, c->words[0]) && (!c->words[1] || !strcmp(second, c->words[1]))) return c;
    }
    return NULL;
}

/* The first words, or the second ones of `first`, with neighbours that are the same left out. */
static size_t list_words(const char *first, const char *words[ROWS + 1])
{
    size_t n = 0;
    for (int i = 0; i < ROWS; i++) {
        const char *word = table[i].words[first != NULL];
        bool fits = !first || !strcmp(first, table[i].words[0]);
        if (fits && word && (!n || strcmp(words[n - 1], word))) words[n++] = word;
    }
    if (!first) words[n++] = "amp";
    return n;
}

static int refuse_word(const char *first, const char *second)
{
    const char *words[ROWS + 1];
    size_t n = list_words(NULL, words);
    bool known = false;
    for (size_t i = 0; i < n; i++)
        known = known || !strcmp(first, words[i]);
    if (!known) {
        const char *nearest = amp_nearest_word(first, words, n);
        fprintf(stderr, "error: unknown command \"%s\"%s%s%s\n", first,
                nearest ? "; did you mean " : ": darknet --help lists commands",
                nearest ? nearest : "", nearest ? "?" : "");
        return 1;
    }
    n = list_words(first, words);
    const char *nearest = *second ? amp_nearest_word(second, words, n) : NULL;
    if (*second)
        fprintf(stderr, "error: unknown command \"%s %s\"", first, second);
    else
        fprintf(stderr, "error: %s is several commands", first);
    if (nearest) {
        fprintf(stderr, "; did you mean %s %s?\n", first, nearest);
        return 1;
    }
    fputc('\n', stderr);
    for (int i = 0; i < ROWS; i++)
        if (!strcmp(table[i].words[0], first)) {
            amp_darknet_print_files(&table[i], stderr);
            fputc('\n', stderr);
        }
    return 1;
}

/* ---- all ---- */

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-help")) return true;
    return false;
}

/* `classifier train` with words of ours. */
static int watch(const struct amp_darknet_line *l)
{
    const char *every = amp_darknet_option(l, "-topk_every"),
               *gpus = amp_darknet_option(l, "-gpus");
    const char *patience = amp_darknet_option(l, "-patience");
    struct amp_train_words words = {.data = amp_darknet_file(l, "DATA"),
                                    .cfg = amp_darknet_file(l, "CFG"),
                                    .weights = amp_darknet_file(l, "WEIGHTS"),
                                    .clear = amp_darknet_option(l, "-clear"),
                                    .map = amp_darknet_option(l, "-topk"),
                                    .map_every = every ? atoi(every) : 0,
                                    .patience = patience ? atoi(patience) : 0,
                                    .quiet = amp_darknet_option(l, "-quiet"),
                                    .chart = amp_darknet_option(l, "-chart")};
    if ((every || patience) && !words.map)
        return amp_complain("-topk_every and -patience have no effect without -topk");
    if ((words.map || words.chart) && gpus && strchr(gpus, ','))
        return amp_complain("-topk and -chart are for one GPU; leave out either them or -gpus");
    if (words.quiet && !amp_trains_mixed(words.cfg)) return amp_complain(AMP_QUIET_REFUSED);
    if (amp_watch_training(&words, &amp_measure_top, l->argc, l->argv)) return -1;
    if (words.quiet) amp_watch_quietly();
    return 0;
}

/* Of a detector, as far as it has such a word. */
static bool takes_half(const struct amp_darknet_line *l)
{
    return strstr(l->command->options, HALF);
}

static bool is_valid(const struct amp_darknet_line *l)
{
    return takes_half(l) && (l->command->takes & RESULTS);
}

/* With -half Darknet gets a copy of the cfg that has the keys, which lasts as long as the program.
 * 1: it is Darknet's; 0: all is done; -1 after saying why not. */
static int infer(struct amp_darknet_line *l)
{
    static struct amp_valid v;
    const char *cfg = amp_darknet_file(l, "CFG"), *gpu = amp_darknet_option(l, "-i");
    v.data = amp_darknet_file(l, "DATA");
    v.weights = amp_darknet_file(l, "WEIGHTS");
    v.out = amp_darknet_option(l, "-out");
    amp_machine_choose(amp_darknet_option(l, "-nogpu") ? -1 : gpu ? atoi(gpu) : 0);
    if (amp_inference_open(&v.inference, cfg, amp_darknet_option(l, "-half"),
                           is_valid(l) ? amp_valid_count(v.data) : 0))
        return -1;
    if (v.inference.batched) return amp_valid_run(&v);
    for (int i = 1; i < l->argc; i++)
        if (l->argv[i] == cfg) l->argv[i] = v.inference.cfg;
    return 1;
}

int amp_command_darknet(int argc, char **argv, int first, int second)
{
    const char *one = argv[first], *two = second < argc ? argv[second] : "";
    struct amp_darknet_line l = {.command = find(one, two)};
    if (!l.command) return refuse_word(one, two);
    if (asks_for_help(argc, argv)) {
        amp_darknet_print_usage(l.command, stdout);
        return fflush(stdout) ? 1 : 0;
    }
    signal(SIGXFSZ, SIG_IGN); /* a file larger than allowed is an error like a full disk */
    if (amp_darknet_read(&l, argc, argv, first, second)) return 1;
    if (!amp_darknet_check(&l)) return 1;
    if (!strcmp(l.command->options, CLASSIFY WATCH) && watch(&l)) {
        if (!amp_launch_read(getenv).rank) fputs("nothing was trained\n", stderr);
        return 1;
    }
    bool mixed = amp_darknet_option(&l, "-half") || amp_trains_mixed(amp_darknet_file(&l, "CFG"));
    if (mixed) amp_cut_line_ends();
    int rest = takes_half(&l) ? infer(&l) : 1;
    if (rest < 1) return rest ? 1 : 0;
    amp_refuse_bad_images(1);
    amp_refuse_bad_outputs();
    amp_darknet_watch_stdin(&l, mixed);
    int status = darknet_main(l.argc, l.argv); /* Darknet keeps pointers into it */
    bool trains = l.command->takes & TRAINS;   /* then its result is not what it prints */
    if (amp_results_end() || (!trains && amp_result_flush())) return 1;
    return amp_darknet_names_were_wrong() ? 1 : status;
}
