// SPDX-License-Identifier: Apache-2.0
#include "client/torch/hook/storage_access_2_11.h"

#include <functional>
#include <string>
#include <variant>

#include "torch/version.h"

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 11,
              "private members of another Torch version: check them and add a file for it");

namespace gemini::client::hooks {
namespace {

// An explicit instantiation may name private members ([temp.spec]/6); the friend hands them out.
template <typename Tag, auto kMember>
struct Expose {
  friend constexpr auto MemberOf(Tag) { return kMember; }
};
#define GEMINI_EXPOSE(tag, type, member) \
  struct tag {                           \
    friend constexpr auto MemberOf(tag); \
  };                                     \
  template struct Expose<tag, &type::member>

GEMINI_EXPOSE(StorageDataPtr, c10::StorageImpl, data_ptr_);
GEMINI_EXPOSE(StorageHasCheck, c10::StorageImpl, has_mutable_data_ptr_check_);
GEMINI_EXPOSE(StorageThrows, c10::StorageImpl, throw_on_immutable_data_ptr_);
GEMINI_EXPOSE(DataPtrPointer, c10::DataPtr, ptr_);
GEMINI_EXPOSE(PointerAddress, c10::detail::UniqueVoidPtr, data_);
GEMINI_EXPOSE(FunctionDescriptor, at::RecordFunction, fn_);

}  // namespace

void SetStorageAddress(c10::StorageImpl& storage, void* address) {
  c10::DataPtr& data_ptr = storage.*MemberOf(StorageDataPtr{});
  data_ptr.*MemberOf(DataPtrPointer{}).*MemberOf(PointerAddress{}) = address;
}

void SetRawReadsRaise(c10::StorageImpl& storage, bool raise) {
  storage.*MemberOf(StorageThrows{}) = raise;
  storage.*MemberOf(StorageHasCheck{}) = raise;
}

const c10::FunctionSchema* SchemaOf(const at::RecordFunction& function) {
  const auto* schema =
      std::get_if<at::RecordFunction::schema_ref_t>(&(function.*MemberOf(FunctionDescriptor{})));
  return schema == nullptr ? nullptr : &schema->get();
}

}  // namespace gemini::client::hooks
