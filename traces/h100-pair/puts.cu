// One-sided puts between two GPUs of one process over NVLink: rows of JSON on stdout, as they are measured.
//
//   nvcc -O3 -std=c++17 -arch=sm_90 -o puts puts.cu && ./puts > puts.jsonl
//
// A put stores a payload into the peer's memory and then raises a flag there: 16-byte stores of all threads of a
// work-group, a barrier, and by thread 0 a release at system scope and the store of the flag. `bulk` puts are
// cp.async.bulk from shared memory, issued by one thread. No multicast, no NVSHMEM, no NCCL.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <algorithm>
#include <string>
#include <vector>
#include <cuda_runtime.h>

#define CHECK(call)                                                                              \
  do {                                                                                           \
    cudaError_t code = (call);                                                                   \
    if (code != cudaSuccess) {                                                                   \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(code));   \
      exit(1);                                                                                   \
    }                                                                                            \
  } while (0)

constexpr int REPEATS = 9;
constexpr long long GIVE_UP = 4000000000LL;  // clock cycles of a poll: about 2 s
typedef unsigned int u32;

__device__ __forceinline__ void raise_flag(u32* flag, u32 value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ __forceinline__ u32 look(u32* flag) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
__device__ __forceinline__ bool await_flag(u32* flag, u32 value, int* failed) {
  long long begin = clock64();
  while (look(flag) < value) {
    if (clock64() - begin > GIVE_UP) { *failed = 1; return false; }
  }
  return true;
}
__device__ __forceinline__ void store16(uint4* to, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// ---- a: both GPUs in turn put `bytes` with one work-group and raise the flag: half of a round trip is one way
__global__ void ping_pong(uint4* to, u32* theirs, u32* mine, long bytes, int rounds, int first, int* failed) {
  __shared__ int go;
  for (int round = 1; round <= rounds; ++round) {
    if (!first || round > 1) {
      if (threadIdx.x == 0) go = await_flag(mine, first ? round - 1 : round, failed);
      __syncthreads();
      if (!go) return;
    }
    for (long i = threadIdx.x; i < bytes / 16; i += blockDim.x) store16(to + i, make_uint4(round, i, round, i));
    __syncthreads();
    if (threadIdx.x == 0) raise_flag(theirs, round);
  }
  if (first && threadIdx.x == 0) await_flag(mine, rounds, failed);
}

// ---- b: `puts` puts after one another by each of G work-groups, each with a flag of its own.
// how 0: release before every flag; 1: stores alone, one release at the end; 2: bulk copies, waited for at the end;
// 3: bulk copies and a flag each, the flag after the bulk copy has been written.
__global__ void put_train(char* to, u32* flags, const uint4* from, long bytes, int puts, int how, long long* cycles) {
  extern __shared__ __align__(128) char staged[];
  long words = bytes / 16;
  char* region = to + (long)blockIdx.x * puts * bytes;
  u32* own = flags + (long)blockIdx.x * puts * 8;
  if (how >= 2) {
    for (long i = threadIdx.x; i < words; i += blockDim.x) ((uint4*)staged)[i] = make_uint4(i, 1, 2, 3);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  long long begin = clock64();
  for (int put = 0; put < puts; ++put) {
    char* place = region + put * bytes;
    if (how < 2) {
      for (long i = threadIdx.x; i < words; i += blockDim.x) store16((uint4*)place + i, make_uint4(put, i, 1, 2));
      if (how == 0) {
        __syncthreads();
        if (threadIdx.x == 0) raise_flag(own + put * 8, 1);
      }
    } else if (threadIdx.x == 0) {
      u32 source = (u32)__cvta_generic_to_shared(staged);
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(place), "r"(source), "r"((u32)bytes) : "memory");
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      if (how == 3) {
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        asm volatile("fence.proxy.async.global;" ::: "memory");
        raise_flag(own + put * 8, 1);
      }
    }
  }
  long long issued = clock64();
  if (how >= 2 && threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) raise_flag(own, 2);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) { cycles[2 * blockIdx.x] = issued - begin; cycles[2 * blockIdx.x + 1] = clock64() - begin; }
}

// ---- c: rate of `bytes` in all by G work-groups, over and over
__global__ void stream_out(uint4* to, const uint4* from, long words, int times, int copies) {
  long stride = (long)gridDim.x * blockDim.x;
  for (int time = 0; time < times; ++time)
    for (long i = (long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride)
      store16(to + i, copies ? from[i] : make_uint4(time, i, 1, 2));
}

// ---- d: all-reduce of two by direct stores: each puts its data to the peer, raises a flag a work-group, and sums
__global__ void one_shot(const uint4* mine, uint4* theirs_in, uint4* my_in, uint4* out, u32* theirs, u32* own, long words, int round, int* failed) {
  __shared__ int go;
  long per = (words + gridDim.x - 1) / gridDim.x;
  long begin = blockIdx.x * per, end = min(words, begin + per);
  for (long i = begin + threadIdx.x; i < end; i += blockDim.x) store16(theirs_in + i, mine[i]);
  __syncthreads();
  if (threadIdx.x == 0) {
    raise_flag(theirs + blockIdx.x * 8, round);
    go = await_flag(own + blockIdx.x * 8, round, failed);
  }
  __syncthreads();
  if (!go) return;
  for (long i = begin + threadIdx.x; i < end; i += blockDim.x) {
    uint4 a = mine[i], b = __ldcv(my_in + i);
    out[i] = make_uint4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
  }
}

struct Gpu { cudaStream_t stream; char *data, *from, *inbox, *out; u32* flags; int* failed; long long* cycles; cudaEvent_t begin, end; };
static Gpu gpu[2];
static const long CAPACITY = 512L << 20, FLAGS = 64L << 20;

static void on(int g) { CHECK(cudaSetDevice(g)); }
static void both_done() { for (int g = 0; g < 2; ++g) { on(g); CHECK(cudaStreamSynchronize(gpu[g].stream)); CHECK(cudaGetLastError()); } }
static void clear_flags() { for (int g = 0; g < 2; ++g) { on(g); CHECK(cudaMemsetAsync(gpu[g].flags, 0, FLAGS, gpu[g].stream)); CHECK(cudaMemsetAsync(gpu[g].failed, 0, 4, gpu[g].stream)); } both_done(); }
static int failed() { int a = 0, sum = 0; for (int g = 0; g < 2; ++g) { on(g); CHECK(cudaMemcpy(&a, gpu[g].failed, 4, cudaMemcpyDeviceToHost)); sum += a; } return sum; }
static std::string spread(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  char text[160];
  snprintf(text, sizeof text, "\"us\": %.4f, \"us_min\": %.4f, \"us_max\": %.4f, \"repeats\": %d", v[v.size() / 2], v.front(), v.back(), (int)v.size());
  return text;
}
static double elapsed_us(int g) { float ms; on(g); CHECK(cudaEventElapsedTime(&ms, gpu[g].begin, gpu[g].end)); return ms * 1e3; }

static void measure_ping_pong() {
  for (int threads : {32, 256, 1024})
    for (long bytes : {0L, 16L, 64L, 256L, 1024L, 4096L, 16384L, 65536L, 262144L, 1048576L}) {
      if (threads == 32 && bytes > 16384) continue;
      int rounds = bytes > 65536 ? 100 : 1000;
      std::vector<double> times;
      for (int repeat = 0; repeat <= REPEATS; ++repeat) {
        clear_flags();
        for (int g = 1; g >= 0; --g) {
          on(g);
          CHECK(cudaEventRecord(gpu[g].begin, gpu[g].stream));
          ping_pong<<<1, threads, 0, gpu[g].stream>>>((uint4*)gpu[1 - g].inbox, gpu[1 - g].flags, gpu[g].flags, bytes, rounds, g == 0, gpu[g].failed);
          CHECK(cudaEventRecord(gpu[g].end, gpu[g].stream));
        }
        both_done();
        if (repeat) times.push_back(elapsed_us(0) / rounds / 2);
      }
      printf("{\"what\": \"put_and_signal\", \"threads\": %d, \"bytes\": %ld, %s, \"failed\": %d}\n", threads, bytes, spread(times).c_str(), failed());
      fflush(stdout);
    }
}

static void measure_trains(int clock_khz) {
  static const char* HOWS[] = {"store_release_each", "store_release_once", "bulk_once", "bulk_wait_flag_each"};
  on(0);
  CHECK(cudaFuncSetAttribute(put_train, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
  for (int how = 0; how < 4; ++how)
    for (int groups : {1, 8, 32, 132})
      for (long bytes : {16L, 128L, 1024L, 4096L, 16384L, 65536L}) {
        int puts = 256;
        while ((long)puts * groups * bytes > CAPACITY || (long)puts * groups * 32 > FLAGS) puts /= 2;
        std::vector<double> issue, all;
        for (int repeat = 0; repeat <= REPEATS; ++repeat) {
          clear_flags();
          on(0);
          CHECK(cudaEventRecord(gpu[0].begin, gpu[0].stream));
          put_train<<<groups, 256, how >= 2 ? 65536 : 0, gpu[0].stream>>>(gpu[1].inbox, gpu[1].flags, (uint4*)gpu[0].from, bytes, puts, how, gpu[0].cycles);
          CHECK(cudaEventRecord(gpu[0].end, gpu[0].stream));
          both_done();
          std::vector<long long> cycles(2 * groups);
          CHECK(cudaMemcpy(cycles.data(), gpu[0].cycles, cycles.size() * 8, cudaMemcpyDeviceToHost));
          double issued = 0, done = 0;
          for (int i = 0; i < groups; ++i) { issued += cycles[2 * i]; done += cycles[2 * i + 1]; }
          if (repeat) { issue.push_back(issued / groups / puts * 1e3 / clock_khz); all.push_back(done / groups / puts * 1e3 / clock_khz); }
        }
        std::sort(all.begin(), all.end());
        printf("{\"what\": \"put_train\", \"how\": \"%s\", \"work_groups\": %d, \"bytes\": %ld, \"puts\": %d, %s, \"us_with_last_release\": %.4f}\n",
               HOWS[how], groups, bytes, puts, spread(issue).c_str(), all[all.size() / 2]);
        fflush(stdout);
      }
}

static void measure_rates() {
  for (int ways : {1, 2})
    for (int copies : {0, 1})
      for (int groups : {1, 2, 4, 8, 16, 32, 64, 132, 264, 528})
        for (long bytes : {64L << 10, 1L << 20, 16L << 20, 256L << 20}) {
          if (copies == 0 && ways == 2 && bytes < (16L << 20)) continue;
          int times = (int)std::max(1L, std::min(256L, (128L << 20) / bytes));
          if (groups <= 4 && bytes > (16L << 20)) continue;
          if (groups <= 4) times = std::max(1, times / 8);
          std::vector<double> found;
          for (int repeat = 0; repeat <= REPEATS; ++repeat) {
            for (int g = 0; g < ways; ++g) {
              on(g);
              CHECK(cudaEventRecord(gpu[g].begin, gpu[g].stream));
              stream_out<<<groups, 512, 0, gpu[g].stream>>>((uint4*)gpu[1 - g].inbox, (uint4*)gpu[g].from, bytes / 16, times, copies);
              CHECK(cudaEventRecord(gpu[g].end, gpu[g].stream));
            }
            both_done();
            double slowest = 0;
            for (int g = 0; g < ways; ++g) slowest = std::max(slowest, elapsed_us(g));
            if (repeat) found.push_back(slowest / times);
          }
          std::sort(found.begin(), found.end());
          printf("{\"what\": \"store_rate\", \"ways\": %d, \"reads_memory\": %d, \"work_groups\": %d, \"threads\": 512, \"bytes\": %ld, \"times\": %d, %s, \"GB_per_s\": %.2f}\n",
                 ways, copies, groups, bytes, times, spread(found).c_str(), bytes / found[found.size() / 2] / 1e3);
          fflush(stdout);
        }
  for (long bytes : {4L, 4096L, 65536L, 1L << 20, 16L << 20, 256L << 20}) {
    std::vector<double> found;
    int times = 50;
    for (int repeat = 0; repeat <= REPEATS; ++repeat) {
      on(0);
      CHECK(cudaEventRecord(gpu[0].begin, gpu[0].stream));
      for (int i = 0; i < times; ++i) CHECK(cudaMemcpyPeerAsync(gpu[1].inbox, 1, gpu[0].from, 0, bytes, gpu[0].stream));
      CHECK(cudaEventRecord(gpu[0].end, gpu[0].stream));
      both_done();
      if (repeat) found.push_back(elapsed_us(0) / times);
    }
    std::sort(found.begin(), found.end());
    printf("{\"what\": \"copy_engine\", \"bytes\": %ld, %s, \"GB_per_s\": %.2f}\n", bytes, spread(found).c_str(), bytes / found[found.size() / 2] / 1e3);
    fflush(stdout);
  }
}

static void measure_one_shot() {
  const int CALLS = 50;
  for (int groups : {1, 4, 16, 64, 132})
    for (long bytes : {16L, 1024L, 4096L, 16384L, 65536L, 262144L, 1L << 20, 4L << 20, 16L << 20}) {
      if (bytes / 16 < groups || (groups < 16 && bytes > (256L << 10))) continue;
      std::vector<double> found;
      cudaGraphExec_t replay[2];
      for (int g = 0; g < 2; ++g) {
        on(g);
        cudaGraph_t graph;
        CHECK(cudaStreamBeginCapture(gpu[g].stream, cudaStreamCaptureModeThreadLocal));
        for (int round = 1; round <= CALLS; ++round) {
          long half = (round % 2) * (CAPACITY / 2);
          one_shot<<<groups, 512, 0, gpu[g].stream>>>((uint4*)gpu[g].data, (uint4*)(gpu[1 - g].inbox + half), (uint4*)(gpu[g].inbox + half), (uint4*)gpu[g].out, gpu[1 - g].flags, gpu[g].flags, bytes / 16, round, gpu[g].failed);
        }
        CHECK(cudaStreamEndCapture(gpu[g].stream, &graph));
        CHECK(cudaGraphInstantiate(&replay[g], graph, 0));
        CHECK(cudaGraphDestroy(graph));
      }
      for (int repeat = 0; repeat <= REPEATS; ++repeat) {
        clear_flags();
        for (int g = 0; g < 2; ++g) {
          on(g);
          CHECK(cudaEventRecord(gpu[g].begin, gpu[g].stream));
          CHECK(cudaGraphLaunch(replay[g], gpu[g].stream));
          CHECK(cudaEventRecord(gpu[g].end, gpu[g].stream));
        }
        both_done();
        if (repeat) found.push_back(std::max(elapsed_us(0), elapsed_us(1)) / CALLS);
      }
      for (int g = 0; g < 2; ++g) CHECK(cudaGraphExecDestroy(replay[g]));
      printf("{\"what\": \"one_shot_all_reduce\", \"work_groups\": %d, \"bytes\": %ld, %s, \"failed\": %d}\n", groups, bytes, spread(found).c_str(), failed());
      fflush(stdout);
    }
}

int main() {
  int count, reach;
  CHECK(cudaGetDeviceCount(&count));
  if (count < 2) { fprintf(stderr, "two GPUs are needed, found %d\n", count); return 1; }
  for (int g = 0; g < 2; ++g) {
    CHECK(cudaDeviceCanAccessPeer(&reach, g, 1 - g));
    if (!reach) { fprintf(stderr, "GPU %d reaches no memory of the other\n", g); return 1; }
    on(g);
    CHECK(cudaDeviceEnablePeerAccess(1 - g, 0));
    CHECK(cudaStreamCreateWithFlags(&gpu[g].stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&gpu[g].data, CAPACITY)); CHECK(cudaMalloc(&gpu[g].from, CAPACITY)); CHECK(cudaMalloc(&gpu[g].inbox, CAPACITY)); CHECK(cudaMalloc(&gpu[g].out, CAPACITY));
    CHECK(cudaMalloc(&gpu[g].flags, FLAGS)); CHECK(cudaMalloc(&gpu[g].failed, 4)); CHECK(cudaMalloc(&gpu[g].cycles, 1 << 16));
    std::vector<u32> random(CAPACITY / 4);
    u32 state = 12345 + g;
    for (auto& each : random) each = state = state * 1664525u + 1013904223u;
    CHECK(cudaMemcpy(gpu[g].from, random.data(), CAPACITY, cudaMemcpyHostToDevice)); CHECK(cudaMemcpy(gpu[g].data, random.data(), CAPACITY, cudaMemcpyHostToDevice));
    CHECK(cudaEventCreate(&gpu[g].begin)); CHECK(cudaEventCreate(&gpu[g].end));
  }
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  int clock_khz = 0, driver = 0;
  CHECK(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, 0));
  CHECK(cudaDriverGetVersion(&driver));
  printf("{\"what\": \"machine\", \"gpu\": \"%s\", \"sms\": %d, \"clock_khz\": %d, \"cuda_driver\": %d, \"nvcc\": \"%d.%d\"}\n", properties.name, properties.multiProcessorCount, clock_khz, driver, __CUDACC_VER_MAJOR__, __CUDACC_VER_MINOR__);
  fflush(stdout);
  measure_ping_pong();
  measure_trains(clock_khz);
  measure_one_shot();
  measure_rates();
  return 0;
}
