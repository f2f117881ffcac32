// SPDX-License-Identifier: Apache-2.0
#include "client/torch/hook/operator_hook.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "ATen/SequenceNumber.h"
#include "ATen/record_function.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "client/torch/hook/operator_inputs.h"
#include "client/torch/hook/operator_traits.h"
#include "client/torch/hook/storage_access_2_11.h"
#include "gemini/system/check.h"

namespace gemini::client::hooks {
namespace {

// One managed input of an operator in flight.
struct PinnedInput {
  ManagedStorage* storage;
  // A boxed kernel drops its inputs, and a backward node its saved ones, before the event's end.
  c10::intrusive_ptr<c10::StorageImpl> keep_alive;
  int argument = 0;
  bool written = false;  // Decided before the operator runs; its end adds a moved version counter.
  bool on_scratch = false;
  uint32_t version = 0;  // Before the operator.
};

// An operator in flight that has managed inputs: pins[first_pin] onwards are its own.
struct Frame {
  const at::RecordFunction* function;
  size_t first_pin;
  bool on_scratch;
  bool is_custom;   // Its backward node may want the same inputs.
  int64_t op = -1;  // PhaseTracker's; -1: part of the operator around it.
};

// Written by its own thread only; relaxed atomics so that stats() may read from another.
struct ThreadCounters {
  std::atomic<int64_t> operators{0};
  std::atomic<int64_t> operators_with_chunks{0};
  void Add(std::atomic<int64_t>& counter) {
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
};

std::mutex g_counters_mutex;
std::vector<std::shared_ptr<ThreadCounters>>& AllCounters() {
  static auto* counters = new std::vector<std::shared_ptr<ThreadCounters>>();
  return *counters;
}

struct HookThread {
  HookThread() {
    const std::lock_guard lock(g_counters_mutex);
    AllCounters().push_back(counters);
  }
  // Deep enough for names; deeper operators are counted and not named.
  static constexpr int kNamedDepth = 64;
  std::array<const at::RecordFunction*, kNamedDepth> running = {};
  int depth = 0;
  std::vector<Frame> frames;
  std::vector<PinnedInput> pins;
  std::vector<RangeId> ranges;  // Pinned by one operator, while it starts.
  std::vector<TensorUse> uses;  // Likewise; and at its end, those that turned out to be written.
  std::vector<std::byte*> addresses;
  absl::Status failure;  // The error of the innermost frame on scratch.
  std::shared_ptr<ThreadCounters> counters = std::make_shared<ThreadCounters>();

  void Enter(const at::RecordFunction* function) {
    if (depth < kNamedDepth) running[depth] = function;
    ++depth;
  }
  void Leave() {
    if (depth > 0) --depth;
  }
  void DropPins(size_t first) { pins.erase(pins.begin() + first, pins.end()); }
};

// A pointer in place of the object: reading it needs no initialisation check at each operator.
constinit thread_local HookThread* t_hook_thread = nullptr;
HookThread& MakeThread() {
  thread_local HookThread owner;
  t_hook_thread = &owner;
  return owner;
}
HookThread& Thread() { return t_hook_thread != nullptr ? *t_hook_thread : MakeThread(); }

// Which managed storages a custom operator took in forward: its backward node may take raw pointers
// to them again, and carries the same sequence number and forward thread. Keeps no storage alive:
// what the node saved does.
class ForwardMemory {
 public:
  using Key = std::pair<int64_t, uint64_t>;
  // More events than this between a forward and its backward: the oldest are forgotten, and such a
  // node then raises on the released storage.
  static constexpr size_t kMaxEvents = 1 << 16;

  void Remember(Key key, std::span<const PinnedInput> pins) {
    const std::lock_guard lock(mutex_);
    auto [entry, is_new] = storages_.try_emplace(key);
    for (const PinnedInput& pin : pins) {
      if (std::ranges::none_of(entry->second, [&](const auto& known) {
            return known._unsafe_get_target() == pin.keep_alive.get();
          })) {
        entry->second.emplace_back(pin.keep_alive);
      }
    }
    if (is_new) {
      order_.push_back(key);
      if (order_.size() > kMaxEvents) {
        storages_.erase(order_.front());
        order_.pop_front();
      }
    }
    empty_.store(false, std::memory_order_relaxed);
  }

  template <typename Visitor>
  void ForEach(Key key, Visitor&& visit) {
    if (empty_.load(std::memory_order_relaxed)) return;
    const std::lock_guard lock(mutex_);
    const auto found = storages_.find(key);
    if (found == storages_.end()) return;
    for (const auto& storage : found->second) {
      if (auto alive = storage.lock()) visit(std::move(alive));
    }
  }

 private:
  std::atomic<bool> empty_{true};
  std::mutex mutex_;
  absl::flat_hash_map<Key, std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>> storages_;
  std::deque<Key> order_;
};

}  // namespace

struct OperatorHook::State {
  Session* session;
  Residency* residency;
  PhaseTracker* phases = nullptr;
  uint64_t generation = 0;
  OperatorHook* hook = nullptr;
  ForwardMemory forward_memory;
  std::shared_ptr<SessionDevice> device;
  int64_t scratch_bytes = 4096;  // The largest managed storage, at least.
  HookStats stats_before;        // Totals of earlier hooks of this process.
  std::vector<at::CallbackHandle> callbacks;
};

namespace {

std::atomic<OperatorHook::State*> g_active{nullptr};

TensorUse UseOf(const PinnedInput& pin, bool written) {
  return {.tensor = pin.storage->tensor(),
          .kind = pin.storage->is_gradient() ? ChunkKind::kGrad : ChunkKind::kParam,
          .written = written};
}

// Tells the tracker of an operator, one of whose inputs nobody pins: the others are part of one
// that does.
void TellBegin(OperatorHook::State& state, HookThread& thread, size_t first) {
  thread.uses.clear();
  bool is_outer = false;
  for (size_t i = first; i < thread.pins.size(); ++i) {
    const PinnedInput& pin = thread.pins[i];
    is_outer |= !pin.storage->pinned();
    if (pin.storage->tensor() >= 0) thread.uses.push_back(UseOf(pin, pin.written));
  }
  if (!is_outer || thread.uses.empty()) return;
  thread.frames.back().op = state.phases->BeginOperator(thread.uses, c10::GradMode::is_enabled());
}

// Brings the storages of thread.pins[first] onwards, all or none.
absl::Status PinInputs(OperatorHook::State& state, HookThread& thread, size_t first) {
  const size_t count = thread.pins.size() - first;
  thread.ranges.clear();
  if (absl::Status status = state.device->CheckOperators(); !status.ok()) [[unlikely]] {
    return status;
  }
  // Once latched, results of operators on scratch may be what is to be written.
  if (std::any_of(thread.pins.begin() + first, thread.pins.end(), [](const PinnedInput& pin) {
        return pin.written && !pin.storage->is_gradient();
      })) [[unlikely]] {
    if (absl::Status status = state.session->status(); !status.ok()) return status;
  }
  for (size_t i = first; i < thread.pins.size(); ++i) {
    ManagedStorage& storage = *thread.pins[i].storage;
    if (!storage.ready()) [[unlikely]] {
      if (absl::Status status = storage.owner().Prepare(storage); !status.ok()) return status;
    }
    if (thread.pins[i].written && storage.is_parameter()) [[unlikely]] {
      if (absl::Status status = storage.owner().PrepareWrite(storage); !status.ok()) return status;
    }
    thread.ranges.push_back(storage.range());
  }
  thread.addresses.resize(count);
  if (state.phases != nullptr) TellBegin(state, thread, first);
  if (absl::Status status = state.residency->Pin(thread.ranges, absl::MakeSpan(thread.addresses));
      !status.ok()) [[unlikely]] {
    return status;
  }
  for (size_t i = 0; i < count; ++i) {
    ManagedStorage& storage = *thread.pins[first + i].storage;
    storage.Attach(thread.addresses[i] + storage.offset_bytes());
  }
  return absl::OkStatus();
}

void RunOnScratch(OperatorHook::State& state, HookThread& thread, size_t first,
                  const absl::Status& status) {
  thread.failure = absl::Status(
      status.code(), absl::StrCat("operator ", CurrentOperatorName(), " with ",
                                  thread.pins[first].storage->name(), ": ", status.message()));
  state.session->Latch(thread.failure);
  std::byte* const scratch = state.device->NanScratch(state.scratch_bytes);
  if (scratch == nullptr) {
    // The storages stay released and the operator raises on them: loud as well.
    thread.DropPins(first);
    return;
  }
  for (size_t i = first; i < thread.pins.size(); ++i) {
    PinnedInput& pin = thread.pins[i];
    // Where another operator's pin shows the tensor's bytes this one will find them, too: they must
    // not go while it works on them.
    const RangeId range = pin.storage->range();
    std::byte* address = nullptr;
    if (pin.storage->ready() && pin.storage->attached() &&
        state.residency->Pin({&range, 1}, {&address, 1}).ok()) {
      pin.storage->Attach(address + pin.storage->offset_bytes());
      pin.version = pin.storage->version();
      continue;
    }
    pin.on_scratch = true;
    pin.storage->AttachScratch(scratch);
  }
}

void BeginFrame(OperatorHook::State& state, HookThread& thread, const at::RecordFunction& function,
                size_t first, bool is_custom) {
  thread.counters->Add(thread.counters->operators_with_chunks);
  // First: once the inputs are pinned nothing may throw any more.
  thread.frames.push_back({&function, first, false, is_custom, -1});
  const absl::Status status = PinInputs(state, thread, first);
  if (!status.ok()) [[unlikely]] {
    thread.frames.back().on_scratch = true;
    RunOnScratch(state, thread, first, status);
    return;
  }
  for (size_t i = first; i < thread.pins.size(); ++i) {
    thread.pins[i].version = thread.pins[i].storage->version();
  }
}

// After an exception in a start callback, which pinned nothing yet: only memory can have run out.
void AbandonFrame(OperatorHook::State& state, HookThread& thread,
                  const at::RecordFunction& function, size_t first, const char* what) {
  if (!thread.frames.empty() && thread.frames.back().function == &function) {
    if (thread.frames.back().op >= 0) state.phases->EndOperator(thread.frames.back().op);
    thread.frames.pop_back();
  }
  thread.DropPins(first);
  state.session->Latch(absl::ResourceExhaustedError(
      absl::StrCat("bringing operator ", CurrentOperatorName(), " its inputs: ", what)));
}

std::unique_ptr<at::ObserverContext> BeginOperator(const at::RecordFunction& function) {
  HookThread& thread = Thread();
  thread.Enter(&function);
  OperatorHook::State* const state = g_active.load(std::memory_order_acquire);
  if (state == nullptr) return nullptr;
  thread.counters->Add(thread.counters->operators);
  const size_t first = thread.pins.size();
  const c10::FunctionSchema* const schema = SchemaOf(function);
  try {
    ForEachInputTensor(function, schema, [&](c10::TensorImpl* tensor, int argument) {
      ManagedStorage* const storage = ManagedStorage::Of(tensor);
      if (storage != nullptr && !storage->retired()) {
        thread.pins.push_back({storage, storage->storage(), argument});
      }
    });
    if (thread.pins.size() == first) [[likely]]
      return nullptr;

    const OperatorTraits& traits = TraitsOf(schema, function.name());
    if (traits.is_view) {
      // Or zero_grad, which detaches each gradient, would bring them all back to DEVICE.
      thread.DropPins(first);
      return nullptr;
    }
    for (size_t i = first; i < thread.pins.size(); ++i) {
      PinnedInput& pin = thread.pins[i];
      pin.written = traits.custom || pin.storage->always_dirty() || traits.Writes(pin.argument);
    }
    BeginFrame(*state, thread, function, first, traits.custom);
  } catch (const std::exception& error) {
    AbandonFrame(*state, thread, function, first, error.what());
  }
  return nullptr;
}

std::unique_ptr<at::ObserverContext> BeginBackwardNode(const at::RecordFunction& function) {
  HookThread& thread = Thread();
  thread.Enter(&function);
  OperatorHook::State* const state = g_active.load(std::memory_order_acquire);
  if (state == nullptr) return nullptr;
  const size_t first = thread.pins.size();
  try {
    state->forward_memory.ForEach(
        {function.seqNr(), function.forwardThreadId()},
        [&](c10::intrusive_ptr<c10::StorageImpl> storage) {
          ManagedStorage* const managed = ManagedStorage::Of(storage.get());
          if (managed == nullptr || managed->retired()) return;
          thread.pins.push_back({managed, std::move(storage), 0, managed->always_dirty()});
        });
    if (thread.pins.size() > first) {
      BeginFrame(*state, thread, function, first, /*is_custom=*/false);
    }
  } catch (const std::exception& error) {
    AbandonFrame(*state, thread, function, first, error.what());
  }
  return nullptr;
}

// Runs from RecordFunction's destructor: after the operator, or while its exception unwinds.
void EndEvent(const at::RecordFunction& function, at::ObserverContext*) {
  HookThread& thread = Thread();
  thread.Leave();
  if (thread.frames.empty() || thread.frames.back().function != &function) return;
  OperatorHook::State* const state = g_active.load(std::memory_order_acquire);
  const Frame frame = thread.frames.back();
  thread.frames.pop_back();
  // A node made meanwhile has taken the number; otherwise the next operator's will get it.
  if (frame.is_custom && state != nullptr && function.seqNr() >= 0 &&
      at::sequence_number::peek() > static_cast<uint64_t>(function.seqNr())) {
    try {
      state->forward_memory.Remember({function.seqNr(), function.threadId()},
                                     std::span(thread.pins).subspan(frame.first_pin));
    } catch (const std::exception&) {
      // Out of memory: the backward node raises on the released storage.
    }
  }
  thread.uses.clear();
  // One without chunks may be recorded for a graph, which no event of ours is a part of.
  const CopyEvent used = state != nullptr && !frame.on_scratch
                             ? state->session->copies().AfterOperators()
                             : CopyEvent();
  for (size_t i = frame.first_pin; i < thread.pins.size(); ++i) {
    const PinnedInput& pin = thread.pins[i];
    if (pin.on_scratch) [[unlikely]] {
      pin.storage->DetachScratch();
      continue;
    }
    const bool dirty = pin.written || pin.storage->version() != pin.version;
    pin.storage->Detach();
    if (dirty && !pin.written && state != nullptr && pin.storage->is_parameter()) [[unlikely]] {
      state->session->Latch(pin.storage->owner().NoteWrite(*pin.storage));
    }
    if (state != nullptr) state->residency->Unpin(pin.storage->range(), dirty, used);
    // There is room: BeginOperator put each pin's use here.
    if (dirty && !pin.written && frame.op >= 0) thread.uses.push_back(UseOf(pin, true));
  }
  if (frame.op >= 0 && state != nullptr) state->phases->EndOperator(frame.op, thread.uses);
  thread.DropPins(frame.first_pin);
}

HookStats SumCounters() {
  const std::lock_guard lock(g_counters_mutex);
  HookStats sum;
  for (const auto& counters : AllCounters()) {
    sum.operators += counters->operators.load(std::memory_order_relaxed);
    sum.operators_with_chunks += counters->operators_with_chunks.load(std::memory_order_relaxed);
  }
  return sum;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OperatorHook>> OperatorHook::Install(
    Session& session, std::shared_ptr<SessionDevice> device, PhaseTracker* phases) {
  if (g_active.load() != nullptr) {
    return absl::FailedPreconditionError(
        "a training session is open in this process: close it, or Manage the model in it");
  }
  static std::atomic<uint64_t> generations{0};
  auto state = std::make_unique<State>();
  state->generation = ++generations;
  state->session = &session;
  state->residency = &session.residency();
  state->phases = phases;
  state->device = std::move(device);
  state->stats_before = SumCounters();
  return std::unique_ptr<OperatorHook>(new OperatorHook(std::move(state)));
}

OperatorHook::OperatorHook(std::unique_ptr<State> state) : state_(std::move(state)) {
  state_->hook = this;
  g_active.store(state_.get(), std::memory_order_release);
  state_->callbacks = {
      at::addGlobalCallback(at::RecordFunctionCallback(&BeginOperator, &EndEvent)
                                .needsInputs(true)
                                .scopes({at::RecordScope::FUNCTION})),
      at::addGlobalCallback(at::RecordFunctionCallback(&BeginBackwardNode, &EndEvent)
                                .scopes({at::RecordScope::BACKWARD_FUNCTION}))};
}

OperatorHook::~OperatorHook() {
  for (at::CallbackHandle callback : state_->callbacks) at::removeCallback(callback);
  g_active.store(nullptr, std::memory_order_release);
}

absl::Status OperatorHook::Pin(ManagedStorage& storage) {
  if (!storage.ready()) {
    if (absl::Status status = storage.owner().Prepare(storage); !status.ok()) return status;
  }
  const RangeId range = storage.range();
  std::byte* address = nullptr;
  if (absl::Status status = state_->residency->Pin({&range, 1}, {&address, 1}); !status.ok()) {
    return status;
  }
  storage.Attach(address + storage.offset_bytes());
  return absl::OkStatus();
}

void OperatorHook::Unpin(ManagedStorage& storage, bool dirty) {
  storage.Detach();
  state_->residency->Unpin(storage.range(), dirty);
}

uint64_t OperatorHook::generation() const { return state_->generation; }

OperatorHook* OperatorHook::Active() {
  State* const state = g_active.load(std::memory_order_acquire);
  return state == nullptr ? nullptr : state->hook;
}

void OperatorHook::ReserveScratch(int64_t size_bytes) {
  state_->scratch_bytes = std::max(state_->scratch_bytes, size_bytes);
}

SessionDevice& OperatorHook::device() const { return *state_->device; }

HookStats OperatorHook::stats() const {
  HookStats stats = SumCounters();
  stats.operators -= state_->stats_before.operators;
  stats.operators_with_chunks -= state_->stats_before.operators_with_chunks;
  return stats;
}

const std::vector<at::CallbackHandle>& OperatorHook::callbacks() const { return state_->callbacks; }

std::string CurrentOperatorName() {
  const HookThread& thread = Thread();
  if (thread.depth == 0) return "no operator";
  return thread.running[std::min(thread.depth, HookThread::kNamedDepth) - 1]->name();
}

absl::Status CurrentOperatorFailure() {
  const HookThread& thread = Thread();
  for (const Frame& frame : thread.frames) {
    if (frame.on_scratch) return thread.failure;
  }
  return absl::OkStatus();
}

}  // namespace gemini::client::hooks
