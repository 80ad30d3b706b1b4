// torch.ops.hgemm_cuda over the C interface of launch.h, on torch's stable ABI.
//
// No CUDA header and no kernel: g++ compiles this file alone, against a torch with CUDA or without. The compiled units
// are shared libraries of their own, opened when build.py hands over their path; a number, the handle, stands for each.

#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "launch.h"

#ifndef USE_CUDA
// In a torch without CUDA these are nowhere to be found, and no CUDA tensor can ask for them.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);
#endif

namespace {

using torch::stable::Tensor;

// One opened library. Units are never closed: a kernel may still be running.
struct Unit {
  int32_t device_type;
  int32_t dtype;
  bool a_transposed, b_transposed;  // the unit reads stored rows of the transpose: letter "t" of its layout
  decltype(&hgemm_config_count) config_count;
  decltype(&hgemm_config_name) config_name;
  decltype(&hgemm_workspace_bytes) workspace_bytes;
  decltype(&hgemm_launch) launch;
  decltype(&hgemm_resources) resources;
};

// Written under the mutex, read without: a handle is handed out only after its entry is in place.
constexpr int MAX_UNITS = 1024;
std::unique_ptr<Unit> units[MAX_UNITS];
std::atomic<int> unit_count{0};
std::mutex loading;

const Unit& find_unit(int64_t handle) {
  if (handle < 0 || handle >= unit_count.load(std::memory_order_acquire))
    throw std::runtime_error("hgemm_cuda: no unit has the handle " + std::to_string(handle) +
                             "; handles come from hgemm.cuda_kernels.build.load_unit");
  return *units[handle];
}

template <class Function>
void find_symbol(void* library, const char* path, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function) throw std::runtime_error(std::string(path) + " exports no " + name + ": it is no unit of launch.h");
}

int load_unit(const char* path, int32_t device_type, const std::string& dtype, const std::string& layout) {
  auto unit = std::make_unique<Unit>();
  unit->device_type = device_type;
  if (dtype == "f16") {
    unit->dtype = aoti_torch_dtype_float16();
  } else if (dtype == "bf16") {
    unit->dtype = aoti_torch_dtype_bfloat16();
  } else {
    throw std::runtime_error("a unit's dtype is f16 or bf16, found " + dtype);
  }
  if (layout.size() != 2 || layout.find_first_not_of("nt") != std::string::npos)
    throw std::runtime_error("a unit's layout is nn, nt, tn or tt, found " + layout);
  unit->a_transposed = layout[0] == 't';
  unit->b_transposed = layout[1] == 't';
  // RTLD_LOCAL: every unit exports the same names.
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  find_symbol(library, path, "hgemm_config_count", unit->config_count);
  find_symbol(library, path, "hgemm_config_name", unit->config_name);
  find_symbol(library, path, "hgemm_workspace_bytes", unit->workspace_bytes);
  find_symbol(library, path, "hgemm_launch", unit->launch);
  find_symbol(library, path, "hgemm_resources", unit->resources);

  const std::lock_guard<std::mutex> guard(loading);
  const int handle = unit_count.load(std::memory_order_relaxed);
  if (handle == MAX_UNITS) throw std::runtime_error("more than 1024 units are loaded");
  units[handle] = std::move(unit);
  unit_count.store(handle + 1, std::memory_order_release);
  return handle;
}

const char* device_name(int32_t type) {
  return type == aoti_torch_device_type_cuda() ? "cuda" : type == aoti_torch_device_type_cpu() ? "cpu" : "other";
}

[[noreturn]] void refuse(const std::string& rule) { throw std::runtime_error("hgemm_cuda.mm_out: " + rule); }

void check_config(const Unit& unit, int64_t config) {
  if (config < 0 || config >= unit.config_count())
    refuse("configuration " + std::to_string(config) + " of " + std::to_string(unit.config_count()));
}

// What is read of each tensor: once, through the C interface. The stride of a dimension of size 1 means nothing and may
// be anything: such rows and batches get stride 0, which is aligned, and such columns stride 1.
struct Matrices {
  int64_t batch = 1, rows, columns;
  int64_t batch_stride = 0, row_stride, column_stride;

  Matrices(const char* name, const Tensor& tensor, const Unit& unit, int32_t device) {
    int32_t type, index, dtype;
    aoti_torch_get_device_type(tensor.get(), &type);
    aoti_torch_get_device_index(tensor.get(), &index);
    aoti_torch_get_dtype(tensor.get(), &dtype);
    if (type != unit.device_type)
      refuse(std::string(name) + " is a " + device_name(type) + " tensor, and this unit is built for " +
             device_name(unit.device_type));
    if (index != device)
      refuse(std::string(name) + " is on device " + std::to_string(index) + ", a on device " + std::to_string(device));
    if (dtype != unit.dtype)
      refuse(std::string(name) + " must be of the dtype that this unit is built for, " +
             (unit.dtype == aoti_torch_dtype_float16() ? "float16" : "bfloat16"));
    const int64_t dimensions = tensor.dim();
    if (dimensions != 2 && dimensions != 3)
      refuse(std::string(name) + " must have 2 or 3 dimensions, found " + std::to_string(dimensions));
    int64_t *sizes, *strides;
    aoti_torch_get_sizes(tensor.get(), &sizes);
    aoti_torch_get_strides(tensor.get(), &strides);
    if (dimensions == 3) {
      batch = *sizes++;
      batch_stride = batch == 1 ? 0 : *strides;
      ++strides;
    }
    rows = sizes[0];
    columns = sizes[1];
    row_stride = strides[0];
    column_stride = strides[1];
  }

  std::string shape() const {
    const std::string matrix = std::to_string(rows) + ", " + std::to_string(columns) + ")";
    return batch == 1 ? "(" + matrix : "(" + std::to_string(batch) + ", " + matrix;
  }
  bool repeats_elements() const {
    return (batch > 1 && batch_stride == 0) || (rows > 1 && row_stride == 0) || (columns > 1 && column_stride == 0);
  }
};

// Strides of the rows that a unit reads.
struct Stored {
  int64_t row_stride, column_stride;

  Stored(const Matrices& m, bool transposed)
      : row_stride(transposed ? m.column_stride : m.row_stride),
        column_stride(transposed ? m.row_stride : m.column_stride) {
    const int64_t rows = transposed ? m.columns : m.rows, columns = transposed ? m.rows : m.columns;
    if (rows == 1) row_stride = 0;
    if (columns == 1) column_stride = 1;
  }
};

void* current_stream(int32_t device) {
  void* stream = nullptr;
#ifndef USE_CUDA
  if (!aoti_torch_get_current_cuda_stream) refuse("the binding was built for a torch without CUDA");
#endif
  if (aoti_torch_get_current_cuda_stream(device, &stream) != 0) refuse("torch has no current CUDA stream");
  return stream;
}

// Scratch memory from torch's allocator. Freed on return, and reused only by later work on the same stream.
Tensor allocate(int64_t bytes, int32_t device_type, int32_t device) {
  const int64_t stride = 1;
  AtenTensorHandle memory;
  if (aoti_torch_empty_strided(1, &bytes, &stride, aoti_torch_dtype_uint8(), device_type, device, &memory) != 0)
    refuse("no memory for a workspace of " + std::to_string(bytes) + " bytes");
  return Tensor(memory);
}

void launch(const Unit& unit, const HgemmProblem& problem, int config, size_t bytes, int32_t device, void* stream) {
  const char* error = nullptr;
  if (bytes == 0) {
    error = unit.launch(&problem, config, nullptr, 0, stream);
  } else {
    const Tensor workspace = allocate(static_cast<int64_t>(bytes), unit.device_type, device);
    error = unit.launch(&problem, config, workspace.mutable_data_ptr(), bytes, stream);
  }
  if (error) refuse(error);
}

// out[M, N] = a[M, K] @ b[K, N], enqueued on the current stream of a's device; with a batch dimension in front, one
// product for each matrix of out, and an a or b that has only one is used for all. Throws before anything is launched.
void mm_out(const Tensor& a, const Tensor& b, const Tensor& out, int64_t handle, int64_t config) {
  const Unit& unit = find_unit(handle);
  check_config(unit, config);
  const int32_t device = a.get_device_index();
  const Matrices left("a", a, unit, device), right("b", b, unit, device), result("out", out, unit, device);
  const auto fits = [&](const Matrices& input) { return input.batch == result.batch || input.batch == 1; };
  if (left.columns != right.rows || result.rows != left.rows || result.columns != right.columns || !fits(left) ||
      !fits(right))
    refuse("shapes do not agree: " + left.shape() + " @ " + right.shape() + " -> " + result.shape());
  if (result.repeats_elements()) refuse("out must have a place for each element, found a stride of 0");
  const Stored stored_a(left, unit.a_transposed), stored_b(right, unit.b_transposed), stored_c(result, false);
  const HgemmProblem problem{.a = a.const_data_ptr(),
                             .b = b.const_data_ptr(),
                             .c = out.mutable_data_ptr(),
                             .M = left.rows,
                             .N = right.columns,
                             .K = left.columns,
                             .batch = result.batch,
                             .a_row_stride = stored_a.row_stride,
                             .b_row_stride = stored_b.row_stride,
                             .c_row_stride = stored_c.row_stride,
                             .a_column_stride = stored_a.column_stride,
                             .b_column_stride = stored_b.column_stride,
                             .c_column_stride = stored_c.column_stride,
                             .a_batch_stride = left.batch_stride,
                             .b_batch_stride = right.batch_stride,
                             .c_batch_stride = result.batch_stride};
  const auto bytes = [&] { return unit.workspace_bytes(&problem, static_cast<int>(config)); };
  if (unit.device_type == aoti_torch_device_type_cuda()) {
    const torch::stable::accelerator::DeviceGuard guard(device);
    launch(unit, problem, static_cast<int>(config), bytes(), device, current_stream(device));
  } else {
    launch(unit, problem, static_cast<int>(config), bytes(), device, nullptr);
  }
}

// Whether `device` is current; if not, making it so takes a guard.
bool is_current(int32_t device) {
  int32_t current = -1;
  return aoti_torch_get_current_device_index(&current) == 0 && current == device;
}

int report(const std::exception& error, char* text, size_t size) {
  std::snprintf(text, size, "%s", error.what());
  return -1;
}

}  // namespace

// struct BoundProblem of binding.py: all of a product but its addresses.
struct HgemmBound {
  int32_t unit, config;
  int32_t device;           // ignored where the unit is for the CPU
  int64_t workspace_bytes;  // negative until the first launch, since a device that is not current cannot be asked
  HgemmProblem problem;
};

namespace {

void launch(HgemmBound& bound, const Unit& unit, const HgemmProblem& problem, void* stream) {
  std::atomic_ref<int64_t> bytes(bound.workspace_bytes);  // several threads may find the same
  if (bytes.load(std::memory_order_relaxed) < 0)
    bytes.store(static_cast<int64_t>(unit.workspace_bytes(&problem, bound.config)), std::memory_order_relaxed);
  launch(unit, problem, bound.config, bytes.load(std::memory_order_relaxed), bound.device, stream);
}

}  // namespace

// What binding.py calls through ctypes. A function with an `error` buffer returns -1 and fills it if it fails.
extern "C" {

int hgemm_load_unit(const char* path, int device_type, const char* dtype, const char* layout, char* error,
                    size_t error_size) try {
  return load_unit(path, device_type, dtype, layout);
} catch (const std::exception& failure) {
  return report(failure, error, error_size);
}

// NULL past the last configuration.
const char* hgemm_unit_config_name(int handle, int config) try {
  return find_unit(handle).config_name(config);
} catch (const std::exception&) {
  return nullptr;
}

// mm_out of a product that was described before, at these addresses. Returns NULL, or a message that stays valid until
// this thread's next call; nothing was launched then.
const char* hgemm_launch_at(HgemmBound* bound, const void* a, const void* b, void* c) try {
  const Unit& unit = find_unit(bound->unit);
  check_config(unit, bound->config);
  HgemmProblem problem = bound->problem;
  problem.a = a;
  problem.b = b;
  problem.c = c;
  if (unit.device_type != aoti_torch_device_type_cuda()) {
    launch(*bound, unit, problem, nullptr);
  } else if (is_current(bound->device)) {
    launch(*bound, unit, problem, current_stream(bound->device));
  } else {
    const torch::stable::accelerator::DeviceGuard guard(bound->device);
    launch(*bound, unit, problem, current_stream(bound->device));
  }
  return nullptr;
} catch (const std::exception& failure) {
  static thread_local std::string text;
  text = failure.what();
  return text.c_str();
}

int hgemm_unit_resources(int handle, int config, HgemmResources* resources, char* error, size_t error_size) try {
  if (const char* failure = find_unit(handle).resources(config, resources)) throw std::runtime_error(failure);
  return 0;
} catch (const std::exception& failure) {
  return report(failure, error, error_size);
}

}  // extern "C"

STABLE_TORCH_LIBRARY(hgemm_cuda, library) {
  library.def("mm_out(Tensor a, Tensor b, Tensor(a!) out, int unit, int config) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(hgemm_cuda, CUDA, library) { library.impl("mm_out", TORCH_BOX(&mm_out)); }
STABLE_TORCH_LIBRARY_IMPL(hgemm_cuda, CPU, library) { library.impl("mm_out", TORCH_BOX(&mm_out)); }
