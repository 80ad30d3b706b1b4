#include "session.hpp"

#include <atomic>
#include <cfenv>
#include <cstdarg>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "../launch.cuh"

namespace hgemm::emulator {

namespace {

constexpr int MOST_THREADS = 1024;                   // a block, on every GPU
constexpr int MOST_SHARED_BYTES = 227 * 1024;        // a block, on sm_90, the largest
constexpr uint32_t MOST_CLUSTER_BLOCKS = 8;          // on every GPU that has clusters
constexpr uint32_t MOST_LAUNCHES = 63;               // that GlobalMark tells apart
constexpr uint64_t MOST_RESIDENT_THREADS = 1 << 17;  // of a cooperative launch: each takes a stack

// Computes as every machine does, whatever the calling thread has set: rounding to nearest, subnormals kept.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    fegetenv(&saved_);
    fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { fesetenv(&saved_); }

 private:
  fenv_t saved_;
};

// Groups that are not at work. Their stacks and shadows are large, and most launches are small. Those of many blocks
// are let go: every stack is two mappings, Linux gives a process 65,530, and each unit of kernels has a pool of its
// own.
class GroupPool {
 public:
  static constexpr size_t MOST_STACKS = 384;  // of a group that is kept: the threads of the largest block

  std::unique_ptr<Group> take() {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (idle_.empty()) return std::make_unique<Group>();
    std::unique_ptr<Group> group = std::move(idle_.back());
    idle_.pop_back();
    return group;
  }
  void give_back(std::unique_ptr<Group> group) {
    if (group->stacks() > MOST_STACKS) return;
    const std::lock_guard<std::mutex> guard(mutex_);
    idle_.push_back(std::move(group));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Group>> idle_;
};

GroupPool pool;

void add(int64_t& counter, int64_t amount) { __atomic_fetch_add(&counter, amount, __ATOMIC_RELAXED); }

}  // namespace

Session& Session::mine() {
  static thread_local Session session;
  return session;
}

std::string Session::begin(const HgemmMemory* memories, size_t count, const HgemmEmulatorOptions* options) {
  settings = Settings();
  report = Report();
  memory = GlobalMemory();
  open = false;
  launches = 0;
  const char* schedule = options && options->schedule ? options->schedule : getenv("HGEMM_EMULATOR");
  const std::string wrong = settings.schedule.parse(schedule && *schedule ? schedule : "lazy");
  if (!wrong.empty()) return wrong;
  memory = GlobalMemory(memories, count);
  if (options) {
    if (options->shared_base) settings.shared_base = options->shared_base;
    if (settings.shared_base % 16) return format("shared base 0x%x is no multiple of 16", settings.shared_base);
    settings.threads = options->threads;
    settings.progress = options->progress;
    settings.trace_bytes = options->trace_bytes;
    if (options->resident_blocks) settings.resident_blocks = options->resident_blocks;
  }
  open = true;
  return {};
}

void Session::run(const Launch& launch) {
  const DefaultArithmetic arithmetic;
  const uint32_t group_size = launch.together(), groups = launch.blocks / group_size;
  if (settings.progress) add(settings.progress->blocks_total, launch.blocks);

  std::atomic<uint32_t> next{0};
  std::atomic<bool> stopped{false};
  std::mutex merging;
  const auto work = [&] {
    std::unique_ptr<Group> group = pool.take();
    group->settings = settings;
    group->memory = &memory;
    group->report = Report();
    for (uint32_t i; !stopped && (i = next++) < groups;) {
      if (!group->run(launch, i * group_size, group_size)) stopped = true;
      if (settings.progress) add(settings.progress->blocks_done, group_size);
    }
    const std::lock_guard<std::mutex> guard(merging);
    report.merge(group->report);
    pool.give_back(std::move(group));
  };

  const uint32_t processors = std::max(1u, std::thread::hardware_concurrency());
  const uint32_t wanted = settings.threads > 0 ? static_cast<uint32_t>(settings.threads) : processors;
  std::vector<std::thread> helpers;
  for (uint32_t i = 1; i < std::min(wanted, groups); ++i)
    helpers.emplace_back([&] {
      const DefaultArithmetic own;
      work();
    });
  work();
  for (std::thread& helper : helpers) helper.join();
  if (settings.progress && __atomic_load_n(&settings.progress->cancel, __ATOMIC_RELAXED))
    report.add({Kind::cancelled, Operation::barrier_sync, Site(), 0, -1, -1, Space::none, 0, "stopped from outside"});
}

uint32_t resident_blocks() { return Session::mine().settings.resident_blocks; }

const char* run(uint32_t cluster, uint32_t blocks, int threads, int shared_bytes, Order order,
                void (*kernel)(const void*), const void* arguments) {
  const bool cooperative = order == Order::cooperative, dependent = order == Order::overlapping;
  if (blocks < 1 || threads < 1 || threads > MOST_THREADS || shared_bytes < 0 || shared_bytes > MOST_SHARED_BYTES)
    return message(
        "launching the kernel: %u blocks of %d threads with %d bytes of shared memory; a GPU takes 1 to %d "
        "threads and at most %d bytes",
        blocks, threads, shared_bytes, MOST_THREADS, MOST_SHARED_BYTES);
  if (cluster < 1 || cluster > MOST_CLUSTER_BLOCKS || blocks % cluster)
    return message("launching the kernel: %u blocks in clusters of %u; every GPU takes whole clusters of 1 to %u",
                   blocks, cluster, MOST_CLUSTER_BLOCKS);
  if (cooperative && uint64_t{blocks} * static_cast<uint64_t>(threads) > MOST_RESIDENT_THREADS)
    return message("launching the kernel: %u blocks of %d threads are too many to be resident together", blocks,
                   threads);
  Session& session = Session::mine();
  const bool alone = !session.open;  // a launch without begin and end is a session of its own
  if (alone) {
    const std::string wrong = session.begin(nullptr, 0, nullptr);
    if (!wrong.empty()) return message("%s", wrong.c_str());
  }
  if (session.launches == MOST_LAUNCHES) return message("more than %u launches in one session", MOST_LAUNCHES);
  session.run({blocks, static_cast<uint32_t>(threads), static_cast<uint32_t>(shared_bytes), cluster, cooperative,
               dependent, kernel, arguments, ++session.launches});
  if (alone) session.open = false;
  const std::string found = session.report.summary();
  return found.empty() ? nullptr : message("%s", found.c_str());
}

}  // namespace hgemm::emulator

namespace hgemm {

const char* message(const char* format, ...) {
  static thread_local char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

const char* encode_tensor_map(TensorMap* map, const Matrices& matrices, const Box& box) {
  emulator::TensorMapFields fields{};
  fields.magic = emulator::TensorMapFields::MAGIC;
  fields.base = static_cast<uint8_t*>(const_cast<void*>(matrices.base));
  fields.batch = matrices.batch;
  fields.rows = matrices.rows;
  fields.columns = matrices.columns;
  fields.batch_stride_bytes = matrices.batch_stride * emulator::ELEMENT_BYTES;
  fields.row_stride_bytes = matrices.row_stride * emulator::ELEMENT_BYTES;
  fields.box_rows = box.rows;
  fields.box_columns = box.columns;
  fields.swizzle_span = box.swizzle_span;
  const std::string rule = emulator::broken_tensor_map_rule(fields);
  if (!rule.empty()) return message("cuTensorMapEncodeTiled would refuse the tensor: %s", rule.c_str());
  emulator::write_tensor_map(map, fields);
  return nullptr;
}

}  // namespace hgemm

using hgemm::emulator::Session;

extern "C" {

const char* hgemm_emulator_begin(const HgemmMemory* memories, size_t count, const HgemmEmulatorOptions* options) {
  Session& session = Session::mine();
  session.text = session.begin(memories, count, options);
  return session.text.empty() ? nullptr : session.text.c_str();
}

void hgemm_emulator_memory(const HgemmMemory* memory) { Session::mine().memory.add(*memory); }

const char* hgemm_emulator_end(void) {
  Session& session = Session::mine();
  session.open = false;
  if (session.report.clean() && session.report.blocks) session.memory.check_written(session.report);
  session.text = to_json(session.report, session.settings.schedule, session.settings.shared_base);
  session.memory = hgemm::emulator::GlobalMemory();
  return session.text.c_str();
}

}  // extern "C"
