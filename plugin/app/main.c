/* The `darknet` program: decides which words are a command of ours, and hands everything else to
 * darknet_commands.c. It must not know what a command does. It also starts itself again so that
 * OpenMP's threads wait as they should. */

#define _GNU_SOURCE
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "amp.h"
#include "commands.h"
#include "darknet.h"
#include "darknet_commands.h"
#include "fork_words.h"
#include "plugin/core/read/text.h"
#include "plugin/spread/launcher.h"

static int amp_command(int argc, char **argv);
static int refuse_moved(int argc, char **argv);

/* `darknet WORD1 WORD2 ...`. A row without a second word must come after those with one. */
struct command {
    const char *words[2]; /* words[1] NULL: any second word, or none */
    int (*run)(int argc, char **argv);
    bool whole; /* run gets main's argv, else its name and what follows it */
};

static const struct command commands[] = {
    {{"amp", "plan"}, amp_command_plan, false},
    {{"amp", "data"}, amp_command_data, false},
    {{"amp", "check"}, amp_command_check, false},
    {{"amp", "profile"}, amp_command_profile, false},
    {{"amp", "lr-find"}, amp_command_lr_find, false},
    {{"amp", "export"}, amp_command_export, false},
    {{"amp", "predict"}, amp_command_predict, false},
    {{"amp", "keys"}, amp_command_keys, false},
    {{"amp", "bench-inference"}, amp_command_bench_inference, false},
    {{"amp", "bench-loader"}, refuse_moved, false},
    {{"amp", "shrink"}, refuse_moved, false},
    {{"amp", NULL}, amp_command, false},
    {{"detector", "calc_anchors"}, refuse_moved, false},
    {{"detector", "map"}, amp_command_detector_map, false},
    {{"detector", "train"}, amp_command_detector_train, true},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static const char help[] =
    "Usage: darknet amp plan CFG [WEIGHTS] [--memory GIB] [--processes N] [--json]\n"
    "         what runs in which precision, and why; which batch fits into memory\n"
    "       darknet amp data DATA [CFG] [--anchors N] [--sheet FILE.jpg] [--json FILE]\n"
    "         what a data set consists of, and what is wrong with it; anchors that fit\n"
    "       darknet amp check DATA CFG [WEIGHTS] [--json]\n"
    "         mixed precision and FP32 compared on your own images\n"
    "       darknet amp profile CFG [DATA] [--json]\n"
    "         seconds of every layer in FP32 and in mixed precision; whether loading keeps up\n"
    "       darknet amp lr-find DATA CFG [WEIGHTS] [--chart FILE.svg] [--json]\n"
    "         a learning rate that suits a network and its images\n"
    "       darknet amp export CFG WEIGHTS OUT.onnx [--half] [--nms | --raw] [--names FILE]\n"
    "         a trained network as ONNX, compared with Darknet\n"
    "       darknet amp predict CFG WEIGHTS --input FILE --output FILE [--precision fp16]\n"
    "         what a network makes of given numbers\n"
    "       darknet amp keys [WORD]\n"
    "         the keys that a cfg may have\n"
    "       darknet amp bench-inference CFG [WEIGHTS] [--batch N] [--json]\n"
    "         seconds of inference in FP32, FP16 and BF16\n"
    "       darknet amp --version\n"
    "         versions of the libraries, and the CPU or GPU found\n"
    "       darknet detector train DATA CFG [WEIGHTS] [-clear] [-map] [-chart FILE.svg]\n"
    "         trains a detector; mixed_precision=1 under [net] of the cfg turns mixed precision "
    "on\n"
    "       darknet detector map DATA CFG WEIGHTS [WEIGHTS] [--page FILE.html] [--json FILE]\n"
    "         mean average precision of a detector\n"
    "Each of them takes --help. All other commands are Darknet's own, as detector test, detector "
    "demo\nand classifier train. `darknet classifier` lists those of a group with their files.\n";

static const char *nearest_of(const char *first, const char *word)
{
    const char *known[COMMANDS];
    size_t n = 0;
    for (int i = 0; i < COMMANDS; i++)
        if (commands[i].words[1] && !strcmp(commands[i].words[0], first))
            known[n++] = commands[i].words[1];
    return amp_nearest_word(word, known, n);
}

static int print_help(void)
{
    fputs(help, stdout);
    return fflush(stdout) ? 1 : 0;
}

static bool is_help(const char *word)
{
    return !strcmp(word, "--help") || !strcmp(word, "-help");
}

static bool is_version(const char *word)
{
    return !strcmp(word, "--version") || !strcmp(word, "-version");
}

static int refuse_word(const char *first, const char *word, const char *nearest)
{
    fprintf(stderr, "error: unknown command \"%s %s\"", first, word);
    if (nearest) fprintf(stderr, "; did you mean %s %s?", first, nearest);
    fputc('\n', stderr);
    return 1;
}

/* `darknet amp` with no command of ours behind it. */
static int amp_command(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : "";
    if (is_help(word)) return print_help();
    if (is_version(word)) return amp_print_version();
    if (*word) refuse_word("amp", word, nearest_of("amp", word));
    fputs(help, stderr);
    return 1;
}

/* They were commands, or are AlexeyAB's. Whoever types one learns where it went. */
static int refuse_moved(int argc, char **argv)
{
    (void)argc;
    if (!strcmp(argv[0], "darknet amp shrink"))
        fputs("error: darknet amp shrink is now scripts/shrink, with the same arguments\n", stderr);
    else if (!strcmp(argv[0], "darknet detector calc_anchors"))
        fputs("error: darknet detector calc_anchors is here darknet amp data DATA CFG --anchors N, "
              "at the width and height of CFG\n",
              stderr);
    else
        fputs("error: darknet amp bench-loader is now darknet amp profile CFG DATA\n", stderr);
    return 1;
}

/* ---- which command ---- */

/* Darknet's general options, -i N and -nogpu, may stand anywhere. Returns the place of the first
 * word from `from` on that is neither, or argc. */
static int next_word(int argc, char **argv, int from)
{
    int i = from;
    while (i < argc && (!strcmp(argv[i], "-nogpu") || (!strcmp(argv[i], "-i") && i + 1 < argc)))
        i += strcmp(argv[i], "-i") ? 1 : 2;
    return i;
}

static const struct command *find_command(const char *first, const char *second)
{
    for (const struct command *c = commands; c < commands + COMMANDS; c++) {
        if (strcmp(first, c->words[0])) continue;
        if (!c->words[1] || !strcmp(second, c->words[1])) return c;
    }
    return NULL;
}

/* Runs a command without its own words, whose places are first and second. */
static int run(const struct command *c, int argc, char **argv, int first, int second)
{
    static char name[64];
    int n = 0;
    char **rest = calloc((size_t)argc + 2, sizeof *rest);
    if (!rest) return 1;
    snprintf(name, sizeof name, "darknet %s%s%s", c->words[0], c->words[1] ? " " : "",
             c->words[1] ? c->words[1] : "");
    rest[n++] = name;
    for (int i = 1; i < argc; i++)
        if (i != first && (i != second || !c->words[1])) rest[n++] = argv[i];
    signal(SIGXFSZ, SIG_IGN); /* a file larger than allowed is an error like a full disk */
    int status = c->run(n, rest);
    free(rest);
    return status;
}

/* Only training is shared out; of any other command each process would do the whole. Rank 0 says
 * so: when it ends, the launcher ends the others. */
static bool is_one_too_many(const char *first, const char *second)
{
    struct amp_launch launch = amp_launch_read(getenv);
    if (launch.size == 1 || !strcmp(second, "train")) return false;
    if (launch.rank)
        sleep(10);
    else
        fprintf(stderr,
                "error: %s started %d processes of `darknet %s %s`: only training is shared out; "
                "start one\n",
                amp_launcher_name(launch.launcher), launch.size, first, second);
    return true;
}

static int dispatch(int argc, char **argv)
{
    /* No command, Darknet's own included, writes to weights behind the plugin's back and then runs
     * the network. */
    amp_promise_to_tell();
    amp_obey_signals();
    argc = amp_fork_words_settle(argc, argv);
    int first = next_word(argc, argv, 1), second = next_word(argc, argv, first + 1);
    const char *one = first < argc ? argv[first] : "", *two = second < argc ? argv[second] : "";
    const struct command *c = find_command(one, two);
    if (!*one || is_help(one)) return print_help();
    if (is_version(one)) return amp_print_version();
    if (is_one_too_many(one, two)) return 1;
    if (c) return c->whole ? c->run(argc, argv) : run(c, argc, argv, first, second);
    return amp_command_darknet(argc, argv, first, second);
}

/* ---- how OpenMP's threads wait ---- */

enum { MOST_VARIABLES = 10000 };

/* OpenMP's threads wait for each other by spinning. If another program has the core of the thread
 * that they wait for, they spin for as long as that program runs, and a step takes several times
 * its share. So they spin for a moment only, then sleep. OpenMP reads the environment when it is
 * loaded, so the program starts itself again with the variable set, unless the user set one. If
 * that fails, report_spinning (attach/attach.c) says so. */
static void keep_waits_short(char **argv, char **environment)
{
    static char *ours[MOST_VARIABLES + 2] = {"GOMP_SPINCOUNT=" AMP_SPIN_COUNT};
    char path[PATH_MAX] = "";
    for (int i = 0; environment[i]; i++) {
        if (i == MOST_VARIABLES || !strncmp(environment[i], "GOMP_SPINCOUNT=", 15) ||
            !strncmp(environment[i], "OMP_WAIT_POLICY=", 16))
            return;
        ours[i + 1] = environment[i];
    }
    /* `ld.so PROGRAM`: the running program is ld.so. */
    if (!getauxval(AT_BASE)) return;
    /* By its own path: as /proc/self/exe its name would be "exe" to ps and killall. */
    if (readlink("/proc/self/exe", path, sizeof path - 1) > 0) execve(path, argv, ours);
}

/* Before the libraries' own constructors. */
static void begin(int argc, char **argv, char **environment)
{
    (void)argc;
    keep_waits_short(argv, environment);
}

__attribute__((used, section(".preinit_array"))) static void (*const first)(int, char **,
                                                                            char **) = begin;

/* ---- the program ---- */

/* In place of Darknet's, which ends the program by an assertion. libdarknet.so takes the program's.
 */
void error(const char *text);
void error(const char *text)
{
    fflush(stdout);
    fprintf(stderr, "error: %.*s\n", (int)strcspn(text, "\n"), text);
    _exit(1);
}

/* Ends the program. Darknet's training returns while its loader threads still decode the next
 * batch, into a variable of the function that has returned. An ordinary exit would run OpenCV's
 * destructors under them, and calls made here would overwrite that variable; both crash now and
 * then. quick_exit runs only what was registered with at_quick_exit, and the array keeps this
 * function's own calls below the frames that Darknet has left. */
static _Noreturn void leave(int status)
{
    __attribute__((unused)) volatile char frames_of_darknet[1 << 16];
    frames_of_darknet[0] = 0;
    fflush(NULL);
    quick_exit(status);
}

int main(int argc, char **argv)
{
    leave(dispatch(argc, argv));
}
