// SPDX-License-Identifier: Apache-2.0
// Reads the keys of one config.json, and remembers the first that is wrong, and which were asked
// for.
// Errors: status(). INVALID_ARGUMENT: a value of another type, or out of its range. UNIMPLEMENTED:
//         an activation or option that we do not have; the message lists what we have. After the
//         first nothing more is read.
// Thread: one at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json_fwd.hpp"
#include "trainer/families/model_spec.h"

namespace gemini::trainer {

class ConfigKeys {
 public:
  // `json` is an object; it and `where`, which names the source in messages, outlive this.
  ConfigKeys(const nlohmann::json& json, absl::string_view where) : json_(json), where_(where) {}

  const absl::Status& status() const { return status_; }

  // Whether the key is there with the value null. For some keys that means "none", while one that
  // is left out has its default.
  bool IsNull(const char* key) const;

  // Returns the keys that nobody asked for, those of objects with a path ("rope_scaling.alpha"), in
  // the order of the alphabet.
  std::vector<std::string> UnreadKeys() const;
  // Marks keys as asked for that are known to change nothing here.
  void Ignore(std::initializer_list<const char*> keys);

  // Each reads the first of its keys that is there and not null, and else leaves the value alone.
  void Size(std::initializer_list<const char*> keys, int64_t& value, int64_t minimum = 1);
  // A size of which each has modules and entries of lists of its own: they are bounded before these
  // take memory.
  void NumBlocks(std::initializer_list<const char*> keys, int64_t& value);
  void Sizes(const char* key, std::vector<int64_t>& values);  // A list of sizes from 0 on.
  // A size for both, or a list of a height and a width; each is 1 at least.
  void HeightAndWidth(const char* key, int64_t& height, int64_t& width);
  // A list of `count` numbers above 0. INVALID_ARGUMENT if it is not there.
  void RequiredPositives(const char* key, size_t count, std::vector<double>& values);
  void Probability(const char* key, double& value);  // From 0 to below 1.
  void Fraction(const char* key, double& value);     // Above 0, and at most 1.
  void Positive(const char* key, double& value);
  void RequiredPositive(const char* key, double& value);    // INVALID_ARGUMENT if it is not there.
  void PositiveOrNull(const char* key, double& value);      // Null makes it 0.
  void PositiveUnlessZero(const char* key, double& value);  // Zero leaves the value alone.
  void NotNegative(const char* key, double& value);
  void Flag(const char* key, bool& value);
  void ActivationKey(const char* key, Activation& value);
  // Sets `value` to the index in `names` of the text that was read. UNIMPLEMENTED: another text.
  void OneOf(std::initializer_list<const char*> keys, absl::Span<const absl::string_view> names,
             size_t& value);
  // The same for a list of `count` texts. INVALID_ARGUMENT: another length.
  void ListOf(const char* key, absl::Span<const absl::string_view> names, size_t count,
              std::vector<size_t>& values);
  // Calls `read` with the keys of the object found, if there is one that is not empty. What `read`
  // refuses is refused here, too.
  void Within(std::initializer_list<const char*> keys, absl::FunctionRef<void(ConfigKeys&)> read);

  // Refuses an option that we lack unless it is absent, null, false or 0.
  void MustBeOff(const char* key);
  // Refuses an option that cannot be switched off unless it is absent, null or true.
  void MustBeOn(const char* key);
  // Refuses a key with another value than `value`, unless it is absent or null.
  void MustBe(const char* key, double value);
  // Refuses a key that is there with the value null.
  void MustNotBeNull(const char* key);
  // Refuses a `whole` that is no multiple of `parts` (>= 1), by the names given.
  void MustDivide(absl::string_view what, int64_t whole, absl::string_view by, int64_t parts);
  // Refuses a `value` above `bound`, by the names given.
  void MustNotExceed(absl::string_view what, int64_t value, absl::string_view of, int64_t bound);
  // Refuses a `value` that is not below `bound`, by the names given.
  void MustBeBelow(absl::string_view what, int64_t value, absl::string_view of, int64_t bound);

 private:
  void SizeUpTo(std::initializer_list<const char*> keys, int64_t& value, int64_t minimum,
                int64_t maximum);
  std::pair<const char*, const nlohmann::json*> Find(std::initializer_list<const char*> keys);
  // Returns the index in `names` of `value`, the key's or a part of it; 0 if that is none.
  size_t IndexIn(absl::Span<const absl::string_view> names, const char* key,
                 const nlohmann::json& value);
  void Require(const char* key);
  void Refuse(absl::string_view key, const nlohmann::json& value, absl::string_view expected);
  void Unsupported(absl::string_view what);

  const nlohmann::json& json_;
  const absl::string_view where_;
  absl::Status status_;
  std::set<std::string, std::less<>> asked_;
  std::vector<std::string> unread_inside_;  // Of objects that were read.
};

}  // namespace gemini::trainer
