/* Sleeps by the clock that counts from the machine's start go to the kernel as they are.
 *
 * libfaketime 0.9.10 shifts the end of every absolute sleep by the wall clock's offset, whichever clock it is counted
 * in, and so makes most of them invalid (EINVAL). Python's time.sleep is such a sleep (CLOCK_MONOTONIC, from 3.11 on).
 * This library is loaded before libfaketime.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef int (*sleeper)(clockid_t, int, const struct timespec *, struct timespec *);

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    if (clock != CLOCK_MONOTONIC)
        return ((sleeper)dlsym(RTLD_NEXT, "clock_nanosleep"))(clock, flags, until, left);
    int before = errno;
    int failed = syscall(SYS_clock_nanosleep, clock, flags, until, left) ? errno : 0;
    errno = before;
    return failed;
}
