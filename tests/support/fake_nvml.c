/* A libnvidia-ml.so.1 without a GPU. It reports what a text file says, named by $FAKE_NVML_STATE, re-read on every call:
     driver 550.54.15
     gpu INDEX UUID NAME MEM_TOTAL_MIB UTIL TEMP POWER_MW      (underscores of the name become spaces)
     set INDEX KEY VALUE                   (keys: see KEYS; limits and clocks in NVML's units, mW and MHz)
     proc INDEX PID USED_MIB               (of living processes only, as on real hardware; gproc: for graphics)
     ghost INDEX PID USED_MIB              (a process of another PID namespace: reported whether or not it is visible)
     mig INDEX UUID PROFILE MEM_TOTAL_MIB  (an instance of the GPU, reported while `set INDEX mig 1`)
     mproc UUID PID USED_MIB               (a living process on an instance; the GPU reports it as well)
     zombie INDEX MIB                      (memory that no process holds: a leaked context, another container)
     xid INDEX NUMBER                      (an event, delivered once to every event set, in the order of the file)
     link A B LEVEL                        (topology level between two GPUs; nvlink A B: joined by NVLink)
     fault FUNCTION CODE [INDEX]           (of one GPU, or of all)
     hang FUNCTION SECONDS [INDEX]
     crash FUNCTION                        (a segmentation fault)
     unsupported                           (all but names and memory answer NOT_SUPPORTED, as of an old GeForce)
   What is missing here raises NVMLError_FunctionNotFound, like an old driver; -DOLD leaves out what came late.
   The state is thread-local: a call that hangs disturbs no other. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int u;
typedef unsigned long long ull;
enum { SUCCESS, UNINITIALIZED, INVALID, NOT_SUPPORTED, NOT_FOUND = 6, TOO_SMALL = 7, NOT_LOADED = 9, TIMEOUT = 10 };
enum { GPUS = 16, PROCS = 256, XIDS = 64, LINKS = 256, MIGS = 64, FIRST_MIG = 1000 };
typedef struct { int idx; } *nvmlDevice_t;
typedef struct { ull total, free, used; } mem1;
typedef struct { u version; ull total, reserved, free, used; } mem2;
typedef struct { u pid; ull used; u gi, ci; } pinfo;
typedef struct { u gpu, memory; } util_t;
typedef struct { char legacy[16]; u domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct { u field, scope; long long at, latency; u type, ret; union { u ui; ull ull; double d; } value; } field_t;
typedef struct { nvmlDevice_t device; ull type, data; u gi, ci; } event_t;
typedef struct { ull registered; u delivered; } *set_t;

enum { LIMIT, DEFAULT_LIMIT, CLOCK, MAX_CLOCK, APP_CLOCK, BOOST_CLOCK, THROTTLE, ECC_C, ECC_U, RETIRED_SBE, RETIRED_DBE,
       RETIRE_PENDING, REMAP_PENDING, REMAP_FAILED, MIG, COMPUTE, SLOWDOWN, RECOVERY, BUS,
       DEFAULT_APP_CLOCK, N_KEYS };
static const char *KEYS[] = { "limit", "default_limit", "clock", "max_clock", "app_clock", "boost_clock", "throttle",
    "ecc_corrected", "ecc_uncorrected", "retired_sbe", "retired_dbe", "retire_pending", "remap_pending",
    "remap_failed", "mig", "compute_mode", "slowdown", "recovery", "bus", "default_app_clock" };
static const ull DEFAULTS[N_KEYS] = { [LIMIT] = 700000, [DEFAULT_LIMIT] = 700000, [CLOCK] = 345, [MAX_CLOCK] = 1980,
    [APP_CLOCK] = 1980, [DEFAULT_APP_CLOCK] = 1980, [BOOST_CLOCK] = 1980, [THROTTLE] = 1, [SLOWDOWN] = 89 };
typedef struct { int idx; char uuid[80], name[96]; ull mib, zombie; u util, temp, mw; ull set[N_KEYS]; } gpu_t;
typedef struct { int gpu, draws; u pid; ull mib; } proc_t;
static __thread struct {
    gpu_t gpus[GPUS]; proc_t procs[PROCS]; struct { int gpu; ull number; } xids[XIDS];
    struct { int a, b, level; } links[LINKS]; int ng, np, nx, nl; char driver[80];
    gpu_t migs[MIGS]; int parents[MIGS], nm;
} S;
static struct { int idx; } HANDLES[GPUS], MIG_HANDLES[MIGS];
static int inited;

static gpu_t *gpu_of(int idx) {
    for (int i = 0; i < S.ng; i++) if (S.gpus[i].idx == idx) return S.gpus + i;
    return idx >= FIRST_MIG && idx < FIRST_MIG + S.nm ? S.migs + idx - FIRST_MIG : 0;
}
/* Whether a process on one is on the other: an instance's is on its GPU as well. */
static int is_on(int at, int idx) { return at == idx || (at >= FIRST_MIG && S.parents[at - FIRST_MIG] == idx); }

static int lives(u pid) { return kill((pid_t)pid, 0) == 0 || errno == EPERM; }

static int basic(const char *fn) {
    return strstr(fn, "Init") || strstr(fn, "Count") || strstr(fn, "Handle") || strstr(fn, "UUID") || strstr(fn, "Name")
        || strstr(fn, "Version") || strstr(fn, "MemoryInfo") || strstr(fn, "Index") || strstr(fn, "Event");
}

static int load(const char *fn, int about) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : 0;
    int fault = 0, unsupported = 0; double hang = 0; char line[512];
    memset(&S, 0, sizeof S);
    strcpy(S.driver, "550.54.15");
    if (!file) return NOT_LOADED;
    while (fgets(line, sizeof line, file)) {
        char word[96] = ""; int i, j, n = -1; ull m; double s; gpu_t g = {0}, *of; proc_t p = {0};
        if (sscanf(line, "driver %79s", S.driver) == 1) continue;
        if (sscanf(line, "gpu %d %79s %95s %llu %u %u %u", &g.idx, g.uuid, g.name, &g.mib, &g.util, &g.temp, &g.mw) == 7) {
            for (char *c = g.name; *c; c++) if (*c == '_') *c = ' ';
            memcpy(g.set, DEFAULTS, sizeof DEFAULTS);
            g.set[BUS] = 0x3b + g.idx;
            if (S.ng < GPUS && g.idx >= 0 && g.idx < GPUS) S.gpus[S.ng++] = g;
        } else if (sscanf(line, "set %d %95s %llu", &i, word, &m) == 3 && (of = gpu_of(i))) {
            for (int k = 0; k < N_KEYS; k++) if (!strcmp(word, KEYS[k])) of->set[k] = m;
        } else if (sscanf(line, "proc %d %u %llu", &p.gpu, &p.pid, &p.mib) == 3
                   || (sscanf(line, "gproc %d %u %llu", &p.gpu, &p.pid, &p.mib) == 3 && (p.draws = 1))) {
            if (S.np < PROCS && lives(p.pid)) S.procs[S.np++] = p;
        } else if (sscanf(line, "mig %d %79s %95s %llu", &i, g.uuid, word, &g.mib) == 4 && (of = gpu_of(i))) {
            if (S.nm < MIGS) {
                memcpy(g.set, DEFAULTS, sizeof DEFAULTS);
                snprintf(g.name, sizeof g.name, "%.60s MIG %.30s", of->name, word);
                g.idx = FIRST_MIG + S.nm; S.parents[S.nm] = i; S.migs[S.nm++] = g;
            }
        } else if (sscanf(line, "mproc %95s %u %llu", word, &p.pid, &p.mib) == 3) {
            for (int k = 0; k < S.nm; k++) if (!strcmp(S.migs[k].uuid, word)) p.gpu = FIRST_MIG + k;
            if (S.np < PROCS && p.gpu >= FIRST_MIG && lives(p.pid)) S.procs[S.np++] = p;
        } else if (sscanf(line, "ghost %d %u %llu", &p.gpu, &p.pid, &p.mib) == 3) {
            if (S.np < PROCS) S.procs[S.np++] = p;
        } else if (sscanf(line, "zombie %d %llu", &i, &m) == 2) {
            if ((of = gpu_of(i))) of->zombie = m;
        } else if (sscanf(line, "xid %d %llu", &i, &m) == 2) {
            if (S.nx < XIDS) { S.xids[S.nx].gpu = i; S.xids[S.nx++].number = m; }
        } else if (sscanf(line, "link %d %d %d", &i, &j, &n) == 3 || sscanf(line, "nvlink %d %d", &i, &j) == 2) {
            if (S.nl < LINKS) { S.links[S.nl].a = i; S.links[S.nl].b = j; S.links[S.nl++].level = n; }
        } else if (sscanf(line, "fault %95s %d %d", word, &i, &n) >= 2) {
            if (!strcmp(word, fn) && (n < 0 || n == about)) fault = i;
        } else if (sscanf(line, "hang %95s %lf %d", word, &s, &n) >= 2) {
            if (!strcmp(word, fn) && (n < 0 || n == about)) hang = s;
        } else if (sscanf(line, "crash %95s", word) == 1) {
            if (!strcmp(word, fn)) raise(SIGSEGV);
        } else if (!strncmp(line, "unsupported", 11)) unsupported = 1;
    }
    fclose(file);
    if (hang > 0) usleep((useconds_t)(hang * 1e6));
    return fault ? fault : unsupported && !basic(fn) ? NOT_SUPPORTED : SUCCESS;
}

#define SYSTEM int r_ = load(__func__, -1); if (r_) return r_; if (!inited) return UNINITIALIZED;
#define OF(d) int r_ = load(__func__, d ? d->idx : -1); if (r_) return r_; if (!inited) return UNINITIALIZED; \
    gpu_t *g = d ? gpu_of(d->idx) : 0; if (!g) return INVALID;
#define TELLS(name, type, value) int name(nvmlDevice_t d, type *out) { OF(d) *out = (type)(value); return 0; }

int nvmlInitWithFlags(u flags) { (void)flags; int r = load(__func__, -1); if (!r) inited = 1; return r; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { inited = 0; return 0; }
const char *nvmlErrorString(int r) {
    return r == 0 ? "Success" : r == 1 ? "Uninitialized" : r == 9 ? "Driver Not Loaded" : r == 15 ? "GPU is lost"
        : r == 6 ? "Not Found" : r == 4 ? "Insufficient Permissions" : r == 999 ? "Unknown Error" : "Fake NVML error";
}
int nvmlSystemGetDriverVersion(char *b, u n) { SYSTEM snprintf(b, n, "%s", S.driver); return 0; }
int nvmlSystemGetNVMLVersion(char *b, u n) { SYSTEM snprintf(b, n, "12.%s", S.driver); return 0; }
int nvmlDeviceGetCount_v2(u *n) { SYSTEM *n = (u)S.ng; return 0; }
int nvmlDeviceGetHandleByIndex_v2(u i, nvmlDevice_t *d) {
    int r = load(__func__, (int)i);
    if (r) return r;
    if (i >= (u)S.ng) return INVALID;
    HANDLES[i].idx = S.gpus[i].idx; *d = (nvmlDevice_t)(HANDLES + i); return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *d) {
    SYSTEM
    for (int i = 0; i < S.ng; i++)
        if (!strcmp(S.gpus[i].uuid, uuid)) { HANDLES[i].idx = S.gpus[i].idx; *d = (nvmlDevice_t)(HANDLES + i); return 0; }
    return NOT_FOUND;
}
TELLS(nvmlDeviceGetIndex, u, g->idx)
int nvmlDeviceGetUUID(nvmlDevice_t d, char *b, u n) { OF(d) snprintf(b, n, "%s", g->uuid); return 0; }
int nvmlDeviceGetName(nvmlDevice_t d, char *b, u n) { OF(d) snprintf(b, n, "%s", g->name); return 0; }
int nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, pci_t *p) {
    OF(d) memset(p, 0, sizeof *p); p->bus = (u)g->set[BUS];
    snprintf(p->bus_id, sizeof p->bus_id, "00000000:%02X:00.0", p->bus); return 0;
}

static ull held(int idx) {
    ull sum = gpu_of(idx)->zombie;
    for (int i = 0; i < S.np; i++) if (is_on(S.procs[i].gpu, idx)) sum += S.procs[i].mib;
    return sum;
}
int nvmlDeviceGetMemoryInfo(nvmlDevice_t d, mem1 *m) {
    OF(d) m->total = g->mib << 20; m->used = (held(g->idx) + 500) << 20; m->free = m->total - m->used; return 0;
}
static int list(gpu_t *g, int draws, u *n, pinfo *out) {
    u count = 0, room = *n;
    for (int i = 0; i < S.np; i++) {
        if (!is_on(S.procs[i].gpu, g->idx) || S.procs[i].draws != draws) continue;
        if (count < room && out) out[count] = (pinfo){ S.procs[i].pid, S.procs[i].mib << 20, ~0u, ~0u };
        count++;
    }
    *n = count;
    return count > room ? TOO_SMALL : 0;
}
#ifdef OLD
int nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, u *n, pinfo *out) { OF(d) return list(g, 0, n, out); }
TELLS(nvmlDeviceGetCurrentClocksThrottleReasons, ull, g->set[THROTTLE])
#else
int nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, u *n) { OF(d) *n = g->set[MIG] ? 7 : 0; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, u index, nvmlDevice_t *out) {
    OF(d)
    for (int i = 0; i < S.nm && g->set[MIG]; i++)
        if (S.parents[i] == g->idx && index-- == 0) {
            MIG_HANDLES[i].idx = S.migs[i].idx; *out = (nvmlDevice_t)(MIG_HANDLES + i); return 0;
        }
    return NOT_FOUND;
}
int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, mem2 *m) {
    OF(d) m->total = g->mib << 20; m->reserved = 500ULL << 20; m->used = held(g->idx) << 20;
    m->free = m->total - m->used - m->reserved; return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, u *n, pinfo *out) { OF(d) return list(g, 0, n, out); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, u *n, pinfo *out) { OF(d) return list(g, 1, n, out); }
TELLS(nvmlDeviceGetCurrentClocksEventReasons, ull, g->set[THROTTLE])
int nvmlDeviceGetRemappedRows(nvmlDevice_t d, u *corrected, u *uncorrected, u *pending, u *failed) {
    OF(d) *corrected = *uncorrected = 0; *pending = (u)g->set[REMAP_PENDING]; *failed = (u)g->set[REMAP_FAILED]; return 0;
}
int nvmlDeviceGetFieldValues(nvmlDevice_t d, int n, field_t *f) {
    OF(d)
    for (int i = 0; i < n; i++) {
        f[i].ret = f[i].field == 230 ? SUCCESS : NOT_SUPPORTED; f[i].type = 1; f[i].value.ui = (u)g->set[RECOVERY];
    }
    return 0;
}
#endif
int nvmlDeviceGetUtilizationRates(nvmlDevice_t d, util_t *x) { OF(d) x->gpu = g->util; x->memory = g->util / 2; return 0; }
int nvmlDeviceGetTemperature(nvmlDevice_t d, int sensor, u *t) { (void)sensor; OF(d) *t = g->temp; return 0; }
int nvmlDeviceGetTemperatureThreshold(nvmlDevice_t d, int which, u *t) { (void)which; OF(d) *t = (u)g->set[SLOWDOWN]; return 0; }
TELLS(nvmlDeviceGetPowerUsage, u, g->mw)
TELLS(nvmlDeviceGetEnforcedPowerLimit, u, g->set[LIMIT])
TELLS(nvmlDeviceGetPowerManagementDefaultLimit, u, g->set[DEFAULT_LIMIT])
int nvmlDeviceGetClockInfo(nvmlDevice_t d, int which, u *c) { (void)which; OF(d) *c = (u)g->set[CLOCK]; return 0; }
int nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, int which, u *c) { (void)which; OF(d) *c = (u)g->set[MAX_CLOCK]; return 0; }
int nvmlDeviceGetApplicationsClock(nvmlDevice_t d, int which, u *c) { (void)which; OF(d) *c = (u)g->set[APP_CLOCK]; return 0; }
int nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t d, int which, u *c) { (void)which; OF(d) *c = (u)g->set[DEFAULT_APP_CLOCK]; return 0; }
int nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t d, int which, u *c) { (void)which; OF(d) *c = (u)g->set[BOOST_CLOCK]; return 0; }
int nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, int which, int counter, ull *n) {
    (void)counter; OF(d) *n = g->set[which ? ECC_U : ECC_C]; return 0;
}
int nvmlDeviceGetRetiredPages(nvmlDevice_t d, int cause, u *n, ull *pages) {
    OF(d) u count = (u)g->set[cause ? RETIRED_DBE : RETIRED_SBE], room = *n;
    for (u i = 0; i < count && i < room && pages; i++) pages[i] = i;
    *n = count;
    return count > room ? TOO_SMALL : 0;
}
TELLS(nvmlDeviceGetRetiredPagesPendingStatus, u, g->set[RETIRE_PENDING])
int nvmlDeviceGetMigMode(nvmlDevice_t d, u *now, u *pending) { OF(d) *now = *pending = (u)g->set[MIG]; return 0; }
TELLS(nvmlDeviceGetComputeMode, u, g->set[COMPUTE])

static int level(int a, int b, int nvlink) {
    for (int i = 0; i < S.nl; i++)
        if ((S.links[i].level < 0) == nvlink
            && ((S.links[i].a == a && S.links[i].b == b) || (S.links[i].a == b && S.links[i].b == a)))
            return nvlink ? 0 : S.links[i].level;
    return nvlink ? 5 : 50;
}
int nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t d, nvmlDevice_t e, u *x) { OF(d) *x = (u)level(g->idx, e->idx, 0); return 0; }
int nvmlDeviceGetP2PStatus(nvmlDevice_t d, nvmlDevice_t e, int caps, u *x) { (void)caps; OF(d) *x = (u)level(g->idx, e->idx, 1); return 0; }

int nvmlEventSetCreate(set_t *set) { SYSTEM *set = calloc(1, sizeof **set); return *set ? 0 : 20; }
int nvmlEventSetFree(set_t set) { free(set); return 0; }
int nvmlDeviceRegisterEvents(nvmlDevice_t d, ull types, set_t set) { (void)types; OF(d) set->registered |= 1ULL << g->idx; return 0; }
int nvmlEventSetWait_v2(set_t set, event_t *event, u within_ms) {
    SYSTEM
    while (set->delivered < (u)S.nx) {
        int i = (int)set->delivered++;
        if (S.xids[i].gpu < 0 || S.xids[i].gpu >= GPUS || !(set->registered >> S.xids[i].gpu & 1)) continue;
        memset(event, 0, sizeof *event);
        for (int h = 0; h < GPUS; h++)
            if (h < S.ng && S.gpus[h].idx == S.xids[i].gpu) event->device = (nvmlDevice_t)(HANDLES + h);
        event->type = 8; event->data = S.xids[i].number;
        return 0;
    }
    usleep(within_ms * 1000);
    return TIMEOUT;
}
