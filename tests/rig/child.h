/* A program in a process of its own, which may end as it likes. Include after
 * tests/rig/harness.h. */
#ifndef AMP_TEST_CHILD_H
#define AMP_TEST_CHILD_H

#include "files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#define ALIVE 99 /* the status of a child whose program came to its end */

static char text[1 << 14]; /* its stderr */

/* The exit status, or minus the signal that ended it. */
static int run(void (*program)(void))
{
    scratch(""); /* the parent removes it */
    fflush(NULL);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        dup2(open(scratch("said"), O_WRONLY | O_CREAT | O_TRUNC, 0666), 2);
        alarm(900);
        program();
        _exit(ALIVE);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    scratch_read("said", text, sizeof text);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

#endif
