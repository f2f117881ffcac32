// SPDX-License-Identifier: Apache-2.0
#include "client/update/bundle_update.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "client/kernels/quantised_update.h"
#include "gemini/element_type.h"
#include "gemini/moment_format.h"
#include "gemini/state_format.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {

static_assert(kUpdatePartElements % kQuantisationBlockElements == 0);

namespace {

// What an update changes of each element.
enum State : uint8_t { kParam, kMaster, kExpAvg, kExpAvgSq, kNumStates };

// Bytes an element; 0: the format has none. Of 8-bit moments that of their codes.
std::array<int64_t, kNumStates> WidthsOf(const StateFormat& format) {
  constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
  const int64_t moment = format.moments == MomentFormat::k8Bit ? 1 : kFloatBytes;
  std::array<int64_t, kNumStates> widths = {ElementBytes(format.element), 0, moment, moment};
  if (format.element == ElementType::kBf16) widths[kMaster] = sizeof(int16_t);
  if (format.element == ElementType::kFp16) widths[kMaster] = kFloatBytes;
  return widths;
}

// The slots of one update, by kind. Old moments are absent before the first.
struct BundleSlots {
  KindMap<HostChunk> old;
  KindMap<HostChunk> fresh;
};

absl::StatusOr<BundleSlots> TakeSlots(ChunkStore& store, BundleId bundle) {
  BundleSlots slots;
  for (const ChunkKind kind : TrainableKinds(store.format())) {
    const ChunkId chunk = ChunkOf(bundle, kind);
    if (IsMoment(kind) && !store.HasPayload(chunk)) continue;
    GEMINI_ASSIGN_OR_RETURN(slots.old[kind], store.AcquireForUpdate(chunk));
  }
  for (const ChunkKind kind : UpdatedKinds(store.format())) {
    GEMINI_ASSIGN_OR_RETURN(slots.fresh[kind], store.AcquireSpareForUpdate());
  }
  return slots;
}

// Elements that follow one another in one chunk of each state.
struct Stretch {
  int64_t first = 0;  // In the bundle.
  int64_t count = 0;
  // Addresses of element `first`; null: there is none.
  std::array<const std::byte*, kNumStates> old = {};
  std::array<std::byte*, kNumStates> fresh = {};
  const std::byte* grad = nullptr;
  // Scales of 8-bit moments, of the block that begins at element `first`; other moments have none.
  std::array<const float*, kNumStates> old_scales = {};
  std::array<float*, kNumStates> fresh_scales = {};
};

// Adds the 8-bit moments of a stretch, which are all in one chunk. `old` may be null: zeros.
void AddQuantisedMoments(const QuantisedMomentsChunk& place, const std::byte* old, std::byte* fresh,
                         Stretch& at) {
  const int64_t first_block = at.first / kQuantisationBlockElements;
  for (const auto& [state, kind] :
       {std::pair(kExpAvg, ChunkKind::kExpAvg), std::pair(kExpAvgSq, ChunkKind::kExpAvgSq)}) {
    if (state == kExpAvgSq && place.num_moments < 2) break;
    at.fresh[state] = fresh + place.codes_offset(kind) + at.first;
    at.fresh_scales[state] =
        reinterpret_cast<float*>(fresh + place.scales_offset(kind)) + first_block;
    if (old == nullptr) continue;
    at.old[state] = old + place.codes_offset(kind) + at.first;
    at.old_scales[state] =
        reinterpret_cast<const float*>(old + place.scales_offset(kind)) + first_block;
  }
}

// The bundle's elements in one stretch, or in two where a state fills two chunks. By kind: where
// its bytes are, and where they are to be; null: nowhere.
std::vector<Stretch> StretchesOf(const KindMap<const std::byte*>& old,
                                 const KindMap<std::byte*>& fresh, const StateFormat& format,
                                 int64_t chunk_bytes) {
  constexpr std::array kFirstKinds = {ChunkKind::kParam, ChunkKind::kMaster, ChunkKind::kExpAvg,
                                      ChunkKind::kExpAvgSq};
  constexpr std::array kUpperKinds = {ChunkKind::kParam, ChunkKind::kMasterUpper,
                                      ChunkKind::kExpAvgUpper, ChunkKind::kExpAvgSqUpper};
  const std::array<int64_t, kNumStates> widths = WidthsOf(format);
  const int64_t width = *std::ranges::max_element(widths);
  const int64_t num_elements = PayloadBytes(format, chunk_bytes) / widths[kParam];
  const int64_t most = chunk_bytes / width;
  const bool is_quantised = format.moments == MomentFormat::k8Bit;
  std::vector<Stretch> stretches;
  for (int64_t first = 0; first < num_elements; first += most) {
    Stretch stretch = {.first = first, .count = std::min(most, num_elements - first)};
    if (is_quantised) {
      AddQuantisedMoments(QuantisedMomentsOf(format, chunk_bytes), old[ChunkKind::kExpAvg],
                          fresh[ChunkKind::kExpAvg], stretch);
    }
    for (int state = 0; state < (is_quantised ? kExpAvg : kNumStates); ++state) {
      const bool upper = first * widths[state] >= chunk_bytes;
      const ChunkKind kind = (upper ? kUpperKinds : kFirstKinds)[state];
      const int64_t offset = first * widths[state] - (upper ? chunk_bytes : 0);
      if (old[kind] != nullptr) stretch.old[state] = old[kind] + offset;
      if (fresh[kind] != nullptr) stretch.fresh[state] = fresh[kind] + offset;
    }
    stretch.grad = old[ChunkKind::kGrad] + first * widths[kParam];
    stretches.push_back(stretch);
  }
  return stretches;
}

// Nothing: to nearest.
std::optional<StochasticRounding> RoundingOf(const Intent& intent, int64_t tensor) {
  if (intent.rounding_seed == 0) return std::nullopt;
  return StochasticRounding{.seed = intent.rounding_seed + static_cast<uint64_t>(tensor),
                            .step = intent.tensors[tensor].step};
}

// Runs of elements of one tensor, or of none, that are in a part of a stretch and cover it. Any
// thread.
class BundleUpdate {
 public:
  BundleUpdate(const StateFormat& format, const Intent& intent)
      : format_(format), widths_(WidthsOf(format)), intent_(intent) {}

  // Elements [part_begin, part_end) of the stretch: whole blocks of 8-bit moments, if not to its
  // end.
  void Run(const Stretch& at, int64_t part_begin, int64_t part_end,
           absl::Span<const TensorPiece> pieces) const {
    int64_t done = part_begin;
    for (const TensorPiece& piece : pieces) {
      const auto [begin, end] = Within(at, piece, done, part_end);
      if (end <= begin) continue;
      Zero(at, done, begin);
      if (intent_.tensors[piece.tensor].has_gradient) {
        UpdateRun(at, begin, end, piece);
      } else {
        Keep(at, begin, end);
      }
      done = end;
    }
    Zero(at, done, part_end);
  }

  // The same of all of a stretch whose old bytes become the new ones: what keeps its value is left
  // alone.
  void RunInPlace(const Stretch& at, absl::Span<const TensorPiece> pieces,
                  DeviceKernels& kernels) const {
    for (const TensorPiece& piece : pieces) {
      const auto [begin, end] = Within(at, piece, 0, at.count);
      if (end <= begin || !intent_.tensors[piece.tensor].has_gradient) continue;
      kernels.Update(SettingsOf(intent_, piece.tensor), StreamsOf(at, begin), end - begin);
    }
  }

 private:
  // The elements of the piece among [begin, end) of the stretch.
  std::pair<int64_t, int64_t> Within(const Stretch& at, const TensorPiece& piece, int64_t begin,
                                     int64_t end) const {
    const int64_t first = piece.chunk_offset_bytes / widths_[kParam] - at.first;
    return {std::max(first, begin), std::min(first + piece.size_bytes / widths_[kParam], end)};
  }

  // Padding: spare slots hold other chunks' old bytes.
  void Zero(const Stretch& at, int64_t begin, int64_t end) const {
    for (int state = 0; state < kNumStates; ++state) {
      if (at.fresh[state] == nullptr) continue;
      std::memset(at.fresh[state] + begin * widths_[state], 0,
                  static_cast<size_t>((end - begin) * widths_[state]));
      if (at.fresh_scales[state] == nullptr) continue;
      // Only the blocks that begin here, because the one before may end here, too.
      std::fill(at.fresh_scales[state] + BlocksOf(begin), at.fresh_scales[state] + BlocksOf(end),
                0);
    }
  }

  // The values of a tensor without a gradient. A moment that was never written counts as zeros.
  void Keep(const Stretch& at, int64_t begin, int64_t end) const {
    for (int state = 0; state < kNumStates; ++state) {
      if (at.fresh[state] == nullptr) continue;
      std::byte* const to = at.fresh[state] + begin * widths_[state];
      const auto size = static_cast<size_t>((end - begin) * widths_[state]);
      if (at.old[state] != nullptr) {
        std::memcpy(to, at.old[state] + begin * widths_[state], size);
      } else {
        std::memset(to, 0, size);
      }
      if (at.fresh_scales[state] == nullptr) continue;
      float* const scales = at.fresh_scales[state] + BlocksOf(begin);
      const int64_t blocks = BlocksOf(end) - BlocksOf(begin);
      if (at.old_scales[state] != nullptr) {
        std::copy_n(at.old_scales[state] + BlocksOf(begin), blocks, scales);
      } else {
        std::fill_n(scales, blocks, 0);
      }
    }
  }

  // Blocks of 8-bit moments that begin below `element`.
  static int64_t BlocksOf(int64_t element) {
    return (element + kQuantisationBlockElements - 1) / kQuantisationBlockElements;
  }

  const std::byte* Old(const Stretch& at, int64_t begin, State state) const {
    return at.old[state] == nullptr ? nullptr : at.old[state] + begin * widths_[state];
  }
  std::byte* Fresh(const Stretch& at, int64_t begin, State state) const {
    return at.fresh[state] == nullptr ? nullptr : at.fresh[state] + begin * widths_[state];
  }

  // From element `begin` of the stretch on. Without 8-bit moments.
  UpdateStreams StreamsOf(const Stretch& at, int64_t begin) const {
    UpdateStreams streams = {.param_type = format_.element,
                             .grad_type = format_.element,
                             .param = Old(at, begin, kParam),
                             .master = Old(at, begin, kMaster),
                             .grad = at.grad + begin * widths_[kParam],
                             .new_param = Fresh(at, begin, kParam),
                             .new_master = Fresh(at, begin, kMaster)};
    if (format_.moments != MomentFormat::kFp32) return streams;
    streams.exp_avg = reinterpret_cast<const float*>(Old(at, begin, kExpAvg));
    streams.exp_avg_sq = reinterpret_cast<const float*>(Old(at, begin, kExpAvgSq));
    streams.new_exp_avg = reinterpret_cast<float*>(Fresh(at, begin, kExpAvg));
    streams.new_exp_avg_sq = reinterpret_cast<float*>(Fresh(at, begin, kExpAvgSq));
    return streams;
  }

  void UpdateRun(const Stretch& at, int64_t begin, int64_t end, const TensorPiece& piece) const {
    const UpdateStreams streams = StreamsOf(at, begin);
    const UpdateSettings settings = SettingsOf(intent_, piece.tensor);
    if (format_.moments == MomentFormat::kFp32) {
      return UpdateElements(settings, streams, end - begin);
    }
    const auto moment = [&](State state) {
      const auto after = [&](auto* scales) {
        return scales == nullptr ? nullptr : scales + BlocksOf(begin);
      };
      return QuantisedMoment{.codes = reinterpret_cast<const uint8_t*>(Old(at, begin, state)),
                             .scales = after(at.old_scales[state]),
                             .new_codes = reinterpret_cast<uint8_t*>(Fresh(at, begin, state)),
                             .new_scales = after(at.fresh_scales[state])};
    };
    const std::optional<StochasticRounding> rounding = RoundingOf(intent_, piece.tensor);
    const int64_t first_element =
        at.first + begin + (piece.tensor_offset_bytes - piece.chunk_offset_bytes) / widths_[kParam];
    UpdateElementsQuantised(settings, streams,
                            {.exp_avg = moment(kExpAvg), .exp_avg_sq = moment(kExpAvgSq)},
                            first_element, end - begin, rounding ? &*rounding : nullptr);
  }

  const StateFormat& format_;
  const std::array<int64_t, kNumStates> widths_;
  const Intent& intent_;
};

}  // namespace

UpdateSettings SettingsOf(const Intent& intent, int64_t index) {
  const TensorIntent& tensor = intent.tensors[index];
  const GroupIntent group = intent.group(tensor.group);
  return {.kind = intent.optimizer,
          .learning_rate = group.learning_rate,
          .beta1 = group.beta1,
          .beta2 = group.beta2,
          .epsilon = group.epsilon,
          .weight_decay = tensor.decayed ? group.weight_decay : 0,
          .momentum = group.momentum,
          .dampening = group.dampening,
          .nesterov = group.nesterov,
          .step = tensor.step,
          .gradient_scale = intent.gradient_scale,
          .trust_ratio = tensor.trust_ratio};
}

absl::StatusOr<bool> UpdateBundle(ChunkStore& store, BundleId bundle,
                                  absl::Span<const TensorPiece> pieces, const Intent& intent,
                                  WorkerTeam& team) {
  const bool changes = !intent.skip && std::ranges::any_of(pieces, [&](const TensorPiece& piece) {
    return intent.tensors[piece.tensor].has_gradient;
  });
  if (!changes) {
    GEMINI_RETURN_IF_ERROR(store.Commit(bundle, intent.step, {}));
    return false;
  }
  GEMINI_ASSIGN_OR_RETURN(BundleSlots slots, TakeSlots(store, bundle));
  const BundleUpdate update(store.format(), intent);
  KindMap<const std::byte*> old;
  KindMap<std::byte*> new_bytes;
  for (const ChunkKind kind : kAllChunkKinds) {
    if (slots.old[kind]) old[kind] = slots.old[kind].data();
    if (slots.fresh[kind]) new_bytes[kind] = slots.fresh[kind].data();
  }
  for (const Stretch& stretch : StretchesOf(old, new_bytes, store.format(), store.chunk_bytes())) {
    team.Run(stretch.count, kUpdatePartElements,
             [&](int64_t begin, int64_t end) { update.Run(stretch, begin, end, pieces); });
  }
  std::vector<std::pair<ChunkKind, HostChunk>> fresh;
  for (const ChunkKind kind : UpdatedKinds(store.format())) {
    fresh.emplace_back(kind, std::move(slots.fresh[kind]));
  }
  slots = {};  // So that the old slots are free with the commit.
  GEMINI_RETURN_IF_ERROR(store.Commit(bundle, intent.step, absl::MakeSpan(fresh)));
  return true;
}

void UpdateInPlace(const BundleInPlace& bundle, const StateFormat& format, int64_t chunk_bytes,
                   absl::Span<const TensorPiece> pieces, const Intent& intent,
                   DeviceKernels& kernels) {
  KindMap<const std::byte*> old;
  for (const ChunkKind kind : kAllChunkKinds) old[kind] = bundle.chunks[kind];
  const BundleUpdate update(format, intent);
  for (const Stretch& stretch : StretchesOf(old, bundle.chunks, format, chunk_bytes)) {
    update.RunInPlace(stretch, pieces, kernels);
  }
}

}  // namespace gemini::client
