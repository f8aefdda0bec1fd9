/* Hides AVX-512, VNNI and AMX from a program and all that it starts: see avx2_only.sh.
 *
 * Linux lets a process fault on CPUID (arch_prctl). The handler asks the processor, takes those features away, and goes on behind the
 * instruction. Whoever asks by CPUID then takes the paths of a processor with AVX2: this engine, onnxruntime, OpenVINO, numpy.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012
#define BIT(n) (1u << (n))

static int (*set_action)(int, const struct sigaction *, struct sigaction *);

static int cpuid_works(int works) {
    return syscall(SYS_arch_prctl, ARCH_SET_CPUID, works);
}

static void hide(unsigned leaf, unsigned part, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
    if (leaf == 7 && part == 0) {
        /* AVX-512 F, DQ, IFMA, PF, ER, CD, BW, VL */
        *b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31));
        /* AVX-512 VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ */
        *c &= ~(BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14));
        /* AVX-512 4VNNIW, 4FMAPS, VP2INTERSECT, FP16; AMX BF16, TILE, INT8 */
        *d &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25));
    } else if (leaf == 7 && part == 1) {
        /* AVX-VNNI, AVX-512 BF16, AVX-IFMA; AVX-VNNI of other widths and AVX10 */
        *a &= ~(BIT(4) | BIT(5) | BIT(23));
        *d = 0;
    } else if (leaf == 0x1d || leaf == 0x1e || leaf == 0x24) {
        *a = *b = *c = *d = 0;
    }
}

static void on_fault(int signal_number, siginfo_t *info, void *context) {
    (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)registers[REG_RIP];
    if (at[0] != 0x0f || at[1] != 0xa2) {
        signal(signal_number, SIG_DFL);
        return;
    }
    unsigned leaf = registers[REG_RAX], part = registers[REG_RCX], a, b, c, d;
    cpuid_works(1);
    __cpuid_count(leaf, part, a, b, c, d);
    cpuid_works(0);
    hide(leaf, part, &a, &b, &c, &d);
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

/* Nobody else takes the signal: Python's fault handler and Rust's would. */
int sigaction(int number, const struct sigaction *action, struct sigaction *before) {
    if (!set_action)
        set_action = dlsym(RTLD_NEXT, "sigaction");
    if (number != SIGSEGV || !action)
        return set_action(number, action, before);
    if (before)
        memset(before, 0, sizeof *before);
    return 0;
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    action.sa_sigaction = on_fault;
    if (!set_action)
        set_action = dlsym(RTLD_NEXT, "sigaction");
    set_action(SIGSEGV, &action, NULL);
    if (cpuid_works(0)) {
        static const char text[] = "avx2_only: this processor or kernel cannot fault on CPUID\n";
        if (write(2, text, sizeof text - 1) < 0) { }
        _exit(1);
    }
}
