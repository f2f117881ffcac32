// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/probe/vmm_peers.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "tests/gpu/probe/driver.h"
#include "tests/gpu/probe/memory_file.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/probe_kernels.h"
#include "tests/gpu/probe/spinning_kernel.h"
#include "tests/gpu/probe/vmm_memory.h"

namespace gemini::probe {
namespace {

constexpr size_t kRegisteredPiece = size_t{256} << 20;  // As slabs are.

struct Order {
  std::string name;
  int64_t number = 0;
  UniqueFd fd;
};

std::string TextOf(absl::string_view order, int64_t number) {
  return nlohmann::json{{"order", std::string(order)}, {"number", number}}.dump();
}

Order HearOrder(const Channel& parent) {
  Packet packet = parent.Hear();
  const nlohmann::json text = nlohmann::json::parse(packet.bytes);
  Order order;
  order.name = text["order"].get<std::string>();
  order.number = text["number"].get<int64_t>();
  if (!packet.fds.empty()) order.fd = std::move(packet.fds[0]);
  return order;
}

nlohmann::json ContextHere() {
  const Driver& driver = Driver::Get();
  CUcontext current = nullptr;
  CUresult result = driver.CtxGetCurrent(&current);
  if (result != CUDA_SUCCESS) return NameOf(result);
  unsigned flags = 0;
  int primary_is_active = 0;
  result = driver.DevicePrimaryCtxGetState(0, &flags, &primary_is_active);
  if (result != CUDA_SUCCESS) return NameOf(result);
  return current != nullptr || primary_is_active != 0;
}

// Calls, and where that is refused once more with a context. The text has what the first returned.
std::string TimedCall(absl::string_view name, const std::function<CUresult()>& call) {
  const absl::Time start = absl::Now();
  const CUresult result = call();
  const double microseconds = absl::ToDoubleMicroseconds(absl::Now() - start);
  if (result != CUDA_SUCCESS) {
    UseDevice();
    Need(call(), name);
  }
  return nlohmann::json{{"result", NameOf(result)}, {"microseconds", microseconds}}.dump();
}

void RunExporter(Channel& parent) {
  const Driver& driver = Driver::Get();
  nlohmann::json contexts;
  contexts["before cuInit"] = ContextHere();
  GEMINI_NEED(driver.Init(0));
  contexts["after cuInit"] = ContextHere();
  parent.Say(contexts.dump());
  const CUmemAllocationProp properties = DeviceMemory();
  CUmemGenericAllocationHandle handle = 0;
  for (;;) {
    const Order order = HearOrder(parent);
    if (order.name == "context") {
      parent.Say(ContextHere().dump());
    } else if (order.name == "create") {
      parent.Say(TimedCall("cuMemCreate", [&] {
        return driver.MemCreate(&handle, static_cast<size_t>(order.number), &properties, 0);
      }));
    } else if (order.name == "export") {
      int exported = -1;
      const std::string text = TimedCall("cuMemExportToShareableHandle", [&] {
        return driver.MemExportToShareableHandle(&exported, handle,
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
      });
      const UniqueFd fd(exported);
      parent.Say(text, fd.get());
    } else {
      NeedTrue(order.name == "release", absl::StrCat("an exporter knows of ", order.name));
      parent.Say(TimedCall("cuMemRelease", [&] { return driver.MemRelease(handle); }));
    }
  }
}

void RunImporter(Channel& parent) {
  UseDevice();
  parent.Say("ready");
  std::optional<VmmMapping> mapping;
  std::optional<FileMapping> file;
  std::optional<SpinningKernel> kernel;
  for (;;) {
    Order order = HearOrder(parent);
    if (order.name == "count") {
      const auto value = static_cast<uint32_t>(order.number);
      parent.Say(FractionOf(mapping->words(), mapping->num_words(), value).dump());
      continue;
    }
    if (order.name == "import") {
      const CUmemGenericAllocationHandle handle = Import(order.fd);
      order.fd.Reset();
      mapping.emplace(handle, order.number);
      GEMINI_NEED(Driver::Get().MemRelease(handle));
    } else if (order.name == "fill") {
      const auto value = static_cast<uint32_t>(order.number);
      GEMINI_NEED(FillWords(mapping->words(), mapping->num_words(), value, nullptr));
      GEMINI_NEED(::cudaDeviceSynchronize());
    } else if (order.name == "unmap") {
      mapping.reset();
    } else if (order.name == "register") {
      file.emplace(order.fd, order.number);
      for (size_t at = 0; at < file->size(); at += kRegisteredPiece) {
        GEMINI_NEED(::cudaHostRegister(file->data() + at,
                                       std::min(kRegisteredPiece, file->size() - at),
                                       cudaHostRegisterDefault));
      }
    } else {
      NeedTrue(order.name == "spin", absl::StrCat("an importer knows of ", order.name));
      kernel.emplace();
      kernel->Begin(absl::Seconds(order.number));
    }
    parent.Say("done");
  }
}

RemoteCall CallOf(const Packet& packet) {
  const nlohmann::json text = nlohmann::json::parse(packet.bytes);
  return {text["result"].get<std::string>(), text["microseconds"].get<double>()};
}

// Says the order and waits until it is done.
void Tell(const Process& process, absl::string_view order, int64_t number, int fd = -1) {
  process.channel().Say(TextOf(order, number), fd);
  process.channel().Await("done");
}

}  // namespace

Exporter::Exporter()
    : process_(RunExporter),
      contexts_at_start_(nlohmann::json::parse(process_.channel().Hear().bytes)) {}

nlohmann::json Exporter::HasContext() const {
  process_.channel().Say(TextOf("context", 0));
  return nlohmann::json::parse(process_.channel().Hear().bytes);
}

RemoteCall Exporter::Create(int64_t size_bytes) const {
  process_.channel().Say(TextOf("create", size_bytes));
  return CallOf(process_.channel().Hear());
}

RemoteCall Exporter::Export(UniqueFd& fd) const {
  process_.channel().Say(TextOf("export", 0));
  Packet packet = process_.channel().Hear();
  NeedTrue(packet.fds.size() == 1, "an exporter sends a descriptor");
  fd = std::move(packet.fds[0]);
  return CallOf(packet);
}

RemoteCall Exporter::Release() const {
  process_.channel().Say(TextOf("release", 0));
  return CallOf(process_.channel().Hear());
}

UniqueFd Exporter::CreateAndExport(int64_t size_bytes) const {
  Create(size_bytes);
  UniqueFd fd;
  Export(fd);
  return fd;
}

Importer::Importer() : process_(RunImporter) { process_.channel().Await("ready"); }

void Importer::Import(UniqueFd fd, int64_t size_bytes) const {
  Tell(process_, "import", size_bytes, fd.get());
}

void Importer::Fill(uint32_t value) const { Tell(process_, "fill", value); }

nlohmann::json Importer::Fraction(uint32_t value) const {
  const std::string answer = process_.channel().Ask(TextOf("count", value));
  nlohmann::json fraction = nlohmann::json::parse(answer, nullptr, /*allow_exceptions=*/false);
  // What is no JSON says why there is no answer.
  return fraction.is_discarded() ? nlohmann::json(answer) : fraction;
}

void Importer::Unmap() const { Tell(process_, "unmap", 0); }

void Importer::Register(const UniqueFd& file, int64_t size_bytes) const {
  Tell(process_, "register", size_bytes, file.get());
}

void Importer::Spin(int64_t seconds) const { Tell(process_, "spin", seconds); }

}  // namespace gemini::probe
