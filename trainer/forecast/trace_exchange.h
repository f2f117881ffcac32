// SPDX-License-Identifier: Apache-2.0
// Encodes what gemini-trace reads and writes. A request is a line of JSON. A reply is a line of
// JSON, then the bytes of the trace (gemini/plan/trace_wire.h), then names: a line for each tensor,
// and one for each operator behind the two numbers of its need. A file of one reply is a trace that
// somebody kept.
// Errors: INVALID_ARGUMENT for what is no request or no reply; the message says what is wrong.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/families/task_choice.h"
#include "trainer/forecast/named_trace.h"

namespace gemini::trainer {

// Every line that gemini-trace writes has its version by this key.
inline constexpr char kTraceVersionKey[] = "gemini_trace";

struct TraceRequest {
  RoundShape round = {.sequence = 0};  // Sequence 0: what the model has, at most 1,024.
  ComputeRate rate = {};
  TaskWish task = {};  // Names of labels are left out: a step does not depend on them.
};

// The first line of a reply.
struct TraceReplyHeader {
  absl::Status refused;     // Why there is no trace. If it is OK, there is one.
  std::string version;      // Of the Gemini that wrote it.
  std::string model;        // Its directory and type, for people.
  TraceRequest request;     // With the sequence that was taken.
  int64_t trace_bytes = 0;  // <= kMaxTraceBytes.
  int64_t names_bytes = 0;  // <= kMaxNamesBytes. They follow the trace.
};
inline constexpr int64_t kMaxNamesBytes = int64_t{1} << 30;

struct TraceReply {
  std::string model;
  TraceRequest request;
  NamedTrace made;
};

// Without the line's end.
std::string EncodeRequest(const TraceRequest& request);
// Keys that are left out keep their defaults; an unknown one is refused by name.
absl::StatusOr<TraceRequest> ParseRequest(absl::string_view line);

// A whole reply: a refusal, if the trace is larger than kMaxTraceBytes.
std::string EncodeReply(const TraceReply& reply);
// The same for a request that was refused. LeastDeviceBytes of the status comes through.
std::string EncodeReply(const absl::Status& refused);
// `line` has no line's end.
absl::StatusOr<TraceReplyHeader> ParseReplyHeader(absl::string_view line);
// `rest` has the bytes behind the line. The error may also be that with which the request was
// refused.
absl::StatusOr<TraceReply> ParseReply(const TraceReplyHeader& header, absl::string_view rest);
// The same of a file's whole text.
absl::StatusOr<TraceReply> ParseReply(absl::string_view text);

}  // namespace gemini::trainer
