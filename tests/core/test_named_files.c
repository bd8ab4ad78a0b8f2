/* Where the files that a cfg names are looked for. */
#include "plugin/core/read/named_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/rig/harness.h"

static char root[64], cfg_path[128], found[4096], err[1024];

static void write_file(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "w");
    REQUIRE(f);
    fclose(f);
}

/* root/cfg/a.cfg, root/data, root/work (the current folder) */
static void make_folders(void)
{
    static const char *const folders[] = {"cfg", "data", "work"};
    char path[256];
    strcpy(root, "/tmp/amp-named-XXXXXX");
    REQUIRE(mkdtemp(root));
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", root, folders[i]);
        REQUIRE(mkdir(path, 0700) == 0);
    }
    snprintf(path, sizeof path, "%s/work", root);
    REQUIRE(chdir(path) == 0);
    snprintf(cfg_path, sizeof cfg_path, "%s/cfg/a.cfg", root);
}

static void remove_folders(void)
{
    char command[128];
    REQUIRE(chdir("/") == 0);
    snprintf(command, sizeof command, "rm -r '%s'", root);
    REQUIRE(system(command) == 0);
}

static int find(const char *name)
{
    return amp_named_file_find(cfg_path, name, found, sizeof found);
}

AMP_TEST(the_current_folder_then_the_cfgs_parent_then_its_own)
{
    char absolute[256];
    make_folders();
    CHECK_INT(find("here.tree"), -1);
    write_file("cfg/here.tree");
    CHECK_INT(find("here.tree"), 0);
    CHECK(strstr(found, "/cfg/here.tree") && !strstr(found, ".."));
    write_file("here.tree");
    CHECK_INT(find("here.tree"), 0);
    CHECK(strstr(found, "/cfg/../here.tree") != NULL);
    write_file("work/here.tree");
    CHECK_INT(find("here.tree"), 0);
    CHECK_STR(found, "here.tree");
    write_file("data/9k.tree");
    CHECK_INT(find("data/9k.tree"), 0);
    snprintf(absolute, sizeof absolute, "%s/data/9k.tree", root);
    CHECK_INT(find(absolute), 0);
    CHECK_STR(found, absolute);
    CHECK_INT(find("/no/such.tree"), -1);
    remove_folders();
}

AMP_TEST(a_cfg_without_a_folder)
{
    make_folders();
    write_file("data/9k.tree");
    CHECK_INT(amp_named_file_find("a.cfg", "data/9k.tree", found, sizeof found), 0);
    CHECK_STR(found, "../data/9k.tree");
    remove_folders();
}

AMP_TEST(a_path_that_does_not_fit_is_not_found)
{
    make_folders();
    write_file("data/9k.tree");
    CHECK_INT(amp_named_file_find(cfg_path, "data/9k.tree", found, 10), -1);
    remove_folders();
}

AMP_TEST(every_file_of_a_cfg_is_looked_up)
{
    /* The last two are keys that nobody reads there. */
    static const char text[] = "[net]\n[softmax]\ntree=a.tree\n[yolo]\nmap=a.map\n[conv]\nmap=b\n"
                               "[yolo]\ntree=c\n";
    make_folders();
    struct amp_cfg_file *cfg = amp_cfg_parse(cfg_path, text, sizeof text - 1, err, sizeof err);
    REQUIRE(cfg);
    char expected[512];
    CHECK_INT(amp_named_files_check(cfg, err, sizeof err), -1);
    snprintf(expected, sizeof expected,
             "%s:3: tree=a.tree: there is no such file, neither from the current folder nor beside "
             "the cfg or its parent folder",
             cfg_path);
    CHECK_STR(err, expected);
    write_file("work/a.tree");
    CHECK_INT(amp_named_files_check(cfg, err, sizeof err), -1);
    CHECK(strstr(err, ":5: map=a.map:") != NULL);
    write_file("work/a.map");
    CHECK_INT(amp_named_files_check(cfg, err, sizeof err), 0);
    CHECK_INT(amp_named_files_check_here(cfg, err, sizeof err), 0);
    amp_cfg_free(cfg);
    remove_folders();
}

/* Which is no place for Darknet itself. */
AMP_TEST(files_beside_the_cfg_are_found)
{
    static const char text[] = "[net]\n[softmax]\ntree=a.tree\n[yolo]\nmap=a.map\n";
    make_folders();
    write_file("work/a.tree");
    write_file("cfg/a.map");
    struct amp_cfg_file *cfg = amp_cfg_parse(cfg_path, text, sizeof text - 1, err, sizeof err);
    REQUIRE(cfg);
    CHECK_INT(amp_named_files_check(cfg, err, sizeof err), 0);
    CHECK_INT(amp_named_files_check_here(cfg, err, sizeof err), -1);
    CHECK_SAYS(err, ":5: map=a.map: there is no such file, and the current folder is where Darknet "
                    "looks for it");
    amp_cfg_free(cfg);
    remove_folders();
}

AMP_TEST_MAIN
