// The report as JSON.
#include "session.hpp"

namespace hgemm::emulator {

namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += format("\\u%04x", c);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string field(const char* name, const std::string& value) { return quoted(name) + ": " + value; }
std::string field(const char* name, const char* value) { return field(name, quoted(value)); }
std::string field(const char* name, uint64_t value) { return field(name, std::to_string(value)); }
std::string field(const char* name, int value) { return field(name, std::to_string(value)); }

std::string object(const std::vector<std::string>& fields) {
  std::string out = "{";
  for (const std::string& each : fields) out += (out.size() > 1 ? ", " : "") + each;
  return out + "}";
}

std::string list(const std::vector<std::string>& items) {
  std::string out = "[";
  for (const std::string& each : items) out += (out.size() > 1 ? ", " : "") + each;
  return out + "]";
}

std::string waiter_json(const Waiter& waiter) {
  return object({field("block", uint64_t{waiter.block}), field("warp", uint64_t{waiter.warp}),
                 field("lanes", uint64_t{waiter.lanes}), field("operation", name(waiter.operation)),
                 field("file", waiter.site.file_name()), field("line", uint64_t{waiter.site.line()}),
                 field("sentence", quoted(waiter.sentence))});
}

std::string event_json(const Event& event) {
  std::vector<std::string> waiters, stack;
  for (const Waiter& waiter : event.waiters) waiters.push_back(waiter_json(waiter));
  for (const uintptr_t offset : event.stack) stack.push_back(std::to_string(offset));
  const char* space = event.space == Space::shared ? "shared" : event.space == Space::global ? "global" : "";
  return object({field("kind", name(event.kind)), field("operation", name(event.operation)),
                 field("file", event.site.file_name()), field("line", uint64_t{event.site.line()}),
                 field("block", uint64_t{event.block}), field("warp", event.warp), field("lane", event.lane),
                 field("space", space), field("address", event.address), field("sentence", quoted(event.sentence)),
                 field("count", event.count), field("waiters", list(waiters)), field("stack", list(stack))});
}

std::string trace_json(const Trace::Entry& entry) {
  return list({std::to_string(entry.step), quoted(HAPPENING_NAMES[static_cast<size_t>(entry.happening)]),
               std::to_string(entry.piece)});
}

// One number for each operation for which it is worth telling.
template <class Value, class Wanted>
std::string by_operation(const Counters& counters, Value&& value, Wanted&& wanted) {
  std::vector<std::string> fields;
  for (size_t i = 0; i < OPERATIONS; ++i)
    if (wanted(counters.of[i])) fields.push_back(field(OPERATION_NAMES[i], value(counters.of[i])));
  return object(fields);
}

std::string counters_json(const Counters& counters) {
  const auto executed = [](const OperationCounter& counter) { return counter.executed; };
  const auto shared = [](const OperationCounter& counter) { return counter.shared_bytes; };
  const auto global = [](const OperationCounter& counter) { return counter.global_bytes; };
  const auto conflicts = [](const OperationCounter& counter) { return counter.extra_wavefronts; };
  return object(
      {field("mma", executed(counters[Operation::mma_m16n8k16_f16]) + executed(counters[Operation::mma_m16n8k16_bf16]) +
                        executed(counters[Operation::mma_m16n8k16_f16_f16])),
       field("ldmatrix", executed(counters[Operation::ldmatrix_x4]) + executed(counters[Operation::ldmatrix_x4_trans])),
       field("executed", by_operation(counters, executed, executed)),
       field("bank_conflicts", by_operation(counters, conflicts, shared)),
       field("shared_bytes", by_operation(counters, shared, shared)),
       field("global_bytes", by_operation(counters, global, global))});
}

}  // namespace

std::string to_json(const Report& report, const Schedule& schedule, uint32_t shared_base) {
  std::vector<std::string> events;
  for (const auto& [key, event] : report.events()) events.push_back(event_json(event));
  std::vector<std::string> trace;
  for (const Trace::Entry& entry : report.trace) trace.push_back(trace_json(entry));
  return object({field("schedule", quoted(schedule.text())), field("shared_base", uint64_t{shared_base}),
                 field("blocks", report.blocks), field("counters", counters_json(report.counters)),
                 field("events", list(events)), field("trace", list(trace))});
}

}  // namespace hgemm::emulator
