// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/pipeline_job.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "benchmark/benchmark.h"
#include "gemini/crc32c.h"
#include "gemini/plan/spare_slots.h"
#include "gemini/state_format.h"
#include "gemini/system/status_macros.h"
#include "trainer/families/hf_config.h"
#include "trainer/models/staged_model.h"

namespace gemini::bench {
namespace {

using client::HostChunk;
using Clock = std::chrono::steady_clock;

constexpr StateFormat kFormat = {.element = ElementType::kBf16};
constexpr int64_t kElementsOfChunk = PipelineJob::kChunkBytes / 2;

// The parameters of the smallest GPT-2, of 12 layers and a width of 768, with a smaller vocabulary:
// 92 M.
absl::StatusOr<std::vector<trainer::ParameterShape>> Parameters() {
  GEMINI_ASSIGN_OR_RETURN(
      const trainer::HfConfig config,
      trainer::ParseHfConfig(R"({"model_type":"gpt2","vocab_size":8192})", "pipeline_job"));
  GEMINI_ASSIGN_OR_RETURN(
      const std::unique_ptr<trainer::StagedModel> model,
      trainer::MakeStagedModel(config.spec, torch::dtype(torch::kBFloat16).device(torch::kMeta)));
  return trainer::ParameterShapesOf(*model);
}

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Small numbers of both signs: bf16 around 2^-11.
void FillGradient(const std::byte* param, int64_t step, std::byte* grad) {
  const auto* const from = reinterpret_cast<const uint16_t*>(param);
  auto* const to = reinterpret_cast<uint16_t*>(grad);
  const auto salt = static_cast<uint16_t>(0x9e37 * step);
  for (int64_t i = 0; i < kElementsOfChunk; ++i) {
    const auto mixed = static_cast<uint16_t>((from[i] + static_cast<uint16_t>(i)) * 40503u + salt);
    to[i] = static_cast<uint16_t>(0x3a00 | (mixed & 0x80ff));
  }
}

// One round of arithmetic on what the nearest cache holds.
void WorkOnce(std::array<float, 1024>& values) {
  for (float& value : values) value = value * 0.999f + 0.001f;
  benchmark::DoNotOptimize(values.data());
  benchmark::ClobberMemory();
}

// Returns the rate of WorkOnce. It is measured once, so that all jobs of a process work as much,
// however fast the processor was at their start.
double RoundsPerSecond() {
  static const double rounds_per_second = [] {
    std::array<float, 1024> values = {};
    constexpr int kRounds = 200'000;
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kRounds; ++i) WorkOnce(values);
    return kRounds / SecondsSince(start);
  }();
  return rounds_per_second;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PipelineJob>> PipelineJob::Start(const std::string& nvme_directory) {
  std::unique_ptr<PipelineJob> job(new PipelineJob);
  GEMINI_RETURN_IF_ERROR(job->Open(nvme_directory));
  GEMINI_RETURN_IF_ERROR(job->Load());
  job->updates_ = std::make_unique<client::UpdateQueue>(
      *job->store_, nullptr,
      [job = job.get()](BundleId bundle) {
        return client::UpdateBundle(*job->store_, bundle, job->pieces_[bundle.value()],
                                    job->intent_, job->session_->update_team());
      },
      [](const absl::Status&) {});
  return job;
}

PipelineJob::~PipelineJob() { updates_.reset(); }

absl::Status PipelineJob::Open(const std::string& nvme_directory) {
  const bool on_nvme = !nvme_directory.empty();
  std::vector<TensorSpec> specs;
  GEMINI_ASSIGN_OR_RETURN(const std::vector<trainer::ParameterShape> parameters, Parameters());
  for (const trainer::ParameterShape& parameter : parameters) {
    specs.push_back({parameter.name, 2 * parameter.num_elements(), TensorGroup::kTrainable});
    num_elements_ += parameter.num_elements();
  }
  num_tensors_ = static_cast<int64_t>(specs.size());
  GEMINI_ASSIGN_OR_RETURN(const Layout layout, Layout::Pack(specs, kChunkBytes));
  pieces_.resize(layout.num_bundles());
  for (int64_t i = 0; i < num_tensors_; ++i) {
    const TensorPlace& place = layout.place(i);
    for (int64_t part = 0; part < place.num_bundles; ++part) {
      const int64_t begin = part * kChunkBytes;
      pieces_[place.first_bundle.value() + part].push_back(
          {.tensor = i,
           .chunk_offset_bytes = part == 0 ? place.offset_bytes : 0,
           .tensor_offset_bytes = begin,
           .size_bytes = std::min(specs[i].size_bytes - begin, kChunkBytes)});
    }
  }
  const int64_t num_bundles = layout.num_bundles();
  const int64_t states = UpdatedKinds(kFormat).size() - 1;
  const int64_t in_host = on_nvme ? 2 : TrainableKinds(kFormat).size();
  const client::SpaceOptions space = {.name = "job",
                                      .num_bundles = num_bundles,
                                      .host_slots = num_bundles * in_host + SpareSlots(kFormat) +
                                                    (on_nvme ? StateWindowSlots(kFormat) : 0),
                                      .nvme_slots = on_nvme ? num_bundles * states : 0,
                                      .num_tensors = num_tensors_,
                                      .format = kFormat,
                                      .states_on_nvme = on_nvme};
  host_bytes_ = space.host_slots * kChunkBytes;
  client::SessionOptions options;
  options.chunk_bytes = kChunkBytes;
  options.label = "gemini-bench";
  options.want_bytes[Tier::kHost] = host_bytes_;
  options.want_bytes[Tier::kNvme] = space.nvme_slots * kChunkBytes;
  options.floor_bytes = options.want_bytes;
  server::ServerOptions server_options;
  server_options.capacity_bytes = options.want_bytes;
  if (on_nvme) {
    server_options.nvme_directories = {
        {.path = nvme_directory, .capacity_bytes = options.want_bytes[Tier::kNvme]}};
  }
  GEMINI_ASSIGN_OR_RETURN(server_, server::EmbeddedServer::Start(server_options));
  GEMINI_ASSIGN_OR_RETURN(UniqueFd socket, server_->Connect());
  GEMINI_ASSIGN_OR_RETURN(session_, client::Session::Open(std::move(socket), options));
  GEMINI_ASSIGN_OR_RETURN(store_, session_->OpenSpace(space));
  return absl::OkStatus();
}

// Parameters around 2^-7 of both signs, and masters of their low halves.
absl::Status PipelineJob::Load() {
  for (int64_t bundle = 0; bundle < store_->num_bundles(); ++bundle) {
    std::vector<std::pair<ChunkKind, HostChunk>> fresh;
    for (const ChunkKind kind : {ChunkKind::kParam, ChunkKind::kMaster}) {
      GEMINI_ASSIGN_OR_RETURN(HostChunk chunk, store_->AcquireSpare());
      auto* const words = reinterpret_cast<uint16_t*>(chunk.data());
      for (int64_t i = 0; i < kElementsOfChunk; ++i) {
        const auto mixed = static_cast<uint16_t>((bundle + i) * 40503u);
        words[i] = kind == ChunkKind::kParam ? (0x3c00 | (mixed & 0x80ff)) : mixed;
      }
      fresh.emplace_back(kind, std::move(chunk));
    }
    GEMINI_RETURN_IF_ERROR(store_->Commit(BundleId(bundle), 0, absl::MakeSpan(fresh)));
  }
  return absl::OkStatus();
}

void PipelineJob::Work(double seconds) {
  std::array<float, 1024> values = {};
  const auto rounds = static_cast<int64_t>(seconds * RoundsPerSecond());
  for (int64_t i = 0; i < rounds; ++i) WorkOnce(values);
}

absl::Status PipelineJob::Forward() {
  for (int64_t bundle = 0; bundle < store_->num_bundles(); ++bundle) {
    GEMINI_ASSIGN_OR_RETURN(const HostChunk param,
                            store_->Acquire(ChunkOf(BundleId(bundle), ChunkKind::kParam)));
    Work(work_ns_ * 1e-9 * kElementsOfChunk);
  }
  return absl::OkStatus();
}

absl::Status PipelineJob::Backward() {
  for (int64_t bundle = store_->num_bundles() - 1; bundle >= 0; --bundle) {
    GEMINI_ASSIGN_OR_RETURN(const HostChunk param,
                            store_->Acquire(ChunkOf(BundleId(bundle), ChunkKind::kParam)));
    Work(2 * work_ns_ * 1e-9 * kElementsOfChunk);
    GEMINI_ASSIGN_OR_RETURN(const HostChunk grad, store_->AcquireToOverwrite(
                                                      ChunkOf(BundleId(bundle), ChunkKind::kGrad)));
    FillGradient(param.data(), intent_.step, grad.data());
  }
  return absl::OkStatus();
}

absl::Status PipelineJob::Update() {
  GEMINI_RETURN_IF_ERROR(updates_->Finish());
  const int64_t step = intent_.step + 1;
  intent_.step = step;
  intent_.learning_rate = 1e-4;
  intent_.beta1 = 0.9;
  intent_.beta2 = 0.95;
  intent_.epsilon = 1e-8;
  intent_.weight_decay = 0.1;
  intent_.tensors.assign(num_tensors_, {.has_gradient = true, .decayed = true, .step = step});
  std::vector<BundleId> bundles;
  for (int64_t bundle = 0; bundle < store_->num_bundles(); ++bundle) {
    bundles.push_back(BundleId(bundle));
  }
  GEMINI_RETURN_IF_ERROR(store_->updates().Begin(intent_, bundles));
  updates_->Wake();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> PipelineJob::Run(int steps) {
  std::vector<double> seconds;
  for (int i = 0; i < steps; ++i) {
    const Clock::time_point start = Clock::now();
    GEMINI_RETURN_IF_ERROR(Forward());
    GEMINI_RETURN_IF_ERROR(Backward());
    GEMINI_RETURN_IF_ERROR(Update());
    if (i > 0) seconds.push_back(SecondsSince(start));
  }
  GEMINI_RETURN_IF_ERROR(updates_->Finish());
  return seconds;
}

absl::StatusOr<uint32_t> PipelineJob::Checksum() {
  std::vector<uint32_t> sums;
  for (int64_t bundle = 0; bundle < store_->num_bundles(); ++bundle) {
    for (const ChunkKind kind : UpdatedKinds(kFormat)) {
      GEMINI_ASSIGN_OR_RETURN(const HostChunk chunk,
                              store_->Acquire(ChunkOf(BundleId(bundle), kind)));
      sums.push_back(Crc32c({chunk.data(), static_cast<size_t>(kChunkBytes)}));
    }
  }
  return Crc32c({reinterpret_cast<const std::byte*>(sums.data()), sums.size() * sizeof(uint32_t)});
}

}  // namespace gemini::bench
